"""Starts that must fail and stops that must end: a gateway that can't have a port, and `cosydit serve` told to stop.

`python -m lab.faults.starts --out starts.json` does what `PARTS` lists: it starts the gateway again and again, each
time with another of its ports taken, starts `cosydit serve` on a full disk, and stops it idle, with streams open, and
at random moments of its start and of its stop. None may take longer than `PATIENCE_S`. `--resume` goes on with what was
broken off; `--into` adds the figures to a campaign's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread

from cosydit.bench.report import describe_environment, write_text
from cosydit.stack.checkpoint.checkpoints import CheckpointLayout, resolve_checkpoint
from gateway.access.settings import open_access
from gateway.app import open_with_ports
from gateway.config import parse_args
from gateway.errors import ConfigError
from gateway.telemetry.telemetry import open_telemetry
from lab.faults.clients import speak
from servicekit.clock import SystemClock
from token2wav_service.serving.process.server import free_ports

PATIENCE_S = 40.0
"""Seconds without an end after which a start or a stop hangs."""
STREAMS = 4
READY_TIMEOUT_S = 600.0
OPTIONS = ("--grpc-port", "--wyoming-port", "--metrics-port")
DEFAULT_JOURNAL = Path(".cosydit/starts.jsonl")
_READY, _REFUSED = b"!", b"."
_TERM_AND_INT = (signal.SIGTERM, signal.SIGINT)

Took = float | None
"""Seconds until the end; None: it did not come."""


class Journal:
    """What came of each start and stop so far, one a line, in a file that survives a broken campaign."""

    def __init__(self, path: Path, is_resumed: bool) -> None:
        """Begin a file, or go on with the one that is there."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text("utf-8") if is_resumed and path.is_file() else ""
        lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        self._entries: list[tuple[str, Took]] = [(line["part"], line["took_s"]) for line in lines]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")

    def of(self, part: str) -> list[Took]:
        """Return how long each of a part took."""
        return [took_s for each, took_s in self._entries if each == part]

    def add(self, part: str, took_s: Took) -> None:
        """Write one down."""
        self._entries.append((part, took_s))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"part": part, "took_s": took_s}) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; exit status 1 if anything hung."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
    args = _parser().parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="starts-") as folder:
        layout = resolve_checkpoint(args.checkpoint, Path(folder))
        if args.child is not None:
            return _start_often(layout, args.child)
        journal = Journal(args.journal, args.resume)
        for name, part in PARTS.items():
            done, count = len(journal.of(name)), getattr(args, name)
            for number, took_s in enumerate(part.run(layout, range(done, count)), done + 1):
                journal.add(name, took_s)
                if number % part.told_each == 0 or took_s is None:
                    print(f"{name} {number}/{count}: {'hangs' if took_s is None else f'{took_s:.2f} s'}", flush=True)
    found = figures(journal)
    print(", ".join(f"{name} {value:g}" for name, value in found.items()))
    if args.out is not None:
        environment = describe_environment(vars(args))
        write_text(args.out, json.dumps({"figures": found, "environment": environment}, indent=2) + "\n")
    if args.into is not None:
        document = json.loads(args.into.read_text("utf-8"))
        document["figures"] |= found
        write_text(args.into, json.dumps(document, indent=2) + "\n")
    return 1 if any(journal.of(name).count(None) for name in PARTS) else 0


def figures(journal: Journal) -> dict[str, float]:
    """Return the figures of what a journal holds."""
    refused = journal.of("refused_ports") + journal.of("refused_ports_of_commands")
    moments = journal.of("stops_while_starting") + journal.of("stops_while_draining")
    found: dict[str, float] = {"refused_port_starts": len(refused), "refused_port_hangs": refused.count(None)}
    for name in ("idle", "loaded"):
        times = [PATIENCE_S if took_s is None else took_s for took_s in journal.of(f"{name}_stops")]
        found[f"{name}_stop_s"] = round(max(times, default=0.0), 3)
    full = journal.of("full_disk_starts")
    found |= {"stops_at_moments": len(moments), "stops_at_moments_stuck": moments.count(None)}
    return found | {"full_disk_starts": len(full), "full_disk_hangs": full.count(None)}


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


