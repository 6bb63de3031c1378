"""`cosydit plan`: how many GPUs a number of listeners needs, from points that were measured or simulated.

    points of one arrangement:  listeners ─► p95      (1 GPU shared; 1 + 1, 1 + 2, ... GPUs apart)
    most listeners under the bound, less the headroom ─► how many such arrangements

More of an arrangement serve that many times its listeners, which is the one thing that is extrapolated here.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from servicekit.checkpoint_file import FamilyName
from servicekit.logs import PlainError

DEFAULT_HEADROOM = 0.3
MOST_UNDERRUNS = 0.01
"""Share of utterances that may run dry when playback begins at the first sample."""
_ROUNDING = 1e-9
"""Tolerance of a number of units: floating point may add so much to a whole one."""
FAMILIES = get_args(FamilyName)
"""Families of checkpoints; each is as fast as its own models, so that no other's points say anything of it."""
DEFAULT_FAMILY = FAMILIES[0]
_FILES = Path(__file__).parent
_PREFIX, _SUFFIX = "capacity_", ".json"
_POINT = ("listeners", "ttfa_p95_ms", "underrun_ratio", "is_held")


class PlanError(PlainError):
    """No plan can be made; the message says what to change."""


@dataclass(frozen=True)
class CapacityPoint:
    """The result for a number of listeners with one arrangement of GPUs."""

    listeners: float
    """Listeners that hear speech at the same time."""
    ttfa_p95_ms: float
    underrun_ratio: float
    """Share of utterances that ran dry when playback began at the first sample."""
    is_held: bool = True
    """Whether no request was refused or failed, and requests did not pile up."""


@dataclass(frozen=True)
class Arrangement:
    """Some GPUs and how they are shared out."""

    llm_gpus: int
    """GPUs of the LLM; 0: both services are on each of the `token2wav_gpus`."""
    token2wav_gpus: int
    kind: str
    """Origin of the figures: `measured` or `simulated`."""
    source: str
    points: tuple[CapacityPoint, ...]

    @property
    def gpus(self) -> int:
        """In all."""
        return self.llm_gpus + self.token2wav_gpus


@dataclass(frozen=True)
class Curves:
    """One GPU kind's arrangements."""

    gpu: str
    token2wav_alone: str
    """Sentence on what token2wav alone was measured to serve."""
    arrangements: tuple[Arrangement, ...]
    listeners_a_gateway: int
    """Listeners that one gateway process serves."""


@dataclass(frozen=True)
class Demand:
    """What is asked for."""

    listeners: int
    p95_ms: float
    """Bound of the time to first audio's 95th percentile in milliseconds."""
    headroom: float = DEFAULT_HEADROOM
    """Share of the GPUs' capacity that stays free, for bursts and lost replicas."""

    def units(self, capacity: float) -> int:
        """Return how many of something that serves so many listeners are needed, headroom left free."""
        return math.ceil(self.listeners / (capacity * (1 - self.headroom)) - _ROUNDING)


@dataclass(frozen=True)
class Proposal:
    """So many of an arrangement."""

    arrangement: Arrangement
    capacity: float
    """Listeners of one arrangement that stay under the bound."""
    is_end_of_curve: bool
    """Whether the bound would allow more than any point has; the last point was taken."""
    units: int


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("plan", help="say how many GPUs a number of listeners needs")
    add = parser.add_argument
    add("--listeners", type=int, required=True, help="number of listeners who hear speech at the same time")
    bound = "milliseconds to first audio that 95 %% of requests must stay below"
    add("--p95-ms", type=float, required=True, help=bound)
    add("--gpu", default="h200", help=f"kind of GPU: {', '.join(known_gpus())} (default %(default)s)")
    family = "family of the checkpoint (default %(default)s)"
    add("--family", choices=FAMILIES, default=DEFAULT_FAMILY, help=family)
    free = "share of the capacity that stays free for bursts and lost replicas (default %(default)s)"
    add("--headroom", type=float, default=DEFAULT_HEADROOM, help=free)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    demand = Demand(args.listeners, args.p95_ms, args.headroom)
    curves = read_curves(args.gpu, args.family)
    print("\n".join(describe(curves, demand, propose(curves, demand))))
    return 0


def describe(curves: Curves, demand: Demand, proposals: list[Proposal]) -> list[str]:
    """Return the plan in words, the fewest GPUs first."""
    kind = curves.gpu.upper()
    lines = [
        f"{demand.listeners} listeners at once, time to first audio below {demand.p95_ms:g} ms for 95 % of requests:"
    ]
    for proposal in proposals:
        lines += ["", *_proposal(proposal, kind)]
    each = curves.listeners_a_gateway
    return [
        *lines,
        "",
        f"gateway: {demand.units(each)} processes, a core each; one serves {each} listeners",
        f"headroom: {100 * demand.headroom:.0f} % of every capacity stays free (--headroom)",
        f"measured as well: {curves.token2wav_alone}",
        "extrapolated: so many times the GPUs serve so many times the listeners",
    ]


