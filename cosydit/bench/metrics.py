"""Statistics of finished requests: percentiles, and whether playback would have run dry. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from cosydit.bench.types import AudioArrival, LoadResult, RequestRecord

PERCENTILES = (50, 90, 95, 99)
START_BUFFERS_S = (0.0, 0.05, 0.1)
"""Seconds that a player waits after the first audio before it starts."""
_TOLERANCE_S = 1e-6
"""Gap in seconds that counts as rounding: less than a sample's duration."""


@dataclass(frozen=True)
class Distribution:
    """A quantity over all requests that have it."""

    count: int
    mean: float
    percentiles: dict[int, float]
    """Percentile -> value, linear between the two nearest."""
    maximum: float


@dataclass(frozen=True)
class Underrun:
    """What a listener would have heard of late audio."""

    gaps: int
    """Number of times that playback ran dry."""
    short_s: float
    """Seconds of silence of all gaps."""


@dataclass(frozen=True)
class UnderrunSummary:
    """Underruns of a run for one start buffer."""

    buffer_s: float
    requests: int
    """Requests with at least one gap."""
    of_requests: int
    gaps: int
    short_s: float
    """Seconds of silence over all requests."""
    worst_s: float
    """Seconds of silence of the worst request."""


@dataclass(frozen=True)
class Summary:
    """A run in figures."""

    requests: int
    failures: int
    wall_s: float
    audio_s: float
    """Seconds of audio of the requests that ended well."""
    ttfa_s: Distribution | None
    """Seconds to first audio; None if no request has it."""
    second_chunk_s: Distribution | None
    total_s: Distribution | None
    rtf: Distribution | None
    underruns: list[UnderrunSummary]

    @property
    def throughput(self) -> float:
        """Seconds of audio per second of the run, over all callers."""
        return self.audio_s / self.wall_s if self.wall_s else 0.0

    @property
    def requests_per_s(self) -> float:
        """Requests that ended well, per second of the run."""
        return (self.requests - self.failures) / self.wall_s if self.wall_s else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, linear between the two nearest of at least one value; `percent` is 0 to 100.

    Raises:
        ValueError: no values, or a percentage out of range.
    """
    if not values or not 0 <= percent <= 100:
        raise ValueError(f"got {len(values)} values and {percent} %, expected at least one value and 0 to 100")
    return float(np.percentile(values, percent))


def distribution(values: Iterable[float | None]) -> Distribution | None:
    """Describe the values that are there; None if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    points = {percent: percentile(known, percent) for percent in PERCENTILES}
    return Distribution(len(known), sum(known) / len(known), points, max(known))


def playback_underrun(arrivals: Sequence[AudioArrival], buffer_s: float) -> Underrun:
    """Play the audio as it came, from `buffer_s` after the first piece on.

    A piece that comes late leaves a gap, after which playback goes on at once.
    """
    if not arrivals:
        return Underrun(0, 0.0)
    gaps, short_s = 0, 0.0
    plays_until_s = arrivals[0].at_s + buffer_s
    for arrival in arrivals:
        late_s = arrival.at_s - plays_until_s
        if late_s > _TOLERANCE_S:
            gaps, short_s = gaps + 1, short_s + late_s
            plays_until_s = arrival.at_s
        plays_until_s += arrival.audio_s
    return Underrun(gaps, short_s)


def summarize_underruns(records: Sequence[RequestRecord], buffer_s: float) -> UnderrunSummary:
    """Sum the underruns of requests that ended well."""
    each = [playback_underrun(record.arrivals, buffer_s) for record in records if record.is_ok]
    return UnderrunSummary(
        buffer_s=buffer_s,
        requests=sum(1 for underrun in each if underrun.gaps),
        of_requests=len(each),
        gaps=sum(underrun.gaps for underrun in each),
        short_s=sum(underrun.short_s for underrun in each),
        worst_s=max((underrun.short_s for underrun in each), default=0.0),
    )


def summarize(result: LoadResult) -> Summary:
    """Describe a run; failed requests count as failures and enter no distribution."""
    good = [record for record in result.records if record.is_ok]
    return Summary(
        requests=len(result.records),
        failures=len(result.records) - len(good),
        wall_s=result.wall_s,
        audio_s=sum(record.audio_s for record in good),
        ttfa_s=distribution(record.ttfa_s for record in good),
        second_chunk_s=distribution(record.second_chunk_s for record in good),
        total_s=distribution(record.total_s for record in good),
        rtf=distribution(record.rtf for record in good),
        underruns=[summarize_underruns(good, buffer_s) for buffer_s in START_BUFFERS_S],
    )
