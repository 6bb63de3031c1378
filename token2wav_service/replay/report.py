"""Rows of a replay: one per output, with its error and tolerance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

FLOW_TOLERANCE = 1e-4
"""Largest absolute error of mel, hidden frames and caches, fp32 on a CPU."""
F0_TOLERANCE_HZ = 2e-3
SOURCE_TOLERANCE = 1e-3
DECODE_TOLERANCE = 1e-4
"""Largest absolute error of the waveform from given mel and source."""
INJECTED_TOLERANCE = 1e-3
"""Largest absolute error of the streamed waveform with the source injected."""
FEATURE_TOLERANCE = 1e-3
WAVE_SNR_DB = 45.0
"""Least ratio of the waveform end to end: the vocoder amplifies phase errors, so max abs says little."""


@dataclass(frozen=True)
class Row:
    """One output's verdict."""

    output: str
    measure: str
    """What `error` counts: "max abs", "SNR dB" (more is better) or "mismatches"."""
    error: float
    tolerance: float
    passed: bool


@dataclass
class Report:
    """Collects rows; the `check_*` methods compare and add."""

    rows: list[Row] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """True when there is at least one row and all passed."""
        return bool(self.rows) and all(row.passed for row in self.rows)

    def check_close(self, output: str, got: Tensor, expected: Tensor, tolerance: float) -> None:
        """Compare by largest absolute difference; different shapes fail."""
        if not self._same_shape(output, got, expected):
            return
        difference = (got.cpu().double() - expected.double()).abs().max().item() if expected.numel() else 0.0
        self.rows.append(Row(output, "max abs", difference, tolerance, difference <= tolerance))

    def check_snr(self, output: str, got: Tensor, expected: Tensor, minimum_db: float = WAVE_SNR_DB) -> None:
        """Compare by signal-to-noise ratio; different shapes fail."""
        if not self._same_shape(output, got, expected):
            return
        snr = snr_db(got, expected)
        self.rows.append(Row(output, "SNR dB", snr, minimum_db, snr >= minimum_db))

    def check_equal(self, output: str, got: Sequence[object], expected: Sequence[object]) -> None:
        """Compare element by element, exactly."""
        wrong = sum(a != b for a, b in zip(got, expected, strict=False)) + abs(len(got) - len(expected))
        self.rows.append(Row(output, "mismatches", float(wrong), 0.0, wrong == 0))

    def fail(self, output: str, reason: str) -> None:
        """Record an output that could not be compared at all."""
        self.rows.append(Row(output, reason, math.nan, math.nan, False))

    def _same_shape(self, output: str, got: Tensor, expected: Tensor) -> bool:
        if got.shape != expected.shape:
            self.fail(output, f"shape {tuple(got.shape)}, expected {tuple(expected.shape)}")
            return False
        return True


def format_folders(rows: Sequence[Row]) -> str:
    """Return how many outputs of each golden folder are within their tolerance, a line a folder."""
    folders: dict[str, list[bool]] = {}
    for row in rows:
        folders.setdefault(row.output.split("/")[0], []).append(row.passed)
    return "\n".join(f"{name}: {sum(passed)} of {len(passed)} within tolerance" for name, passed in folders.items())


def snr_db(got: Tensor, expected: Tensor) -> float:
    """Return 10 log10(|expected|^2 / |got - expected|^2); infinite when equal."""
    noise = (got.cpu().double() - expected.double()).pow(2).sum().item()
    signal = expected.double().pow(2).sum().item()
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def format_rows(rows: Sequence[Row]) -> str:
    """Return the rows as a table."""
    width = max((len(row.output) for row in rows), default=6)
    lines = [f"{'output':{width}}  {'measure':12}{'error':>12}{'tolerance':>12}"]
    for row in rows:
        verdict = "" if row.passed else "  FAILED"
        lines.append(f"{row.output:{width}}  {row.measure:12}{row.error:12.3g}{row.tolerance:12.3g}{verdict}")
    return "\n".join(lines)
