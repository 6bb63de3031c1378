"""Starts that must fail and stops that must end: a gateway that can't have a port, and `cosydit serve` told to stop.

`python -m lab.faults.starts --out starts.json` starts and closes the gateway in one process again and again, each time
with another of its ports taken, and some times through the real command; none may take longer than `PATIENCE_S`. Then
it stops `cosydit serve`: idle, with streams open, and at random moments of its start. `--into` adds the figures to
those of a campaign.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from cosydit.bench.report import describe_environment, write_text
from cosydit.stack.checkpoint.checkpoints import CheckpointLayout, resolve_checkpoint
from gateway.access.settings import open_access
from gateway.app import open_with_ports
from gateway.config import parse_args
from gateway.errors import ConfigError
from gateway.telemetry.telemetry import open_telemetry
from lab.faults.clients import TEXTS, Answer, speak
from servicekit.clock import SystemClock
from token2wav_service.serving.process.server import free_ports

STARTS, COMMAND_STARTS, STOPS, MOMENTS = 1900, 100, 5, 10
PATIENCE_S = 40.0
"""Seconds without an end after which a start hangs."""
STREAMS = 4
READY_TIMEOUT_S = 600.0
OPTIONS = ("--grpc-port", "--wyoming-port", "--metrics-port")
_READY, _REFUSED = b"!", b"."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; exit status 1 if anything hung."""
    args = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="starts-") as folder:
        layout = resolve_checkpoint(args.checkpoint, Path(folder))
        if args.child is not None:
            return _start_often(layout, args.child)
        hangs = _starts(args.starts, args.checkpoint) + _command_starts(args.command_starts, layout)
        stops = {f"{name}_stop_s": _worst_stop_s(args.stops, streams) for name, streams in _LOADS.items()}
        stuck = _stops_while_starting(args.moments, args.seed)
    found = {"refused_port_starts": args.starts + args.command_starts, "refused_port_hangs": hangs, **stops}
    found |= {"stops_while_starting": args.moments, "stops_while_starting_stuck": stuck}
    print(", ".join(f"{name} {value:g}" for name, value in found.items()))
    if args.out is not None:
        environment = describe_environment(vars(args))
        write_text(args.out, json.dumps({"figures": found, "environment": environment}, indent=2) + "\n")
    if args.into is not None:
        document = json.loads(args.into.read_text("utf-8"))
        document["figures"] |= found
        write_text(args.into, json.dumps(document, indent=2) + "\n")
    return 1 if hangs or stuck else 0


_LOADS = {"idle": 0, "loaded": STREAMS}


def _arguments(layout: CheckpointLayout, taken: int, option: str) -> list[str]:
    ports = {"--port": "0", "--grpc-port": "0", "--wyoming-port": "0", option: str(taken)}
    folders = ["--tokenizer-dir", str(layout.llm_dir), "--voices-dir", str(layout.voices_dir)]
    return [*folders, *(word for pair in ports.items() for word in pair)]


