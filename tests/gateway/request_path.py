"""Traces one request through the gateway: `python -m tests.gateway.request_path`.

Prints every named function of ours that runs, and counts the files that are entered, from the request's first byte
until the LLM is asked. What tasks do meanwhile that ran before the request, such as probes, is not the request's. The
gateway runs with its defaults before services that answer without models.
"""

from __future__ import annotations

import asyncio
import asyncio.selector_events
import os
import signal
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from cosydit.stack.checkpoint.checkpoints import resolve_checkpoint
from gateway.__main__ import main as run_gateway
from tests.gateway.processes.services import running_services
from tests.workers import free_ports

ROOT = Path(__file__).parents[2]
PACKAGES = tuple(f"{ROOT / package}/" for package in ("gateway", "servicekit", "llm_service", "token2wav_service"))
TEXT = "The first sentence is a short one. A second one follows it, and then the text is at its end."
MARK = b"x-request-id: traced"
READY_S = 60.0


class Trace:
    """What ran between two moments."""

    def __init__(self) -> None:
        self.is_on = False
        self.is_complete = threading.Event()
        self.functions: set[tuple[str, str]] = set()
        self._others: set[asyncio.Task[Any]] = set()

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        """See `sys.setprofile`."""
        if self.is_on and event == "call" and frame.f_code.co_filename.startswith(PACKAGES):
            code = frame.f_code
            if not code.co_name.startswith("<") and asyncio.current_task() not in self._others:
                name = f"{code.co_name}:{code.co_firstlineno}"
                self.functions.add((str(Path(code.co_filename).relative_to(ROOT)), name))

    def received(self, data: bytes) -> None:
        """Begin with the traced request's bytes."""
        if not self.is_on and MARK in data.lower():
            self._others, self.is_on = asyncio.all_tasks(), True

    def sent(self, data: bytes) -> None:
        """End with the request to the LLM."""
        if self.is_on and b"/v1/completions" in data:
            self.is_on = False
            self.is_complete.set()


def watch_sockets(trace: Trace) -> None:
    """Show the trace all bytes that the event loop reads and writes."""
    transport: Any = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    write: Callable[[Any, bytes], None] = transport.write
    lines: Callable[[Any, Any], None] = transport.writelines
    door: Any = H11Protocol
    receive: Callable[[Any, bytes], None] = door.data_received

    def seen_write(self: Any, data: bytes) -> None:
        trace.sent(bytes(data))
        write(self, data)

    def seen_lines(self: Any, parts: Any) -> None:
        parts = list(parts)
        trace.sent(b"".join(map(bytes, parts)))
        lines(self, parts)

    def seen_receive(self: Any, data: bytes) -> None:
        trace.received(data)
        receive(self, data)

    transport.write, transport.writelines, door.data_received = seen_write, seen_lines, seen_receive


def ask(url: str, trace: Trace) -> None:
    """Ask twice, as soon as the gateway is ready; the first request makes what is made once, the second is traced."""
    body = f'{{"model": "cosydit", "voice": "default", "response_format": "pcm", "input": "{TEXT}"}}'.encode()
    clock = threading.Event()
    for _ in range(int(READY_S / 0.1)):
        try:
            urllib.request.urlopen(f"{url}/readyz", timeout=5).read()
            break
        except OSError:
            clock.wait(0.1)
    for name in ("before", "traced"):
        headers = {"content-type": "application/json", "x-request-id": name}
        urllib.request.urlopen(urllib.request.Request(f"{url}/v1/audio/speech", body, headers), timeout=READY_S).read()
    names = sorted(trace.functions)
    for file, function in names:
        sys.stdout.write(f"{file} {function}\n")
    sys.stdout.write(f"request_functions {len(names)}\nrequest_files {len({file for file, _ in names})}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the gateway and its stand-ins, ask, and stop."""
    trace = Trace()
    watch_sockets(trace)
    llm, token2wav, port = free_ports(3)
    with tempfile.TemporaryDirectory() as made, running_services(llm, token2wav) as services:
        services.let_go()
        checkpoint = resolve_checkpoint(None, Path(made))
        sys.argv = ["gateway", "--port", str(port), "--grpc-port", "0", "--llm-backend", "vllm"]
        sys.argv += ["--llm-url", f"http://127.0.0.1:{llm}", "--token2wav-url", f"127.0.0.1:{token2wav}"]
        sys.argv += ["--tokenizer-dir", str(checkpoint.llm_dir), "--voices-dir", str(checkpoint.voices_dir)]
        asker = threading.Thread(target=ask_and_stop, args=(f"http://127.0.0.1:{port}", trace))
        asker.start()
        sys.setprofile(trace.note)
        try:
            return run_gateway()
        finally:
            sys.setprofile(None)
            asker.join(READY_S)


def ask_and_stop(url: str, trace: Trace) -> None:
    """Ask; end this process's gateway whatever comes."""
    try:
        ask(url, trace)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
