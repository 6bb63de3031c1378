"""Bodies of ElevenLabs' HTTP answers: audio, or lines of JSON with audio and the times of its characters."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.audio import OutputFormat
from gateway.delivery import TurnEncoder, frames_of, timed
from gateway.host import Host
from gateway.speech.request import SpeechRequest, SpeechResult
from gateway.speech.text_clock import CharacterTime

_BASE64_GROUP_BYTES = 3
"""Bytes that base64 turns into four characters; whole groups need no padding."""
_DECIMALS = 3


@dataclass(frozen=True)
class ElevenLabsSpeech:
    """What one request asks for: the speech, and how it is encoded."""

    speech: SpeechRequest
    output: OutputFormat
    speed: float
    result: SpeechResult = field(default_factory=SpeechResult)
    """Result of the speech, filled in while it is spoken."""


async def whole_speech(host: Host, wanted: ElevenLabsSpeech) -> AsyncGenerator[bytes]:
    """Yield the bytes of one text's speech.

    Raises:
        GatewayError: see `Speaker.synthesize`; or the format or speed can't be had here.
    """
    async with TurnEncoder(wanted.output, host.executor, wanted.speed) as encoder:
        async with aclosing(host.pipeline.synthesize(wanted.speech, wanted.result)) as speech:
            async for chunk in speech:
                yield await encoder.encode(chunk.samples)
        yield await encoder.finish()


async def timestamped_lines(host: Host, wanted: ElevenLabsSpeech) -> AsyncGenerator[bytes]:
    """Yield lines of JSON, each with some audio and the characters that end in it; times count from the first sample.

    A line holds a tenth of a second: aiohttp's clients read no line that is longer than 128 KiB.

    Raises:
        GatewayError: see `whole_speech`.
    """
    held: list[CharacterTime] = []
    async with aclosing(_timestamped(host, wanted)) as pieces:
        async for encoded, characters in pieces:
            held.extend(characters)
            if encoded:
                yield _json({"audio_base64": _base64(encoded), **_alignments(held, wanted.speed)}) + b"\n"
                held = []
    if held:
        yield _json({"audio_base64": "", **_alignments(held, wanted.speed)}) + b"\n"


async def timestamped_object(host: Host, wanted: ElevenLabsSpeech) -> AsyncGenerator[bytes]:
    """Yield one JSON object with all of the audio, while it is made, and behind it the times of all characters.

    Raises:
        GatewayError: see `whole_speech`.
    """
    characters: list[CharacterTime] = []
    begin, rest = b'{"audio_base64":"', b""
    async with aclosing(_timestamped(host, wanted)) as pieces:
        async for encoded, new in pieces:
            characters.extend(new)
            rest += encoded
            whole = len(rest) // _BASE64_GROUP_BYTES * _BASE64_GROUP_BYTES
            if whole:
                yield begin + base64.b64encode(rest[:whole])
                begin, rest = b"", rest[whole:]
    yield begin + base64.b64encode(rest) + b'",' + _json(_alignments(characters, wanted.speed))[1:]


async def _timestamped(host: Host, wanted: ElevenLabsSpeech) -> AsyncGenerator[tuple[bytes, Sequence[CharacterTime]]]:
    """Yield encoded audio, maybe none, and the characters that end in it."""
    speech_asked, result, began_samples = replace(wanted.speech, wants_times=True), wanted.result, 0
    async with TurnEncoder(wanted.output, host.executor, wanted.speed) as encoder:
        async with aclosing(timed(host.pipeline.synthesize(speech_asked, result), result)) as speech:
            async for audio in speech:
                for frame in frames_of(audio, began_samples):
                    yield await encoder.encode(frame.samples), frame.characters
                began_samples += len(audio.samples)
        yield await encoder.finish(), ()


def _alignments(characters: Sequence[CharacterTime], speed: float) -> dict[str, Any]:
    """Return the times of the text as it was sent, which stand for those of the normalised text too."""
    alignment = None
    if characters:
        alignment = {
            "characters": [each.character for each in characters],
            "character_start_times_seconds": [round(each.start_s / speed, _DECIMALS) for each in characters],
            "character_end_times_seconds": [round(each.end_s / speed, _DECIMALS) for each in characters],
        }
    return {"alignment": alignment, "normalized_alignment": alignment}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
