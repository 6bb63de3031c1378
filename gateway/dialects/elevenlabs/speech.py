"""Bodies of ElevenLabs' HTTP answers: audio, or lines of JSON with audio and the times of its characters."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from gateway.audio import OutputFormat
from gateway.delivery.pacing import frames_of, timed
from gateway.delivery.turn_encoder import TurnEncoder
from gateway.host import Host
from gateway.speech.request import SpeechRequest, SpeechResult
from gateway.speech.text_clock import CharacterTime


@dataclass(frozen=True)
class SpeechOrder:
    """What one request asks for."""

    request: SpeechRequest
    output: OutputFormat
    speed: float


async def whole_speech(host: Host, order: SpeechOrder) -> AsyncGenerator[bytes]:
    """Yield the bytes of one text's speech.

    Raises:
        GatewayError: see `SpeechPipeline.synthesize`; or the format or speed can't be had here.
    """
    async with TurnEncoder(order.output, host.executor, order.speed) as encoder:
        async with aclosing(host.pipeline.synthesize(order.request)) as speech:
            async for chunk in speech:
                yield await encoder.encode(chunk.samples)
        yield await encoder.finish()


async def timestamped_speech(host: Host, order: SpeechOrder) -> AsyncGenerator[bytes]:
    """Yield lines of JSON, each with some audio and the characters that end in it; times count from the first sample.

    A line holds a tenth of a second: aiohttp's clients read no line that is longer than 128 KiB.

    Raises:
        GatewayError: see `whole_speech`.
    """
    result, lines, began_samples = SpeechResult(), _LineWriter(order.speed), 0
    async with TurnEncoder(order.output, host.executor, order.speed) as encoder:
        async with aclosing(timed(host.pipeline.synthesize(order.request, result), result)) as speech:
            async for audio in speech:
                for frame in frames_of(audio, began_samples):
                    yield lines.write(await encoder.encode(frame.samples), frame.characters)
                began_samples += len(audio.samples)
        yield lines.finish(await encoder.finish())


class _LineWriter:
    """Holds characters until there are bytes to go with."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._held: list[CharacterTime] = []

    def write(self, encoded: bytes, characters: Sequence[CharacterTime]) -> bytes:
        self._held.extend(characters)
        return self._line(encoded) if encoded else b""

    def finish(self, encoded: bytes) -> bytes:
        return self._line(encoded) if encoded or self._held else b""

    def _line(self, encoded: bytes) -> bytes:
        held, self._held = self._held, []
        alignment = self._alignment(held)
        line = {
            "audio_base64": base64.b64encode(encoded).decode("ascii"),
            "alignment": alignment,
            "normalized_alignment": alignment,
        }
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"

    def _alignment(self, characters: Sequence[CharacterTime]) -> dict[str, Any] | None:
        if not characters:
            return None
        return {
            "characters": [each.character for each in characters],
            "character_start_times_seconds": [self._seconds(each.start_s) for each in characters],
            "character_end_times_seconds": [self._seconds(each.end_s) for each in characters],
        }

    def _seconds(self, made_s: float) -> float:
        return round(made_s / self._speed, 3)
