"""Faster or slower speech at the same pitch, while it is made. Needs the `audio` extra.

The work is FFmpeg's atempo filter (overlap-add of the best fitting windows). It is fed in blocks of one size, as its
output depends a little on how its input is cut, and its end is cut to the exact length, from which it is off by some
40 ms.
"""

from __future__ import annotations

import numpy as np
from av import AudioFrame
from av.error import BlockingIOError as NothingReadyError
from av.error import EOFError as FilterEndError
from av.filter import Graph

from gateway.core import FloatArray
from token2wav_service.contract import SAMPLE_RATE_HZ


class BlockBuffer:
    """Keeps what does not fill a block yet."""

    def __init__(self, block_samples: int) -> None:
        """Start empty."""
        self._block_samples = block_samples
        self._kept = np.zeros(0, np.float32)

    def push(self, samples: FloatArray) -> list[FloatArray]:
        """Take [N] samples and return the blocks that are full, each [block_samples]."""
        joined = np.concatenate([self._kept, samples])
        full_samples = len(joined) // self._block_samples * self._block_samples
        self._kept = joined[full_samples:]
        return list(joined[:full_samples].reshape(-1, self._block_samples))

    def rest(self) -> FloatArray:
        """Return what is left, fewer samples than a block, and forget it."""
        rest, self._kept = self._kept, np.zeros(0, np.float32)
        return rest


_BLOCK_SAMPLES = SAMPLE_RATE_HZ // 50
# More silence than any chain of filters holds back, plus the rest of the last block.
_END_SILENCE_SAMPLES = SAMPLE_RATE_HZ // 2
# Bounds of one filter: beyond them it would skip samples or refuse.
_MAX_FACTOR = 2.0
_MIN_FACTOR = 0.5


class TempoChanger:
    """Plays audio at another speed; output is the same however the input is cut."""

    def __init__(self, speed: float) -> None:
        """Build the filters.

        Args:
            speed: 0.25 to 4; above 1 is faster.
        """
        self._speed = speed
        self._graph = _tempo_graph(speed)
        self._blocks = BlockBuffer(_BLOCK_SAMPLES)
        self._taken_samples = 0
        self._fed_samples = 0
        self._given_samples = 0

    def push(self, samples: FloatArray) -> FloatArray:
        """Take [N] samples at 24 kHz and return those that are ready."""
        self._taken_samples += len(samples)
        return self._given([self._filtered(block) for block in self._blocks.push(samples)])

    def finish(self) -> FloatArray:
        """Return the rest, so that the whole is round(input / speed) samples long."""
        silence = np.zeros(_END_SILENCE_SAMPLES, np.float32)
        tail = np.concatenate([*map(self._filtered, self._blocks.push(silence)), self._filtered(None)])
        missing_samples = round(self._taken_samples / self._speed) - self._given_samples
        return self._given([tail[:missing_samples]])

    def _given(self, parts: list[FloatArray]) -> FloatArray:
        samples: FloatArray = np.concatenate([np.zeros(0, np.float32), *parts])
        self._given_samples += len(samples)
        return samples

    def _filtered(self, block: FloatArray | None) -> FloatArray:
        """Put one block through the filters; None ends their input."""
        self._graph.push(None if block is None else self._frame(block))
        ready: list[FloatArray] = [np.zeros(0, np.float32)]
        while (frame := self._pulled()) is not None:
            ready.append(frame.to_ndarray()[0])
        return np.concatenate(ready)

    def _frame(self, block: FloatArray) -> AudioFrame:
        frame = AudioFrame.from_ndarray(block[np.newaxis], format="flt", layout="mono")
        frame.sample_rate = SAMPLE_RATE_HZ
        frame.pts = self._fed_samples
        self._fed_samples += len(block)
        return frame

    def _pulled(self) -> AudioFrame | None:
        try:
            frame = self._graph.pull()
        except (NothingReadyError, FilterEndError):
            return None
        assert isinstance(frame, AudioFrame)
        return frame


def _tempo_graph(speed: float) -> Graph:
    graph = Graph()
    source = graph.add(
        "abuffer",
        sample_rate=str(SAMPLE_RATE_HZ),
        sample_fmt="flt",
        channel_layout="mono",
        time_base=f"1/{SAMPLE_RATE_HZ}",
    )
    filters = [graph.add("atempo", repr(factor)) for factor in _factors(speed)]
    graph.link_nodes(source, *filters, graph.add("abuffersink"))
    graph.configure()
    return graph


def _factors(speed: float) -> list[float]:
    factors = []
    while not _MIN_FACTOR <= speed <= _MAX_FACTOR:
        factors.append(_MAX_FACTOR if speed > 1 else _MIN_FACTOR)
        speed /= factors[-1]
    return [*factors, speed]
