"""The offline batch's command line: its options, the rows and the settings they make.

Options of the original runtime keep their names; those that mean nothing here are refused. What is heavy to import is
imported when it is needed, so that --help is quick.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from cosydit.bench.types import count, zero_or_more
from servicekit.gpu_host import DEVICE_VARIABLE, DEVICES, default_device

if TYPE_CHECKING:
    from cosydit.batch.types import BatchSettings, LLMSettings, RaySettings, Token2WavSettings
    from cosydit.bench.types import InputRow
    from cosydit.stack.gpu_presets import GpuPreset
    from cosydit.stack.host import Host

DEFAULT_SPLIT = "wenetspeech4tts"
DEFAULT_BATCH_SIZE = 8
_BY_MEMORY = f"default {DEFAULT_BATCH_SIZE}, on a GPU by its memory"
DEFAULT_OUTPUT_DIR = Path("batch-results")
DEFAULT_VOICE = "default"
DEFAULT_MAX_SPEECH_TOKENS = 2048
_BACKENDS = ("auto", "embedded", "vllm", "trtllm")
_RENAMED_BACKENDS = {
    "hf": "use --backend embedded, our server on torch",
    "trtllm-serve": "use --backend trtllm, which always runs trtllm-serve",
}
_REFUSED = {
    "--num-workers": "prompts are made ready before, side by side; leave it out",
    "--prefetch": "stages overlap by themselves; leave it out",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add every option."""
    _add_input_options(parser.add_argument_group("what to say (default: bundled English sentences)"))
    _add_voice_options(parser.add_argument_group("in which voice"))
    _add_llm_options(parser.add_argument_group("LLM service"))
    _add_token2wav_options(parser.add_argument_group("token2wav"))
    _add_ray_options(parser.add_argument_group("several machines"))
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output-dir",
        type=Path,
        default=DEFAULT_OUTPUT_DIR,
        help="directory for audio, results.jsonl, summary.json and batch.log (default %(default)s)",
    )
    output.add_argument(
        "--format",
        choices=("wav", "flac"),
        default="wav",
        help="format of the audio files, 16-bit PCM, 24 kHz (default wav)",
    )
    output.add_argument(
        "--warm-up",
        type=zero_or_more,
        default=0,
        help="number of rows spoken and dropped before the clock starts (default 0)",
    )
    output.add_argument(
        "--figures", type=Path, help="JSON to write, with the run's raw times and the figures computed from them"
    )
    output.add_argument("--commit", help="commit of the code in --figures, where there is no git")
    output.add_argument("--setting", default="{}", help="JSON that describes what is measured, written into --figures")
    for name, reason in _REFUSED.items():
        parser.add_argument(name, action=_Refuse, reason=reason, help=argparse.SUPPRESS)


def read_rows(args: argparse.Namespace) -> list[InputRow]:
    """Read the rows to speak.

    Raises:
        BenchmarkError: the list can't be read or is empty, or options don't fit together.
    """
    from dataclasses import replace

    from cosydit.bench.inputs import with_voices
    from cosydit.bench.types import BenchmarkError, SpeechInput

    if bool(args.prompt_speech_path) != bool(args.prompt_text):
        raise BenchmarkError("--prompt-speech-path and --prompt-text go together; give both or neither")
    if args.prompt_speech_path is not None and not args.prompt_speech_path.is_file():
        raise BenchmarkError(f"--prompt-speech-path {args.prompt_speech_path} does not exist")
    rows = _read_source(args)
    if not rows:
        raise BenchmarkError("the input is empty; give at least one row")
    if args.prompt_speech_path is not None:
        voice = {"prompt": args.prompt_speech_path, "prompt_text": args.prompt_text}
        return [replace(row, **voice) if isinstance(row, SpeechInput) else row for row in rows]
    if args.voices_dir is None:
        return rows
    return with_voices(rows, args.voices_dir, args.voice or DEFAULT_VOICE)


def _read_source(args: argparse.Namespace) -> list[InputRow]:
    from cosydit.bench.inputs import read_dataset, read_jsonl, read_list, read_manifest, read_samples

    if args.input is not None:
        return read_list(args.input)
    if args.manifest_path is not None:
        return read_manifest(args.manifest_path)
    if args.jsonl_path is not None:
        return read_jsonl(args.jsonl_path)
    if args.huggingface_dataset is not None:
        return read_dataset(args.huggingface_dataset, args.split_name)
    return read_samples()


