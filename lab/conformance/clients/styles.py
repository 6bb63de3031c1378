"""How users of three packages ask for a way of speaking; runs in each one's environment and imports nothing of ours.

python styles.py openai|elevenlabs|riva URL
"""

from __future__ import annotations

import sys

TEXT = "Hello there."


def main() -> None:
    client, url = sys.argv[1:]
    {"openai": _openai, "elevenlabs": _elevenlabs, "riva": _riva}[client](url)


def _openai(url: str) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="any")
    answer = client.audio.speech.with_raw_response.create(
        model="m", voice="anna", input=TEXT, response_format="pcm", instructions="Be kind."
    )
    assert answer.headers.get("x-ignored-fields") is None


def _elevenlabs(url: str) -> None:
    from elevenlabs.client import ElevenLabs

    speech = ElevenLabs(api_key="any", base_url=url).text_to_speech
    tagged = {"voice_id": "anna", "model_id": "eleven_v3", "text": f"[whispers] {TEXT}"}
    assert b"".join(speech.convert(output_format="pcm_24000", **tagged))


def _riva(url: str) -> None:
    import riva.client

    service = riva.client.SpeechSynthesisService(riva.client.Auth(uri=url, use_ssl=False))
    assert service.synthesize(TEXT, voice_name="cosydit.anna.Happy").audio


if __name__ == "__main__":
    main()