def _start_often(layout: CheckpointLayout, count: int) -> int:
    """Start a gateway in this process so many times, and write a byte for each that was refused and has closed."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        configs = [parse_args(_arguments(layout, taken.getsockname()[1], option)) for option in OPTIONS]

        async def start(number: int) -> None:
            config = configs[number % len(configs)]
            access, telemetry = (
                open_access(config.access, SystemClock()),
                open_telemetry(config.telemetry, SystemClock()),
            )
            async with open_with_ports(config, access, telemetry):
                raise RuntimeError("the gateway has a port that is taken")

        sys.stdout.buffer.write(_READY)
        sys.stdout.buffer.flush()
        for number in range(count):
            try:
                asyncio.run(start(number))
            except ConfigError:
                sys.stdout.buffer.write(_REFUSED)
                sys.stdout.buffer.flush()
    return 0


def _starts(count: int, checkpoint: Path | None) -> int:
    """Return how many of so many starts in one process hung; after one that did, another process goes on."""
    hangs, done = 0, 0
    while done + hangs < count:
        command = [sys.executable, "-m", "lab.faults.starts", "--child", str(count - done - hangs)]
        command += ["--checkpoint", str(checkpoint)] if checkpoint is not None else []
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            if not select.select([child.stdout], [], [], READY_TIMEOUT_S)[0]:
                raise RuntimeError(f"the process that starts gateways was not ready within {READY_TIMEOUT_S:.0f} s")
            while select.select([child.stdout], [], [], PATIENCE_S)[0] and (told := child.stdout.read1(1 << 16)):
                done += told.count(_REFUSED)
            if child.poll() is None and done + hangs < count:
                hangs += 1
            child.kill()
            if child.wait(PATIENCE_S) > 0:
                raise RuntimeError("a start failed for another reason than its port; its error stands above")
        print(f"{done} of {count} starts refused, {hangs} hung", flush=True)
    return hangs


def _command_starts(count: int, layout: CheckpointLayout) -> int:
    """Return how many of so many starts of the real command hung."""
    hangs = 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for number in range(count):
            option = (*OPTIONS, "--port")[number % 4]
            command = [sys.executable, "-m", "gateway", *_arguments(layout, taken.getsockname()[1], option)]
            try:
                subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False)
            except subprocess.TimeoutExpired:
                hangs += 1
    return hangs


class _Serve:
    """`cosydit serve` on free ports, with its output."""

    def __init__(self, folder: Path) -> None:
        names = ("llm", "triton-http", "triton-grpc", "triton-metrics", "gateway", "gateway-grpc")
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.url = f"http://127.0.0.1:{ports['gateway']}"
        options = [word for name, port in ports.items() for word in (f"--{name}-port", str(port))]
        command = [sys.executable, "-m", "cosydit.cli.main", "serve", "--device", "cpu", "--gateway-wyoming-port", "0"]
        self._log = folder / "serve.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--work-dir", str(folder), *options], stdout=log, stderr=log, start_new_session=True
            )

    def until_ready(self) -> None:
        ends_s = time.monotonic() + READY_TIMEOUT_S
        while not re.search("^speak:", self._log.read_text(), re.MULTILINE):
            if self._process.poll() is not None or time.monotonic() > ends_s:
                raise RuntimeError(f"cosydit serve is not ready:\n{self._log.read_text()}")
            time.sleep(0.1)

    def stop(self, number: int = signal.SIGTERM) -> float | None:
        """Send a signal; return the seconds to its end, None if it does not end."""
        began_s = time.monotonic()
        self._process.send_signal(number)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            return None
        return time.monotonic() - began_s


def _worst_stop_s(count: int, streams: int) -> float:
    """Return the longest of so many stops of a `serve` that speaks so many texts."""
    worst_s = 0.0
    for number in range(count):
        with tempfile.TemporaryDirectory(prefix="serve-") as folder:
            serve = _Serve(Path(folder))
            serve.until_ready()
            answers: list[Answer] = []
            callers = [threading.Thread(target=_call, args=(serve.url, each, answers)) for each in range(streams)]
            for caller in callers:
                caller.start()
            time.sleep(1.0 if streams else 0.0)
            took_s = serve.stop((signal.SIGTERM, signal.SIGINT)[number % 2])
            for caller in callers:
                caller.join(PATIENCE_S)
            worst_s = max(worst_s, PATIENCE_S if took_s is None else took_s)
            print(f"stop with {streams} streams: {worst_s:.2f} s at most", flush=True)
    return round(worst_s, 3)


def _call(url: str, text: int, answers: list[Answer]) -> None:
    answers.append(asyncio.run(speak(url, text % len(TEXTS))))


def _stops_while_starting(count: int, seed: int) -> int:
    """Return how many of so many stops at random moments of the start did not end."""
    rng, stuck = random.Random(seed), 0
    for number in range(count):
        with tempfile.TemporaryDirectory(prefix="serve-") as folder:
            serve = _Serve(Path(folder))
            time.sleep(rng.uniform(0.0, 30.0))
            stuck += serve.stop((signal.SIGTERM, signal.SIGINT)[number % 2]) is None
    return stuck


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.faults.starts", description=__doc__, allow_abbrev=False)
    parser.add_argument("--starts", type=int, default=STARTS, help="starts in one process (default %(default)s)")
    parser.add_argument(
        "--command-starts", type=int, default=COMMAND_STARTS, help="starts by the command (default %(default)s)"
    )
    parser.add_argument("--stops", type=int, default=STOPS, help="stops idle, and with streams (default %(default)s)")
    parser.add_argument("--moments", type=int, default=MOMENTS, help="stops while it starts (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default %(default)s)")
    parser.add_argument("--checkpoint", type=Path, help="directory with token2wav/, llm/ and voices/ (default: demo)")
    parser.add_argument("--out", type=Path, help="JSON to write")
    parser.add_argument("--into", type=Path, help="JSON of a campaign that gets the figures too")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
