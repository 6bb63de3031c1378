"""`cosydit doctor`: what this machine has, what is missing, and the next command. Changes nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

from cosydit.stack import host_report as host
from cosydit.stack.checkpoint.checkpoints import CheckpointLayout, default_directory
from cosydit.stack.host_report import LIBPYTHON, PROBES, Finding, Look, State
from cosydit.stack.stack import Ports, default_work_dir
from servicekit.extras import install_command, installed_from
from servicekit.gpu_host import CPU, CUDA

_NAME_WIDTH = 18
RUN_SCRIPT = "bash run_stepaudio2_dit_token2wav.sh"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("doctor", help="say what this machine has, what is missing, and what to do next")
    add = parser.add_argument
    add("--checkpoint", type=Path, help="directory of the checkpoint (default: the demo voice)")
    add("--work-dir", type=Path, help="directory for logs and the model repository (default: ~/.cache/cosydit)")
    for port in fields(Ports):
        option, check = f"--{port.name.replace('_', '-')}-port", "port to check (default %(default)s)"
        add(option, dest=port.name, type=int, default=port.default, help=check)
    gpu = "also test the GPU, for about a minute: driver, kernels' compiler, imports, memory, MPS"
    add("--gpu", action="store_true", help=gpu)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report; returns 0 if the services can run on this machine's CPU, with --gpu on its GPU, else 1."""
    ports = Ports(**{port.name: getattr(args, port.name) for port in fields(Ports)})
    work_dir = args.work_dir or default_work_dir()
    findings = examine(ports, args.checkpoint, work_dir)
    _print_report(findings)
    is_able = can_run(findings)
    print(f"\nthe CPU path {'can run' if is_able else 'can NOT run yet'}")
    print(f"next: {next_command(findings)}")
    return 0 if is_able and (not args.gpu or _can_run_on_gpu(args.checkpoint or default_directory(work_dir))) else 1


def examine(ports: Ports, checkpoint: Path | None, work_dir: Path) -> list[Finding]:
    """Return what can be found at once, in the order of the report."""
    directory = checkpoint or default_directory(work_dir)
    look = Look(CPU, directory)
    findings = [*host.machine(work_dir), *host.shared_memory(look), *host.gpus(look)]
    if any(finding.name == "GPU 0" for finding in findings):
        findings += [*host.compiler(look), *host.driver(look), *host.mps(look)]
    findings += [*host.packages(), *host.tritonserver(look), *host.programs(), *host.ports(ports)]
    findings.append(host.checkpoint(directory, checkpoint is not None))
    return [*findings, *host.engines(CheckpointLayout.under(directory).token2wav_dir)]


def _can_run_on_gpu(checkpoint: Path) -> bool:
    """Look at everything that the GPU path needs; a host without a GPU can't."""
    findings = [finding for probe in PROBES.values() for finding in probe(Look(CUDA, checkpoint))]
    print("\nfor the GPU:")
    _print_report(findings)
    has_gpu = any(finding.name == "torch on it" and finding.state is State.OK for finding in findings)
    is_able = has_gpu and can_run(findings)
    print(f"\nthe GPU path {'can run; prove it with: cosydit certify' if is_able else 'can NOT run yet'}")
    return is_able


def can_run(findings: Iterable[Finding]) -> bool:
    """Say whether nothing is missing that the device needs."""
    return all(finding.state is not State.MISSING for finding in findings)


def next_command(findings: Sequence[Finding]) -> str:
    """Return the command to run next, with its reason."""
    missing = [finding.name for finding in findings if finding.state is State.MISSING]
    lacking = f"missing now: {', '.join(missing)}"
    if installed_from().is_repository:
        if "checkpoint" in missing:
            return f"{RUN_SCRIPT} 0 1    (download or make a checkpoint)"
        if missing:
            return f"{RUN_SCRIPT} -1 -1    (sets up .venv; {lacking})"
        return f"{RUN_SCRIPT} 0 3    (checkpoint, model repository, services; or: cosydit say TEXT)"
    if LIBPYTHON in missing:
        return f"apt-get install libpython{sys.version_info[0]}.{sys.version_info[1]}    (Triton embeds Python)"
    if missing == ["checkpoint"]:
        return "cosydit checkpoint unpack-demo DIRECTORY    (or name a whole checkpoint)"
    return f"{install_command('demo')}    ({lacking})" if missing else "cosydit say TEXT    (or: cosydit serve)"


def _print_report(findings: Iterable[Finding]) -> None:
    topic = ""
    for finding in findings:
        if finding.topic != topic:
            topic = finding.topic
            print(f"\n{topic}")
        print(f"  {finding.state.value:8} {finding.name:{_NAME_WIDTH}} {finding.value}")
