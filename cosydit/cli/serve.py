"""`cosydit serve`: both services and the gateway on this machine, in the foreground; a service that ends comes back."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
from typing import TYPE_CHECKING

from cosydit.cli.stack_options import add_stack_options, all_given, running, stack_options
from cosydit.stack.host import Machine, find_host, for_host, gateway_processes
from cosydit.stack.process import busy_ports
from cosydit.stack.stack import (
    ALL_ADDRESSES,
    LOOPBACK,
    StackOptions,
    announced,
    default_work_dir,
    gateway_settings,
    metrics_urls,
    running_metrics,
)
from cosydit.stack.supervisor import Supervisor
from gateway.settings import GATEWAY
from servicekit.clock import SystemClock
from servicekit.gpu_host import AUTO
from servicekit.settings import Given, Section

if TYPE_CHECKING:
    from gateway.config import GatewayConfig
    from gateway.dialects.wyoming.settings import WyomingSettings

logger = logging.getLogger(__name__)

DRAIN_TIMEOUT_S = "0.7"
"""Seconds that streams may go on when `serve` is stopped: whoever stops it waits in front of it."""
CREATED_VOICES_FOLDER = "created_voices"
"""Folder of the work directory for voices that callers of this machine create."""
_DEFAULTS = {
    "drain_timeout_s": DRAIN_TIMEOUT_S,
    "processes": AUTO,
    "created_voices_dir": f"WORK-DIR/{CREATED_VOICES_FOLDER} on a loopback host, else none",
}
GATEWAY_SERVED = Section(
    GATEWAY.name,
    tuple(
        dataclasses.replace(each, default=_DEFAULTS.get(each.name, each.default)) for each in GATEWAY.served().settings
    ),
)
"""The gateway's settings with the defaults of `serve`."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("serve", help="start both services and the gateway, until interrupted")
    add_stack_options(parser, GATEWAY_SERVED)
    parser.add_argument("--no-gateway", action="store_true", help="start only the LLM service and Triton")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from gateway.config import gateway_config

    logging.getLogger("cosydit").setLevel(logging.INFO)
    given = all_given(args, GATEWAY_SERVED)
    host = find_host(str(given[""].get("device", AUTO)))
    options = _with_gateway(for_host(stack_options(given), host), host)
    config = None if args.no_gateway else gateway_config(gateway_settings(options), os.environ)
    urls = metrics_urls(options, with_gateway=not args.no_gateway)
    if running_metrics(options.work_dir):
        got = "another `cosydit serve` uses %s, and this one replaces its model repository; give each a --work-dir"
        logger.warning(got, options.work_dir)
    with running(options, host, with_gateway=not args.no_gateway) as stack, announced(options.work_dir, urls):
        print("\n".join(_where(options, config)), flush=True)
        return Supervisor(stack.kinds, options.ready_timeout_s, SystemClock()).watch()


def _with_gateway(options: StackOptions, host: Machine) -> StackOptions:
    """Fill in what nobody gave of the gateway's settings."""
    from gateway.access.settings import is_loopback

    given = options.gateway
    chosen: Given = {"drain_timeout_s": DRAIN_TIMEOUT_S, **gateway_processes(host)}
    if given.get("processes") == AUTO and not host.gpus:
        chosen["processes"] = "1"
        given = {name: value for name, value in given.items() if name != "processes"}
    if "wyoming_port" not in given:
        chosen |= _wyoming_settings()
    if is_loopback(str(given.get("host", LOOPBACK))):
        chosen["created_voices_dir"] = str(options.work_dir / CREATED_VOICES_FOLDER)
    return dataclasses.replace(options, gateway={**chosen, **given})


def _where(options: StackOptions, config: GatewayConfig | None) -> list[str]:
    named = "" if options.work_dir == default_work_dir() else f" --work-dir {options.work_dir}"
    lines = [f"logs      {options.log_dir}", f"watch     cosydit top{named}"]
    if config is None:
        return lines
    if options.ports.gateway_grpc:
        lines.insert(0, f"gRPC      127.0.0.1:{options.ports.gateway_grpc}")
    return [
        f"page      {options.gateway_url}/",
        f"base URL  {options.gateway_url}/v1 (OpenAI clients)",
        *lines,
        wyoming_line(config.wyoming),
        f"speak: cosydit client http --url {options.gateway_url} --text 'Hello.' --out hello.wav",
    ]


def _wyoming_settings() -> Given:
    """Return no port where something else has the usual one: who asked for none is not to be kept from serving."""
    from gateway.dialects.wyoming.settings import DEFAULT_WYOMING_PORT

    if not busy_ports((DEFAULT_WYOMING_PORT,)):
        return {}
    got = "Wyoming (Home Assistant) is off: something listens on port %d; --wyoming-port names another"
    logger.warning(got, DEFAULT_WYOMING_PORT)
    return {"wyoming_port": "0"}


def wyoming_line(wyoming: WyomingSettings | None) -> str:
    """Say where the Wyoming door is, or why there is none."""
    if wyoming is None:
        return "Home Assistant: off"
    if wyoming.shut_because is not None:
        return f"Home Assistant: off, {wyoming.shut_because}; --insecure-wyoming opens it"
    host = "this machine's address" if wyoming.host in ALL_ADDRESSES else wyoming.host
    return f"Home Assistant: add the integration Wyoming Protocol with {host}, port {wyoming.port}"
