"""`cosydit plan`: how many GPUs a number of listeners needs, from points that were measured or simulated.

    points of one arrangement:  listeners ─► p95      (1 GPU shared; 1 + 1, 1 + 2, ... GPUs apart)
    most listeners under the bound, less the headroom ─► how many such arrangements

More of an arrangement serve that many times its listeners, which is the one thing that is extrapolated here.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from pydantic import TypeAdapter

from servicekit.checkpoint_file import FamilyName
from servicekit.logs import PlainError
from servicekit.settings import COUNT, argument, number

DEFAULT_HEADROOM, MOST_HEADROOM = 0.3, 0.99
MOST_UNDERRUNS = 0.01
"""Share of utterances that may run dry when playback begins at the first sample."""
_ROUNDING = 1e-9
"""Tolerance of a number of units: floating point may add so much to a whole one."""
FAMILIES = get_args(FamilyName)
"""Families of checkpoints; each is as fast as its own models, so that no other's points say anything of it."""
DEFAULT_FAMILY = FAMILIES[0]
_FILES = Path(__file__).parent


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
    source: Mapping[str, str]
    """Origin of the figures: `kind`, which is measured or simulated, and `text`."""
    points: tuple[CapacityPoint, ...]

    @property
    def gpus(self) -> int:
        """In all."""
        return self.llm_gpus + self.token2wav_gpus


@dataclass(frozen=True)
class Curves:
    """One GPU kind's arrangements, as a file has them."""

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
    listeners = "number of listeners who hear speech at the same time"
    add("--listeners", type=argument(COUNT), required=True, help=listeners)
    bound = "milliseconds to first audio that 95 %% of requests must stay below"
    add("--p95-ms", type=argument(number(is_open=True)), required=True, help=bound)
    add("--gpu", default="h200", help=f"kind of GPU: {', '.join(known_gpus())} (default %(default)s)")
    family = "family of the checkpoint (default %(default)s)"
    add("--family", choices=FAMILIES, default=DEFAULT_FAMILY, help=family)
    free = "share of the capacity that stays free for bursts and lost replicas (default %(default)s)"
    add("--headroom", type=argument(number(most=MOST_HEADROOM)), default=DEFAULT_HEADROOM, help=free)
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
    origin = "{kind}: {text}".format(**arrangement.source)
    return [head, f"    {each}: {proposal.capacity:.0f} listeners{bound}; {origin}"]


def known_gpus(family: str = DEFAULT_FAMILY) -> list[str]:
    """Return the GPU kinds that there are points of, for a family."""
    gpus = {path.stem.split("_")[1] for path in _FILES.glob(points_file("*", family))}
    return sorted(gpu for gpu in gpus if (_FILES / points_file(gpu, family)).is_file())


def points_file(gpu: str, family: str = DEFAULT_FAMILY) -> str:
    """Return what the file with a GPU kind's points is called."""
    return f"capacity_{gpu}{'' if family == DEFAULT_FAMILY else f'_{family}'}.json"


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
    return TypeAdapter(Curves).validate_json((_FILES / points_file(gpu, family)).read_bytes())


def propose(curves: Curves, demand: Demand) -> list[Proposal]:
    """Return what each arrangement needs, the fewest GPUs first.

    Raises:
        PlanError: no arrangement meets the demand at any load.
    """
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
