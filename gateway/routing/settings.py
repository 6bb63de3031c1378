"""How replicas are probed, ejected and replaced, and how long a request waits for one."""

from __future__ import annotations

from dataclasses import dataclass

MAX_WAITING = 1024
"""Most requests of one gateway process that wait for their turn."""
LOOK_AGAIN_S = 0.05
"""Seconds between two looks of a stream for a slot, and the first pause between two tries of a stream."""
YIELDED_S = 4 * LOOK_AGAIN_S
"""Seconds in which a slot that a stream of ours leaves is left to other gateways, times our share of the streams
there: without that, a gateway with many streams would take every slot before one with few can ask for it."""


@dataclass(frozen=True)
class RoutingSettings:
    """What holds for every replica of both services. Operators set `admission_wait_s`; tests set the others."""

    admission_wait_s: float = 2.0
    """Most seconds that a request waits for a free slot or a live replica."""
    interval_s: float = 1.0
    """Seconds between two probes of a replica, and between two look-ups of a DNS name; also the first ejection."""
    failures_to_eject: int = 3
    """Failures in a row, of streams and probes, after which a replica gets no new streams."""
    failover_s: float = 30.0
    """Most seconds that a stream under way stands still while it looks for another replica; also of an ejection."""
    restart_wait_s: float = 120.0
    """Most seconds of that stand-still if the service has no other replica, so that it must be started again."""
    max_failovers: int = 3
    """Most times that one stream is built anew, and that one answer of the LLM is asked for anew."""
