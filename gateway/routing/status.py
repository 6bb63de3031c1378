"""What the router tells others of its replicas: plain facts of one moment, for metrics, tests and simulators."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ReplicaState(str, Enum):
    """What a replica is good for now."""

    UNKNOWN = "unknown"
    """Found, but no probe has been answered yet."""
    READY = "ready"
    DRAINING = "draining"
    """Finishes its streams and gets no new ones: it says so, or discovery no longer lists it."""
    EJECTED = "ejected"
    """Failed too often in a row; tried again after a while."""


@dataclass(frozen=True)
class ReplicaStatus:
    """One replica at one moment; totals count from the gateway's start."""

    service: str
    """`token2wav` or `llm`."""
    address: str
    """host:port, or the URL of an LLM."""
    state: ReplicaState
    open_streams: int
    """Streams of this gateway: leases of token2wav, generations of an LLM."""
    slots: int | None
    """Streams that it can hold; None while it has not said, and for an LLM."""
    free_slots: int | None
    """Of these, as far as this gateway knows: other gateways may hold some."""
    step_s: float | None
    """Seconds of a recent step of token2wav, or between two tokens of an LLM's answer; None if none was measured."""
    opened_total: int
    failures_total: int
    """Streams and probes that it failed."""
    ejections_total: int
    failovers_total: int
    """Streams that were begun here and went on elsewhere, or here once more."""