def find_checkpoint(args: argparse.Namespace) -> None:
    """Fill in what the checkpoint brings: the LLM, token2wav and the voices, as far as they are not named.

    Without a checkpoint, and unless both parts are named, it is the demo voice, unpacked on first use.

    Raises:
        BenchmarkError: options don't fit together.
        CheckpointMissingError: the checkpoint lacks parts.
    """
    from cosydit.bench.types import BenchmarkError
    from cosydit.stack.checkpoint.checkpoints import resolve_checkpoint
    from cosydit.stack.stack import default_work_dir

    has_token2wav = args.token2wav_path is not None or args.token2wav_url is not None
    args.voices_dir = None
    if args.checkpoint is None and args.llm_model_name_or_path is not None and has_token2wav:
        if args.voice is not None:
            raise BenchmarkError("--voice is a voice of a checkpoint: add --checkpoint, or give --prompt-speech-path")
        return
    layout = resolve_checkpoint(args.checkpoint, default_work_dir())
    args.voices_dir = layout.voices_dir
    args.llm_model_name_or_path = args.llm_model_name_or_path or layout.llm_dir
    if not has_token2wav:
        args.token2wav_path = layout.token2wav_dir


def read_settings(args: argparse.Namespace, host: Host) -> BatchSettings:
    """Make a batch's settings, with what the host chooses for whatever nobody gave.

    Raises:
        BenchmarkError, ValueError: options don't fit together, or say nothing.
    """
    from cosydit.batch.types import BatchPlan, BatchSettings
    from gateway.core import Sampling

    _check(args)
    choose_for_host(args, host)
    sampling = Sampling(temperature=args.temperature, top_p=args.top_p, top_k=args.top_k)
    return BatchSettings(
        output_dir=args.output_dir,
        audio_format=args.format,
        plan=BatchPlan(args.batch_size, args.token2wav_batch_size, sampling, args.seed, args.warm_up),
        llm=_llm_settings(args),
        token2wav=_token2wav_settings(args),
        ray=_ray_settings(args),
    )


def choose_for_host(args: argparse.Namespace, host: Host) -> None:
    """Fill in the LLM's backend, and on a GPU the batch's sizes and the settings of what is started here."""
    from cosydit.stack.host import preset_of
    from cosydit.stack.stack import EMBEDDED

    if args.backend == "auto":
        is_served = args.llm_url is not None
        chosen = host.choose(args.llm_model_name_or_path, bool(host.gpus) and not is_served)
        args.backend = EMBEDDED if is_served else chosen.value
    preset = preset_of(host) if host.gpus else None
    args.batch_size = args.batch_size or (preset.batch_size if preset else DEFAULT_BATCH_SIZE)
    size = preset.token2wav_batch_size if preset else DEFAULT_BATCH_SIZE
    args.token2wav_batch_size = args.token2wav_batch_size or size
    if preset is not None:
        _choose_for_gpu(args, preset)


def _choose_for_gpu(args: argparse.Namespace, preset: GpuPreset) -> None:
    from cosydit.stack.gpu_presets import OFFLINE_LLM_SHARE
    from cosydit.stack.host import engine_settings
    from cosydit.stack.stack import EMBEDDED

    if args.llm_url is None:
        given = dict(_name_value(text) for text in args.llm_set)
        if args.backend == EMBEDDED and "device" not in given:
            args.llm_set = ["device=cuda", *args.llm_set]
        args.kv_cache_free_gpu_memory_fraction = args.kv_cache_free_gpu_memory_fraction or OFFLINE_LLM_SHARE
    if args.token2wav_path is not None:
        given = dict(_name_value(text) for text in args.token2wav_set)
        chosen = engine_settings(preset, args.token2wav_path, given) | given
        args.token2wav_set = [f"{name}={value}" for name, value in chosen.items()]


