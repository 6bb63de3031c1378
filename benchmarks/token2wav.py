"""Benchmark of token2wav alone: time per step and stream, real-time factor, batched against one by one.

`python -m benchmarks.token2wav --model-dir DIR` runs the engine in this process; with `--door triton` it drives the
served model `token2wav_dit`. Tokens are random, so no LLM is needed. This file knows the command line only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.lib.token2wav_bench import CaseFigures, Player
    from gateway.core import FloatArray

EXIT_FAILURES = 1
EXIT_USAGE = 2
_HOPS = (15, 25, 50)
_BATCH_SIZES = (1, 2, 4, 8)
_STREAM_S = 6.0
_PROMPT_S = 3.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add every option."""
    parser.add_argument(
        "--door", choices=("engine", "triton"), default="engine", help="interface to call (default %(default)s)"
    )
    parser.add_argument("--model-dir", type=Path, help="checkpoint directory with flow.yaml (engine only)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting of the engine, e.g. device=cuda; may be repeated",
    )
    parser.add_argument("--server-addr", default="127.0.0.1", help="Triton's host (default %(default)s)")
    parser.add_argument("--server-port", type=int, default=8001, help="Triton's gRPC port (default %(default)s)")
    parser.add_argument(
        "--batch-sizes", type=_counts, default=_BATCH_SIZES, help="numbers of streams side by side, e.g. 1,2,4,8"
    )
    parser.add_argument("--hops", type=_counts, default=_HOPS, help="tokens (25 Hz) per chunk, e.g. 15,25,50")
    parser.add_argument(
        "--stream-s", type=float, default=_STREAM_S, help="seconds of audio in each stream (default %(default)s)"
    )
    parser.add_argument("--prompt", type=Path, help=f"audio file of the voice (default: {_PROMPT_S:g} s of noise)")
    parser.add_argument(
        "--repeats", type=int, default=5, help="number of repeats, of which the median counts (default %(default)s)"
    )
    parser.add_argument(
        "--warm-up", type=int, default=1, help="number of repeats before, not measured (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the tokens (default %(default)s)")
    parser.add_argument("--log-dir", type=Path, default=Path("bench-token2wav"), help="results (default %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Run the benchmark; return 0, 1 if anything failed on the way, 2 if it could not begin."""
    from cosydit.bench.report import describe_environment
    from cosydit.bench.types import BenchmarkError
    from gateway.errors import GatewayError
    from token2wav_service.errors import Token2WavError

    try:
        environment = describe_environment({name: value for name, value in vars(args).items() if name != "run"})
        player = _player(args, _prompt(args))
    except (BenchmarkError, Token2WavError, ValueError, OSError) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        _measure_and_report(args, player, environment)
    except (BenchmarkError, Token2WavError, GatewayError) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return EXIT_FAILURES
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.token2wav", description=__doc__, allow_abbrev=False)
    add_options(parser)
    return run(parser.parse_args(argv))


def _measure_and_report(args: argparse.Namespace, player: Player, environment: dict[str, Any]) -> None:
    from benchmarks.lib.token2wav_bench import BenchCase, figures_table, measure
    from cosydit.bench.report import RESULTS_FILE, TABLE_FILE, write_json, write_text

    cases = [BenchCase(streams, hop) for hop in args.hops for streams in args.batch_sizes]
    figures = measure(player, cases, args.stream_s, args.repeats, args.warm_up, args.seed)
    table = figures_table(figures, "chunk" if args.door == "triton" else "step")
    rows = [_figures_json(row) for row in figures]
    write_json(args.log_dir / RESULTS_FILE, {"figures": rows, "environment": environment})
    write_text(args.log_dir / TABLE_FILE, table)
    print(table)
    print(f"results in {args.log_dir}")


def _player(args: argparse.Namespace, prompt: FloatArray) -> Player:
    from benchmarks.lib.token2wav_bench import EnginePlayer, TritonPlayer
    from cosydit.bench.types import BenchmarkError
    from servicekit.clock import SystemClock

    if args.door == "triton":
        if args.model_dir or args.set:
            raise BenchmarkError("--model-dir and --set are the engine's; a served model has its own settings")
        return TritonPlayer(_url(args), prompt, SystemClock())
    if args.model_dir is None:
        raise BenchmarkError("--door engine needs --model-dir, the directory that holds flow.yaml and flow.pt")
    from token2wav_service.build import build_engine
    from token2wav_service.config import Token2WavConfig

    limits = {"max_batch_size": str(max(args.batch_sizes)), "max_streams": str(max(args.batch_sizes))}
    own = dict(_name_value(text) for text in args.set)
    config = Token2WavConfig.from_mapping({**limits, **own, "model_dir": str(args.model_dir)})
    return EnginePlayer(build_engine(config, SystemClock()), prompt, SystemClock())


def _prompt(args: argparse.Namespace) -> FloatArray:
    from benchmarks.lib.token2wav_bench import random_prompt
    from token2wav_service.features.audio import load_prompt_audio

    return random_prompt(_PROMPT_S, args.seed) if args.prompt is None else load_prompt_audio(args.prompt.read_bytes())


def _figures_json(row: CaseFigures) -> dict[str, Any]:
    derived = {"rtf": row.rtf, "rtf_one_by_one": row.rtf_one_by_one, "speed_up": row.speed_up}
    return {**asdict(row), **derived}


def _url(args: argparse.Namespace) -> str:
    return f"{args.server_addr}:{args.server_port}"


def _name_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"got --set {text!r}, expected NAME=VALUE")
    return name, value


def _counts(text: str) -> tuple[int, ...]:
    values = tuple(int(part) for part in text.split(","))
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected numbers from 1 up, such as 1,2,4")
    return values


if __name__ == "__main__":
    sys.exit(main())
