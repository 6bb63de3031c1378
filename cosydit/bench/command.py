"""`cosydit bench`: the streaming benchmark of running services: first audio, second chunk, total, RTF, underruns.

`python -m benchmarks.streaming_grpc` is the same. Options that the original runtime's client had keep their names. This
file knows the command line only.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cosydit.bench.load import LoadPlan
from cosydit.bench.report import describe_environment
from cosydit.bench.types import BenchmarkError, InputRow, SpeechInput, add_source_options, count, zero_or_more
from servicekit.settings import SWITCH, argument, number

if TYPE_CHECKING:
    from cosydit.bench.speech_bench import BenchSettings

EXIT_FAILURES, EXIT_USAGE = 1, 2
_GRPC_PORT, _HTTP_PORT = 8001, 8080
CONNECT_TIMEOUT_S = 5.0
_POSITIVE = argument(number(is_open=True))


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("where").add_argument
    add("--door", choices=("triton", "http"), default="triton", help="protocol to use (default %(default)s)")
    add("--server-addr", default="127.0.0.1", help="host of the services (default %(default)s)")
    port = f"Triton's gRPC port (default {_GRPC_PORT}), or the gateway's ({_HTTP_PORT})"
    add("--server-port", type=int, help=port)
    add("--model-name", default="cosyvoice2_dit", help="name of the Triton model (default %(default)s)")
    mode = "mode of the model; offline: assembled with DECOUPLED_MODE=False (default %(default)s)"
    add("--mode", choices=("streaming", "offline"), default="streaming", help=mode)
    silence = "longest silence of the server in seconds (default %(default)s)"
    add("--timeout-s", type=_POSITIVE, default=120.0, help=silence)
    group = parser.add_argument_group("what to say (default: bundled English sentences)")
    add_source_options(group, with_text=True)
    add = group.add_argument
    reference = "audio file of the voice for the samples or --target-text (Triton only)"
    add("--reference-audio", type=Path, help=reference)
    add("--reference-text", help="transcript of --reference-audio")
    voices = "directory with <name>.wav and <name>.txt of each voice, to take the voice from"
    add("--voices-dir", type=Path, help=voices)
    add("--voice", help="name of a voice in --voices-dir, or of one that the gateway knows (default: default)")
    own = "True: send no reference; the server speaks in its own default voice"
    add("--use-spk2info-cache", type=argument(SWITCH), default=False, metavar="True|False", help=own)
    add = parser.add_argument_group("load").add_argument
    add("--num-tasks", type=count, default=1, help="number of concurrent callers (default %(default)s)")
    add("--num-requests", type=count, help="number of measured requests (default: each text once)")
    add("--warm-up", type=zero_or_more, help="number of requests before, not measured (default: --num-tasks)")
    add("--request-rate", type=_POSITIVE, help="open loop: requests a second, at random times")
    add("--seed", type=int, default=0, help="seed of the random times (default %(default)s)")
    add = parser.add_argument_group("output").add_argument
    log_dir = "directory for the results (default %(default)s)"
    add("--log-dir", type=Path, default=Path("bench-results"), help=log_dir)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("bench", help="benchmark running services: first audio, RTF, underruns")
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark; return 0, 1 if any request failed, 2 if it could not run."""
    from cosydit.bench.inputs import require_all_good
    from cosydit.bench.speech_bench import prepare_jobs, run_bench

    arguments = {name: value for name, value in vars(args).items() if name not in ("run", "command")}
    try:
        _check(args)
        inputs = require_all_good(_read_inputs(args))
        settings = _settings(args, len(inputs))
        table, result = asyncio.run(run_bench(settings, prepare_jobs(inputs), describe_environment(arguments)))
    except (BenchmarkError, OSError) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return EXIT_USAGE
    print(table)
    print(f"results in {settings.log_dir}")
    return EXIT_FAILURES if any(not record.is_ok for record in (*result.records, *result.warm_up)) else 0


