"""Command-line options shared by the subcommands that start the services on this machine."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from servicekit.gpu_host import DEVICE_VARIABLE, DEVICES, default_device

if TYPE_CHECKING:
    from cosydit.stack.host import Host
    from cosydit.stack.mps import MpsUse
    from cosydit.stack.stack import StackOptions

TOKEN2WAV_MODULES = ("torch", "onnxruntime", "scipy", "soundfile", "yaml")
LLM_MODULES = ("safetensors",)


def add_stack_options(parser: argparse.ArgumentParser) -> None:
    """Add where the checkpoint, the logs and the ports are."""
    parser.add_argument(
        "--checkpoint", type=Path, help="directory with token2wav/, llm/ and voices/ (default: the demo voice)"
    )
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default=default_device(),
        help=f"device of both services; auto: the GPU where there is one (default: {DEVICE_VARIABLE}, else auto)",
    )
    parser.add_argument(
        "--llm-backend",
        choices=("auto", "embedded", "vllm", "trtllm"),
        default="auto",
        help="LLM server; auto: on a GPU trtllm where it works, else embedded (default %(default)s)",
    )
    parser.add_argument(
        "--llm-options",
        type=shlex.split,
        default=[],
        metavar="'OPTIONS'",
        help="options of the LLM service; `python -m llm_service --help` lists them",
    )
    parser.add_argument("--work-dir", type=Path, help="logs and model repository (default: ~/.cache/cosydit)")
    parser.add_argument("--llm-port", type=int, default=8000, help="HTTP port of the LLM service (default %(default)s)")
    tokens = "gRPC port of the LLM service's token stream, on a GPU (default %(default)s)"
    parser.add_argument("--llm-grpc-port", type=int, default=8100, help=tokens)
    parser.add_argument("--triton-http-port", type=int, default=18000, help="HTTP port of Triton (default %(default)s)")
    parser.add_argument("--triton-grpc-port", type=int, default=8001, help="gRPC port of Triton (default %(default)s)")
    parser.add_argument(
        "--triton-metrics-port", type=int, default=8002, help="metrics port of Triton (default %(default)s)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting of the model repository; `python -m token2wav_service.serving.assemble --help` lists them",
    )


def stack_options(
    args: argparse.Namespace, *, defaults: Mapping[str, str], gateway_port: int = 8080, gateway_grpc_port: int = 50051
) -> StackOptions:
    """Read the options; unpacks the demo voice when no checkpoint is named.

    Args:
        defaults: settings of the model repository that --set may change.

    Raises:
        CheckpointMissingError: the named checkpoint is not there.
        ValueError: a setting that is not NAME=VALUE.
    """
    from cosydit.stack.checkpoint.checkpoints import resolve_checkpoint
    from cosydit.stack.stack import Ports, StackOptions, default_work_dir

    work_dir = args.work_dir or default_work_dir()
    settings = {**defaults, **dict(_name_value(text) for text in args.set)}
    return StackOptions(
        checkpoint=resolve_checkpoint(args.checkpoint, work_dir),
        work_dir=work_dir,
        ports=Ports(
            args.llm_port,
            args.triton_http_port,
            args.triton_grpc_port,
            args.triton_metrics_port,
            gateway_port,
            gateway_grpc_port,
            args.llm_grpc_port,
        ),
        settings=settings,
        llm_backend=args.llm_backend,
        llm_options=args.llm_options,
    )


@contextmanager
def gpu_shared(options: StackOptions, host: Host) -> Iterator[MpsUse | None]:
    """Have MPS while the context lasts, if services of these options share a GPU; yields None if they don't."""
    from cosydit.stack.host import wants_mps
    from cosydit.stack.mps import mps_running

    if not wants_mps(options, host):
        yield None
        return
    with mps_running(options.log_dir) as use:
        yield use


def choice_lines(options: StackOptions, host: Host, mps: MpsUse | None) -> list[str]:
    """Return what was chosen for this host, a line each."""
    from cosydit.stack.host import describe_choice

    return [*describe_choice(options, host), *([f"MPS       {mps.note}"] if mps else [])]


def check_installed(llm_backend: str = "embedded") -> None:
    """Say what is missing before anything starts.

    Raises:
        ModuleNotFoundError: a module that the services need.
        TritonNotFoundError: there is no Triton server.
    """
    from servicekit.extras import require_modules
    from token2wav_service.serving.process.installation import find_installation

    require_modules([*TOKEN2WAV_MODULES, *(LLM_MODULES if llm_backend == "embedded" else ())], "demo")
    find_installation()


def complain(command: str, error: BaseException) -> int:
    """Print an error for a person; returns the exit status."""
    from servicekit.extras import missing_extra

    hint = missing_extra(error) if isinstance(error, ImportError) else None
    print(f"cosydit {command}: {hint or error}", file=sys.stderr)
    return 1


_OTHER_FORMATS = (".aac", ".flac", ".m4a", ".mp3", ".ogg", ".opus", ".pcm", ".raw", ".webm")


def wav_path(text: str) -> Path:
    """Read the name of a WAV file that a command will write, before it does anything.

    Raises:
        argparse.ArgumentTypeError: no such file can be written.
    """
    path = Path(text)
    if path.suffix.lower() in _OTHER_FORMATS:
        raise argparse.ArgumentTypeError(f"got {text}, and a WAV file is written; name it {path.with_suffix('.wav')}")
    if path.is_dir() or not path.name:
        raise argparse.ArgumentTypeError(f"got {text}, which is a directory; name a file in it")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"got {text}, and there is no directory {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"got {text}, and nothing can be written into {path.parent}; name another")
    return path


def _name_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"got --set {text!r}, expected NAME=VALUE")
    return name, value
