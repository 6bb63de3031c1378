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
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cosydit.bench.types import count, zero_or_more

if TYPE_CHECKING:
    from cosydit.bench.speech_bench import BenchSettings
    from cosydit.bench.types import InputRow

DEFAULT_MODEL = "cosyvoice2_dit"
DEFAULT_SPLIT = "wenetspeech4tts"
EXIT_FAILURES = 1
EXIT_USAGE = 2
_GRPC_PORT, _METRICS_PORT, _HTTP_PORT = 8001, 8002, 8080
_TIMEOUT_S = 120.0
CONNECT_TIMEOUT_S = 5.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add every option of the benchmark."""
    where = parser.add_argument_group("where")
    where.add_argument(
        "--door", choices=("triton", "http"), default="triton", help="protocol to use (default %(default)s)"
    )
    where.add_argument("--server-addr", default="127.0.0.1", help="host of the services (default %(default)s)")
    where.add_argument(
        "--server-port", type=int, help=f"Triton's gRPC port (default {_GRPC_PORT}), or the gateway's ({_HTTP_PORT})"
    )
    where.add_argument("--model-name", default=DEFAULT_MODEL, help="name of the Triton model (default %(default)s)")
    where.add_argument(
        "--mode",
        choices=("streaming", "offline"),
        default="streaming",
        help="mode of the model; offline: assembled with DECOUPLED_MODE=False (default %(default)s)",
    )
    where.add_argument(
        "--metrics-port",
        type=int,
        default=_METRICS_PORT,
        help="port of Triton's metrics; 0: no metrics (default %(default)s)",
    )
    where.add_argument(
        "--triton-port",
        type=int,
        default=_GRPC_PORT,
        help="with --door http: gRPC port of Triton's statistics; 0: no statistics (default %(default)s)",
    )
    where.add_argument(
        "--timeout-s",
        type=_positive,
        default=_TIMEOUT_S,
        help="longest silence of the server in seconds (default %(default)s)",
    )
    _add_input_options(parser.add_argument_group("what to say (default: bundled English sentences)"))
    _add_load_options(parser.add_argument_group("load"))
    _add_output_options(parser.add_argument_group("output"))


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser("bench", help="benchmark running services: first audio, RTF, underruns")
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the benchmark; return 0, 1 if any request failed, 2 if it could not run."""
    from cosydit.bench.inputs import require_all_good
    from cosydit.bench.report import describe_environment
    from cosydit.bench.speech_bench import prepare_jobs, run_bench
    from cosydit.bench.types import BenchmarkError

    arguments = {name: value for name, value in vars(args).items() if name not in ("run", "command")}
    try:
        _check(args)
        inputs = require_all_good(_read_inputs(args))
        settings = _settings(args, len(inputs))
        _require_services(settings)
        jobs = prepare_jobs(inputs)
        outcome = asyncio.run(run_bench(settings, jobs, describe_environment(arguments)))
    except (BenchmarkError, OSError) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return EXIT_USAGE
    print(outcome.table)
    print(f"results in {settings.log_dir}")
    return EXIT_FAILURES if outcome.failures else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.streaming_grpc", description=__doc__, allow_abbrev=False
    )
    add_options(parser)
    return run(parser.parse_args(argv))


def _add_input_options(group: argparse._ArgumentGroup) -> None:
    source = group.add_mutually_exclusive_group()
    source.add_argument("--manifest-path", type=Path, help="file with lines of utt|prompt_text|prompt_wav|text")
    source.add_argument("--huggingface-dataset", help="dataset with id, target_text, prompt_text and prompt_audio")
    source.add_argument("--target-text", help="one text to speak")
    group.add_argument("--split-name", default=DEFAULT_SPLIT, help="split of the dataset (default %(default)s)")
    group.add_argument(
        "--reference-audio", type=Path, help="audio file of the voice for the samples or --target-text (Triton only)"
    )
    group.add_argument("--reference-text", help="transcript of --reference-audio")
    group.add_argument(
        "--voices-dir", type=Path, help="directory with <name>.wav and <name>.txt of each voice, to take the voice from"
    )
    group.add_argument(
        "--voice", help="name of a voice in --voices-dir, or of one that the gateway knows (default: default)"
    )
    group.add_argument(
        "--use-spk2info-cache",
        type=_boolean,
        default=False,
        metavar="True|False",
        help="True: send no reference; the server speaks in its own default voice",
    )


