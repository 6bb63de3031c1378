"""What a request costs the gateway's process: seconds of CPU, by its own thread and by all others.

`python -m benchmarks.gateway_cost --rates 4 8 16` runs a gateway before services that answer at a steady pace without
models (`benchmarks.lib.paced_services`) and asks for 8 s of speech so many times a second. Threads beside the event
loop's should have next to nothing to do: one that spins takes a core from the services. With `--processes` the gateway
has several: the figures are sums over all of them, and their parent has a column of its own. With `--rounds` an
earlier commit, with its own copy of this benchmark, and this tree are measured by turns: `cpu_ratio` is the median of
the rounds' ratios, of all threads and rates. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.lib.commits import BASE_COMMIT, ROOT, checked_out, own_code
from benchmarks.lib.sweep import RunPlan, jobs_of, open_run
from cosydit.bench.doors import PIECES_OF_A_CHUNK_S, HttpDoor
from cosydit.bench.load import LoadGenerator
from cosydit.bench.metrics import percentile
from cosydit.bench.report import aligned_table, describe_environment, write_json
from cosydit.stack.checkpoint.checkpoints import CheckpointLayout, resolve_checkpoint
from cosydit.stack.process import ServiceProcess, ServiceSpec
from llm_service.speech_bounds import SpeechBounds, write_speech_bounds
from servicekit.clock import SystemClock
from servicekit.process import exempt_startup_objects
from token2wav_service.serving.process.server import free_ports

HOST = "127.0.0.1"
GRPC = "grpc"
"""The stream of tokens of our own engine."""
VOICE = "default"
READY_TIMEOUT_S, TIMEOUT_S = 60.0, 60.0
WARM_UP = (10.0, 2.0)
"""Requests a second and seconds of the warm-up."""
_MS = 1000.0
_MEDIAN, _TAIL = 50, 99


@dataclass(frozen=True)
class GatewayCost:
    """One rate's figures."""

    requests_per_s: float
    requests: int
    loop_s: float
    """CPU seconds a request of the event loop's thread, of all processes that serve."""
    others_s: float
    """CPU seconds a request of all their other threads."""
    ttfa_p50_s: float
    ttfa_p99_s: float
    ttfa_worst_s: float
    """Worst time to first audio. The services keep a steady pace: what lies above the median is the gateway's and the
    host's."""
    parent_s: float = 0.0
    """CPU seconds a request of the parent of several processes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    args = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="gateway-cost-") as made:
        checkpoint = resolve_checkpoint(args.checkpoint, Path(made))
        if args.checkpoint is None:  # the stand-in's tokens say no text; else each answer would be asked for again
            write_speech_bounds(checkpoint.llm_dir, SpeechBounds(follows_text=False))
        plans = [open_run(rate, args.seconds, [VOICE]) for rate in args.rates]
        costs = _measure(checkpoint, Path(made), plans, args.llm, args.processes)
    rows = [["requests/s", "requests", "loop ms a request", "other threads", "parent", "ttfa p50 ms", "p99", "worst"]]
    for cost in costs:
        times = [cost.loop_s, cost.others_s, cost.parent_s, cost.ttfa_p50_s, cost.ttfa_p99_s, cost.ttfa_worst_s]
        rows.append([f"{cost.requests_per_s:g}", str(cost.requests), *(f"{_MS * each:.1f}" for each in times)])
    print(aligned_table(rows), end="")
    by_turns = _by_turns(args) if args.rounds else {}
    if args.out is not None:
        costs_json = [asdict(cost) for cost in costs]
        write_json(args.out, {"costs": costs_json, **by_turns, "environment": describe_environment(vars(args))})
    return 0


def _by_turns(args: argparse.Namespace) -> dict[str, object]:
    """Measure the earlier commit and this tree by turns; prints each round."""
    seconds: dict[str, list[float]] = {"before": [], "today": []}
    with tempfile.TemporaryDirectory(prefix="cost-") as made, checked_out(args.against, Path(made) / "tree") as tree:
        turns = [("before", tree), ("today", ROOT)]
        for number in range(args.rounds):
            for name, root in turns if number % 2 == 0 else reversed(turns):
                seconds[name].append(_cpu_of(root, args, Path(made) / "costs.json"))
            before_s, today_s = seconds["before"][-1], seconds["today"][-1]
            print(f"round {number + 1}: {_MS * before_s:.1f} -> {_MS * today_s:.1f} ms, {today_s / before_s:.3f}")
    ratio = median(today / before for before, today in zip(seconds["before"], seconds["today"], strict=True))
    print(f"cpu_ratio {ratio:.3f}")
    return {"cpu_ratio": round(ratio, 4), "commit_before": args.against, "cpu_s_a_request": seconds}


def _cpu_of(tree: Path, args: argparse.Namespace, out: Path) -> float:
    """Return the CPU seconds of a request, all threads, the mean of the rates, as a tree's own benchmark tells them."""
    command = [sys.executable, "-m", "benchmarks.gateway_cost", "--out", str(out), "--seconds", str(args.seconds)]
    command += ["--rates", *map(str, args.rates), "--llm", args.llm, "--processes", str(args.processes)]
    subprocess.run(command, cwd=tree, env={**os.environ, **own_code(tree)}, check=True, stdout=subprocess.DEVNULL)
    costs = json.loads(out.read_text("utf-8"))["costs"]
    return sum(float(cost["loop_s"] + cost["others_s"] + cost["parent_s"]) for cost in costs) / len(costs)


