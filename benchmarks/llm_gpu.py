"""Measures the LLM service's GPU engine on a random LLM of the official sizes: fidelity, equal bits, speed, capacity.

    python benchmarks/llm_gpu.py --out benchmarks/results --commit $(git rev-parse HEAD)

Writes llm_<gpu>.json: `figures`, and the raw samples that they are computed from. Needs one GPU and no network.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "proto" / "gen")]

import torch  # noqa: E402

from benchmarks.lib.llm_gpu import greedy, lean, load  # noqa: E402
from benchmarks.lib.llm_gpu.model import options, random_weights  # noqa: E402
from benchmarks.lib.llm_gpu.steps import StepBench  # noqa: E402
from cosydit.bench.report import describe_environment  # noqa: E402
from llm_service.gpu.build import DECODE_ROWS, DRAWS, PROMPT_ROWS, engine_of  # noqa: E402
from llm_service.gpu.step_runner import RunnerSizes  # noqa: E402
from servicekit.clock import SystemClock  # noqa: E402

FIDELITY_STEPS = 10_000
SAMPLES = 400
KEPT_UP_SHARE = 0.999
"""Share of a capacity run's streams that must keep up, so that one stutter of the machine does not decide."""


def main() -> int:
    """Measure; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder for the results")
    parser.add_argument("--commit", default=None, help="commit of the code that runs, where there is no repository")
    parser.add_argument("--fidelity-steps", type=int, default=FIDELITY_STEPS, help="steps at each number of rows")
    parser.add_argument("--capacity", type=int, nargs="*", default=[1500, 2000, 2500], help="numbers of streams to try")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of each run under load")
    parser.add_argument("--parts", nargs="*", default=["greedy", "lean", "steps", "load"], help="parts to measure")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if args.serve:
        lean.serve()
        return 0
    result = measure(args)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"llm_{_gpu_name()}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["figures"], indent=1))
    return 0


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure everything and compute the figures."""
    samples: dict[str, Any] = {}
    for name, part in (("greedy", _greedy), ("lean", _lean), ("steps", _steps), ("load", _load)):
        if name in args.parts:
            began = time.perf_counter()
            samples |= part(args)
            gc.collect()
            torch.cuda.empty_cache()
            print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)
    environment = describe_environment(vars(args), args.commit)
    return {"figures": figures(samples), "environment": environment, "samples": samples}


def figures(samples: dict[str, Any]) -> dict[str, float]:
    """Compute the published figures from raw samples; those whose samples are missing are left out."""
    found: dict[str, float] = {}

    def add(name: str, key: str, compute: Any) -> None:
        if key in samples:
            found[name] = round(float(compute(samples[key])), 3)

    for rows in (1, 64):
        add(f"step_{rows}_ms", f"step_ms_{rows}", np.median)
    add("tokens_per_s_256", "tokens_per_s_256", lambda runs: np.median([run["tokens_per_s"] for run in runs]))
    add("first_token_1_ms", "alone_first_ms", np.median)
    add("tenth_token_1_ms", "alone_tenth_ms", np.median)
    add("tenth_token_burst64_p95_ms", "burst_tenth_ms", lambda times: np.percentile(times, 95))
    add("stall_p99_ms", "stalls", lambda run: np.percentile(run["longest_wait_ms"], 99))
    add("capacity_rows_at_25hz", "capacity", _capacity)
    return found


def _capacity(runs: list[dict[str, Any]]) -> int:
    held = [run["streams"] for run in runs if run["kept_up"] >= KEPT_UP_SHARE * run["counted"]]
    return max(held, default=0)


def _greedy(args: argparse.Namespace) -> dict[str, Any]:
    found = greedy.compare()
    for entry in found:
        print("greedy", entry, flush=True)
    return {"greedy_demo_voice": found}


def _lean(args: argparse.Namespace) -> dict[str, Any]:
    with lean.served(Path(__file__)) as address:
        return asyncio.run(lean.measure(address, alone=100, bursts=8, burst=64))


def _steps(args: argparse.Namespace) -> dict[str, Any]:
    bench = StepBench(
        random_weights(torch.device("cuda"), torch.bfloat16, 1), RunnerSizes(DECODE_ROWS, PROMPT_ROWS, DRAWS)
    )
    found: dict[str, Any] = {"warm_up_s": bench.warm_up_s}
    with torch.inference_mode():
        found["bits_by_rows"] = bench.bits_by_rows()
        found["resumed_bits"] = bench.resumed_bits()
        print("equal bits:", found["bits_by_rows"], found["resumed_bits"], flush=True)
        for rows in (1, 8, 32, 64, 128, 256, 512, 1024):
            bench.begin(range(rows), bench.prompt())
            found[f"step_ms_{rows}"] = [round(value, 4) for value in bench.step_ms(rows, SAMPLES)]
            print("step", rows, f"{np.median(found[f'step_ms_{rows}']):.3f} ms", flush=True)
        for prompts in (1, 8, 12):
            found[f"prompt_ms_{prompts}"] = [round(value, 4) for value in bench.prompt_ms(prompts, 30)]
            print("prompts", prompts, f"{np.median(found[f'prompt_ms_{prompts}']):.3f} ms", flush=True)
        if args.fidelity_steps:
            found["fidelity"] = [bench.fidelity(rows, args.fidelity_steps) for rows in DECODE_ROWS]
            for entry in found["fidelity"]:
                print("fidelity", entry, flush=True)
    return found


def _load(args: argparse.Namespace) -> dict[str, Any]:
    weights = random_weights(torch.device("cuda"), torch.bfloat16, 1)
    sys.setswitchinterval(lean.SWITCH_INTERVAL_S)
    clock = SystemClock()
    engine = engine_of(weights, options(max(args.capacity, default=1500)), clock)
    found: dict[str, Any] = {"tokens_per_s_256": [load.tokens_per_s(engine, 256) for _ in range(3)]}
    print([round(run["tokens_per_s"]) for run in found["tokens_per_s_256"]], "tokens/s", flush=True)
    found["capacity"] = []
    for streams in args.capacity:
        run = load.capacity(engine, streams, args.seconds)
        found["capacity"].append(run)
        print("capacity", run, flush=True)
    del engine
    gc.collect()
    torch.cuda.empty_cache()
    engine = engine_of(weights, options(256, wait_share=0.0), clock)
    found["engine_burst_tenth_ms"] = [load.burst_ms(engine, 64, 10) for _ in range(4)]
    print("burst in the engine, p95", [float(np.percentile(run, 95)) for run in found["engine_burst_tenth_ms"]])
    found["stalls"] = load.stalls(engine, 32.0, args.seconds)
    print("stalls", {key: value for key, value in found["stalls"].items() if not isinstance(value, list)}, flush=True)
    return found


def _gpu_name() -> str:
    return torch.cuda.get_device_name().split()[-1].lower()


if __name__ == "__main__":
    sys.exit(main())
