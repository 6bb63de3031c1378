"""How replicas are probed, balanced, ejected and replaced."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import ConfigError

MIB = 1024 * 1024


@dataclass(frozen=True)
class RoutingSettings:
    """What holds for every replica of both services."""

    probe_interval_s: float = 1.0
    """Pause between two looks at a replica."""
    discovery_interval_s: float = 5.0
    """Pause between two look-ups of a DNS name."""
    failures_to_eject: int = 3
    """So many in a row, of streams and probes, and a replica gets no new streams."""
    ejection_s: float = 1.0
    """How long, the first time; twice as long each time, until a stream there has gone well."""
    max_ejection_s: float = 30.0
    admission_wait_s: float = 2.0
    """A request waits at most so long for a free slot or a live replica, and is refused at once where that won't do."""
    least_speed: float = 1.0
    """Times real time that each stream must get of both services, as measured, for one more to be let in; 0: any."""
    max_waiting: int = 1024
    """Requests that wait for a slot at most."""
    failover_s: float = 30.0
    """A stream under way stands still at most so long while it looks for another replica."""
    restart_wait_s: float = 120.0
    """And at most so long if its service has no other replica: until that one is started again."""
    max_failovers: int = 3
    """Times that one stream is built anew, and one answer of the LLM is asked for anew."""
    voice_file_cache_bytes: int = 64 * MIB
    """Voice files kept to give replicas the voices that they lack; a voice has 50 to 400 KB."""

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