def main(argv: Sequence[str] | None = None) -> int:
    name = "python -m benchmarks.streaming_grpc"
    parser = argparse.ArgumentParser(prog=name, description=__doc__, allow_abbrev=False)
    add_options(parser)
    return run(parser.parse_args(argv))


def _check(args: argparse.Namespace) -> None:
    """Refuse what can't be combined, before anything is read or sent."""
    has_prompts = (
        args.manifest_path or args.jsonl_path or args.huggingface_dataset or args.reference_audio or args.voices_dir
    )
    if args.door == "http" and has_prompts and args.voice is None:
        raise BenchmarkError("the gateway's HTTP door takes voices by name only: add --voice NAME, prompts aren't sent")
    if args.door == "http" and args.mode == "offline":
        raise BenchmarkError("--mode offline is the Triton door's; the gateway always streams")
    if args.reference_audio and args.voices_dir:
        raise BenchmarkError("give --reference-audio or --voices-dir, not both")
    if bool(args.reference_audio) != bool(args.reference_text):
        raise BenchmarkError("--reference-audio and --reference-text go together; give both or neither")
    if args.voice and args.door == "triton" and args.voices_dir is None:
        raise BenchmarkError("--voice with the Triton door needs --voices-dir: a reference is sent, not a name")
    if args.use_spk2info_cache and (args.reference_audio or args.voices_dir):
        raise BenchmarkError("--use-spk2info-cache sends no reference; leave --reference-audio and --voices-dir out")


def _read_inputs(args: argparse.Namespace) -> Sequence[InputRow]:
    from cosydit.bench.inputs import find_voice, read_samples, read_source

    prompt, prompt_text = args.reference_audio, args.reference_text
    if args.voices_dir is not None:
        prompt, prompt_text = find_voice(args.voices_dir, args.voice or "default")
    rows: Sequence[InputRow] | None = read_source(args)
    if args.target_text is not None:
        rows = [SpeechInput("target-text", args.target_text, prompt_text, prompt)]
    elif rows is None:
        rows = read_samples(prompt, prompt_text)
    if args.use_spk2info_cache or args.door == "http":
        return [replace(row, prompt=None, prompt_text=None) if isinstance(row, SpeechInput) else row for row in rows]
    return rows


def _settings(args: argparse.Namespace, inputs: int) -> BenchSettings:
    """Describe the run.

    Raises:
        BenchmarkError: nobody listens at the door.
    """
    from cosydit.bench.doors import PIECES_OF_A_CHUNK_S, HttpDoor, TritonDoor
    from cosydit.bench.speech_bench import BenchSettings

    is_http, host = args.door == "http", args.server_addr
    port = args.server_port or (_HTTP_PORT if is_http else _GRPC_PORT)
    _require_service("the gateway" if is_http else "Triton", host, port)
    url, silence_s = f"http://{host}:{port}" if is_http else f"{host}:{port}", args.timeout_s
    http = partial(HttpDoor, url, silence_s, args.voice or "default")
    triton = partial(TritonDoor, url, silence_s, args.model_name, args.mode == "offline")
    warm_up = args.num_tasks if args.warm_up is None else args.warm_up
    load = f"{args.num_tasks} callers" if args.request_rate is None else f"{args.request_rate:g} requests a second"
    door = "gateway HTTP" if is_http else f"{args.model_name} ({args.mode})"
    return BenchSettings(
        open_door=http if is_http else triton,
        title=f"{door} at {url}, {load}",
        same_chunk_s=PIECES_OF_A_CHUNK_S if is_http else 0.0,
        plan=LoadPlan(args.num_tasks, args.num_requests or inputs, warm_up, args.request_rate, args.seed),
        log_dir=args.log_dir,
    )


def _require_service(name: str, host: str, port: int) -> None:
    """Say at once that nothing is there to be measured."""
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise BenchmarkError(
            f"{name} does not answer at {host}:{port} ({error.strerror or error}); start the services with "
            "`cosydit serve` in another shell, or say where they are: --server-addr HOST --server-port PORT"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
