"""Command-line options shared by the subcommands that start the services on this machine."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cosydit.stack.checkpoint.checkpoints import resolve_checkpoint
from cosydit.stack.host import Machine, describe_choice, wants_mps, with_served_form
from cosydit.stack.mps import MpsUse, mps_running
from cosydit.stack.process import stopped_by_signals
from cosydit.stack.stack import EMBEDDED, REPLICA_PORT_STEP, LocalStack, Ports, StackOptions, default_work_dir
from gateway.settings import GATEWAY
from llm_service.config import LLM
from servicekit.extras import require_modules
from servicekit.gpu_host import AUTO, DEVICES
from servicekit.logs import FORMAT_VARIABLE, LogFormat
from servicekit.settings import (
    COUNT,
    PATH,
    PORT,
    Given,
    Kind,
    Section,
    Setting,
    add_options,
    given_settings,
    one_of,
    read_file,
    read_settings,
)
from servicekit.tracing import ENDPOINT_VARIABLE
from token2wav_service.serving.process.installation import find_installation
from token2wav_service.serving.settings import TOKEN2WAV

TOKEN2WAV_MODULES = ("torch", "onnxruntime", "scipy", "soundfile", "yaml")
LLM_MODULES = ("safetensors",)


HEAD = Section(
    "",
    (
        Setting("checkpoint", "directory with token2wav/, llm/ and voices/; not given: the demo voice", PATH),
        Setting("device", "device of both services; auto: the GPU where there is one", one_of(*DEVICES), AUTO),
        Setting("work_dir", "logs and model repository; not given: ~/.cache/cosydit", PATH, variable="COSYDIT_HOME"),
        Setting("log_format", "format of all services' logs", one_of(*(each.value for each in LogFormat)), "text"),
        Setting(
            "otlp_endpoint",
            "base URL of an OTLP/HTTP receiver of spans, for all services",
            Kind(str, "URL"),
            variable=ENDPOINT_VARIABLE,
        ),
    ),
)
LLM_SERVED = Section(
    LLM.name,
    (
        Setting(
            "backend",
            "LLM server; auto: on a GPU trtllm where it works, else embedded",
            one_of("auto", "embedded", "vllm", "trtllm"),
            "auto",
        ),
        Setting("gpu", "GPU of the LLM, as CUDA_VISIBLE_DEVICES names it; not given: any", Kind(str, "GPU")),
        Setting("grpc_port", "gRPC port of the embedded LLM's token stream", PORT, "8100"),
        *LLM.served().settings,
    ),
    LLM.prefix,
)
TOKEN2WAV_SERVED = Section(
    TOKEN2WAV.name,
    (
        Setting("replicas", "number of Triton servers; the ports of each are 10 above those of the last", COUNT, "1"),
        Setting("gpus", "GPUs of the Triton servers in turn; not given: any", Kind(str, "GPU"), repeats=True),
        Setting("http_port", "HTTP port of Triton", PORT, "18000", alias="--triton-http-port"),
        Setting("grpc_port", "gRPC port of Triton", PORT, "8001", alias="--triton-grpc-port"),
        Setting("metrics_port", "metrics port of Triton", PORT, "8002", alias="--triton-metrics-port"),
        *TOKEN2WAV.served().settings,
    ),
    TOKEN2WAV.prefix,
)
STACK = (HEAD, LLM_SERVED, TOKEN2WAV_SERVED)
"""What every command that starts the services can be given."""
_DOORS = {"gateway": "port", "gateway_grpc": "grpc_port"}
"""Settings of the gateway that the stack knows as its ports."""
_OF_THE_STACK = {"backend", "gpu", "port", "grpc_port", "replicas", "gpus", "http_port", "metrics_port"}
"""Settings that the services themselves do not have, or are told by the stack."""


def add_stack_options(parser: argparse.ArgumentParser, *more: Section) -> None:
    """Add the options of `STACK` and of further sections, and the file that may have them all."""
    about = "TOML file with the settings below, in its head and the sections [llm], [token2wav] and [gateway]"
    parser.add_argument("--config", type=Path, metavar="FILE", help=about)
    for section in (*STACK, *more):
        add_options(parser, section)


def all_given(args: argparse.Namespace, *more: Section) -> dict[str, Given]:
    """Return by section what was given to a command with `add_stack_options`.

    Raises:
        SettingsError: a value, or the file, can't be read.
    """
    sections = (*STACK, *more)
    file = read_file(args.config, (*STACK, GATEWAY.served())) if args.config else {}
    return {section.name: given_settings(section, args, os.environ, file) for section in sections}


def stack_options(given: Mapping[str, Given], defaults: Mapping[str, str] | None = None) -> StackOptions:
    """Make a stack of what was given, by section; unpacks the demo voice when no checkpoint is named.

    `defaults` are settings of the model repository, where nothing else was given.

    Raises:
        CheckpointMissingError: the named checkpoint is not there.
    """
    head, llm, token2wav = (read_settings(each, given[each.name]) for each in STACK)
    gateway = dict(given.get(GATEWAY.name, {}))
    ports = Ports(llm.port, token2wav.http_port, token2wav.grpc_port, token2wav.metrics_port, llm_grpc=llm.grpc_port)
    doors = {port: int(str(gateway.pop(name))) for port, name in _DOORS.items() if name in gateway}
    for variable, name in ((FORMAT_VARIABLE, "log_format"), (ENDPOINT_VARIABLE, "otlp_endpoint")):
        if name in given[""]:
            os.environ[variable] = str(given[""][name])
    work_dir = head.work_dir or default_work_dir()
    return StackOptions(
        checkpoint=resolve_checkpoint(head.checkpoint, work_dir),
        work_dir=work_dir,
        ports=dataclasses.replace(ports, **doors),
        settings={**(defaults or {}), **_of_the_service(given[TOKEN2WAV.name])},
        llm_backend=llm.backend,
        llm={**_of_the_service(given[LLM.name])},
        gateway=gateway,
        replicas=tuple(ports.triton.shifted(REPLICA_PORT_STEP * number) for number in range(1, token2wav.replicas)),
        llm_gpu=llm.gpu,
        token2wav_gpus=token2wav.gpus,
    )


def _of_the_service(given: Given) -> dict[str, str]:
    return {name: str(value) for name, value in given.items() if name not in _OF_THE_STACK}


@contextmanager
def running(options: StackOptions, host: Machine, *, with_gateway: bool = False) -> Iterator[LocalStack]:
    """Have the services while the context lasts, and say what was chosen and started, a line each.

    Raises:
        ModuleNotFoundError, TritonNotFoundError: something that they need is not installed.
        ServiceStartError: one did not become ready.
    """
    require_modules([*TOKEN2WAV_MODULES, *(LLM_MODULES if options.llm_backend == EMBEDDED else ())], "demo")
    find_installation()
    options = with_served_form(options)
    stack = LocalStack(options, with_gateway)
    with stopped_by_signals(stack.kill), gpu_shared(options, host) as mps, stack:
        print("\n".join([*stack.describe(), *choice_lines(options, host, mps)]), flush=True)
        yield stack


@contextmanager
def gpu_shared(options: StackOptions, host: Machine) -> Iterator[MpsUse | None]:
    """Have MPS while the context lasts, if services of these options share a GPU; yields None if they don't."""
    if not wants_mps(options, host):
        yield None
        return
    with mps_running(options.log_dir) as use:
        yield use


def choice_lines(options: StackOptions, host: Machine, mps: MpsUse | None) -> list[str]:
    """Return what was chosen for this host, a line each."""
    return [*describe_choice(options, host), *([f"MPS       {mps.note}"] if mps else [])]


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
