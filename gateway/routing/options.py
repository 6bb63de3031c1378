"""The sources that addresses of the command line name; see `discovery` for their forms."""

from __future__ import annotations

from urllib.parse import urlsplit

from gateway.errors import ConfigError
from gateway.routing.discovery import DnsReplicas, ReplicaSource, StaticReplicas
from gateway.routing.fleet import LLM
from gateway.routing.kubernetes import KubernetesApi, KubernetesReplicas
from gateway.routing.settings import RoutingSettings

_DNS = "dns:"
_KUBERNETES = "kubernetes:"
_GRPC = "grpc://"


def sources_of(service: str, text: str, settings: RoutingSettings) -> list[ReplicaSource]:
    """Read `--llm-url` or `--token2wav-url`: addresses of any of the forms, by commas.

    Raises:
        ConfigError: no address, or one of another form.
    """
    scheme = "http://" if service == LLM else ""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError(f"got {text!r}, expected at least one address")
    plain = [check_address(part, scheme) for part in parts if not part.startswith((_DNS, _KUBERNETES))]
    sources: list[ReplicaSource] = [StaticReplicas(plain)] if plain else []
    for part in parts:
        if part.startswith(_DNS):
            name, found_scheme = _split_scheme(part.removeprefix(_DNS), scheme)
            sources.append(DnsReplicas(*_host_and_port(name, "dns:HOST:PORT"), found_scheme, settings.interval_s))
        elif part.startswith(_KUBERNETES):
            name, found_scheme = _split_scheme(part.removeprefix(_KUBERNETES), scheme)
            where = _service(name)
            sources.append(KubernetesReplicas(KubernetesApi.of_this_pod(), *where, found_scheme))
    return sources


def check_address(address: str, scheme: str) -> str:
    """Return one replica's address, a URL if there is a scheme, else host:port; raises ConfigError if it is neither."""
    if scheme:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https", "grpc") or not parts.hostname:
            expected = "http://127.0.0.1:8000, or grpc://127.0.0.1:8100 for the LLM service's --grpc-port"
            raise ConfigError(f"got LLM URL {address!r}, expected something like {expected}")
        if parts.scheme == "grpc":
            _host_and_port(parts.netloc, "grpc://HOST:PORT")
        return address.rstrip("/")
    _host_and_port(address, "host:port of Triton's gRPC service")
    return address


def _split_scheme(name: str, scheme: str) -> tuple[str, str]:
    """Return a name without the grpc:// of an LLM's token stream, and the scheme of its replicas."""
    return (name.removeprefix(_GRPC), _GRPC) if scheme and name.startswith(_GRPC) else (name, scheme)


def _host_and_port(text: str, expected: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdigit()) or "/" in host:
        raise ConfigError(f"got {text!r}, expected {expected}")
    return host, int(port)


def _service(name: str) -> tuple[str, str, str]:
    where, colon, port = name.rpartition(":")
    namespace, slash, service = where.partition("/")
    if not (namespace and slash and service and colon and port) or "/" in service:
        expected = "kubernetes:NAMESPACE/SERVICE:PORT, the port by number or name"
        raise ConfigError(f"got {_KUBERNETES + name!r}, expected {expected}")
    return namespace, service, port
