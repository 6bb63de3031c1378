"""The command-line option of the routing, and the sources that addresses name."""

from __future__ import annotations

import argparse

from gateway.errors import ConfigError
from gateway.routing.discovery import HTTP, Source, parse_sources
from gateway.routing.kubernetes import KubernetesApi, KubernetesReplicas
from gateway.routing.settings import RoutingSettings

ADDRESSES = "several by commas or by repeating the option; dns:HOST:PORT; kubernetes:NAMESPACE/SERVICE:PORT"


def add_routing_options(parser: argparse.ArgumentParser) -> None:
    """Add `--admission-wait-s`."""
    group = parser.add_argument_group("replicas")
    wait = "most seconds that a request waits while the services are full; then it is refused"
    group.add_argument("--admission-wait-s", type=float, default=RoutingSettings.admission_wait_s, help=wait)


def routing_settings(args: argparse.Namespace) -> RoutingSettings:
    """Read what `add_routing_options` added.

    Raises:
        ConfigError: a value that can't work.
    """
    if not args.admission_wait_s >= 0:
        raise ConfigError(f"got --admission-wait-s {args.admission_wait_s}, expected 0 or more")
    return RoutingSettings(admission_wait_s=args.admission_wait_s)


def llm_sources(text: str, settings: RoutingSettings) -> list[Source]:
    """Read `--llm-url`.

    Raises:
        ConfigError: no address, or one of another form.
    """
    return parse_sources(text, HTTP, settings.discovery_interval_s, _kubernetes)


def token2wav_sources(text: str, settings: RoutingSettings) -> list[Source]:
    """Read `--token2wav-url`.

    Raises:
        ConfigError: no address, or one of another form.
    """
    return parse_sources(text, "", settings.discovery_interval_s, _kubernetes)


def _kubernetes(namespace: str, service: str, port: str, scheme: str) -> Source:
    return KubernetesReplicas(KubernetesApi.of_this_pod(), namespace, service, port, scheme)
