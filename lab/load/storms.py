"""Storms: more callers than the gateway's services can serve, over every door, and what becomes of all of them.

`python -m lab.load.storms --out storms.json` starts services that answer at a steady pace without models
(`benchmarks.lib.paced_services`) with an LLM of `--capacity` seconds of speech a second. For each door and each of
`--times` it starts a gateway before them, has it serve as many callers as they can for some seconds, and then lets so
many times that many callers come at once; each asks again and again, and comes back when it was told to. Then one key
floods while another one speaks. Every storm is written when it has ended; `--resume` goes on where a run broke off.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.lib.plot import SIZE_INCHES, figure_class, save_figure
from cosydit.bench.metrics import percentile
from cosydit.bench.report import aligned_table, describe_environment, write_json
from cosydit.bench.types import BenchmarkError
from cosydit.stack.checkpoint.checkpoints import CheckpointLayout, resolve_checkpoint
from cosydit.stack.process import ServiceProcess, ServiceSpec
from lab.load.storm_doors import DOORS, Ask, Ports, RefusedError, text_of
from llm_service.aligner import ALIGNER_FILE
from servicekit.clock import Clock, SystemClock
from servicekit.process import exempt_startup_objects
from token2wav_service.serving.process.server import free_ports

HOST = "127.0.0.1"
LOUD, QUIET = "storm-loud-key-0123456789", "storm-quiet-key-0123456789"
WARM_UP_S = 5.0
"""Seconds before a storm in which a fresh gateway measures its services, as one that has run for a while has."""
READY_TIMEOUT_S, END_S = 60.0, 600.0
"""Seconds until the services are ready, and for a storm's last streams: only what hangs takes longer."""
SPEECH_S = 5.0
"""Seconds of an answer: as long as the doors' text takes, so that the gateway's guard has nothing to mend."""
DEFAULT_RETRY_S = 5.0
"""Seconds until the next try if a refusal does not name them."""
QUIET_EVERY_S = 2.0
"""Mean seconds between the quiet key's callers, one after another: they use an eighth of the capacity."""
FLOOD_TIMES = 16
MAX_CONNECTIONS = 8192
_P95 = 95


@dataclass
class Tally:
    """What became of some callers' requests."""

    ended: int = 0
    failed: list[str] = field(default_factory=list)
    """Requests that were admitted and not spoken to the end."""
    refused: int = 0
    without_retry: int = 0
    returns: int = 0
    """Requests of callers who were refused and came back when they were told to."""
    kept: int = 0
    """Returned requests that were admitted."""
    speech_s: float = 0.0
    """Seconds of speech heard while the storm lasted."""
    first_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Storm:
    """One row of the result."""

    door: str
    times: float
    callers: int
    seconds: float
    goodput: float
    """Share of the speech that the LLM can make in that time which callers heard."""
    ended: int
    failed: int
    refused: int
    returns: int
    kept: int
    first_p95_s: float
    quiet_p95_s: float | None = None
    quiet_worst_s: float | None = None
    failures: tuple[str, ...] = ()
    cpu_s: dict[str, float] = field(default_factory=dict)
    """CPU seconds of gateway, services and callers while the storm lasted; they share the machine."""


