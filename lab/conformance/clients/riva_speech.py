"""What a user of nvidia-riva-client does, once each; runs in its own environment and imports nothing of ours.

python riva_speech.py ADDRESS PROMPT DIRECTORY      writes audio and facts.json into DIRECTORY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import grpc
import riva.client
from riva.client.proto import riva_tts_pb2

TEXT = "Hello there."
LONG_TEXT = "Leave early."
RATES_HZ = {"LINEAR_PCM": 22050, "FLAC": 44100, "OGGOPUS": 22050, "MULAW": 8000, "ALAW": 8000}


def main() -> None:
    address, prompt, directory = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    service = riva.client.SpeechSynthesisService(riva.client.Auth(uri=address, use_ssl=False))
    facts: dict[str, Any] = {}
    for name, rate_hz in RATES_HZ.items():
        options = {"encoding": getattr(riva.client.AudioEncoding, name), "sample_rate_hz": rate_hz}
        (directory / f"whole.{name}").write_bytes(service.synthesize(TEXT, **options).audio)
        (directory / f"online.{name}").write_bytes(_joined(service.synthesize_online(TEXT, **options)))
    (directory / "default.raw").write_bytes(service.synthesize(TEXT, future=True).result().audio)
    texts = service.synthesize_online([TEXT, "Hello again."], voice_name="cosydit.anna", sample_rate_hz=16000)
    (directory / "texts.raw").write_bytes(_joined(texts))
    (directory / "prompted.raw").write_bytes(
        service.synthesize(TEXT, zero_shot_audio_prompt_file=prompt, zero_shot_transcript="I am new.").audio
    )
    prompted = service.synthesize_online(TEXT, zero_shot_audio_prompt_file=prompt)
    (directory / "prompted_online.raw").write_bytes(_joined(prompted))
    facts["words"] = _words([service.synthesize(TEXT, enable_word_time_offsets=True)])
    facts["online_words"] = _words(service.synthesize_online(TEXT, enable_word_time_offsets=True))
    facts["voices"] = _voices(service)
    facts["voice_error"] = _error_of(service, voice_name="nobody")
    facts["dictionary_error"] = _error_of(service, custom_dictionary={"NVIDIA": "ɛnˈvɪdiə"})
    _leave_early(service)
    (directory / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def _joined(answers: Any) -> bytes:
    return b"".join(answer.audio for answer in answers)


def _words(answers: Any) -> list[list[Any]]:
    return [[word.word, word.start_time, word.end_time] for answer in answers for word in answer.meta.words]


def _voices(service: riva.client.SpeechSynthesisService) -> list[str]:
    """List the voices as the client's own scripts do."""
    answer = service.stub.GetRivaSynthesisConfig(riva_tts_pb2.RivaSynthesisConfigRequest())
    return [
        f"{model.parameters['voice_name']}.{subvoice.split(':')[0]}"
        for model in answer.model_config
        for subvoice in model.parameters["subvoices"].split(",")
    ]


def _error_of(service: riva.client.SpeechSynthesisService, **options: Any) -> str | None:
    try:
        service.synthesize(TEXT, **options)
    except grpc.RpcError as error:
        return str(error.code().name)
    return None


def _leave_early(service: riva.client.SpeechSynthesisService) -> None:
    answers = service.synthesize_online(LONG_TEXT)
    next(answers)
    answers.cancel()


if __name__ == "__main__":
    main()
