"""Command-line options of the routing, and the sources that addresses name."""

from __future__ import annotations

import argparse

from gateway.routing.discovery import HTTP, Source, parse_sources
from gateway.routing.kubernetes import KubernetesApi, KubernetesReplicas
from gateway.routing.settings import RoutingSettings

ADDRESSES = "several by commas or by repeating the option; dns:HOST:PORT; kubernetes:NAMESPACE/SERVICE:PORT"


def add_routing_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `RoutingSettings`."""
    group = parser.add_argument_group("replicas")
    defaults = RoutingSettings()
    for name, default, meaning in (
        ("--probe-interval-s", defaults.probe_interval_s, "seconds between two probes of a replica"),
        ("--discovery-interval-s", defaults.discovery_interval_s, "seconds between two look-ups of a DNS name"),
        ("--ejection-s", defaults.ejection_s, "seconds without new streams for a failing replica, doubled each time"),
        ("--max-ejection-s", defaults.max_ejection_s, "most seconds without new streams for a failing replica"),
        ("--admission-wait-s", defaults.admission_wait_s, "most seconds that a request waits for a slot"),
        ("--least-speed", defaults.least_speed, "times real time that each stream must get to admit more; 0: any"),
        ("--failover-s", defaults.failover_s, "most seconds that a stream stands still until it has a new replica"),
        ("--restart-wait-s", defaults.restart_wait_s, "most seconds of that if the service has no other replica"),
    ):
        group.add_argument(name, type=float, default=default, help=meaning)
    for name, count, meaning in (
        ("--failures-to-eject", defaults.failures_to_eject, "failures in a row that end new streams for a replica"),
        ("--max-waiting", defaults.max_waiting, "most requests that wait for a slot"),
        ("--max-failovers", defaults.max_failovers, "most times in a row that a stream is rebuilt without new audio"),
        ("--voice-file-cache-bytes", defaults.voice_file_cache_bytes, "bytes of voices kept for replicas without them"),
    ):
        group.add_argument(name, type=int, default=count, help=meaning)


def routing_settings(args: argparse.Namespace) -> RoutingSettings:
    """Read what `add_routing_options` added.

    Raises:
        ConfigError: a value that can't work.
    """
    return RoutingSettings(**{name: getattr(args, name) for name in RoutingSettings.__dataclass_fields__})


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