def _add_load_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--num-tasks", type=count, default=1, help="number of concurrent callers (default %(default)s)")
    group.add_argument("--num-requests", type=count, help="number of measured requests (default: each text once)")
    group.add_argument(
        "--warm-up", type=zero_or_more, help="number of requests before, not measured (default: --num-tasks)"
    )
    group.add_argument("--request-rate", type=_positive, help="open loop: requests a second, at random times")
    group.add_argument("--seed", type=int, default=0, help="seed of the random times (default %(default)s)")


def _add_output_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--log-dir", type=Path, default=Path("bench-results"), help="directory for the results (default %(default)s)"
    )
    group.add_argument("--save-audio", action="store_true", help="write the audio under LOG_DIR/audio")
    group.add_argument("--no-plot", action="store_true", help="make no plot (it needs matplotlib)")


def _check(args: argparse.Namespace) -> None:
    """Refuse what can't be combined, before anything is read or sent."""
    from cosydit.bench.plot import require_matplotlib
    from cosydit.bench.types import BenchmarkError

    has_prompts = args.manifest_path or args.huggingface_dataset or args.reference_audio or args.voices_dir
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
    if not args.no_plot:
        require_matplotlib()


def _read_inputs(args: argparse.Namespace) -> list[InputRow]:
    from dataclasses import replace

    from cosydit.bench.inputs import find_voice, read_dataset, read_manifest, read_samples
    from cosydit.bench.types import SpeechInput

    prompt, prompt_text = args.reference_audio, args.reference_text
    if args.voices_dir is not None:
        prompt, prompt_text = find_voice(args.voices_dir, args.voice or "default")
    rows: list[InputRow]
    if args.manifest_path is not None:
        rows = read_manifest(args.manifest_path)
    elif args.huggingface_dataset is not None:
        rows = read_dataset(args.huggingface_dataset, args.split_name)
    elif args.target_text is not None:
        rows = [SpeechInput("target-text", args.target_text, prompt_text, prompt)]
    else:
        rows = read_samples(prompt, prompt_text)
    if args.use_spk2info_cache or args.door == "http":
        return [replace(row, prompt=None, prompt_text=None) if isinstance(row, SpeechInput) else row for row in rows]
    return rows


def _settings(args: argparse.Namespace, inputs: int) -> BenchSettings:
    from cosydit.bench.load import LoadPlan
    from cosydit.bench.speech_bench import BenchSettings, DoorName, Mode

    door = DoorName(args.door)
    is_http = door is DoorName.HTTP
    port = args.server_port or (_HTTP_PORT if is_http else _GRPC_PORT)
    url = f"{args.server_addr}:{port}"
    statistics_port = args.triton_port if is_http else port
    return BenchSettings(
        door=door,
        mode=Mode(args.mode),
        url=f"http://{url}" if is_http else url,
        model=args.model_name,
        voice=args.voice or "default",
        plan=LoadPlan(
            args.num_tasks,
            args.num_requests or inputs,
            args.num_tasks if args.warm_up is None else args.warm_up,
            args.request_rate,
            args.seed,
        ),
        timeout_s=args.timeout_s,
        triton_url=f"{args.server_addr}:{statistics_port}" if statistics_port else None,
        metrics_url=f"http://{args.server_addr}:{args.metrics_port}/metrics" if args.metrics_port else None,
        log_dir=args.log_dir,
        is_audio_kept=args.save_audio,
        is_plot_drawn=not args.no_plot,
    )


def _require_services(settings: BenchSettings) -> None:
    """Say at once that nothing is there to be measured.

    Raises:
        BenchmarkError: nobody listens at the door.
    """
    from cosydit.bench.speech_bench import DoorName
    from cosydit.bench.types import BenchmarkError

    parts = urlsplit(settings.url if "://" in settings.url else f"//{settings.url}")
    try:
        socket.create_connection((parts.hostname or settings.url, parts.port or 0), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        name = "the gateway" if settings.door is DoorName.HTTP else "Triton"
        raise BenchmarkError(
            f"{name} does not answer at {settings.url} ({error.strerror or error}); start the services with "
            "`cosydit serve` in another shell, or say where they are: --server-addr HOST --server-port PORT"
        ) from error


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"got {value}, expected more than 0")
    return value


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected True or False")
    return text.lower() == "true"


if __name__ == "__main__":
    sys.exit(main())