def _proposal(proposal: Proposal, kind: str) -> list[str]:
    arrangement = proposal.arrangement
    llm, token2wav = proposal.units * arrangement.llm_gpus, proposal.units * arrangement.token2wav_gpus
    if llm:
        head = f"  {llm} {kind} for the LLM and {token2wav} {kind} for token2wav"
        each = f"{arrangement.llm_gpus} + {arrangement.token2wav_gpus} GPUs"
    else:
        head = f"  {token2wav} {kind}, each with both services under MPS"
        each = "one GPU"
    bound = ", the most that was tried" if proposal.is_end_of_curve else ""
    return [head, f"    {each}: {proposal.capacity:.0f} listeners{bound}; {arrangement.kind}: {arrangement.source}"]


def known_gpus(family: str = DEFAULT_FAMILY) -> list[str]:
    """Return the GPU kinds that there are points of, for a family."""
    stems = [path.stem.removeprefix(_PREFIX) for path in _FILES.glob(f"{_PREFIX}*{_SUFFIX}")]
    of_families = [tuple(stem.split("_", 1)) if "_" in stem else (stem, DEFAULT_FAMILY) for stem in stems]
    return sorted(gpu for gpu, of in of_families if of == family)


def points_file(gpu: str, family: str = DEFAULT_FAMILY) -> str:
    """Return what the file with a GPU kind's points is called."""
    return f"{_PREFIX}{gpu}{'' if family == DEFAULT_FAMILY else f'_{family}'}{_SUFFIX}"


def read_curves(gpu: str, family: str = DEFAULT_FAMILY) -> Curves:
    """Read the points of a GPU kind.

    Raises:
        PlanError: there are none.
    """
    known = known_gpus(family)
    if not known:
        got = f"got family {family}, whose listeners were measured on no GPU"
        raise PlanError(f"{got}; bash benchmarks/gpu.sh families measures it, and docs/capacity.md says what next")
    if gpu not in known:
        got = f"got GPU {gpu!r}, expected one of {', '.join(known)}: no other was measured"
        raise PlanError(f"{got}; bash benchmarks/gpu.sh measures one, and docs/capacity.md says what next")
    return _curves(json.loads((_FILES / points_file(gpu, family)).read_text("utf-8")))


def propose(curves: Curves, demand: Demand) -> list[Proposal]:
    """Return what each arrangement needs, the fewest GPUs first.

    Raises:
        PlanError: a demand that makes no sense, or that no arrangement meets at any load.
    """
    _check(demand)
    proposals = []
    for arrangement in curves.arrangements:
        capacity, is_end = most_listeners(arrangement.points, demand.p95_ms)
        if capacity > 0:
            proposals.append(Proposal(arrangement, capacity, is_end, demand.units(capacity)))
    if not proposals:
        least_ms = min(point.ttfa_p95_ms for each in curves.arrangements for point in each.points)
        got = f"got a p95 of {demand.p95_ms:g} ms, but at its lightest load one {curves.gpu} took {least_ms:.0f} ms"
        raise PlanError(f"{got}; ask for more, or shorten what is spoken first")
    return sorted(proposals, key=lambda proposal: proposal.units * proposal.arrangement.gpus)


def most_listeners(points: Sequence[CapacityPoint], p95_ms: float) -> tuple[float, bool]:
    """Return the most listeners within both bounds, linear between the points, and whether that is the last point.

    The points are in ascending order. A load that is not held ends them, whatever its waiting time. 0 if not even the
    first point is within the bounds.
    """
    best, before = 0.0, None
    for point in points:
        if not point.is_held or point.underrun_ratio > MOST_UNDERRUNS:
            return best, False
        if point.ttfa_p95_ms > p95_ms:
            if before is not None and point.ttfa_p95_ms > before.ttfa_p95_ms:
                share = (p95_ms - before.ttfa_p95_ms) / (point.ttfa_p95_ms - before.ttfa_p95_ms)
                best = before.listeners + share * (point.listeners - before.listeners)
            return best, False
        best, before = point.listeners, point
    return best, True


def _check(demand: Demand) -> None:
    if demand.listeners < 1:
        raise PlanError(f"got {demand.listeners} listeners, expected at least 1")
    if not (math.isfinite(demand.p95_ms) and demand.p95_ms > 0):
        raise PlanError(f"got a p95 of {demand.p95_ms:g} ms, expected a finite number above 0")
    if not 0 <= demand.headroom < 1:
        raise PlanError(f"got a headroom of {demand.headroom:g}, expected 0 or more and less than 1")


def _curves(content: dict[str, Any]) -> Curves:
    arrangements = tuple(map(_arrangement, content["arrangements"]))
    return Curves(content["gpu"], content["token2wav_alone"], arrangements, content["listeners_a_gateway"])


def _arrangement(content: dict[str, Any]) -> Arrangement:
    points = tuple(CapacityPoint(*(point[name] for name in _POINT)) for point in content["points"])
    source = content["source"]
    return Arrangement(content["llm_gpus"], content["token2wav_gpus"], source["kind"], source["text"], points)
