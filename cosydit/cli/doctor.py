"""`cosydit doctor`: what this machine has, what is missing, and the next command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cosydit.doctor.checks import Finding

_PORT_OPTIONS = (
    ("--llm-port", "llm", 8000),
    ("--triton-http-port", "triton_http", 18000),
    ("--triton-grpc-port", "triton_grpc", 8001),
    ("--triton-metrics-port", "triton_metrics", 8002),
    ("--gateway-port", "gateway", 8080),
    ("--gateway-grpc-port", "gateway_grpc", 50051),
)
_NAME_WIDTH = 18


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser("doctor", help="say what this machine has, what is missing, and what to do next")
    parser.add_argument("--checkpoint", type=Path, help="checkpoint directory (default: the demo voice)")
    parser.add_argument("--work-dir", type=Path, help="logs and the model repository (default: ~/.cache/cosydit)")
    for option, name, default in _PORT_OPTIONS:
        parser.add_argument(option, dest=name, type=int, default=default, help="port to look at (default %(default)s)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report; returns 0 if the services can run on this machine's CPU, else 1."""
    from cosydit.doctor.checks import can_run_on_cpu, examine, next_command
    from cosydit.stack.stack import Ports, default_work_dir

    ports = Ports(**{name: getattr(args, name) for _, name, _ in _PORT_OPTIONS})
    findings = examine(ports, args.checkpoint, args.work_dir or default_work_dir())
    _print_report(findings)
    is_able = can_run_on_cpu(findings)
    print(f"\nthe CPU path {'can run' if is_able else 'can NOT run yet'}")
    print(f"next: {next_command(findings)}")
    return 0 if is_able else 1


def _print_report(findings: list[Finding]) -> None:
    topic = ""
    for finding in findings:
        if finding.topic != topic:
            topic = finding.topic
            print(f"\n{topic}")
        print(f"  {finding.state.value:8} {finding.name:{_NAME_WIDTH}} {finding.value}")