def _add_input_options(group: argparse._ArgumentGroup) -> None:
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "input", nargs="?", type=Path, help="list of texts: CSV, JSONL, or one text a line; - is standard input"
    )
    source.add_argument("--manifest-path", type=Path, help="file with lines of utt|prompt_text|prompt_wav|text")
    source.add_argument(
        "--jsonl-path",
        type=Path,
        help="file of JSON objects with text, and optionally utt, voice, prompt_wav, prompt_text",
    )
    source.add_argument(
        "--huggingface-dataset",
        help="dataset with id, target_text, prompt_text and prompt_audio: a name, or a local file or directory",
    )
    group.add_argument("--split-name", default=DEFAULT_SPLIT, help="split of the dataset (default %(default)s)")
    group.add_argument(
        "--as-written", action="store_true", help="do not normalise texts: no cleaning, no numbers as words"
    )


def _add_voice_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--voice", help=f"voice of the checkpoint for rows that name none (default {DEFAULT_VOICE})")
    group.add_argument(
        "--checkpoint", type=Path, help="directory with token2wav/, llm/ and voices/ (default: the demo voice)"
    )
    group.add_argument(
        "--prompt-speech-path", type=Path, help="audio file of one voice for all rows, in place of their own"
    )
    group.add_argument("--prompt-text", help="transcript of --prompt-speech-path")


def _add_llm_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--backend",
        "--llm-backend",
        type=_backend,
        default="auto",
        metavar="|".join(_BACKENDS),
        help="LLM server; auto: on a GPU trtllm where it works, else embedded; for --llm-url: embedded (default "
        "%(default)s)",
    )
    group.add_argument(
        "--device",
        choices=DEVICES,
        default=default_device(),
        help=f"device of LLM and token2wav; auto: the GPU where there is one (default: {DEVICE_VARIABLE}, else auto)",
    )
    group.add_argument(
        "--llm-model-name-or-path", type=Path, help="directory of the LLM and its tokenizer (default: of --checkpoint)"
    )
    group.add_argument(
        "--engine-dir", type=Path, help="trtllm: directory of a built engine, for a service started here"
    )
    group.add_argument(
        "--llm-url",
        "--openai-api-base",
        type=_base_url,
        help="URL of a running LLM service (default: one is started here)",
    )
    group.add_argument("--openai-model-name", help="name of the service's model (default: the first that it lists)")
    group.add_argument(
        "--llm-prompt-form",
        choices=("tokens", "chat"),
        default="tokens",
        help="form of prompts; chat: for servers that take no token ids",
    )
    group.add_argument("--batch-size", type=count, help=f"utterances in the LLM at once ({_BY_MEMORY})")
    group.add_argument(
        "--kv-cache-free-gpu-memory-fraction",
        type=float,
        help="share of free memory for keys and values of a service started here (default: the service's)",
    )
    group.add_argument(
        "--llm-set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting of an LLM service started here; may be repeated",
    )
    group.add_argument(
        "--llm-max-speech-tokens",
        type=count,
        default=DEFAULT_MAX_SPEECH_TOKENS,
        help="most speech tokens of one answer, 25 a second (default %(default)s)",
    )
    group.add_argument("--temperature", type=float, default=0.8, help="sampling temperature (default %(default)s)")
    group.add_argument("--top-p", type=float, default=0.95, help="nucleus sampling's share (default %(default)s)")
    group.add_argument("--top-k", type=int, default=50, help="likeliest tokens that are kept (default %(default)s)")
    group.add_argument(
        "--seed", type=zero_or_more, default=0, help="seeds each utterance together with its name (default %(default)s)"
    )


def _add_token2wav_options(group: argparse._ArgumentGroup) -> None:
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "--token2wav-path",
        type=Path,
        help="directory token2wav of a checkpoint of any family, to run it in this process (default: of --checkpoint)",
    )
    where.add_argument("--token2wav-url", help="host:port of a running Triton's gRPC service")
    group.add_argument("--token2wav-batch-size", type=count, help=f"utterances in token2wav at once ({_BY_MEMORY})")
    group.add_argument(
        "--token2wav-set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting of token2wav's engine, e.g. device=cuda; may be repeated",
    )
    group.add_argument(
        "--chunk-tokens",
        type=count,
        help="tokens (25 Hz) of the pieces that longer utterances are made in (default: 500 on a CPU; on a GPU and in "
        "a service 100, the largest piece with a program of its own)",
    )


