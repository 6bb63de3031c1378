"""Runs `cosydit serve` or `say` over services that only answer HTTP: `python -m tests.cosydit.stack.fake_services`.

Its arguments: the command, a directory, seven free ports, and the seconds that each service takes to end. The process
ids that the command prints are those of the services.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cosydit.cli import say, stack_options
from cosydit.cli.main import main
from cosydit.stack import stack
from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from cosydit.stack.process import ServiceSpec

SERVICE = """
import http.server, os, signal, sys, time
port, ending_s = int(sys.argv[1]), float(sys.argv[2])

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"name": "fake", "version": "1", "data": [{"id": "fake"}]}')

def end(number, frame):
    time.sleep(ending_s)
    os._exit(0)

signal.signal(signal.SIGTERM, end)
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def specs(work_dir: Path, ending_s: str) -> Iterator[Any]:
    """Yield what takes the place of the three functions that describe services."""
    for name, port in (("llm", "llm"), ("triton", "triton_http"), ("gateway", "gateway")):

        def spec(options: stack.StackOptions, name: str = name, port: str = port) -> ServiceSpec:
            number = getattr(options.ports, port)
            command = [sys.executable, "-c", SERVICE, str(number), ending_s]
            return ServiceSpec(name, command, f"http://127.0.0.1:{number}/", work_dir / f"{name}.log")

        yield spec


async def speak_for_long(*ignored: object) -> None:
    sys.stdout.write("speaking\n")
    sys.stdout.flush()
    await asyncio.sleep(60)


def run(args: argparse.Namespace) -> int:
    # NOTE: a process of its own, whose modules are changed for nobody else.
    stack.llm_spec, triton_spec, stack.gateway_spec = specs(args.work_dir, args.ending_s)
    stack.triton_specs = lambda options: [triton_spec(options)]
    stack.assemble_repository = lambda options: None
    stack_options.resolve_checkpoint = lambda *ignored: CheckpointLayout.under(args.work_dir)
    say._speak = speak_for_long  # type: ignore[assignment]
    say._check_voice = lambda *ignored: None
    names = ["--llm-port", "--triton-http-port", "--triton-grpc-port", "--triton-metrics-port", "--llm-grpc-port"]
    words = {"serve": ["serve"], "say": ["say", "hello"]}[args.command]
    if args.command == "serve":
        names += ["--gateway-port", "--gateway-grpc-port"]
    ports = [word for pair in zip(names, args.ports, strict=False) for word in pair]
    return main([*words, "--work-dir", str(args.work_dir), *ports])


if __name__ == "__main__":
    # NOTE: tests that run in the background ignore some signals, and so would what they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=("serve", "say"))
    parser.add_argument("work_dir", type=Path)
    parser.add_argument("ending_s")
    parser.add_argument("ports", nargs=7)
    sys.exit(run(parser.parse_args()))
