"""How replicas are probed, balanced, ejected and replaced."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import ConfigError

MIB = 1024 * 1024


@dataclass(frozen=True)
class RoutingSettings:
    """What holds for every replica of both services."""

    probe_interval_s: float = 1.0
    """Seconds between two probes of a replica."""
    discovery_interval_s: float = 5.0
    """Seconds between two look-ups of a DNS name."""
    failures_to_eject: int = 3
    """Failures in a row, of streams and probes, after which a replica gets no new streams."""
    ejection_s: float = 1.0
    """Seconds of a replica's first ejection; each further one is twice as long, until a stream there has gone well."""
    max_ejection_s: float = 30.0
    admission_wait_s: float = 2.0
    """Most seconds that a request waits for a free slot or a live replica; refused at once if that is too short."""
    least_speed: float = 1.2
    """Times real time that both services must give each stream, as measured, for one more to be admitted; 0: any. With
    1.0 a full service makes just what is heard, so that one chunk that comes late is a gap; with 1.1 most playbacks had
    one in a simulated overload."""
    max_waiting: int = 1024
    """Most requests that wait for a slot."""
    failover_s: float = 30.0
    """Most seconds that a stream under way stands still while it looks for another replica."""
    restart_wait_s: float = 120.0
    """Most seconds of that stand-still if the service has no other replica, so that it must be started again."""
    max_failovers: int = 3
    """Most times that one stream is built anew, and that one answer of the LLM is asked for anew."""
    voice_file_cache_bytes: int = 64 * MIB
    """Bytes of voice files kept for replicas that lack a voice; a voice has 50 to 400 KB."""

    def __post_init__(self) -> None:
        positive = ("probe_interval_s", "discovery_interval_s", "failures_to_eject", "ejection_s", "max_waiting")
        for name in positive:
            if not getattr(self, name) > 0:
                raise ConfigError(f"got {name} {getattr(self, name)}, expected more than 0")
        if not self.least_speed >= 0:
            raise ConfigError(f"got least_speed {self.least_speed}, expected 0 or more")
        if self.max_ejection_s < self.ejection_s:
            raise ConfigError(
                f"got max_ejection_s {self.max_ejection_s}, expected ejection_s ({self.ejection_s}) or more"
            )
