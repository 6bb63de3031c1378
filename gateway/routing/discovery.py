"""Where replicas come from: a list, or a name that is looked up again and again.

    127.0.0.1:8001,127.0.0.1:8011          a list
    dns:HOST:PORT                          every address of HOST, as of a headless Service in Kubernetes

A name of the LLM may stand after grpc:// (`dns:grpc://HOST:PORT`): its replicas are asked for their token stream.
A source that can't be asked keeps what it told last.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from typing import Any, Protocol
from urllib.parse import urlsplit

from gateway.errors import ConfigError
from gateway.routing.fleet import LLM
from gateway.routing.replica import RoutingSettings

logger = logging.getLogger(__name__)

_DNS = "dns:"
_GRPC = "grpc://"


class ReplicaSource(Protocol):
    """Finds replicas."""

    @property
    def known(self) -> Collection[str]:
        """The addresses that are known before the first look-up."""

    def watch(self) -> AsyncGenerator[Collection[str]]:
        """Yield the addresses, whenever they may have changed; raises what is wrong with the place that is asked."""


class StaticReplicas:
    """A list that never changes."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """Keep the list."""
        self.known: Collection[str] = tuple(addresses)

    async def watch(self) -> AsyncGenerator[Collection[str]]:
        """Yield it once."""
        yield self.known


async def resolve(host: str, port: int) -> Sequence[str]:
    """Ask the system's resolver; the addresses are in a steady order."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(address[0]) for *_, address in found})


class DnsReplicas:
    """Every address that a name has, looked up again and again."""

    def __init__(self, host: str, port: int, scheme: str, interval_s: float) -> None:
        """Look nothing up yet.

        Args:
            host: the name.
            port: of every replica.
            scheme: stands before each address; empty for host:port.
            interval_s: pause between two look-ups.
        """
        self.known: Collection[str] = ()
        self._host = host
        self._port = port
        self._scheme = scheme
        self._interval_s = interval_s

    async def watch(self) -> AsyncGenerator[Collection[str]]:
        """Yield the addresses after each look-up; a name without addresses removes no replica."""
        while True:
            if found := await resolve(self._host, self._port):
                hosts = (f"[{each}]" if ":" in each else each for each in found)
                yield [f"{self._scheme}{host}:{self._port}" for host in hosts]
            await asyncio.sleep(self._interval_s)


async def merged(
    sources: Sequence[ReplicaSource], on_change: Callable[[Collection[str]], Any], interval_s: float
) -> None:
    """Tell what all sources find together, after each change; one that fails is asked again after `interval_s`."""
    found = [source.known for source in sources]

    async def follow(index: int, source: ReplicaSource) -> None:
        async with aclosing(source.watch()) as changes:
            async for now in changes:
                found[index] = now
                on_change(list(dict.fromkeys(address for each in found for address in each)))

    async def keep_following(index: int, source: ReplicaSource) -> None:
        while True:
            try:
                return await follow(index, source)
            except Exception as error:
                got = f"a source of replicas failed: {error!r}; its replicas stay as they were"
                logger.warning("%s; asking it again in %.1f s", got, interval_s)
                logger.debug("where it failed", exc_info=True)
                await asyncio.sleep(interval_s)

    await asyncio.gather(*(keep_following(index, source) for index, source in enumerate(sources)))


def sources_of(service: str, text: str, settings: RoutingSettings) -> list[ReplicaSource]:
    """Read `--llm-url` or `--token2wav-url`: addresses of any of the forms, by commas.

    Raises:
        ConfigError: no address, or one of another form.
    """
    scheme = "http://" if service == LLM else ""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError(f"got {text!r}, expected at least one address")
    plain = [_checked_address(part, scheme) for part in parts if not part.startswith(_DNS)]
    sources: list[ReplicaSource] = [StaticReplicas(plain)] if plain else []
    for name in (part.removeprefix(_DNS) for part in parts if part.startswith(_DNS)):
        is_stream = bool(scheme) and name.startswith(_GRPC)
        host, port = _host_and_port(name.removeprefix(_GRPC) if is_stream else name, "dns:HOST:PORT")
        sources.append(DnsReplicas(host, port, _GRPC if is_stream else scheme, settings.interval_s))
    return sources


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
