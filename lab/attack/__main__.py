"""The attack campaign: hostile inputs to every door of a real gateway, and what one honest caller notices of them.

`python -m lab.attack --out attack.json` starts services without models (`benchmarks.lib.paced_services`) and a gateway
with two keys before them. A process of its own sends `--inputs` inputs of `lab.attack.inputs` to one door after the
other, at a low priority: attackers have machines of their own. Meanwhile an honest key speaks again and again, and the
gateway's memory and the stalls of its event loop are noted. Everything is on this machine's loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cosydit.bench.report import aligned_table, describe_environment, write_json
from cosydit.stack.checkpoint.checkpoints import resolve_checkpoint
from cosydit.stack.process import ServiceProcess, ServiceSpec
from lab.attack.inputs import DOORS, HOST, KEY, Ports, run
from lab.load import storm_doors
from lab.load.process_usage import usages
from token2wav_service.serving.process.server import free_ports

QUIET = "attack-quiet-key-0123456789"
CAPACITY = 200.0
"""Seconds of speech a second that the LLM makes: it is not what is attacked."""
BASELINE = 30
"""Requests of the honest caller before the attack."""
READY_TIMEOUT_S, PAUSE_S, SAMPLE_S = 60.0, 0.1, 0.05


@dataclass
class Row:
    """What one door's inputs did."""

    door: str
    inputs: int
    seconds: float = 0.0
    loop_stall_max_ms: float = 0.0
    loop_cpu_max_ms: float = 0.0
    """CPU time of the event loop in its longest stall; the difference went to other threads and processes."""
    memory_growth_max_mb: float = 0.0
    """The gateway's memory at its highest over that before the first input of all."""
    ttfa_s: float = 0.0
    """Median time to first audio of the honest caller."""
    asked: int = 0
    refused_wrongly: int = 0
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Target:
    """The gateway under attack."""

    ports: Ports
    pid: int
    notes: Path

    def stalls(self) -> dict[str, float]:
        """Return the longest stalls since `begin`."""
        found: dict[str, float] = json.loads(self.notes.read_text("utf-8"))
        return found

    def memory_mib(self) -> float:
        """Return what the gateway and its children hold now."""
        return usages({self.pid: "gateway"})["gateway"].memory_mib

    def begin(self) -> None:
        """Note the stalls anew."""
        os.kill(self.pid, signal.SIGUSR1)


class Honest:
    """A caller who speaks again and again with a key of its own."""

    def __init__(self, ask: storm_doors.Ask) -> None:
        """Ask nothing yet."""
        self._ask = ask
        self.first_s: list[float] = []
        self.failures: list[str] = []

    async def once(self) -> None:
        """Ask for one text and listen to the end."""
        began_s, has_first = time.monotonic(), False

        def heard(seconds: float) -> None:
            nonlocal has_first
            if seconds and not has_first:
                has_first = True
                self.first_s.append(time.monotonic() - began_s)

        try:
            await self._ask(QUIET, storm_doors.text_of(len(self.first_s)), heard)
        except Exception as error:  # NOTE: whatever a client's library raises, the request was not spoken to its end
            self.failures.append(repr(error))


async def measure(target: Target, inputs: int, seed: int) -> tuple[float, list[Row]]:
    """Attack all doors; return the honest caller's median time to first audio before, and a row for each door."""
    async with storm_doors.DOORS["http"](storm_doors.Ports(target.ports.http, target.ports.grpc)) as ask:
        before = Honest(ask)
        for _ in range(BASELINE):
            await before.once()
        if before.failures:
            raise RuntimeError(f"the gateway does not speak before any attack: {before.failures[0]}")
        held = target.memory_mib()
        rows = [await _attacked(target, Honest(ask), Row(door, inputs), held, seed) for door in DOORS]
    return statistics.median(before.first_s), rows