def _refused_starts(layout: CheckpointLayout, numbers: range) -> Iterator[Took]:
    """Start gateways in one process; after one start that hung, another process goes on."""
    left = len(numbers)
    while left:
        command = [sys.executable, "-m", "lab.faults.starts", "--child", str(left)]
        command += ["--checkpoint", str(layout.llm_dir.parent)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            if not select.select([child.stdout], [], [], READY_TIMEOUT_S)[0]:
                raise RuntimeError(f"the process that starts gateways was not ready within {READY_TIMEOUT_S:.0f} s")
            began_s = time.monotonic()
            while select.select([child.stdout], [], [], PATIENCE_S)[0] and (told := os.read(child.stdout.fileno(), 1)):
                if told == _REFUSED:
                    left, took_s, began_s = left - 1, time.monotonic() - began_s, time.monotonic()
                    yield took_s
            has_hung = child.poll() is None and left > 0
            child.kill()
            if child.wait(PATIENCE_S) > 0:
                raise RuntimeError("a start failed for another reason than its port; its error stands above")
        if has_hung:
            left -= 1
            yield None


def _refused_commands(layout: CheckpointLayout, numbers: range) -> Iterator[Took]:
    """Start gateways by the real command."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for number in numbers:
            option = (*OPTIONS, "--port")[number % 4]
            yield _ended([sys.executable, "-m", "gateway", *_arguments(layout, taken.getsockname()[1], option)])


def _full_disks(layout: CheckpointLayout, numbers: range) -> Iterator[Took]:
    """Start `cosydit serve` where no file can grow, as on a full disk."""
    for number in numbers:
        with tempfile.TemporaryDirectory(prefix="serve-") as folder:
            serve = [sys.executable, "-m", "cosydit.cli.main", "serve", "--device", "cpu", "--work-dir", folder]
            serve += ["--checkpoint", str(layout.llm_dir.parent)] if number % 2 else []  # else it unpacks one
            yield _ended(serve, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))


def _ended(command: Sequence[str], limit: Callable[[], None] | None = None) -> Took:
    """Run a command that must fail by itself; return when it has."""
    began_s = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False, preexec_fn=limit)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode <= 0:
        raise RuntimeError(f"status {done.returncode} of {' '.join(command)}: {done.stderr.decode(errors='replace')}")
    return time.monotonic() - began_s


class _Serve:
    """`cosydit serve` on free ports, with its output."""

    def __init__(self, folder: Path) -> None:
        names = ("llm", "triton-http", "triton-grpc", "triton-metrics", "gateway", "gateway-grpc")
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.url = f"http://127.0.0.1:{ports['gateway']}"
        options = [word for name, port in ports.items() for word in (f"--{name}-port", str(port))]
        command = [sys.executable, "-m", "cosydit.cli.main", "serve", "--device", "cpu", "--wyoming-port", "0"]
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

    def signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        self._process.send_signal(number)

    def stop(self, number: int) -> Took:
        """Send a signal; return the seconds to its end."""
        began_s = time.monotonic()
        self.signal(number)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            return None
        return time.monotonic() - began_s

    def kill(self) -> None:
        """Kill it, if it still runs; Linux ends its services."""
        self._process.kill()
        self._process.wait(PATIENCE_S)


def _stops(layout: CheckpointLayout, numbers: range, streams: int) -> Iterator[Took]:
    """Stop a `serve` that speaks so many texts."""
    for number in numbers:
        with _speaking(streams) as serve:
            yield serve.stop(_TERM_AND_INT[number % 2])


def _stops_while_starting(layout: CheckpointLayout, numbers: range) -> Iterator[Took]:
    """Stop `serve` at random moments of its start."""
    for number in numbers:
        with _serving() as serve:
            time.sleep(random.Random(number).uniform(0.0, 30.0))
            yield serve.stop(_TERM_AND_INT[number % 2])


def _stops_while_draining(layout: CheckpointLayout, numbers: range) -> Iterator[Took]:
    """Stop a `serve` that speaks, and stop it again at random moments until it has ended."""
    for number in numbers:
        rng = random.Random(number)
        with _speaking(STREAMS) as serve:
            serve.signal(_TERM_AND_INT[number % 2])
            time.sleep(rng.uniform(0.0, 2.0))
            yield serve.stop(rng.choice(_TERM_AND_INT))


@contextmanager
def _serving() -> Iterator[_Serve]:
    """Start a `serve`; it is killed in the end."""
    with tempfile.TemporaryDirectory(prefix="serve-") as folder:
        serve = _Serve(Path(folder))
        try:
            yield serve
        finally:
            serve.kill()


@contextmanager
def _speaking(streams: int) -> Iterator[_Serve]:
    """Start a `serve` and have it speak so many texts."""
    with _serving() as serve:
        serve.until_ready()
        callers = [Thread(target=lambda text: asyncio.run(speak(serve.url, text)), args=(n,)) for n in range(streams)]
        for caller in callers:
            caller.start()
        time.sleep(1.0 if streams else 0.0)
        try:
            yield serve
        finally:
            for caller in callers:
                caller.join(PATIENCE_S)


@dataclass(frozen=True)
class Part:
    """Starts or stops of one kind."""

    run: Callable[[CheckpointLayout, range], Iterator[Took]]
    """Does those of these numbers; yields after each."""
    count: int
    told_each: int = 1


PARTS: Mapping[str, Part] = {
    "refused_ports": Part(_refused_starts, 1900, told_each=50),
    "refused_ports_of_commands": Part(_refused_commands, 100, told_each=10),
    "full_disk_starts": Part(_full_disks, 3),
    "idle_stops": Part(partial(_stops, streams=0), 5),
    "loaded_stops": Part(partial(_stops, streams=STREAMS), 5),
    "stops_while_starting": Part(_stops_while_starting, 10),
    "stops_while_draining": Part(_stops_while_draining, 10),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.faults.starts", description=__doc__, allow_abbrev=False)
    for name, part in PARTS.items():
        what = (part.run.func if isinstance(part.run, partial) else part.run).__doc__ or ""
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=int, default=part.count, help=f"{what} (default %(default)s)")
    parser.add_argument("--resume", action="store_true", help="continue with what the journal holds")
    parser.add_argument(
        "--journal", type=Path, default=DEFAULT_JOURNAL, help="file of what was done (default %(default)s)"
    )
    parser.add_argument("--checkpoint", type=Path, help="directory with token2wav/, llm/ and voices/ (default: demo)")
    parser.add_argument("--out", type=Path, help="JSON to write")
    parser.add_argument("--into", type=Path, help="JSON of a campaign that gets the figures too")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
