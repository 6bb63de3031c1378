"""The attack campaign: hostile inputs to every door of a real gateway, and what one honest caller notices of them.

`python -m lab.attack --out attack.json` starts services without models (`benchmarks.lib.paced_services`) and a gateway
with two keys before them. A process of its own makes `--inputs` inputs for each door, one kind of `lab.attack.table`
after the other, at a low priority: attackers have machines of their own. Meanwhile an honest key speaks again and
again, another such process notes the gateway's memory and its sockets, and the gateway notes the stalls of its event
loop (`lab.attack.gateway` says what counts as one). Between two kinds the honest key speaks alone. In the end the same
is done to a gateway of two processes whose services have few places.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cosydit.bench.metrics import percentile
from cosydit.bench.report import aligned_table, describe_environment, write_json
from cosydit.stack.checkpoint.checkpoints import resolve_checkpoint
from lab.attack.table import DOORS, FULL_KINDS, KINDS, Kind, counts, go_behind, run
from lab.attack.target import QUIET, STALLS, Target, look, started
from lab.load import storm_doors
from llm_service.aligner import ALIGNER_FILE

CAPACITY, FULL_CAPACITY = 200.0, 8.0
"""Answers that the LLM gives at once where it is not what is attacked, and where it is; there it makes so many seconds
of speech a second for all of them together, too."""
QUIET_REQUESTS = 8
"""Requests of the honest caller after each kind of input, without any attack."""
PAUSE_S, SAMPLE_S = 0.1, 0.1
_MEDIAN, _TAIL = 50, 95
_FAILURES = 3
"""Most failures that a row tells."""
_NEVER = ("refused_wrongly", "foreign_addresses", "tracebacks", "files_in_home")
"""Figures that are 0, or the campaign has failed."""


@dataclass
class Row:
    """What the inputs of one kind did."""

    door: str
    harm: str
    inputs: int
    seconds: float = 0.0
    loop_stall_max_ms: float = 0.0
    """Longest stall of the event loop, without the time that other processes had its core."""
    loop_wall_max_ms: float = 0.0
    """The same with that time."""
    loop_cpu_max_ms: float = 0.0
    """Most CPU time of the event loop's thread in one turn."""
    memory_growth_max_mb: float = 0.0
    """The gateway's memory at its highest over that before the first input of all."""
    asked: int = 0
    """Requests of the honest caller, during the attack and after it."""
    refused_wrongly: int = 0
    """Those that were not spoken to the end; and what else the gateway did wrong."""
    failures: list[str] = field(default_factory=list)
    foreign_addresses: list[str] = field(default_factory=list)
    """Other machines that the gateway had sockets to, as /proc/net writes them."""
    attacked_s: list[float] = field(default_factory=list)
    """Times to first audio of the honest caller during the attack."""
    quiet_s: list[float] = field(default_factory=list)
    """The same, after it."""


class Honest:
    """A caller who speaks again and again with a key of its own."""

    def __init__(self, ask: storm_doors.Ask) -> None:
        """Ask nothing yet."""
        self._ask = ask
        self.asked = 0
        self.first_s: list[float] = []
        self.failures: list[str] = []

    async def once(self) -> None:
        """Ask for one text and listen to the end; then pause."""
        began_s, has_first = time.monotonic(), False

        def heard(seconds: float) -> None:
            nonlocal has_first
            if seconds and not has_first:
                has_first = True
                self.first_s.append(time.monotonic() - began_s)

        self.asked += 1
        try:
            await self._ask(QUIET, storm_doors.text_of(self.asked), heard)
        except Exception as error:  # NOTE: whatever a client's library raises, the request was not spoken to its end
            self.failures.append(repr(error))
        await asyncio.sleep(PAUSE_S)


class Campaign:
    """Attacks one gateway."""

    def __init__(self, target: Target, ask: storm_doors.Ask, attackers: ProcessPoolExecutor, seed: int) -> None:
        """Attack nothing yet.

        Args:
            target: the gateway.
            ask: how the honest caller asks.
            attackers: two processes, one that attacks and one that looks on.
            seed: of sizes and times.
        """
        self._target = target
        self._ask = ask
        self._attackers = attackers
        self._seed = seed
        self._held_mib = 0.0

    async def run(self, dealt: Mapping[Kind, int]) -> list[Row]:
        """Make so many inputs of each kind; return what each did."""
        if (quiet := await self._speak_alone()).failures:
            raise RuntimeError(f"the gateway does not speak before any attack: {quiet.failures[0]}")
        self._held_mib = self._target.memory_mib()
        return [await self._attack(kind, count) for kind, count in dealt.items()]

    async def _attack(self, kind: Kind, count: int) -> Row:
        row, during = Row(kind.door, kind.harm, count), Honest(self._ask)
        self._target.begin()
        began_s, number = time.monotonic(), (*KINDS, *FULL_KINDS).index(kind)
        attack = asyncio.get_running_loop().run_in_executor(
            self._attackers, run, self._target.ports, number, count, self._seed
        )
        watching = asyncio.create_task(self._watch(row, attack))
        while not attack.done() and kind.is_heard:
            await during.once()
        await watching
        row.seconds, stalls = round(time.monotonic() - began_s, 1), self._target.stalls()
        row.loop_wall_max_ms, row.loop_stall_max_ms, row.loop_cpu_max_ms = (round(stalls[name], 1) for name in STALLS)
        after = await self._speak_alone()
        wrong = [str(attack.exception())] if attack.exception() else []
        wrong += during.failures + after.failures
        row.asked, row.refused_wrongly, row.failures = during.asked + after.asked, len(wrong), wrong[:_FAILURES]
        row.attacked_s, row.quiet_s = _rounded(during.first_s), _rounded(after.first_s)
        print(f"{row.door}, {row.harm}: {count} inputs in {row.seconds:g} s", file=sys.stderr, flush=True)
        return row

    async def _watch(self, row: Row, attack: asyncio.Future[None]) -> None:
        foreign, loop = set[str](), asyncio.get_running_loop()
        while not attack.done():  # looked at by another process, which takes no time from the honest caller's
            held_mib, addresses = await loop.run_in_executor(self._attackers, look, self._target)
            row.memory_growth_max_mb = max(row.memory_growth_max_mb, round(held_mib - self._held_mib, 1))
            foreign |= addresses
            await asyncio.sleep(SAMPLE_S)
        row.foreign_addresses = sorted(foreign)

    async def _speak_alone(self) -> Honest:
        honest = Honest(self._ask)
        for _ in range(QUIET_REQUESTS):
            await honest.once()
        return honest


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(value, 4) for value in values]


