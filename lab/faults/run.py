"""Runs faults one after the other, judges what the callers heard, and keeps a journal that can be gone on with."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.faults.clients import TEXTS, Answer, speak
from lab.faults.plan import Boundary, Fault, Setting
from lab.faults.world import World, failovers_of, until_ready

CALLERS = 4
FREE_WITHIN_S = 10.0
"""Seconds after which state that is not freed counts as stuck."""
_FREE_LIMIT_S = 30.0
_RECOVERY_LIMIT_S = 60.0
_POLL_S = 0.05
_SHOWN_ERRORS = 3


@dataclass(frozen=True)
class FaultReport:
    """One fault, and what came of it."""

    number: int
    setting: str
    boundary: str
    fault: str
    at_s: float
    seconds: float
    is_process: bool
    requests: int
    refused: int
    """Requests refused at once, as there was no room or no live service."""
    lost: int
    """Requests admitted that did not get their whole audio."""
    crossed: int
    """Requests whose samples, up to their end, differed from those without the fault."""
    slowest_s: float
    free_s: float | None
    """Seconds from the end of the last caller to the end of all state; None: never."""
    recovered_s: float | None
    """Seconds from then to the next speech; None: never."""
    failovers: int
    """Streams and answers that went on elsewhere, or were asked for again."""
    errors: tuple[str, ...]

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong with it."""
        return not (self.lost or self.crossed or self.is_stuck or self.recovered_s is None)

    @property
    def is_stuck(self) -> bool:
        """Whether state stayed too long."""
        return self.free_s is None or self.free_s > FREE_WITHIN_S


async def run_fault(world: World, fault: Fault) -> FaultReport:
    """Let callers speak, hurt the system in the middle, and wait until it is idle and speaks again."""
    rng = random.Random(fault.number)
    before = await failovers_of(world.doors)
    hurting = asyncio.create_task(_after(fault.at_s, lambda: world.hurt(fault)))
    texts = rng.sample(range(len(TEXTS)), CALLERS)
    answers = await asyncio.gather(*(_later(rng.uniform(0.0, 0.3), world.doors.url, text) for text in texts))
    if fault.boundary is Boundary.DOORS:
        await hurting  # what a client does lasts as long as the client
    free_s = await _until_idle(world)
    await hurting
    recovered_s = await until_ready(world.doors.url, _RECOVERY_LIMIT_S)
    failovers = await failovers_of(world.doors) - before
    return _report(world, fault, answers, (free_s, recovered_s), failovers)


async def _after(seconds: float, act: Callable[[], Any]) -> None:
    await asyncio.sleep(seconds)
    await act()


async def _later(seconds: float, url: str, text: int) -> Answer:
    await asyncio.sleep(seconds)
    return await speak(url, text)


async def _until_idle(world: World) -> float | None:
    began_s = time.monotonic()
    while time.monotonic() - began_s < _FREE_LIMIT_S:
        if await world.is_idle():
            return time.monotonic() - began_s
        await asyncio.sleep(_POLL_S)
    return None


def _report(
    world: World, fault: Fault, answers: Sequence[Answer], times: tuple[float | None, float | None], failovers: int
) -> FaultReport:
    free_s, recovered_s = times
    admitted = [answer for answer in answers if not answer.is_refused]
    lost = [answer for answer in admitted if not answer.is_whole]
    crossed = [answer for answer in admitted if not world.is_right(answer, fault)]
    return FaultReport(
        number=fault.number,
        setting=fault.setting.value,
        boundary=fault.boundary.value,
        fault=fault.kind,
        at_s=fault.at_s,
        seconds=fault.seconds,
        is_process=fault.is_process,
        requests=len(answers),
        refused=len(answers) - len(admitted),
        lost=len(lost),
        crossed=len(crossed),
        slowest_s=round(max(answer.seconds for answer in answers), 3),
        free_s=None if free_s is None else round(free_s, 3),
        recovered_s=None if recovered_s is None else round(recovered_s, 3),
        failovers=failovers,
        errors=tuple(f"{each.status} {each.error}" for each in answers if each.error is not None)[:_SHOWN_ERRORS],
    )


MakeWorld = Callable[[Setting], World]
Tell = Callable[[FaultReport], None]


async def run_campaign(faults: Iterable[Fault], make_world: MakeWorld, tell: Tell) -> None:
    """Run faults in order; a world lives as long as they need it.

    Args:
        faults: those that are not done yet.
        make_world: called for each setting.
        tell: of each report, as soon as it is there.
    """
    world: World | None = None
    setting: Setting | None = None
    try:
        for fault in faults:
            if world is None or fault.setting is not setting:
                if world is not None:
                    await world.stop()
                world, setting = make_world(fault.setting), fault.setting
                await world.start()
            report = await run_fault(world, fault)
            tell(report)
            if report.free_s is None or report.recovered_s is None:
                await world.stop()
                world = None
    finally:
        if world is not None:
            await world.stop()


class Journal:
    """The reports so far, one a line, in a file that survives a broken campaign."""

    def __init__(self, path: Path, plan: Mapping[str, Any], is_resumed: bool) -> None:
        """Begin a file, or read the one that is there.

        Args:
            path: of the file.
            plan: what the campaign was drawn from.
            is_resumed: go on with what the file holds.

        Raises:
            ValueError: it is of another plan, or can't be read.
        """
        self._path = path
        self.reports: list[FaultReport] = []
        if is_resumed and path.is_file():
            first, *lines = path.read_text("utf-8").splitlines()
            if json.loads(first) != dict(plan):
                raise ValueError(f"{path} is of another campaign: {first}; leave --resume out, or give its options")
            self.reports = [FaultReport(**json.loads(line)) for line in lines if line.endswith("}")]
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(dict(plan)), *(json.dumps(asdict(report)) for report in self.reports)]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def add(self, report: FaultReport) -> None:
        """Write a report down."""
        self.reports.append(report)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(report)) + "\n")


def figures(reports: Sequence[FaultReport]) -> dict[str, float]:
    """Return a campaign's figures."""
    return {
        "faults": len(reports),
        "process_faults": sum(report.is_process for report in reports),
        "requests": sum(report.requests for report in reports),
        "failovers": sum(report.failovers for report in reports),
        "refused": sum(report.refused for report in reports),
        "lost": sum(report.lost for report in reports),
        "stuck": sum(report.is_stuck for report in reports),
        "crossed": sum(report.crossed for report in reports),
        "worst_free_s": max((_FREE_LIMIT_S if each.free_s is None else each.free_s for each in reports), default=0.0),
    }
