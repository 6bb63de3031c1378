"""Which faults a campaign has: drawn from a seed, so that a campaign that was broken off goes on with the same ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from lab.faults.clients import BAD_CLIENTS
from lab.faults.stand_ins import LACKS, LLM_MISBEHAVIOURS, TOKEN2WAV_MISBEHAVIOURS


class Boundary(str, Enum):
    """Where a fault happens."""

    LLM = "llm"
    TOKEN2WAV = "token2wav"
    GATEWAY = "gateway"
    DOORS = "doors"


class Setting(str, Enum):
    """What runs behind the gateway."""

    ONE = "one"
    """One stand-in of each service."""
    THREE = "three"
    """Three stand-ins of each service."""
    REAL = "real"
    """The product's own services: one LLM and three token2wav servers."""


WIRE_FAULTS = (
    *("cut", "freeze", "crawl", "refuse"),
    *("half a piece down", "half a piece up", "garbage down", "garbage up"),
)
KILL, STOP = "kill", "stop and continue"
KILL_MODEL, STOP_MODEL = "kill the model process", "stop and continue the model process"
CLOCK_JUMP, FULL_DISK, FEW_DESCRIPTORS = "clock jump", "full disk", "256 descriptors"
PROCESS_FAULTS = (KILL, STOP, KILL_MODEL, STOP_MODEL)
_SERVICES = (Boundary.LLM, Boundary.TOKEN2WAV)
_REAL = (
    *((Boundary.TOKEN2WAV, kind) for kind in (KILL_MODEL, STOP_MODEL, KILL)),
    *((Boundary.LLM, kind) for kind in (KILL, STOP)),
    (Boundary.GATEWAY, STOP),
    *((where, FULL_DISK) for where in _SERVICES),
)
_PROCESS_SHARE = 0.25
_MOMENTS_S = {Setting.ONE: (0.1, 1.3), Setting.THREE: (0.1, 1.3), Setting.REAL: (1.0, 5.0)}
"""Earliest and latest time of a fault, while callers listen."""
_PATIENCE_S = {Setting.ONE: 1.5, Setting.THREE: 4.5, Setting.REAL: 6.0}
"""Longest duration of a fault in seconds."""


@dataclass(frozen=True)
class Fault:
    """One thing that is done to a running system."""

    number: int
    setting: Setting
    boundary: Boundary
    kind: str
    target: int
    """Number of the replica if all have as much to do; else the busiest one is hurt."""
    at_s: float
    """Seconds from the beginning of the callers to the fault."""
    seconds: float
    """Seconds that the fault lasts; for a kill: until the process is started again."""

    @property
    def is_process(self) -> bool:
        """Whether a real process is killed or stopped."""
        return self.kind in PROCESS_FAULTS

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.setting.value}: {self.boundary.value}: {self.kind}"


def draw(count: int, seed: int, real: int = 0) -> list[Fault]:
    """Draw a campaign.

    Args:
        count: of faults.
        seed: equal ones draw equal campaigns.
        real: so many of them with the product's own services.
    """
    rng = random.Random(seed)
    settings = [Setting.THREE] * ((count - real + 1) // 2) + [Setting.ONE] * ((count - real) // 2)
    faults: list[Fault] = []
    for setting in (Setting.THREE, Setting.ONE):
        kinds = _kinds(settings.count(setting), rng)
        faults += [_fault(len(faults) + index, setting, kind, rng) for index, kind in enumerate(kinds)]
    kinds = [_REAL[index % len(_REAL)] for index in range(real)]
    return faults + [_fault(len(faults) + index, Setting.REAL, kind, rng) for index, kind in enumerate(kinds)]


def _kinds(count: int, rng: random.Random) -> list[tuple[Boundary, str]]:
    """Return so many kinds in any order, each of a group as often as the others."""
    process: list[tuple[Boundary, str]] = [(where, kind) for where in _SERVICES for kind in (KILL, STOP)]
    process.append((Boundary.GATEWAY, STOP))
    others: list[tuple[Boundary, str]] = [(where, kind) for kind in WIRE_FAULTS for where in _SERVICES]
    others += [(Boundary.LLM, kind) for kind in LLM_MISBEHAVIOURS]
    others += [(Boundary.TOKEN2WAV, kind) for kind in TOKEN2WAV_MISBEHAVIOURS]
    others += [(Boundary.DOORS, kind) for kind in BAD_CLIENTS]
    others += [(Boundary.GATEWAY, kind) for kind in (CLOCK_JUMP, FULL_DISK, FEW_DESCRIPTORS, *LACKS)]
    of_processes = round(count * _PROCESS_SHARE)
    drawn = _round_robin(process, of_processes, rng) + _round_robin(others, count - of_processes, rng)
    rng.shuffle(drawn)
    return drawn


def _round_robin(kinds: Sequence[tuple[Boundary, str]], count: int, rng: random.Random) -> list[tuple[Boundary, str]]:
    rounds = [rng.sample(kinds, len(kinds)) for _ in range(count // len(kinds) + 1)]
    return [kind for each in rounds for kind in each][:count]


def _fault(number: int, setting: Setting, kind: tuple[Boundary, str], rng: random.Random) -> Fault:
    replicas = 3 if setting is Setting.THREE or (setting, kind[0]) == (Setting.REAL, Boundary.TOKEN2WAV) else 1
    at_s, seconds = rng.uniform(*_MOMENTS_S[setting]), rng.uniform(0.3, _PATIENCE_S[setting])
    return Fault(number, setting, *kind, rng.randrange(replicas), round(at_s, 3), round(seconds, 3))
