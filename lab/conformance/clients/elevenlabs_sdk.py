"""What a user of the elevenlabs package does, once each; runs in its own environment and imports nothing of ours.

python elevenlabs_sdk.py URL DIRECTORY TLS_URL      writes audio and facts.json into DIRECTORY
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from elevenlabs import VoiceSettings
from elevenlabs.client import AsyncElevenLabs, ElevenLabs
from elevenlabs.core.api_error import ApiError

ONE, TWO = "This is the first sentence of it.", "And here comes the second one, longer."
BREAKING_TEXT, LONG_TEXT = "Break here, please, now.", "Leave early, please, now."
PCM: dict[str, Any] = {"voice_id": "anna", "model_id": "m", "output_format": "pcm_24000"}


def main() -> None:
    url, directory, tls_url = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    client = ElevenLabs(api_key="any", base_url=url)
    speech = client.text_to_speech
    facts: dict[str, Any] = {}
    (directory / "stream.pcm").write_bytes(b"".join(speech.stream(text=ONE, **PCM)))
    (directory / "convert.pcm").write_bytes(b"".join(speech.convert(text=ONE, **PCM)))
    (directory / "default.mp3").write_bytes(b"".join(speech.stream(text=ONE, voice_id="anna")))
    (directory / "timestamps.pcm").write_bytes(_timestamped(speech, facts))
    whole = speech.convert_with_timestamps(text=ONE, **PCM)
    (directory / "object.pcm").write_bytes(base64.b64decode(whole.audio_base_64))
    facts["object"] = ["".join(whole.alignment.characters), whole.alignment.character_end_times_seconds[-1]]
    asyncio.run(_speak_async(url, directory))
    facts["voice"] = client.voices.get("anna").labels
    facts["user"] = [client.user.get().subscription.status, client.user.subscription.get().tier]
    facts["all"] = [voice.voice_id for voice in client.voices.get_all().voices]
    found = client.voices.search()
    facts["found"] = [voice.voice_id for voice in found.voices]
    facts["has_more"] = found.has_more
    facts["unknown_voice"] = _error_of(lambda: b"".join(speech.stream(text=ONE, voice_id="nobody")))
    facts["no_text"] = _error_of(lambda: b"".join(speech.stream(text=" ", voice_id="anna")))
    leaving = iter(speech.stream(text=LONG_TEXT, **PCM))
    next(leaving)
    leaving.close()  # type: ignore[attr-defined]
    _speak_in_pieces(tls_url, directory, facts)
    (directory / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def _timestamped(speech: Any, facts: dict[str, Any]) -> bytes:
    audio, characters = b"", ""
    for part in speech.stream_with_timestamps(text=ONE, **PCM):
        audio += base64.b64decode(part.audio_base_64)
        if part.alignment is not None:
            characters += "".join(part.alignment.characters)
            facts["last_end_s"] = part.alignment.character_end_times_seconds[-1]
    facts["characters"] = characters
    return audio


async def _speak_async(url: str, directory: Path) -> None:
    client = AsyncElevenLabs(api_key="any", base_url=url)
    parts = [part async for part in client.text_to_speech.stream(text=ONE, **PCM)]
    (directory / "async.pcm").write_bytes(b"".join(parts))


def _speak_in_pieces(tls_url: str, directory: Path, facts: dict[str, Any]) -> None:
    """The WebSocket; this client speaks it over TLS only."""
    speech = ElevenLabs(api_key="any", base_url=tls_url).text_to_speech
    settings = VoiceSettings(stability=0.5, similarity_boost=0.5)
    parts = speech.convert_realtime(text=_words(f"{ONE} {TWO}"), voice_settings=settings, **PCM)
    (directory / "pieces.pcm").write_bytes(b"".join(parts))
    parts = speech.convert_realtime(text=_words(ONE), voice_id="anna")
    (directory / "pieces.mp3").write_bytes(b"".join(parts))
    facts["broken"] = _error_of(lambda: b"".join(speech.convert_realtime(text=_words(BREAKING_TEXT), **PCM)))
    leaving = speech.convert_realtime(text=_words(LONG_TEXT), **PCM)
    next(leaving)
    leaving.close()


def _words(text: str) -> Iterator[str]:
    for word in text.split():
        yield f"{word} "


def _error_of(call: Callable[[], object]) -> list[Any]:
    try:
        call()
    except ApiError as error:
        return [error.status_code, error.body]
    return []


if __name__ == "__main__":
    main()
