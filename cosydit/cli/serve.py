"""`cosydit serve`: both services and the gateway on this machine, in the foreground; a service that ends comes back."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cosydit.cli.stack_options import (
    add_stack_options,
    check_installed,
    choice_lines,
    complain,
    gpu_shared,
    stack_options,
)

if TYPE_CHECKING:
    from cosydit.stack.host import Host
    from cosydit.stack.stack import StackOptions

logger = logging.getLogger(__name__)

DRAIN_TIMEOUT_S = 0.7
"""Seconds that streams may go on when `serve` is stopped: whoever stops it waits in front of it."""
_ALL_ADDRESSES = ("", "0.0.0.0", "::")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("serve", help="start both services and the gateway, until interrupted")
    add_stack_options(parser)
    parser.add_argument("--gateway-port", type=int, default=8080, help="HTTP port of the gateway (default %(default)s)")
    parser.add_argument(
        "--gateway-grpc-port",
        type=int,
        default=50051,
        help="gRPC port of the gateway; 0: no gRPC (default %(default)s)",
    )
    processes = "gateway processes on the same ports; auto: 1 without a GPU, else by the cores (default %(default)s)"
    parser.add_argument("--gateway-processes", default="auto", metavar="N", help=processes)
    wyoming = "Wyoming port (Home Assistant); 0: no Wyoming (default: 10200 if it is free and no API keys are set)"
    parser.add_argument("--gateway-wyoming-port", type=int, default=None, metavar="N", help=wyoming)
    parser.add_argument(
        "--gateway-options",
        type=shlex.split,
        default=[],
        metavar="'OPTIONS'",
        help="options of the gateway; `python -m gateway --help` lists them",
    )
    parser.add_argument(
        "--token2wav-replicas",
        type=int,
        default=1,
        metavar="N",
        help="number of Triton servers; each one's ports are 10 above those of the one before (default %(default)s)",
    )
    parser.add_argument(
        "--llm-gpu", metavar="GPU", help="GPU of the LLM, as CUDA_VISIBLE_DEVICES names it (default: any)"
    )
    parser.add_argument(
        "--token2wav-gpus",
        type=lambda names: names.split(","),
        default=[],
        metavar="GPU[,GPU...]",
        help="GPUs of the Triton servers in turn, used again if there are more servers (default: any)",
    )
    parser.add_argument(
        "--created-voices-dir",
        type=Path,
        metavar="DIR",
        help="directory for voices that callers create (default: callers can't create any)",
    )
    parser.add_argument("--no-gateway", action="store_true", help="start only the LLM service and Triton")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from cosydit.stack.checkpoint.checkpoints import CheckpointMissingError
    from cosydit.stack.host import find_host, for_host, with_served_form
    from cosydit.stack.process import ServiceStartError, stopped_by_signals
    from cosydit.stack.run_file import announced
    from cosydit.stack.stack import REPLICA_PORT_STEP, LocalStack, run_record
    from cosydit.stack.supervisor import RestartPolicy, Supervisor
    from llm_service.errors import LLMServiceError
    from token2wav_service.serving.process.installation import TritonNotFoundError

    logging.getLogger("cosydit").setLevel(logging.INFO)
    try:
        host = find_host(args.device)
        options = stack_options(
            args, defaults={}, gateway_port=args.gateway_port, gateway_grpc_port=args.gateway_grpc_port
        )
        options = dataclasses.replace(
            options,
            replicas=tuple(
                options.ports.triton.shifted(REPLICA_PORT_STEP * number) for number in range(1, args.token2wav_replicas)
            ),
            gateway_options=_gateway_options(args, host),
            llm_gpu=args.llm_gpu,
            token2wav_gpus=args.token2wav_gpus,
        )
        options = for_host(options, host)
        check_installed(options.llm_backend)
        options = with_served_form(options)
        home = wyoming_line(options.gateway_options)
        stack = LocalStack(options, with_gateway=not args.no_gateway)
        record = run_record(options, with_gateway=not args.no_gateway)
        with (
            stopped_by_signals(stack.kill),
            gpu_shared(options, host) as mps,
            stack,
            announced(options.work_dir, record),
        ):
            chosen = choice_lines(options, host, mps)
            print("\n".join([*stack.describe(), *chosen, *_where(options, args, home)]), flush=True)
            return Supervisor(stack.kinds, RestartPolicy(ready_timeout_s=options.ready_timeout_s)).watch()
    except (
        CheckpointMissingError,
        LLMServiceError,
        ModuleNotFoundError,
        OSError,
        ServiceStartError,
        TritonNotFoundError,
        ValueError,
    ) as err:
        return complain("serve", err)


def _gateway_options(args: argparse.Namespace, host: Host) -> list[str]:
    """Return the gateway's arguments; what was asked for comes later and wins."""
    options = ["--drain-timeout-s", str(DRAIN_TIMEOUT_S)]
    options += [*_wyoming_options(args.gateway_wyoming_port), *_processes_option(args.gateway_processes, host)]
    if args.created_voices_dir is not None:
        options += ["--created-voices-dir", str(args.created_voices_dir)]
    return [*options, *args.gateway_options]


def _where(options: StackOptions, args: argparse.Namespace, home: str) -> list[str]:
    """Return what a caller needs to know, a line each."""
    lines = [f"logs      {options.log_dir}", "watch     cosydit top"]
    if args.no_gateway:
        return lines
    if options.ports.gateway_grpc:
        lines.insert(0, f"gRPC      127.0.0.1:{options.ports.gateway_grpc}")
    return [
        f"page      {options.gateway_url}/",
        f"base URL  {options.gateway_url}/v1 (OpenAI clients)",
        *lines,
        home,
        f"speak: cosydit client http --url {options.gateway_url} --text 'Hello.' --out hello.wav",
    ]


def _processes_option(asked: str, host: Host) -> tuple[str, ...]:
    from cosydit.stack.host import gateway_processes_option

    return gateway_processes_option(host) if asked == "auto" else ("--processes", asked)


def _wyoming_options(port: int | None) -> tuple[str, ...]:
    """Return the gateway's options for the port that was asked for; where none was, a taken port means no door."""
    from cosydit.stack.process import busy_ports
    from gateway.dialects.wyoming.settings import DEFAULT_WYOMING_PORT

    if port is None and busy_ports((DEFAULT_WYOMING_PORT,)):
        got = "Wyoming (Home Assistant) is off: something listens on port %d; --gateway-wyoming-port names another"
        logger.warning(got, DEFAULT_WYOMING_PORT)
        return ("--wyoming-port", "0")
    return () if port is None else ("--wyoming-port", str(port))


def wyoming_line(gateway_options: Sequence[str]) -> str:
    """Say where the Wyoming door is that a gateway with these options opens, or why there is none."""
    from gateway.config import parse_args

    wyoming = parse_args(["--tokenizer-dir", ".", "--voices-dir", ".", *gateway_options]).wyoming
    if wyoming is None:
        return "Home Assistant: off"
    if wyoming.shut_because is not None:
        return f"Home Assistant: off, {wyoming.shut_because}; --gateway-options --insecure-wyoming opens it"
    host = "this machine's address" if wyoming.host in _ALL_ADDRESSES else wyoming.host
    return f"Home Assistant: add the integration Wyoming Protocol with {host}, port {wyoming.port}"
