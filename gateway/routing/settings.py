"""How replicas are probed, ejected and replaced, and how long a request waits for one."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024
MAX_WAITING = 1024
"""Most requests of one gateway process that wait for their turn."""


@dataclass(frozen=True)
class RoutingSettings:
    """What holds for every replica of both services. Operators set `admission_wait_s`; tests set the others."""

    admission_wait_s: float = 2.0
    """Most seconds that a request waits for a free slot or a live replica."""
    probe_interval_s: float = 1.0
    """Seconds between two probes of a replica."""
    discovery_interval_s: float = 5.0
    """Seconds between two look-ups of a DNS name."""
    failures_to_eject: int = 3
    """Failures in a row, of streams and probes, after which a replica gets no new streams."""
    ejection_s: float = 1.0
    """Seconds of a replica's first ejection; each further one is twice as long, until a stream there has gone well."""
    max_ejection_s: float = 30.0
    failover_s: float = 30.0
    """Most seconds that a stream under way stands still while it looks for another replica."""
    restart_wait_s: float = 120.0
    """Most seconds of that stand-still if the service has no other replica, so that it must be started again."""
    max_failovers: int = 3
    """Most times that one stream is built anew, and that one answer of the LLM is asked for anew."""
    voice_file_cache_bytes: int = 64 * MIB
    """Bytes of voice files kept for replicas that lack a voice; a voice has 50 to 400 KB."""
