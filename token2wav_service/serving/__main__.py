"""`python -m token2wav_service.serving`: run tritonserver on a model repository in the foreground."""

from __future__ import annotations

from servicekit.process import quiet_interrupts

quiet_interrupts()

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from servicekit.gpu_host import mps_problem
from servicekit.logs import FORMAT_VARIABLE, LogFormat, configure_logging, log_format_of
from servicekit.process import run_and_leave
from servicekit.tracing import ENDPOINT_VARIABLE, endpoint_of
from token2wav_service.serving.assemble import assemble, format_table, parse_pairs
from token2wav_service.serving.process.health import HealthWatch, drain
from token2wav_service.serving.process.installation import (
    DEFAULT_DRAIN_TIMEOUT_S,
    DEFAULT_EXIT_TIMEOUT_S,
    DEFAULT_GRPC_PORT,
    DEFAULT_HTTP_PORT,
    DEFAULT_METRICS_PORT,
    ServerOptions,
    TritonNotFoundError,
)
from token2wav_service.serving.process.server import TritonProcess, TritonStartError
from token2wav_service.serving.settings import RepositorySettingsError

logger = logging.getLogger(__name__)

_USAGE_ERROR = 2
_SERVER_FAILED = 1
_POLL_INTERVAL_S = 0.2


def main(argv: list[str] | None = None) -> int:
    """Serve until the server exits or a signal stops it; return its exit status."""
    args = _parser().parse_args(argv)
    if args.log_format is not None:  # the models' processes read it too
        os.environ[FORMAT_VARIABLE] = args.log_format
    endpoint = args.otlp_endpoint or endpoint_of()
    if endpoint is not None:
        os.environ[ENDPOINT_VARIABLE] = endpoint
    ports = (args.http_port, args.grpc_port, args.metrics_port)
    options = ServerOptions(args.model_repository, args.host, *ports, args.exit_timeout_s, endpoint)
    try:
        configure_logging(log_format_of())
        if args.settings:
            given = parse_pairs(args.settings)
            applied = assemble(args.model_repository, given)
            logger.info("assembled %s:\n%s", args.model_repository, format_table(applied, given))
        elif not args.model_repository.is_dir():
            raise RepositorySettingsError(
                f"{args.model_repository} is not a folder: make it with `python -m token2wav_service.serving.assemble`"
            )
    except ValueError as err:
        sys.stderr.write(f"{err}\n")
        return _USAGE_ERROR
    try:
        if (problem := mps_problem()) is not None:
            raise TritonStartError(problem)
        return _serve(TritonProcess(options), args.drain_timeout_s)
    except (TritonNotFoundError, TritonStartError) as err:
        sys.stderr.write(f"{err}\n")
        return 1


def _serve(process: TritonProcess, drain_timeout_s: float) -> int:
    """Run until the server ends, can't work any more, or a signal asks us to stop it (0).

    A server that ends by itself is a failure whatever its status: a model that is past saving ends it that way. One
    that can't work is killed, so that whoever started us starts it again. The first signal lets open streams end; the
    second stops the server at once.
    """
    stopping, hurry, lost = threading.Event(), threading.Event(), threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        (hurry if stopping.is_set() else stopping).set()

    def on_lost(trouble: str) -> None:
        logger.error("ending the server, which can't work any more: %s", trouble)
        lost.set()
        process.kill()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_signal)
    with process, _watched(process, on_lost):
        while process.returncode is None and not stopping.wait(_POLL_INTERVAL_S):
            process.hide_shared_memory()
        if not stopping.is_set():
            logger.error("the server ended by itself with status %s", process.returncode)
            return process.returncode or _SERVER_FAILED
        if process.returncode is None and drain_timeout_s > 0 and not drain(process, drain_timeout_s, hurry):
            logger.warning("streams are still open; stopping the server without them")
        return _SERVER_FAILED if lost.is_set() else process.returncode or 0


@contextmanager
def _watched(process: TritonProcess, on_lost: Callable[[str], None]) -> Iterator[None]:
    """Look after a started server's health until the context is left."""
    stopping = threading.Event()
    watch = HealthWatch(process)
    thread = threading.Thread(target=watch.run, args=(stopping, on_lost), name="health-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m token2wav_service.serving", description=__doc__)
    parser.add_argument("--model-repository", type=Path, required=True, help="model repository that the assembler made")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="NAME=VALUE",
        help="setting to assemble the repository with first; may be repeated (names: the assembler's --help)",
    )
    drain_help = (
        "seconds after a stop signal in which open streams may end; no new ones are taken, and a second signal ends "
        "the wait; 0: no wait"
    )
    for option, default, told in (
        ("--host", "127.0.0.1", "address to listen on"),
        ("--http-port", DEFAULT_HTTP_PORT, "HTTP port"),
        ("--grpc-port", DEFAULT_GRPC_PORT, "gRPC port"),
        ("--metrics-port", DEFAULT_METRICS_PORT, "port of the metrics"),
        ("--exit-timeout-s", DEFAULT_EXIT_TIMEOUT_S, "seconds that a stopping server waits for requests under way"),
        ("--drain-timeout-s", DEFAULT_DRAIN_TIMEOUT_S, drain_help),
    ):
        parser.add_argument(option, type=type(default), default=default, help=f"{told} (default %(default)s)")
    formats = [each.value for each in LogFormat]
    parser.add_argument(
        "--log-format",
        choices=formats,
        help=f"format of the models' log, not of the server's (default: {FORMAT_VARIABLE}, else text)",
    )
    spans = f"URL of an OTLP/HTTP receiver of spans (default: {ENDPOINT_VARIABLE}, else none)"
    parser.add_argument("--otlp-endpoint", metavar="URL", help=spans)
    return parser


if __name__ == "__main__":
    run_and_leave(main)