def ratios(rows: Sequence[Row], percent: int) -> dict[str, float]:
    """Return for each door the honest caller's time to first audio under attack, divided by that of quiet times."""
    found = {}
    for door in dict.fromkeys(row.door for row in rows):
        under = [value for row in rows if row.door == door for value in row.attacked_s]
        alone = [value for row in rows if row.door == door for value in row.quiet_s]
        found[door] = round(percentile(under, percent) / percentile(alone, percent), 3) if under and alone else math.inf
    return found


def figures(rows: Sequence[Row], full_rows: Sequence[Row], logs: Sequence[str]) -> dict[str, float]:
    """Return what a run is judged by.

    Args:
        rows: of the gateway whose services have room.
        full_rows: of the other one; its honest caller has to wait for a place, so its times are not judged.
        logs: of both.
    """
    both = [*rows, *full_rows]
    return {
        "inputs": sum(row.inputs for row in both),
        "loop_stall_max_ms": max((row.loop_stall_max_ms for row in rows), default=0.0),
        "loop_wall_max_ms": max((row.loop_wall_max_ms for row in rows), default=0.0),
        "loop_cpu_max_ms": max((row.loop_cpu_max_ms for row in rows), default=0.0),
        "memory_growth_max_mb": max((row.memory_growth_max_mb for row in rows), default=0.0),
        "other_caller_ttfa_ratio": max(ratios(rows, _MEDIAN).values(), default=1.0),
        "other_caller_ttfa_p95_ratio": max(ratios(rows, _TAIL).values(), default=1.0),
        "refused_wrongly": sum(row.refused_wrongly for row in both),
        "foreign_addresses": sum(len(row.foreign_addresses) for row in both),
        "tracebacks": sum(log.count("Traceback") for log in logs),
    }


async def _measure(target: Target, dealt: Mapping[Kind, int], seed: int) -> list[Row]:
    ports = storm_doors.Ports(target.ports.http, target.ports.grpc)
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, spawned, initializer=go_behind) as attackers:
        async with storm_doors.DOORS["http"](ports) as ask:
            return await Campaign(target, ask, attackers, seed).run(dealt)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; exit status 1 if a figure that must be 0 is not."""
    args = _parser().parse_args(argv)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="attack-") as made:
        folder = Path(made)
        found = resolve_checkpoint(args.checkpoint, folder)
        if args.checkpoint is None:  # the stand-in's tokens say no word; else each answer would be asked for again
            (found.llm_dir / ALIGNER_FILE).unlink()
        rows, written, logs = list[list[Row]](), list[str](), list[str]()
        for name, kinds, capacity, processes in (("usual", KINDS, CAPACITY, 1), ("full", FULL_KINDS, FULL_CAPACITY, 2)):
            dealt = {kind: count for door in args.doors for kind, count in counts(kinds, door, args.inputs).items()}
            with started(folder / name, found, capacity, processes, is_shared=kinds is FULL_KINDS) as target:
                rows.append(asyncio.run(_measure(target, dealt, args.seed)))
            logs.append(target.log)
            written += [str(path.relative_to(target.home)) for path in target.home.rglob("*")]
    found_of_all = {**figures(rows[0], rows[1], logs), "files_in_home": len(written)}
    document = {
        "figures": found_of_all,
        "seconds": round(time.monotonic() - began_s),
        "ttfa_ratios": {"p50": ratios(rows[0], _MEDIAN), "p95": ratios(rows[0], _TAIL)},
        "kinds": [asdict(row) for row in (*rows[0], *rows[1])],
        "environment": describe_environment(vars(args)),
    }
    write_json(args.out, document)
    print(aligned_table([[name, f"{value:g}"] for name, value in found_of_all.items()]), end="")
    return int(any(found_of_all[name] for name in _NEVER))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.attack", description=__doc__, allow_abbrev=False)
    parser.add_argument("--inputs", type=int, default=500, help="inputs for each door (default %(default)s)")
    parser.add_argument("--doors", nargs="+", choices=DOORS, default=DOORS, help="attack these only (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of sizes and times (default %(default)s)")
    parser.add_argument("--checkpoint", type=Path, help="with tokenizer and voices (default: the bundled voice)")
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    return parser


if __name__ == "__main__":
    sys.exit(main())