class Callers:
    """Callers of one key, until the storm is over."""

    def __init__(self, ask: Ask, key: str, until_s: float, clock: Clock | None = None) -> None:
        """Ask nothing yet."""
        self.tally = Tally()
        self._ask, self._key, self._until_s = ask, key, until_s
        self._clock = clock or SystemClock()

    async def flood(self, callers: int) -> None:
        """Come all at once, each with a text of its own, ask again and again; return when the last one has ended."""
        await asyncio.gather(*(self._call(text_of(caller)) for caller in range(callers)))

    async def arrive(self, every_s: float) -> None:
        """Come one after another, so far apart in the mean, each for one answer; return when the last one has ended."""
        calls = list[asyncio.Task[None]]()
        while self._clock.now() < self._until_s:
            calls.append(asyncio.create_task(self._call(text_of(len(calls)), is_once=True)))
            await asyncio.sleep(every_s * random.uniform(0.5, 1.5))
        await asyncio.gather(*calls)

    async def _call(self, text: str, is_once: bool = False) -> None:
        has_returned = False
        while self._clock.now() < self._until_s:
            pause_s, has_returned = await self._once(text, has_returned)
            if (is_once and not has_returned) or self._clock.now() + pause_s >= self._until_s:
                return
            await asyncio.sleep(pause_s)

    async def _once(self, text: str, has_returned: bool) -> tuple[float, bool]:
        """Ask once; return in how many seconds to ask again, and whether the request was refused."""
        tally, asked_s, has_first = self.tally, self._clock.now(), False
        tally.returns += has_returned

        def heard(seconds: float) -> None:
            nonlocal has_first
            now_s = self._clock.now()
            if seconds and not has_first:
                has_first = True
                tally.first_s.append(now_s - asked_s)
            tally.speech_s += seconds if now_s < self._until_s else 0.0

        try:
            await self._ask(self._key, text, heard)
        except RefusedError as refusal:
            tally.refused += 1
            tally.without_retry += refusal.retry_after_s is None
            return refusal.retry_after_s or DEFAULT_RETRY_S, True
        except Exception as error:  # NOTE: whatever a client's library raises, the request was not spoken to its end
            tally.failed.append(repr(error))
            return DEFAULT_RETRY_S, False
        tally.kept += has_returned
        tally.ended += 1
        return 0.0, False