def _add_ray_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="spread the rows over a running Ray cluster (auto, or host:port), or over `local` workers; checkpoints "
        "and prompts must have equal paths on all machines; the audio is written here",
    )
    group.add_argument("--ray-workers", type=count, help="number of Ray workers (default: one for every machine)")


def _llm_settings(args: argparse.Namespace) -> LLMSettings:
    from cosydit.batch.types import LLMSettings
    from gateway.llm.wire import PromptForm
    from llm_service.config import LLMBackend

    return LLMSettings(
        backend=LLMBackend(args.backend),
        model_dir=args.llm_model_name_or_path,
        url=args.llm_url,
        model=args.openai_model_name,
        form=PromptForm(args.llm_prompt_form),
        engine_dir=args.engine_dir,
        kv_cache_free_gpu_memory_fraction=args.kv_cache_free_gpu_memory_fraction,
        service=dict(_name_value(text) for text in args.llm_set),
        max_speech_tokens=args.llm_max_speech_tokens,
        is_normalized=not args.as_written,
    )


def _token2wav_settings(args: argparse.Namespace) -> Token2WavSettings:
    from cosydit.batch.types import Token2WavSettings

    return Token2WavSettings(
        model_dir=args.token2wav_path,
        url=args.token2wav_url,
        chunk_tokens=args.chunk_tokens,
        engine=dict(_name_value(text) for text in args.token2wav_set),
    )


def _ray_settings(args: argparse.Namespace) -> RaySettings | None:
    from cosydit.batch.types import RaySettings

    return None if args.ray is None else RaySettings(args.ray, args.ray_workers)


def _check(args: argparse.Namespace) -> None:
    """Refuse options that would do nothing."""
    from cosydit.bench.types import BenchmarkError

    of_a_service = (args.kv_cache_free_gpu_memory_fraction, args.engine_dir, args.llm_set or None)
    if args.llm_url is not None and any(option is not None for option in of_a_service):
        raise BenchmarkError(
            "--kv-cache-free-gpu-memory-fraction, --engine-dir and --llm-set are for a service that is started here; "
            "the one at --llm-url has its own settings: leave them out, or leave --llm-url out"
        )
    if args.engine_dir is not None and args.backend != "trtllm":
        raise BenchmarkError(f"--engine-dir is for --backend trtllm; {args.backend} loads --llm-model-name-or-path")
    if args.token2wav_url is not None and args.token2wav_set:
        raise BenchmarkError("--token2wav-set is for --token2wav-path; a served model has its own settings")
    if args.ray is not None and args.llm_url is None:
        raise BenchmarkError(
            "--ray needs --llm-url: start an LLM service that every machine reaches under one address, or one on each "
            "machine and give http://127.0.0.1:PORT"
        )
    if args.ray is not None and args.figures is not None:
        raise BenchmarkError("--figures are of one machine: leave --ray or --figures out")
    if args.ray is None and args.ray_workers is not None:
        raise BenchmarkError("--ray-workers is for --ray; leave it out, or add --ray")
    if not args.llm_model_name_or_path.is_dir():
        raise BenchmarkError(
            f"--llm-model-name-or-path {args.llm_model_name_or_path} is no directory; download the checkpoint first"
        )


class _Refuse(argparse.Action):
    """An option of the original runtime that means nothing here."""

    def __init__(self, option_strings: Sequence[str], dest: str, reason: str, **options: Any) -> None:
        super().__init__(option_strings, dest, **options)
        self._reason = reason

    def __call__(self, parser: argparse.ArgumentParser, *args: object) -> NoReturn:
        parser.error(f"{self.option_strings[0]} means nothing here: {self._reason}")


def _backend(text: str) -> str:
    if text in _RENAMED_BACKENDS:
        raise argparse.ArgumentTypeError(f"got {text!r}: {_RENAMED_BACKENDS[text]}")
    if text not in _BACKENDS:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected one of {', '.join(_BACKENDS)}")
    return text


def _base_url(text: str) -> str:
    """Return scheme, host and port; the original's option has the path in it, which the backend decides here."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected something like http://127.0.0.1:8000")
    return f"{parts.scheme}://{parts.netloc}"


def _name_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"got setting {text!r}, expected NAME=VALUE")
    return name, value
