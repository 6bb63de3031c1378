"""How high a voice reaches: the band of its hissing sounds beside that of another rendering. Pure numpy.

Two renderings of a text have other timings. So their frames are matched first (dynamic time warping of log spectra);
then those count in which the source has more than half of its energy above 3 kHz.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float64]

RATE_HZ = 24_000
FRAME_SAMPLES, HOP_SAMPLES, FFT = 600, 240, 1024
"""25 ms, one each 10 ms."""
HISS_HZ, HISS_SHARE = 3000.0, 0.5
ENERGY_SHARE = 0.95
LEAST_DB = -40.0
"""Relative to the source's loudest frame; softer frames do not count."""
_BANDS = 40
_FLOOR_DB = -60.0
_TINY = 1e-12


@dataclass(frozen=True)
class Bandwidth:
    """Frequencies below which 95 % of a frame's energy lies; means over the frames that count."""

    spoken_hz: float
    source_hz: float
    frames: int
    """Number of frames that count."""


def bandwidth(spoken: FloatArray, source: FloatArray) -> Bandwidth | None:
    """Compare how high two renderings of one text reach.

    Args:
        spoken: [N] mono float32 in +-1 at 24 kHz.
        source: [M] of the source, likewise.

    Returns:
        None where the source never hisses, or an audio is shorter than a frame.
    """
    if min(len(spoken), len(source)) < FRAME_SAMPLES:
        return None
    ours, theirs = power_spectra(spoken), power_spectra(source)
    pairs = warped_pairs(_bands_db(theirs), _bands_db(ours))
    energy = theirs.sum(axis=1)
    hiss = theirs[:, _frequencies() > HISS_HZ].sum(axis=1)
    counts = (hiss > HISS_SHARE * energy) & (energy > 10 ** (LEAST_DB / 10) * energy.max())
    chosen = pairs[counts[pairs[:, 0]]]
    if not len(chosen):
        return None
    at, other = upper_edges_hz(theirs), upper_edges_hz(ours)
    return Bandwidth(float(other[chosen[:, 1]].mean()), float(at[chosen[:, 0]].mean()), len(chosen))


def power_spectra(samples: FloatArray) -> Matrix:
    """Return [frames, 513] of [N] samples."""
    frames = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64), FRAME_SAMPLES)[::HOP_SAMPLES]
    return np.asarray(np.abs(np.fft.rfft(frames * np.hanning(FRAME_SAMPLES), FFT)) ** 2, np.float64)


def upper_edges_hz(spectra: Matrix) -> Matrix:
    """Return of each frame the frequency below which 95 % of its energy lies."""
    frequencies = _frequencies()
    running = np.cumsum(spectra, axis=1)
    bins = (running < ENERGY_SHARE * running[:, -1:]).sum(axis=1)
    return np.asarray(frequencies[np.minimum(bins, spectra.shape[1] - 1)], np.float64)


def warped_pairs(first: Matrix, second: Matrix) -> npt.NDArray[np.int64]:
    """Match the frames of two sequences by the cheapest monotonous way.

    Args:
        first: [N, features].
        second: [M, features].

    Returns:
        [pairs, 2]: frames of the first and of the second, from the first pair to the last.
    """
    squares = (first**2).sum(1)[:, None] + (second**2).sum(1)[None] - 2 * first @ second.T
    cost = np.sqrt(np.maximum(squares, 0.0))
    total = np.full((len(first) + 1, len(second) + 1), np.inf)
    total[0, 0] = 0.0
    # One diagonal at a time: its cells depend on the two before it alone.
    for diagonal in range(2, len(first) + len(second) + 1):
        row = np.arange(max(1, diagonal - len(second)), min(len(first), diagonal - 1) + 1)
        column = diagonal - row
        before = np.minimum(total[row - 1, column - 1], np.minimum(total[row - 1, column], total[row, column - 1]))
        total[row, column] = cost[row - 1, column - 1] + before
    row_at, column_at = len(first), len(second)
    pairs = []
    while row_at and column_at:
        pairs.append((row_at - 1, column_at - 1))
        ways = [(row_at - 1, column_at - 1), (row_at - 1, column_at), (row_at, column_at - 1)]
        row_at, column_at = min(ways, key=lambda way: total[way])
    return np.array(pairs[::-1], np.int64)


def _frequencies() -> Matrix:
    return np.asarray(np.fft.rfftfreq(FFT, 1 / RATE_HZ), np.float64)


def _bands_db(spectra: Matrix) -> Matrix:
    """Return [frames, 40]: decibels below the loudest band, in bands that widen with the frequency up to 8 kHz."""
    edges = np.unique(np.rint(np.geomspace(4, 8000 * FFT / RATE_HZ, _BANDS + 1)).astype(np.int64))
    bands: Matrix = np.add.reduceat(spectra, edges, axis=1)[:, :-1]
    decibels: Matrix = np.maximum(10 * np.log10(bands / max(bands.max(), _TINY) + _TINY), _FLOOR_DB)
    return decibels
