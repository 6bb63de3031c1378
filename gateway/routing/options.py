"""The sources that addresses of the command line name."""

from __future__ import annotations

from gateway.routing.discovery import HTTP, Source, parse_sources
from gateway.routing.kubernetes import KubernetesApi, KubernetesReplicas
from gateway.routing.settings import RoutingSettings


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
