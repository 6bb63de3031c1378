"""Where replicas come from: a list, or a name that is looked up again and again.

    127.0.0.1:8001,127.0.0.1:8011          a list
    dns:HOST:PORT                          every address of HOST, as of a headless Service in Kubernetes

A name of the LLM may stand after grpc:// (`dns:grpc://HOST:PORT`): its replicas are asked for their token stream.
A name that can't be looked up keeps what it told last.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.errors import ConfigError
from gateway.routing.fleet import LLM

logger = logging.getLogger(__name__)

_DNS = "dns:"
_GRPC = "grpc://"


class DnsName(NamedTuple):
    """A name that stands for replicas at every address that it has."""

    host: str
    port: int
    """Port of every replica."""
    scheme: str
    """Stands before each address; empty for host:port."""


@dataclass(frozen=True)
class Places:
    """Where the replicas of one service are."""

    listed: tuple[str, ...]
    """Addresses that never change."""
    names: tuple[DnsName, ...] = ()
    """Names that are looked up."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """Ask the system's resolver; the addresses are in a steady order."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(address[0]) for *_, address in found})


async def follow(places: Places, on_found: Callable[[Collection[str]], object], interval_s: float) -> None:
    """Look the names up every `interval_s` and tell all addresses; a look-up that finds none removes no replica."""
    found: dict[DnsName, list[str]] = {name: [] for name in places.names}

    async def look_up(name: DnsName) -> None:
        try:
            if hosts := [f"[{each}]" if ":" in each else each for each in await resolve(name.host, name.port)]:
                found[name] = [f"{name.scheme}{host}:{name.port}" for host in hosts]
                on_found(list(dict.fromkeys([*places.listed, *(each for those in found.values() for each in those)])))
        except Exception as error:
            logger.warning("the name %s can't be looked up: %r; its replicas stay as they were", name.host, error)

    while places.names:
        await asyncio.gather(*map(look_up, places.names))
        await asyncio.sleep(interval_s)


def places_of(service: str, text: str) -> Places:
    """Read `--llm-url` or `--token2wav-url`: addresses of any of the forms, by commas.

    Raises:
        ConfigError: no address, or one of another form.
    """
    scheme = "http://" if service == LLM else ""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError(f"got {text!r}, expected at least one address")
    listed = [_checked_address(part, scheme) for part in parts if not part.startswith(_DNS)]
    names = [_dns_name(part.removeprefix(_DNS), scheme) for part in parts if part.startswith(_DNS)]
    return Places(tuple(listed), tuple(names))


def _dns_name(name: str, scheme: str) -> DnsName:
    is_stream = bool(scheme) and name.startswith(_GRPC)
    host, port = _host_and_port(name.removeprefix(_GRPC) if is_stream else name, "dns:HOST:PORT")
    return DnsName(host, port, _GRPC if is_stream else scheme)


def _checked_address(address: str, scheme: str) -> str:
    """Return one replica's address, a URL if there is a scheme, else host:port."""
    if not scheme:
        _host_and_port(address, "host:port of Triton's gRPC service, or dns:HOST:PORT")
        return address
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https", "grpc") or not parts.hostname:
        expected = "http://127.0.0.1:8000, or grpc://127.0.0.1:8100 for the LLM service's --grpc-port"
        raise ConfigError(f"got LLM URL {address!r}, expected something like {expected}")
    if parts.scheme == "grpc":
        _host_and_port(parts.netloc, "grpc://HOST:PORT")
    return address.rstrip("/")


def _host_and_port(text: str, expected: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdigit()) or "/" in host:
        raise ConfigError(f"got {text!r}, expected {expected}")
    return host, int(port)
