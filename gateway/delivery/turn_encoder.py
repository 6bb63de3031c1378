"""Encodes the speech of one answer, turn by turn, in the format that the caller asked for."""

from __future__ import annotations

from concurrent.futures import Executor
from types import TracebackType

from gateway.audio import AsyncEncoder, AudioFormat, OutputFormat, open_encoder
from gateway.core import FloatArray

_HEADERLESS = (AudioFormat.PCM, AudioFormat.MULAW, AudioFormat.ALAW)
"""Formats without a header: the audio of several turns can be joined whatever encoder made each."""


class TurnEncoder:
    """One answer's encoder; leaving its context frees it.

    A turn without header is encoded to its last sample at once. In other formats the answer is one file, of which a
    codec may hold some hundredths of a second back until the next turn or the end.
    """

    def __init__(self, output: OutputFormat, executor: Executor, speed: float = 1.0) -> None:
        """Open the encoder.

        Args:
            output: what the caller asked for.
            executor: threads for the codecs that take time.
            speed: 0.25 to 4; above 1 is faster.

        Raises:
            UnsupportedOptionError: the server lacks the codec, or the speed is out of range.
        """
        self.output = output
        self._executor = executor
        self._speed = speed
        self._encoder = self._open()

    async def __aenter__(self) -> TurnEncoder:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def encode(self, samples: FloatArray) -> bytes:
        """Take [N] samples and return the bytes that are ready, maybe none."""
        return await self._encoder.encode(samples)

    async def end_turn(self, samples: FloatArray) -> bytes:
        """Take the last [N] samples of a turn and return the bytes that are ready."""
        data = await self._encoder.encode(samples)
        if self.output.audio_format not in _HEADERLESS:
            return data
        rest = await self._encoder.finish()
        self._encoder = self._open()
        return data + rest

    async def finish(self) -> bytes:
        """Return the rest."""
        return await self._encoder.finish()

    def close(self) -> None:
        """Free the codec; may be called again."""
        self._encoder.close()

    def _open(self) -> AsyncEncoder:
        return AsyncEncoder(open_encoder(self.output, self._speed), self._executor)
