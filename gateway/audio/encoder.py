"""The pipeline's samples in, a caller's bytes out, as early as the codec has them: speed, sample rate, codec.

One encoder serves one answer and one thread at a time. The codecs and the tempo filter need the `audio` extra (PyAV),
which is imported when it is first used; WAV, PCM, mu-law and A-law at any sample rate go without.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, ParamSpec

import numpy as np
import soxr

from gateway.audio.codecs import (
    WAV_HEADER_BYTES,
    G711Quantizer,
    StatelessCodec,
    alaw_levels,
    mulaw_levels,
    to_pcm16,
    wav_header,
)
from gateway.audio.formats import AudioFormat, OutputFormat
from gateway.core import FloatArray
from gateway.errors import UnsupportedOptionError
from servicekit.extras import install_command
from token2wav_service.contract import SAMPLE_RATE_HZ

if TYPE_CHECKING:
    from gateway.audio.ffmpeg import CompressedCodec, TempoChanger

# Passes 91 % of the narrower band and keeps what would fold back under 16-bit noise.
_QUALITY = "HQ"


class Resampler:
    """Converts 24 kHz audio to one other rate; output is the same however the input is cut."""

    def __init__(self, to_rate_hz: int) -> None:
        """Open a stream; it holds 20 to 80 ms back, the more the lower the rate."""
        self._stream = soxr.ResampleStream(SAMPLE_RATE_HZ, to_rate_hz, 1, dtype="float32", quality=_QUALITY)

    def push(self, samples: FloatArray) -> FloatArray:
        """Take [N] samples and return those that are ready."""
        return np.asarray(self._stream.resample_chunk(samples), np.float32)

    def finish(self) -> FloatArray:
        """Return the samples held back, so that the whole is as long as the input was."""
        return np.asarray(self._stream.resample_chunk(np.zeros(0, np.float32), last=True), np.float32)


logger = logging.getLogger(__name__)

NORMAL_SPEED = 1.0
MIN_SPEED = 0.25
MAX_SPEED = 4.0
_PLAIN_FORMATS = frozenset({AudioFormat.WAV, AudioFormat.PCM, AudioFormat.MULAW, AudioFormat.ALAW})
_HOW_TO_INSTALL = "install the package's extra `audio` on the server"


class AudioEncoder(AbstractContextManager["AudioEncoder"]):
    """One answer's way from samples to bytes; leaving its context frees the codec.

    The bytes of all calls, joined, are the same however the samples are cut.
    """

    def __init__(self, output: OutputFormat, speed: float = NORMAL_SPEED) -> None:
        """Start an answer.

        Args:
            output: what the caller asked for.
            speed: 0.25 to 4; above 1 is faster. The answer is round(samples / speed) long at 24 kHz.

        Raises:
            UnsupportedOptionError: the speed is out of range, or the `audio` extra is needed and not installed.
        """
        self.output, self.speed = output, speed
        self._stages: list[Resampler | TempoChanger] = []
        if speed != NORMAL_SPEED:
            if not MIN_SPEED <= speed <= MAX_SPEED:
                raise UnsupportedOptionError(f"got speed {speed}, expected {MIN_SPEED} to {MAX_SPEED}", param="speed")
            self._stages.append(_tempo_changer(speed))
        if output.codec_rate_hz != SAMPLE_RATE_HZ:
            self._stages.append(Resampler(output.codec_rate_hz))
        self._codec = _codec(output)
        self._is_open = True
        self.is_light = speed == NORMAL_SPEED and isinstance(self._codec, StatelessCodec)
        """Whether encoding takes so little time that it may run on an event loop."""

    def __exit__(self, *_: object) -> None:
        self.close()

    def encode(self, samples: FloatArray) -> bytes:
        """Take samples and return the bytes that are ready, maybe none; the header, if any, comes with the first call.

        Args:
            samples: [N] float32 in +-1 at 24 kHz; N may be 0.

        Raises:
            ValueError: the encoder is finished or closed.
        """
        self._check_open()
        for stage in self._stages:
            samples = stage.push(samples)
        return self._codec.encode(samples)

    def finish(self) -> bytes:
        """Return the rest; what was returned from the first call on is then a whole file. Closes the encoder.

        Raises:
            ValueError: the encoder is finished or closed.
        """
        self._check_open()
        tail = np.zeros(0, np.float32)
        for stage in self._stages:
            tail = np.concatenate([stage.push(tail), stage.finish()])
        data = self._codec.encode(tail) + self._codec.finish()
        self.close()
        return data

    def close(self) -> None:
        """Free the codec, finished or not; may be called again."""
        self._is_open = False
        self._stages = []
        self._codec.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise ValueError("this encoder is finished or closed; open another one for another answer")


def encode_whole(samples: FloatArray, output: OutputFormat, speed: float = NORMAL_SPEED) -> bytes:
    """Encode an answer that is there whole; a WAV then tells its true length.

    Args:
        samples: [N] float32 in +-1 at 24 kHz.
        output: what the caller asked for.
        speed: see `AudioEncoder`.

    Raises:
        UnsupportedOptionError: see `AudioEncoder`.
    """
    with AudioEncoder(output, speed) as encoder:
        data = encoder.encode(samples) + encoder.finish()
    if output.audio_format is not AudioFormat.WAV:
        return data
    return wav_header(output.codec_rate_hz, len(data) - WAV_HEADER_BYTES) + data[WAV_HEADER_BYTES:]


def load_codecs() -> frozenset[AudioFormat]:
    """Import PyAV, which takes 0.2 s, at start-up instead of in the first request; return the formats there are.

    Without it (the `audio` extra) they are fewer, which is logged.
    """
    try:
        from gateway.audio.ffmpeg import CODEC_SETTINGS
    except ImportError as error:
        missing = f"audio is wav, pcm, mulaw and alaw at speed 1.0 only; for all of it: {install_command('audio')}"
        logger.warning("%s (%s)", missing, error)
        return _PLAIN_FORMATS
    return _PLAIN_FORMATS | CODEC_SETTINGS.keys()


def _codec(output: OutputFormat) -> StatelessCodec | CompressedCodec:
    if output.audio_format is AudioFormat.WAV:
        return StatelessCodec(to_pcm16, wav_header(output.codec_rate_hz))
    if output.audio_format is AudioFormat.PCM:
        return StatelessCodec(to_pcm16)
    if output.audio_format is AudioFormat.MULAW:
        return StatelessCodec(G711Quantizer(mulaw_levels()).encode)
    if output.audio_format is AudioFormat.ALAW:
        return StatelessCodec(G711Quantizer(alaw_levels()).encode)
    return _compressed_codec(output)


def _compressed_codec(output: OutputFormat) -> CompressedCodec:
    name = output.audio_format.value
    try:
        from gateway.audio.ffmpeg import CompressedCodec
    except ImportError as error:
        raise UnsupportedOptionError(
            f"format {name} needs PyAV: {_HOW_TO_INSTALL}; wav, pcm, mulaw and alaw work without",
            param="response_format",
        ) from error
    try:
        return CompressedCodec(output)
    except ValueError as error:
        raise UnsupportedOptionError(
            f"this server's FFmpeg can't write {name} ({error}): {_HOW_TO_INSTALL}, or ask for wav or pcm",
            param="response_format",
        ) from error


def _tempo_changer(speed: float) -> TempoChanger:
    try:
        from gateway.audio.ffmpeg import TempoChanger
    except ImportError as error:
        raise UnsupportedOptionError(
            f"speed {speed} needs PyAV: {_HOW_TO_INSTALL}; 1.0 works without", param="speed"
        ) from error
    return TempoChanger(speed)


_P = ParamSpec("_P")


class AsyncEncoder(AbstractAsyncContextManager["AsyncEncoder"]):
    """An `AudioEncoder` beside an event loop, for one coroutine, which awaits each call before the next.

    Heavy codecs work in threads, where they let go of the interpreter's lock.

    A caller may be cancelled while its encoder works in a thread. Leaving the context then frees the codec as soon as
    that piece of work ends, and waits for nothing.
    """

    def __init__(self, encoder: AudioEncoder, executor: Executor) -> None:
        """Take over the encoder.

        Args:
            encoder: freshly opened.
            executor: threads for encoders that are not light; shared by all answers.
        """
        self._encoder = encoder
        self._executor = executor
        self._work_in_hand: Future[bytes] | None = None

    @property
    def output(self) -> OutputFormat:
        """What the caller asked for."""
        return self._encoder.output

    @property
    def is_light(self) -> bool:
        """See `AudioEncoder`."""
        return self._encoder.is_light

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def encode(self, samples: FloatArray) -> bytes:
        """See `AudioEncoder.encode`."""
        return await self._worked(self._encoder.encode, samples)

    async def end_turn(self, samples: FloatArray) -> bytes:
        """Take the last [N] samples of a turn and return the bytes that are ready.

        A turn without header is encoded to its last sample at once. In other formats the answer is one file, of which a
        codec may hold some hundredths of a second back until the next turn or the end.
        """
        data = await self.encode(samples)
        if self.output.audio_format not in _PLAIN_FORMATS - {AudioFormat.WAV}:
            return data
        rest = await self.finish()
        self._encoder = AudioEncoder(self.output, self._encoder.speed)
        return data + rest

    async def finish(self) -> bytes:
        """See `AudioEncoder.finish`."""
        return await self._worked(self._encoder.finish)

    def close(self) -> None:
        """Free the codec, once it does nothing any more; may be called again."""
        if self._work_in_hand is None:
            self._encoder.close()
        else:
            self._work_in_hand.add_done_callback(lambda _: self._encoder.close())

    async def _worked(self, work: Callable[_P, bytes], *args: _P.args, **kwargs: _P.kwargs) -> bytes:
        if self._encoder.is_light:
            return work(*args, **kwargs)
        self._work_in_hand = self._executor.submit(work, *args, **kwargs)
        return await asyncio.wrap_future(self._work_in_hand)