async def _attacked(target: Target, honest: Honest, row: Row, held: float, seed: int) -> Row:
    target.begin()
    began_s, most = time.monotonic(), held
    attacker = multiprocessing.get_context("spawn").Process(
        target=run, args=(target.ports, row.door, row.inputs, seed), daemon=True
    )
    attacker.start()

    async def speak() -> None:
        while attacker.is_alive():
            await honest.once()
            await asyncio.sleep(PAUSE_S)

    speaking = asyncio.create_task(speak())
    while not speaking.done():
        most = max(most, target.memory_mib())
        await asyncio.sleep(SAMPLE_S)
    await speaking
    attacker.join()
    if attacker.exitcode:
        raise RuntimeError(f"the attack on {row.door} failed with status {attacker.exitcode}")
    stalls = target.stalls()
    row.seconds = round(time.monotonic() - began_s, 1)
    row.loop_stall_max_ms, row.loop_cpu_max_ms = round(stalls["wall_ms"], 1), round(stalls["cpu_ms"], 1)
    row.memory_growth_max_mb = round(most - held, 1)
    row.ttfa_s = round(statistics.median(honest.first_s), 4) if honest.first_s else math.inf
    row.asked, row.refused_wrongly = len(honest.first_s) + len(honest.failures), len(honest.failures)
    row.failures = honest.failures[:3]
    return row


def figures(before_s: float, rows: Sequence[Row]) -> dict[str, float]:
    """Return what a run is judged by."""
    return {
        "inputs": sum(row.inputs for row in rows),
        "loop_stall_max_ms": max(row.loop_stall_max_ms for row in rows),
        "memory_growth_max_mb": max(row.memory_growth_max_mb for row in rows),
        "other_caller_ttfa_ratio": round(max(row.ttfa_s for row in rows) / before_s, 3),
        "refused_wrongly": sum(row.refused_wrongly for row in rows),
    }


@contextmanager
def _target(folder: Path, checkpoint: Path | None) -> Iterator[Target]:
    """Start the services and the gateway."""
    found = resolve_checkpoint(checkpoint, folder)
    llm, tokens, token2wav, *rest = free_ports(7)
    ports = Ports(*rest)
    (folder / "keys.txt").write_text(f"loud {KEY}\nquiet {QUIET}\n", "utf-8")
    services = [sys.executable, "-m", "benchmarks.lib.paced_services", *map(str, (llm, tokens, token2wav, CAPACITY, 2))]
    command = [sys.executable, "-m", "lab.attack.gateway", str(folder / "stalls.json")]
    command += ["--port", str(ports.http), "--grpc-port", str(ports.grpc), "--metrics-port", str(ports.metrics)]
    command += ["--wyoming-port", str(ports.wyoming), "--insecure-wyoming", "--keys-file", str(folder / "keys.txt")]
    command += ["--created-voices-dir", str(folder / "created"), "--llm-url", f"http://{HOST}:{llm}"]
    command += ["--llm-backend", "vllm", "--token2wav-url", f"{HOST}:{token2wav}"]
    command += ["--tokenizer-dir", str(found.llm_dir), "--voices-dir", str(found.voices_dir)]
    first = ServiceSpec("services", services, f"http://{HOST}:{llm}/health", folder / "services.log")
    second = ServiceSpec("gateway", command, f"http://{HOST}:{ports.http}/readyz", folder / "gateway.log")
    with ServiceProcess(first) as made:
        made.wait_ready(READY_TIMEOUT_S)
        with ServiceProcess(second) as running:
            running.wait_ready(READY_TIMEOUT_S)
            yield Target(ports, running.pid, folder / "stalls.json")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    args = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="attack-") as made, _target(Path(made), args.checkpoint) as target:
        before_s, rows = asyncio.run(measure(target, args.inputs, args.seed))
    found = figures(before_s, rows)
    document = {"figures": found, "ttfa_before_s": round(before_s, 4), "doors": [asdict(row) for row in rows]}
    write_json(args.out, {**document, "environment": describe_environment(vars(args))})
    print(aligned_table([[name, f"{value:g}"] for name, value in found.items()]), end="")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.attack", description=__doc__, allow_abbrev=False)
    parser.add_argument("--inputs", type=int, default=500, help="inputs for each door (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of sizes and times (default %(default)s)")
    parser.add_argument("--checkpoint", type=Path, help="with tokenizer and voices (default: the bundled voice)")
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    return parser


if __name__ == "__main__":
    sys.exit(main())
