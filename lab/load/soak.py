"""A soak: callers come and go in every way for half an hour, and memory, threads, descriptors and slots stay flat.

`python -m lab.load.soak --out soak.json` starts the product's own services and a gateway, on a GPU with the settings
that `cosydit serve` chooses. In rounds callers listen in all formats and over all doors, leave, do harm, bring voices
and create them. After each round everybody waits until nothing is under way, and what the processes and the GPUs use is
noted. A plot is written beside the result. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from benchmarks.failover import stack_options
from benchmarks.lib.plot import SIZE_INCHES, figure_class, save_figure
from cosydit.bench.report import aligned_table, describe_environment, write_json
from cosydit.bench.types import BenchmarkError
from cosydit.cli.stack_options import gpu_shared
from cosydit.stack.host import Machine, find_host, for_host, gateway_processes
from cosydit.stack.process import stopped_by_signals
from cosydit.stack.stack import LocalStack, StackOptions
from gateway.lifecycle import shutdown as rest
from lab.faults.clients import Doors
from lab.load.churn import Churn
from lab.load.process_usage import Usage, third_medians, usages
from servicekit.drain import sum_of
from servicekit.gpu_host import DEVICES, read_gpus
from servicekit.tasks import running_meanwhile
from token2wav_service.engine.loop import REST_AFTER_S
from token2wav_service.serving.process.server import free_ports

ROUNDS = 15
SAMPLE_EVERY_S = 5.0
IDLE_WITHIN_S = 30.0
_POLL_S = 0.1
_SETTLE_S = max(REST_AFTER_S, rest.REST_AFTER_S) + 2.0
"""Seconds after the last work, in which token2wav and the gateway return memory."""
VOICE_CACHE_BYTES = 128 * 2**20
"""Bytes of the voice cache on a CPU, a quarter of the default: the soak is to see a full cache long before its end."""
GPU_MEMORY = "GPU memory"
"""Name of the group that stands for what all programs use of the GPUs."""
_GAUGES = (
    *("cosydit_gateway_streams", "cosydit_token2wav_open_streams", "cosydit_token2wav_state_bytes"),
    *("cosydit_llm_requests_running", "cosydit_llm_requests_waiting"),
)
_S_A_MINUTE = 60.0


@dataclass
class Watched:
    """What was seen."""

    began_s: float = field(default_factory=time.monotonic)
    moments_s: list[float] = field(default_factory=list)
    samples: list[dict[str, Usage]] = field(default_factory=list)
    """Usage at every moment."""
    quiet_s: list[float] = field(default_factory=list)
    quiet: list[dict[str, Usage]] = field(default_factory=list)
    """Usage after every round, when nothing was under way."""
    left: list[float] = field(default_factory=list)
    """Sum of all gauges after each round: streams, requests and bytes of state."""

    def groups(self) -> list[str]:
        """Return all groups of processes that there were."""
        return sorted({name for each in self.quiet for name in each})

    def series(self, group: str) -> list[Usage]:
        """Return one group's usage after every round."""
        return [each.get(group, Usage()) for each in self.quiet]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; exit status 1 if anything grew, stayed or failed."""
    args = _parser().parse_args(argv)
    try:
        figure_class()
    except BenchmarkError as error:
        raise SystemExit(f"soak: {error}") from error
    with tempfile.TemporaryDirectory(prefix="soak-") as made, stopped_by_signals(lambda: None):
        work_dir = args.work_dir or Path(made)
        host = find_host(args.device)
        options = _options(args, work_dir, host)
        with gpu_shared(options, host), LocalStack(options, with_gateway=True) as stack:
            doors = Doors(options.ports.gateway, options.ports.gateway_grpc, int(str(options.gateway["wyoming_port"])))
            churn = Churn(doors, options.checkpoint.voices_dir / "default.wav", random.Random(args.seed))
            watched = asyncio.run(run(stack, churn, args))
    found = figures(watched, churn)
    _write(args, watched, churn, found)
    _draw(args.out.with_suffix(".webp"), watched)
    print(_table(watched), end="")
    print(", ".join(f"{name} {value:g}" for name, value in found.items()))
    for failure in churn.tally.failures:
        print(f"soak: {failure}", file=sys.stderr)
    return int(not is_well(found))


def _options(args: argparse.Namespace, work_dir: Path, host: Machine) -> StackOptions:
    options = stack_options(args.checkpoint, work_dir, 1)
    created = work_dir / "created"
    created.mkdir(parents=True, exist_ok=True)
    given = {"created_voices_dir": str(created), "wyoming_port": str(free_ports(1)[0])}
    if host.gpus:
        return for_host(replace(options, settings={}, gateway={**gateway_processes(host), **given}), host)
    return replace(
        options,
        gateway={**options.gateway, **given},
        settings={**options.settings, "voice_cache_bytes": str(VOICE_CACHE_BYTES)},
    )


async def run(stack: LocalStack, churn: Churn, args: argparse.Namespace) -> Watched:
    """Let the rounds pass."""
    services = {service.pid: service.spec.name for service in stack.services}
    options = stack.options
    urls = [f"{options.gateway_url}/metrics", f"{options.llm_url}/metrics"]
    urls.append(f"http://127.0.0.1:{options.ports.triton_metrics}/metrics")
    watched = Watched()
    async with running_meanwhile(_sample(services, watched)):
        for number in range(1, args.rounds + 1):
            await churn.run(args.callers, args.minutes * _S_A_MINUTE / args.rounds)
            watched.left.append(await _until_idle(urls))
            await asyncio.sleep(_SETTLE_S)
            watched.quiet_s.append(time.monotonic() - watched.began_s)
            watched.quiet.append(_usages(services))
            memory = ", ".join(f"{name} {usage.memory_mib:.0f}" for name, usage in watched.quiet[-1].items())
            print(f"round {number} of {args.rounds}: {churn.tally.ended.total()} ended; MiB: {memory}", flush=True)
    return watched


async def _sample(services: Mapping[int, str], watched: Watched) -> None:
    while True:
        watched.moments_s.append(time.monotonic() - watched.began_s)
        watched.samples.append(await asyncio.to_thread(_usages, services))
        await asyncio.sleep(SAMPLE_EVERY_S)


def _usages(services: Mapping[int, str]) -> dict[str, Usage]:
    used_mib = sum(gpu.memory_mib - gpu.free_mib for gpu in read_gpus())
    return usages(services) | ({GPU_MEMORY: Usage(float(used_mib))} if used_mib else {})


async def _until_idle(urls: Sequence[str]) -> float:
    """Wait until nothing is under way; return what is left if that never comes."""
    until_s, left = time.monotonic() + IDLE_WITHIN_S, -1.0
    async with httpx.AsyncClient(timeout=IDLE_WITHIN_S, trust_env=False) as client:
        while left and time.monotonic() < until_s:
            left = sum([sum_of((await client.get(url)).text, list(_GAUGES)) for url in urls])
            await asyncio.sleep(_POLL_S)
    return left


def figures(watched: Watched, churn: Churn) -> dict[str, float]:
    """Return what a run is judged by; growth is from the second third of the rounds to the last."""
    found: dict[str, float] = {"minutes": round((time.monotonic() - watched.began_s) / _S_A_MINUTE, 1)}
    found |= {"ended": churn.tally.ended.total(), "refused": churn.tally.refused, "failed": churn.tally.failed}
    found["left_most"] = max(watched.left)
    pairs = {name: third_medians(watched.series(name)) for name in watched.groups()}
    found["not_flat"] = sum(not late.is_flat_since(early) for early, late in pairs.values())
    for name in ("memory_mib", "threads", "descriptors"):
        grown = [asdict(late.grown_since(early))[name] for early, late in pairs.values()]
        found[f"{name}_growth_most"] = round(max(grown), 1)
    return found


def is_well(found: Mapping[str, float]) -> bool:
    """Whether nothing grew, stayed or failed."""
    return not (found["not_flat"] or found["left_most"] or found["failed"])


def _write(args: argparse.Namespace, watched: Watched, churn: Churn, found: Mapping[str, float]) -> None:
    rounds = {
        group: {name: [round(asdict(each)[name], 1) for each in watched.series(group)] for name in asdict(Usage())}
        for group in watched.groups()
    }
    document: dict[str, Any] = {
        "figures": dict(found),
        "after_each_round": {"at_s": [round(at_s) for at_s in watched.quiet_s], "left": watched.left, **rounds},
        "ended": dict(sorted(churn.tally.ended.items())),
        "failures": churn.tally.failures,
        "environment": describe_environment(vars(args), args.commit),
    }
    write_json(args.out, document)


def _table(watched: Watched) -> str:
    rows = [["processes", "MiB warm", "MiB at the end", "threads", "descriptors", ""]]
    for name in watched.groups():
        early, late = third_medians(watched.series(name))
        counts = [f"{early.threads} to {late.threads}", f"{early.descriptors} to {late.descriptors}"]
        mark = "flat" if late.is_flat_since(early) else "GROWS"
        rows.append([name, f"{early.memory_mib:.0f}", f"{late.memory_mib:.0f}", *counts, mark])
    return aligned_table(rows)


def _draw(path: Path, watched: Watched) -> None:
    figure = figure_class()(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.subplots(3, 1, sharex=True)
    for axis, (name, label) in zip(
        axes, (("memory_mib", "memory, MiB"), ("threads", "threads"), ("descriptors", "descriptors")), strict=True
    ):
        for group in watched.groups():
            values = [asdict(each.get(group, Usage()))[name] for each in watched.samples]
            axis.plot([at_s / _S_A_MINUTE for at_s in watched.moments_s], values, linewidth=0.8, label=group)
        axis.set(ylabel=label, ylim=(0, None))
        for at_s in watched.quiet_s:
            axis.axvline(at_s / _S_A_MINUTE, linewidth=0.3, color="grey")
    axes[0].legend(ncols=3, fontsize="small")
    axes[-1].set(xlabel="minutes; at grey lines nothing was under way")
    save_figure(figure, path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.load.soak", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="minutes of all rounds together (default %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="number of rounds, at least 3 (default %(default)s)")
    parser.add_argument(
        "--callers", type=int, default=4, help="number of callers at the same time (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of what the callers do (default %(default)s)")
    parser.add_argument(
        "--checkpoint", type=Path, help="directory with token2wav/, llm/ and voices/ (default: the demo voice)"
    )
    parser.add_argument(
        "--device", choices=DEVICES, default="auto", help="where both services run (default %(default)s)"
    )
    parser.add_argument("--commit", help="commit of the code that runs (default: as git says)")
    parser.add_argument("--work-dir", type=Path, help="directory for logs and repositories (default: a temporary one)")
    parser.add_argument("--out", type=Path, required=True, help="JSON to write; the plot is written beside it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