@dataclass(frozen=True)
class Stage:
    """What a storm passes over."""

    ports: Ports
    pids: dict[str, int]

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU time of each process so far."""
        ticks_s = 1.0 / os.sysconf("SC_CLK_TCK")
        used = {name: ticks_s * sum(map(int, _stat(pid)[_TIMES])) for name, pid in self.pids.items()}
        return used | {"callers": time.process_time()}


_TIMES = slice(11, 13)
"""Fields of user and kernel time, counted behind the name in /proc/PID/stat."""


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()


async def measure(door: str, times: float, plan: argparse.Namespace, stage: Stage, has_quiet: bool = False) -> Storm:
    """Let one storm pass."""
    callers = max(1, round(times * plan.capacity))
    async with DOORS[door](stage.ports) as ask:
        warming = Callers(ask, LOUD, SystemClock().now() + WARM_UP_S)
        await asyncio.wait_for(warming.flood(max(1, round(plan.capacity))), WARM_UP_S + END_S)
        used_s = stage.cpu_s()
        until_s = SystemClock().now() + plan.seconds
        loud = Callers(ask, LOUD, until_s)
        quiet = Callers(ask, QUIET, until_s)
        running = [loud.flood(callers)] + ([quiet.arrive(QUIET_EVERY_S)] if has_quiet else [])
        await asyncio.wait_for(asyncio.gather(*running), plan.seconds + END_S)
    tally = loud.tally
    failed = tally.failed + quiet.tally.failed
    return Storm(
        door=door,
        times=times,
        callers=callers,
        seconds=plan.seconds,
        goodput=(tally.speech_s + quiet.tally.speech_s) / (plan.capacity * plan.seconds),
        ended=tally.ended + quiet.tally.ended,
        failed=len(failed),
        refused=tally.refused,
        returns=tally.returns,
        kept=tally.kept,
        first_p95_s=percentile(tally.first_s, _P95) if tally.first_s else math.nan,
        quiet_p95_s=percentile(quiet.tally.first_s, _P95) if quiet.tally.first_s else None,
        quiet_worst_s=max(quiet.tally.first_s, default=None),
        failures=tuple(failed[:3]),
        cpu_s={name: round(now_s - used_s[name], 2) for name, now_s in stage.cpu_s().items()},
    )


def figures(storms: dict[str, Storm]) -> dict[str, float]:
    """Return what a run is judged by."""
    usual = [storm for name, storm in storms.items() if not name.startswith("flood")]
    returns, kept = sum(storm.returns for storm in usual), sum(storm.kept for storm in usual)
    found: dict[str, float] = {
        "goodput_least": round(min(storm.goodput for storm in usual), 3),
        "ended": sum(storm.ended for storm in storms.values()),
        "failed": sum(storm.failed for storm in storms.values()),
        "refused": sum(storm.refused for storm in storms.values()),
        "returns": returns,
        "kept_share": round(kept / returns, 3) if returns else 1.0,
    }
    full, flood = (storms.get(name) for name in ("flood 1", f"flood {FLOOD_TIMES}"))
    if full is not None and flood is not None and full.quiet_p95_s and flood.quiet_p95_s:
        found["quiet_p95_ratio"] = round(flood.quiet_p95_s / full.quiet_p95_s, 3)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    args = _parser().parse_args(argv)
    try:
        figure_class()
    except BenchmarkError as error:
        raise SystemExit(f"storms: {error}") from error
    done = _read(args.out) if args.resume else {}
    wanted: dict[str, tuple[str, float, bool]] = {
        f"{door} {times:g}": (door, times, False) for door in args.doors for times in args.times
    }
    floods = (1, FLOOD_TIMES) if args.flood else ()
    wanted |= {f"flood {times}": (args.doors[0], float(times), True) for times in floods}
    left = {name: storm for name, storm in wanted.items() if name not in done}
    if left:
        with tempfile.TemporaryDirectory(prefix="storms-") as made, _services(args, Path(made)) as services:
            for number, (name, (door, times, has_quiet)) in enumerate(left.items(), 1):
                print(f"{number} of {len(left)}: {name} times, {args.seconds:g} s", file=sys.stderr, flush=True)
                with services.gateway() as stage:
                    done[name] = asyncio.run(measure(door, times, args, stage, has_quiet))
                _write(args, done)
    print(_table(done), end="")
    _draw(args.out.with_suffix(".webp"), done)
    return 0


@dataclass(frozen=True)
class _Services:
    """The paced services, which outlive the gateways before them."""

    folder: Path
    checkpoint: CheckpointLayout
    llm: int
    token2wav: int
    pid: int
    llm_slots: int
    """Answers at once: as many as this LLM gives real time."""

    @contextmanager
    def gateway(self) -> Iterator[Stage]:
        """Start a gateway with two keys."""
        http, grpc_port = free_ports(2)
        command = [
            sys.executable,
            "-c",
            "from lab.load.storms import serve_wide; serve_wide()",
            "--port",
            str(http),
            "--grpc-port",
            str(grpc_port),
        ]
        command += ["--llm-url", f"http://{HOST}:{self.llm}", "--llm-backend", "vllm"]
        command += ["--llm-slots", str(self.llm_slots)]
        command += ["--token2wav-url", f"{HOST}:{self.token2wav}", "--dynamic-chunk-strategy", "deadline"]
        command += ["--tokenizer-dir", str(self.checkpoint.llm_dir), "--voices-dir", str(self.checkpoint.voices_dir)]
        command += ["--keys-file", str(self.folder / "keys.txt")]
        spec = ServiceSpec("gateway", command, f"http://{HOST}:{http}/readyz", self.folder / "gateway.log")
        with ServiceProcess(spec) as running:
            running.wait_ready(READY_TIMEOUT_S)
            yield Stage(Ports(http, grpc_port), {"gateway": running.pid, "services": self.pid})


def serve_wide() -> None:
    """Be the gateway, with room for every connection of a storm."""
    import gateway.__main__ as program
    from gateway.config import GatewayConfig, parse_args

    def wide() -> GatewayConfig:
        config = parse_args()
        limits = replace(config.access.wire, max_connections=MAX_CONNECTIONS, max_connections_per_peer=MAX_CONNECTIONS)
        return replace(config, access=replace(config.access, wire=limits))

    program.parse_args = wide  # type: ignore[attr-defined, assignment]
    raise SystemExit(program.main())


@contextmanager
def _services(args: argparse.Namespace, folder: Path) -> Iterator[_Services]:
    """Start the paced services."""
    checkpoint = resolve_checkpoint(args.checkpoint, folder)
    if args.checkpoint is None:  # the stand-in's tokens say no word; else each answer would be asked for again
        (checkpoint.llm_dir / ALIGNER_FILE).unlink()
    (folder / "keys.txt").write_text(f"loud {LOUD}\nquiet {QUIET}\n", "utf-8")
    llm, tokens, token2wav = free_ports(3)
    command = [sys.executable, "-m", "benchmarks.lib.paced_services", *map(str, (llm, tokens, token2wav))]
    command += [str(args.capacity), str(SPEECH_S)]
    spec = ServiceSpec("services", command, f"http://{HOST}:{llm}/health", folder / "services.log")
    with ServiceProcess(spec) as running:
        running.wait_ready(READY_TIMEOUT_S)
        yield _Services(folder, checkpoint, llm, token2wav, running.pid, max(1, round(args.capacity)))


def _read(path: Path) -> dict[str, Storm]:
    if not path.exists():
        return {}
    return {name: Storm(**row) for name, row in json.loads(path.read_text("utf-8"))["storms"].items()}


def _write(args: argparse.Namespace, done: dict[str, Storm]) -> None:
    document: dict[str, Any] = {
        "figures": figures(done),
        "storms": {name: asdict(storm) for name, storm in done.items()},
        "environment": describe_environment(vars(args)),
    }
    write_json(args.out, document)


def _table(done: dict[str, Storm]) -> str:
    rows = [
        [
            "storm",
            "callers",
            "goodput",
            "ended",
            "failed",
            "refused",
            "came back",
            "let in",
            "first p95 s",
            "quiet",
            "worst",
        ]
    ]
    for name, storm in done.items():
        counts = (storm.ended, storm.failed, storm.refused, storm.returns, storm.kept)
        quiet = ["" if value is None else f"{value:.2f}" for value in (storm.quiet_p95_s, storm.quiet_worst_s)]
        times = [f"{storm.first_p95_s:.2f}", *quiet]
        rows.append([name, str(storm.callers), f"{storm.goodput:.2f}", *(str(count) for count in counts), *times])
    return aligned_table(rows)


def _draw(path: Path, done: dict[str, Storm]) -> None:
    figure = figure_class()(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.subplots(1, 2)
    for door in dict.fromkeys(storm.door for storm in done.values()):
        storms = [storm for name, storm in done.items() if storm.door == door and not name.startswith("flood")]
        times = [storm.times for storm in storms]
        axes[0].plot(times, [storm.goodput for storm in storms], "o-", label=door)
        axes[1].plot(times, [storm.first_p95_s for storm in storms], "o-", label=door)
    axes[0].axhline(0.8, linestyle="--", color="grey")
    axes[0].set(title="goodput against capacity", xlabel="times the capacity", xscale="log", ylim=(0, None))
    axes[1].set(title="first audio of those let in, p95", xlabel="times the capacity", ylabel="s", xscale="log")
    for each in axes:
        each.legend()
    save_figure(figure, path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.load.storms", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--checkpoint", type=Path, help="checkpoint whose tokenizer and voices are used (default: the demo voice)"
    )
    parser.add_argument(
        "--capacity", type=float, default=20.0, help="capacity in seconds of speech a second (default %(default)s)"
    )
    parser.add_argument("--times", type=float, nargs="+", default=[1, 4, 16, 64], help="loads, in times the capacity")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of each storm (default %(default)s)")
    parser.add_argument("--doors", nargs="+", choices=tuple(DOORS), default=list(DOORS))
    parser.add_argument(
        "--flood",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="let one key flood the gateway in the last storm (default: yes)",
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON to write; the plot is written beside it")
    parser.add_argument("--resume", action="store_true", help="keep the storms that are in OUT already")
    return parser


if __name__ == "__main__":
    exempt_startup_objects()
    sys.exit(main())
