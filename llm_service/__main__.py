"""`python -m llm_service`: serves the speech-token LLM with the chosen backend."""

from __future__ import annotations

from servicekit.process import quiet_interrupts, run_and_leave

quiet_interrupts()

import argparse
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from llm_service.backends import (
    AUTO,
    GPU_DEVICE,
    NEWER_RUNNER,
    RUNNER_VARIABLE,
    check_backend,
    choose_backend,
    command_of,
    has_gpu,
)
from llm_service.config import LLM, LLMBackend, ServerConfig, SettingValue, parse_server_config
from llm_service.errors import BackendUnavailableError
from servicekit.file_sums import check_files
from servicekit.gpu_host import mps_problem
from servicekit.logs import FORMAT_VARIABLE, LogFormat, PlainError, configure_logging, log_format_of
from servicekit.settings import add_options, given_settings
from servicekit.tracing import ENDPOINT_VARIABLE

EXIT_USAGE = 2
MPS_PRIORITY_VARIABLE = "CUDA_MPS_CLIENT_PRIORITY"
MPS_BELOW_NORMAL = "1"
"""Priority of our own engine under MPS: where both services wait for the GPU, token2wav's kernels go first."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the launcher; return its exit status. With vllm and trtllm the process becomes the server."""
    args = _parser().parse_args(arguments)
    if args.otlp_endpoint is not None:
        os.environ[ENDPOINT_VARIABLE] = args.otlp_endpoint
    try:
        configure_logging(LogFormat(args.log_format) if args.log_format else log_format_of())
        given = given_settings(LLM, args, os.environ, has_prefix=False)
    except ValueError as err:
        sys.stderr.write(f"error: {err}\n")
        return EXIT_USAGE
    options: dict[str, SettingValue] = {name: str(value) for name, value in given.items()}
    backend = _chosen(args.backend, options)
    try:
        config = parse_server_config(backend, options)
        if args.dry_run:
            sys.stdout.write(shlex.join(command_of(backend, config)) + "\n")
            return 0
        check_backend(backend, config)
        # Before CUDA fails on an MPS daemon that this user may not use.
        if (problem := mps_problem()) is not None:
            raise BackendUnavailableError(problem)
        _run(backend, config)
    except PlainError as err:
        sys.stderr.write(f"error: {err}\n")
        return EXIT_USAGE
    return 0


def _chosen(name: str, options: dict[str, SettingValue]) -> LLMBackend:
    """Return the backend of a name; `auto` looks at this host, and puts our own engine on its GPU."""
    if name != AUTO:
        return LLMBackend(name)
    on_gpu = str(options.get("device", GPU_DEVICE)).startswith(GPU_DEVICE) and has_gpu()
    chosen = choose_backend(Path(str(options.get("model_dir", ""))), on_gpu)
    if chosen is LLMBackend.EMBEDDED and on_gpu:
        options.setdefault("device", GPU_DEVICE)
    return chosen


def _run(backend: LLMBackend, config: ServerConfig) -> None:
    if backend is LLMBackend.EMBEDDED:
        os.environ.setdefault(MPS_PRIORITY_VARIABLE, MPS_BELOW_NORMAL)
        from llm_service.embedded.serve import serve  # heavy: imports torch

        serve(config)
        return
    check_files(sorted(config.model_dir.glob("*.safetensors")))  # the program loads them unchecked
    if backend is LLMBackend.VLLM:
        os.environ.setdefault(RUNNER_VARIABLE, NEWER_RUNNER)
    command = command_of(backend, config)
    logging.getLogger(__name__).info("running %s", shlex.join(command))
    os.execvp(command[0], command)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m llm_service",
        description="Serve the speech-token LLM over OpenAI-compatible HTTP.",
        allow_abbrev=False,
    )
    names = [AUTO, *(name.value for name in LLMBackend)]
    what = "server to start; auto: trtllm on a GPU where it works, else embedded (default %(default)s)"
    parser.add_argument("--backend", choices=names, default=LLMBackend.EMBEDDED.value, help=what)
    parser.add_argument("--dry-run", action="store_true", help="print the command of the server and stop")
    formats = [each.value for each in LogFormat]
    parser.add_argument(
        "--log-format", choices=formats, help=f"format of the log (default: {FORMAT_VARIABLE}, else text) [embedded]"
    )
    spans = f"URL of an OTLP/HTTP receiver of spans; {ENDPOINT_VARIABLE} is the default [embedded]"
    parser.add_argument("--otlp-endpoint", metavar="URL", help=spans)
    add_options(parser, LLM, has_prefix=False)
    return parser


if __name__ == "__main__":
    run_and_leave(main)
