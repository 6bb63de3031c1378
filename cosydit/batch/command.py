"""`cosydit batch`: offline batch synthesis; a list of texts and voices in, audio files and results.jsonl out.

A run resumes where the one before it stopped. Every backend is reached as an HTTP LLM service: a running one
(--llm-url) or one that is started for the batch. Options of the original runtime keep their names. What is heavy to
import is imported when it is needed, so that --help is quick.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from cosydit.batch.types import BatchPlan, BatchReport
from cosydit.bench.report import describe_environment
from cosydit.bench.types import (
    BenchmarkError,
    InputRow,
    SpeechInput,
    add_source_options,
    count,
    http_url,
    pair,
    zero_or_more,
)
from cosydit.stack.checkpoint.checkpoints import resolve_checkpoint
from cosydit.stack.gpu_presets import OFFLINE_LLM_SHARE
from cosydit.stack.host import Machine, engine_settings, find_host, gpu_line, preset_of
from cosydit.stack.mps import mps_running
from cosydit.stack.process import stopped_by_signals
from cosydit.stack.stack import EMBEDDED, default_work_dir
from gateway.core import Sampling
from servicekit.gpu_host import DEVICE_VARIABLE, DEVICES, default_device
from servicekit.logs import PlainError

EXIT_FAILURES, EXIT_USAGE = 1, 2
DEFAULT_BATCH_SIZE = 8
DEFAULT_VOICE = "default"
_BY_MEMORY = f"default {DEFAULT_BATCH_SIZE}, on a GPU by its memory"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("batch", help="speak a whole list of texts into files; resumes where it stopped")
    add_options(parser)
    parser.set_defaults(run=run)


def add_options(parser: argparse.ArgumentParser) -> None:
    _add_input_options(parser)
    _add_llm_options(parser.add_argument_group("LLM service"))
    group = parser.add_argument_group("token2wav")
    add = group.add_argument
    path = "directory token2wav of a checkpoint of any family (default: of --checkpoint)"
    add("--token2wav-path", type=Path, help=path)
    add("--token2wav-batch-size", type=count, help=f"utterances in token2wav at once ({_BY_MEMORY})")
    setting = "setting of token2wav's engine, e.g. device=cuda; may be repeated"
    add("--token2wav-set", type=pair, action="append", default=[], metavar="NAME=VALUE", help=setting)
    chunk = "tokens (25 Hz) of the pieces of longer utterances (default: 500 on a CPU, 100 on a GPU)"
    add("--chunk-tokens", type=count, help=chunk)
    add = parser.add_argument_group("output").add_argument
    out = "directory for audio, results.jsonl and summary.json (default %(default)s)"
    add("--output-dir", type=Path, default=Path("batch-results"), help=out)
    form = "format of the audio files, 16-bit PCM, 24 kHz (default wav)"
    add("--format", choices=("wav", "flac"), default="wav", help=form)
    warm_up = "number of rows spoken and dropped before the clock starts (default 0)"
    add("--warm-up", type=zero_or_more, default=0, help=warm_up)


def _add_input_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to say (default: bundled English sentences)")
    add_source_options(group)
    add = group.add_argument
    part = "speak part K of N of the list only: one part for each machine, each with its own --output-dir"
    add("--part", type=_part, default=(1, 1), metavar="K/N", help=part)
    add("--as-written", action="store_true", help="do not normalise texts: no cleaning, no numbers as words")
    add = parser.add_argument_group("in which voice").add_argument
    add("--voice", help=f"voice of the checkpoint for rows that name none (default {DEFAULT_VOICE})")
    add("--checkpoint", type=Path, help="directory with token2wav/, llm/ and voices/ (default: the demo voice)")
    add("--prompt-speech-path", type=Path, help="audio file of one voice for all rows, in place of their own")
    add("--prompt-text", help="transcript of --prompt-speech-path")


def _add_llm_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    backend = "LLM server; auto: on a GPU trtllm where it works, else embedded; for --llm-url: embedded (default auto)"
    choices = ("auto", "embedded", "vllm", "trtllm")
    add("--backend", "--llm-backend", choices=choices, default="auto", help=backend)
    device = f"device of LLM and token2wav; auto: the GPU where there is one (default: {DEVICE_VARIABLE}, else auto)"
    add("--device", choices=DEVICES, default=default_device(), help=device)
    model = "directory of the LLM and its tokenizer (default: of --checkpoint)"
    add("--llm-model-name-or-path", type=Path, help=model)
    url = "URL of a running LLM service (default: one is started here)"
    add("--llm-url", "--openai-api-base", type=_base_url, help=url)
    add("--openai-model-name", help="name of the service's model (default: the first that it lists)")
    add("--batch-size", type=count, help=f"utterances in the LLM at once ({_BY_MEMORY})")
    share = "share of free memory for keys and values of a service started here (default: the service's)"
    add("--kv-cache-free-gpu-memory-fraction", type=float, help=share)
    setting = "setting of an LLM service started here; may be repeated"
    add("--llm-set", type=pair, action="append", default=[], metavar="NAME=VALUE", help=setting)
    most = "most speech tokens of one answer, 25 a second (default %(default)s)"
    add("--llm-max-speech-tokens", type=count, default=2048, help=most)
    add("--temperature", type=float, default=0.8, help="sampling temperature (default %(default)s)")
    add("--top-p", type=float, default=0.95, help="nucleus sampling's share (default %(default)s)")
    add("--top-k", type=int, default=50, help="likeliest tokens that are kept (default %(default)s)")
    add(
        "--seed", type=zero_or_more, default=0, help="seeds each utterance together with its name (default %(default)s)"
    )


def run(args: argparse.Namespace, on_report: Callable[[BatchReport], None] | None = None) -> int:
    """Run the batch, and `on_report` behind it; return 0, 1 if any row failed, 2 if it could not run."""
    from cosydit.batch.run import run_batch, summary_text

    try:
        find_checkpoint(args)
        rows, host = read_rows(args), find_host(args.device)
        plan = make_plan(args, host)
        chosen = {name: value for name, value in vars(args).items() if name not in ("run", "command")}
        with stopped_by_signals(lambda: signal.raise_signal(signal.SIGKILL)), _on_gpu(args, host):
            report = run_batch(args, plan, rows, describe_environment(chosen))
        print(summary_text(report, args.output_dir))
        if on_report is not None:
            on_report(report)
    except (PlainError, ModuleNotFoundError, OSError, ValueError) as error:
        print(f"batch: {error}", file=sys.stderr)
        return EXIT_USAGE
    return EXIT_FAILURES if report.failures else 0


def find_checkpoint(args: argparse.Namespace) -> None:
    """Fill in what the checkpoint brings: the LLM, token2wav and the voices, as far as they are not named.

    Without a checkpoint, and unless both parts are named, it is the demo voice, unpacked on first use.

    Raises:
        BenchmarkError: options don't fit together.
        CheckpointMissingError: the checkpoint lacks parts.
    """
    args.voices_dir = None
    if args.checkpoint is None and args.llm_model_name_or_path is not None and args.token2wav_path is not None:
        if args.voice is not None:
            raise BenchmarkError("--voice is a voice of a checkpoint: add --checkpoint, or give --prompt-speech-path")
        return
    layout = resolve_checkpoint(args.checkpoint, default_work_dir())
    args.voices_dir = layout.voices_dir
    args.llm_model_name_or_path = args.llm_model_name_or_path or layout.llm_dir
    args.token2wav_path = args.token2wav_path or layout.token2wav_dir


def read_rows(args: argparse.Namespace) -> list[InputRow]:
    """Read the rows to speak.

    Raises:
        BenchmarkError: the list can't be read or is empty, or options don't fit together.
    """
    from cosydit.bench.inputs import read_samples, read_source, with_voices

    if bool(args.prompt_speech_path) != bool(args.prompt_text):
        raise BenchmarkError("--prompt-speech-path and --prompt-text go together; give both or neither")
    if args.prompt_speech_path is not None and not args.prompt_speech_path.is_file():
        raise BenchmarkError(f"--prompt-speech-path {args.prompt_speech_path} does not exist")
    given, (number, parts) = read_source(args), args.part
    rows = [*(read_samples() if given is None else given)][number - 1 :: parts]
    if not rows:
        raise BenchmarkError("the input is empty; give at least one row")
    if args.prompt_speech_path is not None:
        voice = {"prompt": args.prompt_speech_path, "prompt_text": args.prompt_text}
        return [replace(row, **voice) if isinstance(row, SpeechInput) else row for row in rows]
    return rows if args.voices_dir is None else with_voices(rows, args.voices_dir, args.voice or DEFAULT_VOICE)


def make_plan(args: argparse.Namespace, host: Machine) -> BatchPlan:
    """Check the options, fill in what the host chooses for whatever nobody gave, and return how to work.

    Raises:
        BenchmarkError: options don't fit together.
    """
    _check(args)
    _choose_for_host(args, host)
    sampling = Sampling(temperature=args.temperature, top_p=args.top_p, top_k=args.top_k)
    return BatchPlan(args.batch_size, args.token2wav_batch_size, sampling, args.seed, args.warm_up)


def _check(args: argparse.Namespace) -> None:
    """Refuse options that would do nothing."""
    of_a_service = (args.kv_cache_free_gpu_memory_fraction, args.llm_set or None)
    if args.llm_url is not None and any(option is not None for option in of_a_service):
        raise BenchmarkError(
            "--kv-cache-free-gpu-memory-fraction and --llm-set are for a service that is started here; "
            "the one at --llm-url has its own settings: leave them out, or leave --llm-url out"
        )
    if not args.llm_model_name_or_path.is_dir():
        got = f"--llm-model-name-or-path {args.llm_model_name_or_path} is no directory"
        raise BenchmarkError(f"{got}; download the checkpoint first")


def _choose_for_host(args: argparse.Namespace, host: Machine) -> None:
    """Fill in the LLM's backend, and on a GPU the batch's sizes and the settings of what is started here."""
    is_served = args.llm_url is not None
    if args.backend == "auto":
        chosen = host.choose(args.llm_model_name_or_path, bool(host.gpus) and not is_served)
        args.backend = EMBEDDED if is_served else chosen.value
    preset = preset_of(host) if host.gpus else None
    args.batch_size = args.batch_size or (preset.batch_size if preset else DEFAULT_BATCH_SIZE)
    size = preset.token2wav_batch_size if preset else DEFAULT_BATCH_SIZE
    args.token2wav_batch_size = args.token2wav_batch_size or size
    if preset is None:
        return
    if not is_served:
        args.llm_set = [*([("device", "cuda")] if args.backend == EMBEDDED else []), *args.llm_set]
        args.kv_cache_free_gpu_memory_fraction = args.kv_cache_free_gpu_memory_fraction or OFFLINE_LLM_SHARE
    given = dict(args.token2wav_set)
    args.token2wav_set = [*(engine_settings(preset, args.token2wav_path, given) | given).items()]


@contextmanager
def _on_gpu(args: argparse.Namespace, host: Machine) -> Iterator[None]:
    """Say what was chosen for a GPU, and have MPS while the context lasts if both parts run on it."""
    if not host.gpus:
        yield
        return
    engine, service = (" ".join(map("=".join, given)) for given in (args.token2wav_set, args.llm_set))
    lines = [
        gpu_line(host),
        f"token2wav {engine}, batch {args.token2wav_batch_size}    (change: --token2wav-set NAME=VALUE, "
        "--token2wav-batch-size)",
        f"LLM       {args.backend} {args.llm_url or service}, batch {args.batch_size}, memory share "
        f"{args.kv_cache_free_gpu_memory_fraction}    (change: --backend, --llm-set NAME=VALUE, --batch-size)",
    ]
    with ExitStack() as stack:
        if args.llm_url is None:
            lines.append(f"MPS       {stack.enter_context(mps_running(args.output_dir, is_client=True)).note}")
        print("\n".join(lines), flush=True)
        yield


def _base_url(text: str) -> str:
    """Return scheme, host and port; the original's option has the path in it, which the backend decides here."""
    parts = urlsplit(http_url(text))
    return f"{parts.scheme}://{parts.netloc}"


def _part(text: str) -> tuple[int, int]:
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected K/N such as 1/4")
    return int(number), int(parts)
