"""`cosydit plan`: how many GPUs a number of listeners needs."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from cosydit.plan.capacity import (
    DEFAULT_FAMILY,
    DEFAULT_HEADROOM,
    FAMILIES,
    CapacityError,
    Curves,
    Demand,
    Proposal,
    gateway_processes,
    known_gpus,
    propose,
    read_curves,
)

_WHOLE = 100
_EXIT_USAGE = 2


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser("plan", help="say how many GPUs a number of listeners needs", description=__doc__)
    parser.add_argument(
        "--listeners", type=int, required=True, help="number of listeners who hear speech at the same time"
    )
    parser.add_argument(
        "--p95-ms", type=float, required=True, help="milliseconds to first audio that 95 %% of requests must stay below"
    )
    parser.add_argument("--gpu", default="h200", help=f"kind of GPU: {', '.join(known_gpus())} (default %(default)s)")
    parser.add_argument(
        "--family", choices=FAMILIES, default=DEFAULT_FAMILY, help="family of the checkpoint (default %(default)s)"
    )
    parser.add_argument(
        "--headroom",
        type=float,
        default=DEFAULT_HEADROOM,
        help="share of the capacity that stays free for bursts and lost replicas (default %(default)s)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the plan; returns the exit status."""
    demand = Demand(args.listeners, args.p95_ms, args.headroom)
    try:
        curves = read_curves(args.gpu, args.family)
        proposals = propose(curves, demand)
    except CapacityError as error:
        print(f"cosydit plan: {error}", file=sys.stderr)
        return _EXIT_USAGE
    print("\n".join(describe(curves, demand, proposals)))
    return 0


def describe(curves: Curves, demand: Demand, proposals: list[Proposal]) -> list[str]:
    """Return the plan in words, the fewest GPUs first."""
    kind = curves.gpu.upper()
    lines = [
        f"{demand.listeners} listeners at once, time to first audio below {demand.p95_ms:g} ms for 95 % of requests:"
    ]
    for proposal in proposals:
        lines += ["", *_proposal(proposal, kind)]
    gateways = gateway_processes(curves, demand)
    return [
        *lines,
        "",
        f"gateway: {gateways} processes, a core each; one serves {curves.listeners_a_gateway} listeners",
        f"headroom: {_WHOLE * demand.headroom:.0f} % of every capacity stays free (--headroom)",
        f"measured as well: {curves.token2wav_alone}",
        "extrapolated: so many times the GPUs serve so many times the listeners",
    ]


def _proposal(proposal: Proposal, kind: str) -> list[str]:
    arrangement = proposal.arrangement
    if arrangement.llm_gpus:
        head = f"  {proposal.llm_gpus} {kind} for the LLM and {proposal.token2wav_gpus} {kind} for token2wav"
        each = f"{arrangement.llm_gpus} + {arrangement.token2wav_gpus} GPUs"
    else:
        head = f"  {proposal.token2wav_gpus} {kind}, each with both services under MPS"
        each = "one GPU"
    bound = ", the most that was tried" if proposal.is_end_of_curve else ""
    return [head, f"    {each}: {proposal.capacity:.0f} listeners{bound}; {arrangement.kind}: {arrangement.source}"]
