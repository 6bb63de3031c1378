"""What a user of a GPU host types, run whole without a setting: `python -m benchmarks.gpu_host --out FILE`.

Stages 0 to 8 of the run script with random weights, `cosydit say` and `cosydit batch` with the bundled voice, and a
plain `cosydit serve` at full size beside one whose settings are given by hand, under the same load one after the other.
Writes what each command printed last, its seconds and exit status, and the first-audio times of both servers. Needs a
GPU and an environment that stage -1 would make. Parts that FILE holds already are not run again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import end_to_end_figures, read_runs
from benchmarks.lib.commits import ROOT
from cosydit.bench.report import describe_environment, write_json
from cosydit.stack.process import ServiceProcess, ServiceSpec, ServiceStartError, busy_ports

SCRIPT = "run_stepaudio2_dit_token2wav.sh"
TEXT = "Hello. This sentence went through two services."
RANDOM_ANSWERS = ("--llm-max-speech-tokens", "200")
"""Option of the gateway: an LLM of random weights does not end an answer by itself."""
HAND_SET = (
    "--token2wav-device", "cuda", "--token2wav-dtype", "float16", "--triton-max-batch-size", "64",
    "--token2wav-max-streams", "400", "--token2wav-voice-cache-bytes", "16000000000", "--llm-backend", "embedded",
    "--llm-device", "cuda", "--llm-max-batch-size", "512", "--llm-kv-cache-free-gpu-memory-fraction", "0.15",
    "--dynamic-chunk-strategy", "deadline", *RANDOM_ANSWERS,
)  # fmt: skip
"""Options of the server that is set up by hand, as figures were taken before `serve` chose for itself."""
COMMANDS = ("stages", "say", "batch")
SERVERS = ("plain", "hand_set")
HTTP_PORT = 8080
READY_URL = f"http://127.0.0.1:{HTTP_PORT}/readyz"
READY_TIMEOUT_S, STOP_TIMEOUT_S = 300.0, 60.0
TAIL_LINES = 12
VOICES = 90
WARM_UP_BURST = 32
"""Requests of the warm-up's largest burst: every one brings a voice that a new server has not seen."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 if every command ended well."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_host", description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, help="JSON to write; samples go into the folder beside it")
    parser.add_argument("--work-dir", type=Path, required=True, help="directory for checkpoints and logs")
    parts = (*COMMANDS, *SERVERS)
    parser.add_argument("--parts", nargs="*", choices=parts, default=parts, help="parts to run (default: all)")
    parser.add_argument("--open-s", type=float, default=30.0, help="seconds of 20 requests/s (default %(default)s)")
    parser.add_argument("--commit", help="commit of the code that runs (default: as git says)")
    args = parser.parse_args(argv)
    document = _read(args.out) or {"figures": {}, "commands": {}}
    document["environment"] = describe_environment(vars(args), args.commit)
    for part in args.parts:
        if part in document["commands"]:
            continue
        print(f"gpu_host: {part}", flush=True)
        if part in SERVERS:
            document["commands"][part] = _serve(part, args)
        else:
            document["commands"][part] = _run(_command(part, args.work_dir), args.work_dir / f"{part}.log")
        document["figures"] = _figures(args.out, document["commands"])
        write_json(args.out, document)
    print(json.dumps(document["figures"], indent=2))
    return 0 if all(entry["status"] == 0 for entry in document["commands"].values()) else 1


def _command(part: str, work_dir: Path) -> list[str]:
    if part == "stages":
        options = ["--device", "cuda", "--model", "random", "--work-dir", str(work_dir / "stages")]
        return ["bash", SCRIPT, *options, "0", "8"]
    if part == "say":
        return [*_cosydit(), "say", TEXT, "--out", str(work_dir / "speech.wav")]
    return [*_cosydit(), "batch", "--output-dir", str(work_dir / "batch")]


def _cosydit() -> list[str]:
    return [sys.executable, "-m", "cosydit.cli.main"]


def _run(command: Sequence[str], log: Path) -> dict[str, Any]:
    """Run a command to its end; return its line, seconds, exit status and the end of what it printed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    begun_s = time.monotonic()
    with log.open("wb") as file:
        status = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    return _entry(command, begun_s, status, log)


def _entry(command: Sequence[str], begun_s: float, status: int, log: Path) -> dict[str, Any]:
    lines = log.read_text("utf-8", "replace").replace("\r", "\n").splitlines()
    tail = [line for line in lines if line.strip()][-TAIL_LINES:]
    return {
        "command": shlex.join(command),
        "seconds": round(time.monotonic() - begun_s, 1),
        "status": status,
        "printed_last": tail,
    }


def _serve(part: str, args: argparse.Namespace) -> dict[str, Any]:
    """Start a server at full size, measure one caller and 20 requests a second, and stop it.

    Raises:
        ServiceStartError: another server has its port, it ended, or it was not ready in time.
    """
    checkpoint = args.work_dir / "full-size"
    if not checkpoint.exists():
        make = ["checkpoint", "make-random", str(checkpoint), "--size", "official", "--numbered-voices", str(VOICES)]
        subprocess.run([*_cosydit(), *make], check=True)
    options = HAND_SET if part == "hand_set" else RANDOM_ANSWERS
    command = [*_cosydit(), "serve", "--checkpoint", str(checkpoint), "--work-dir", str(args.work_dir / part), *options]
    if busy_ports((HTTP_PORT,)):
        raise ServiceStartError(f"something listens on port {HTTP_PORT}: its times would count as this one's; stop it")
    log, begun_s = args.work_dir / f"{part}.log", time.monotonic()
    log.unlink(missing_ok=True)
    with ServiceProcess(ServiceSpec("serve", command, READY_URL, log, stop_timeout_s=STOP_TIMEOUT_S)) as server:
        server.wait_ready(READY_TIMEOUT_S)
        ready_s = time.monotonic() - begun_s
        load = ["--closed", "1", "--open", "20", "--open-s", str(args.open_s), "--unseen", "0"]
        load += ["--warm-up-burst", str(WARM_UP_BURST)]
        commit = ["--commit", args.commit] if args.commit else []
        setting = json.dumps({"serve_options": shlex.join(options)})
        sweep = ["--out", str(_samples(args.out, part)), "--setting", setting, *load, *commit]
        status = subprocess.run([sys.executable, "-m", "benchmarks.end_to_end", *sweep], check=False).returncode
    return {**_entry(command, begun_s, status, log), "ready_s": round(ready_s, 1)}


def _figures(out: Path, commands: dict[str, Any]) -> dict[str, float]:
    """Return the exit status of each command and the first-audio times of both servers."""
    figures: dict[str, float] = {f"{name}_status": entry["status"] for name, entry in commands.items()}
    for part in (part for part in SERVERS if part in commands):
        found = end_to_end_figures(read_runs(_samples(out, part)), required=("closed-001", "poisson-020"))
        middle = "_hand_set" if part == "hand_set" else ""
        figures[f"ttfa_1{middle}_p50_ms"] = found["ttfa_1_p50_ms"]
        figures[f"ttfa_poisson20{middle}_p95_ms"] = found["ttfa_poisson20_p95_ms"]
    return figures


def _samples(out: Path, part: str) -> Path:
    return out.with_suffix("") / part


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return document


if __name__ == "__main__":
    sys.exit(main())