def _measure(
    checkpoint: CheckpointLayout, log_dir: Path, plans: Sequence[RunPlan], llm_kind: str, processes: int
) -> list[GatewayCost]:
    llm, tokens, token2wav, port = free_ports(4)
    services = [sys.executable, "-m", "benchmarks.lib.paced_services", *map(str, (llm, tokens, token2wav))]
    gateway = [sys.executable, "-m", "gateway", "--port", str(port), "--grpc-port", "0"]
    if llm_kind == GRPC:
        gateway += ["--llm-url", f"grpc://{HOST}:{tokens}"]
    else:
        gateway += ["--llm-url", f"http://{HOST}:{llm}", "--llm-backend", "vllm"]
    gateway += ["--token2wav-url", f"{HOST}:{token2wav}"]
    gateway += ["--tokenizer-dir", str(checkpoint.llm_dir), "--voices-dir", str(checkpoint.voices_dir)]
    gateway += ["--dynamic-chunk-strategy", "deadline", "--processes", str(processes)]
    url = f"http://{HOST}:{port}"
    paced = ServiceSpec("services", services, f"http://{HOST}:{llm}/health", log_dir / "services.log")
    with ServiceProcess(paced) as beside:
        beside.wait_ready(READY_TIMEOUT_S)
        with ServiceProcess(ServiceSpec("gateway", gateway, f"{url}/readyz", log_dir / "gateway.log")) as measured:
            measured.wait_ready(READY_TIMEOUT_S)
            asyncio.run(_load(url, open_run(*WARM_UP, [VOICE])))
            return [_cost(url, measured.pid, plan) for plan in plans]


def _cost(url: str, pid: int, plan: RunPlan) -> GatewayCost:
    before = _usage(pid)
    ttfa_s = asyncio.run(_load(url, plan))
    count = plan.load.requests
    loop_s, others_s, parent_s = (
        (after - at_first) / count for at_first, after in zip(before, _usage(pid), strict=True)
    )
    return GatewayCost(
        plan.load.requests_per_s or 0.0,
        count,
        loop_s,
        others_s,
        percentile(ttfa_s, _MEDIAN),
        percentile(ttfa_s, _TAIL),
        max(ttfa_s),
        parent_s,
    )


def _usage(pid: int) -> tuple[float, float, float]:
    """Return the CPU seconds of a gateway's event loops, of all threads beside them, and of their parent."""
    workers = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    if not workers:
        return (*cpu_seconds(pid), 0.0)
    used = [cpu_seconds(worker) for worker in workers]
    return sum(loop_s for loop_s, _ in used), sum(others_s for _, others_s in used), sum(cpu_seconds(pid))


async def _load(url: str, plan: RunPlan) -> list[float]:
    """Make the requests; returns the seconds to first audio of each."""
    async with aclosing(HttpDoor(url, TIMEOUT_S, VOICE)) as door:
        generator = LoadGenerator(door.speak, lambda job: job.input.utt, SystemClock(), PIECES_OF_A_CHUNK_S)
        records = (await generator.run(jobs_of(plan), plan.load, lambda record: None)).records
    failed = [record.error for record in records if not record.is_ok]
    if failed:
        raise SystemExit(f"gateway_cost: {len(failed)} of {len(records)} requests failed, the first with {failed[0]}")
    return [record.arrivals[0].at_s for record in records]


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Return the CPU seconds that a process's first thread and all its others have used."""
    by_thread = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        by_thread[int(task.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return by_thread[pid], sum(by_thread.values()) - by_thread[pid]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway_cost", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--checkpoint", type=Path, help="checkpoint whose tokenizer and voices are used (default: the demo voice)"
    )
    parser.add_argument("--rates", type=float, nargs="+", default=[4, 8, 16], help="rates in requests a second")
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="seconds of arrivals at each rate (default %(default)s)"
    )
    parser.add_argument(
        "--llm", choices=[GRPC, "vllm"], default=GRPC, help="interface of the LLM stand-in (default %(default)s)"
    )
    parser.add_argument("--processes", type=int, default=1, help="number of gateway processes (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=0, help="turns against an earlier commit (default: none)")
    parser.add_argument("--against", default=BASE_COMMIT, help="commit to compare with (default %(default)s)")
    parser.add_argument("--out", type=Path, help="JSON to write")
    return parser


if __name__ == "__main__":
    exempt_startup_objects()
    sys.exit(main())
