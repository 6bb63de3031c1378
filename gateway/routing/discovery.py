"""Where replicas come from: a list, or a source that is asked again and again.

    127.0.0.1:8001,127.0.0.1:8011          a list
    dns:HOST:PORT                          every address of HOST
    kubernetes:NAMESPACE/SERVICE:PORT      the endpoints of a Service, by the API

A name of the LLM may stand after grpc:// (`dns:grpc://HOST:PORT`): its replicas are asked for their token stream.
A source tells addresses, each with whether it may get new streams. One that can't be asked keeps what it told last.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol
from urllib.parse import urlsplit

from gateway.errors import ConfigError

logger = logging.getLogger(__name__)

Found = Mapping[str, bool]
"""Address -> whether new streams may go there."""
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves host and port to IP addresses."""
DNS = "dns:"
KUBERNETES = "kubernetes:"
HTTP = "http://"
GRPC = "grpc://"
_AFTER_FAULT_S = 5.0


class Source(Protocol):
    """Finds replicas."""

    @property
    def known(self) -> Found:
        """The addresses that are known before the first look-up."""
        ...

    def watch(self) -> AsyncGenerator[Found]:
        """Yield what is found, whenever it may have changed."""
        ...


class StaticReplicas:
    """A list that never changes."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """Keep the list."""
        self.known: Found = dict.fromkeys(addresses, True)

    async def watch(self) -> AsyncGenerator[Found]:
        """Yield it once."""
        yield self.known


class DnsReplicas:
    """Every address that a name has, looked up again and again."""

    def __init__(self, host: str, port: int, scheme: str, interval_s: float, resolve: Resolve | None = None) -> None:
        """Look nothing up yet.

        Args:
            host: the name.
            port: of every replica.
            scheme: stands before each address; empty for host:port.
            interval_s: pause between two look-ups.
            resolve: the system's resolver by default.
        """
        self.known: Found = {}
        self._host = host
        self._port = port
        self._scheme = scheme
        self._interval_s = interval_s
        self._resolve = resolve or resolve_by_system

    async def watch(self) -> AsyncGenerator[Found]:
        """Yield the addresses after each look-up; a name without addresses is an error and removes no replica."""
        while True:
            try:
                addresses = await self._resolve(self._host, self._port)
            except OSError as error:
                logger.warning("%s can't be resolved (%s); its replicas stay as they were", self._host, error)
            else:
                if addresses:
                    yield {self._scheme + join_address(address, self._port): True for address in addresses}
            await asyncio.sleep(self._interval_s)


async def resolve_by_system(host: str, port: int) -> Sequence[str]:
    """Ask the system's resolver; the addresses are in a steady order."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(address[0]) for *_, address in found})


def join_address(host: str, port: int) -> str:
    """Write host and port as one; an IPv6 address gets its brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_sources(text: str, scheme: str, interval_s: float, kubernetes: Callable[..., Source]) -> list[Source]:
    """Read what an option says of replicas: any of the forms above, by commas.

    Args:
        text: the option's value.
        scheme: `http://` for addresses that are URLs, empty for host:port.
        interval_s: pause between two look-ups of a name.
        kubernetes: makes a source of namespace, service, port and scheme.

    Raises:
        ConfigError: none of these forms.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError(f"got {text!r}, expected at least one address")
    plain = [check_address(part, scheme) for part in parts if not part.startswith((DNS, KUBERNETES))]
    sources: list[Source] = [StaticReplicas(plain)] if plain else []
    for part in parts:
        if part.startswith(DNS):
            name, found_scheme = _split_scheme(part.removeprefix(DNS), scheme)
            sources.append(DnsReplicas(*_host_and_port(name, "dns:HOST:PORT"), found_scheme, interval_s))
        elif part.startswith(KUBERNETES):
            name, found_scheme = _split_scheme(part.removeprefix(KUBERNETES), scheme)
            sources.append(kubernetes(*_service(name), found_scheme))
    return sources


def check_address(address: str, scheme: str) -> str:
    """Return one replica's address as it is used.

    Raises:
        ConfigError: not an address.
    """
    if scheme:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https", "grpc") or not parts.hostname:
            expected = "http://127.0.0.1:8000, or grpc://127.0.0.1:8100 for the LLM service's --grpc-port"
            raise ConfigError(f"got LLM URL {address!r}, expected something like {expected}")
        if parts.scheme == "grpc":
            _host_and_port(parts.netloc, "grpc://HOST:PORT")
        return address.rstrip("/")
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdigit()) or "/" in host:
        raise ConfigError(f"got token2wav URL {address!r}, expected host:port of Triton's gRPC service")
    return address


def _split_scheme(name: str, scheme: str) -> tuple[str, str]:
    """Return a name without the grpc:// of an LLM's token stream, and the scheme of its replicas."""
    return (name.removeprefix(GRPC), GRPC) if scheme and name.startswith(GRPC) else (name, scheme)


def _host_and_port(text: str, expected: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdigit()) or "/" in host:
        raise ConfigError(f"got {text!r}, expected {expected}")
    return host, int(port)


def _service(name: str) -> tuple[str, str, str]:
    where, colon, port = name.rpartition(":")
    namespace, slash, service = where.partition("/")
    if not (namespace and slash and service and colon and port) or "/" in service:
        raise ConfigError(
            f"got {KUBERNETES + name!r}, expected kubernetes:NAMESPACE/SERVICE:PORT, the port by number or name"
        )
    return namespace, service, port


async def merged(found: list[Found], sources: list[Source], on_change: Callable[[Found], Any]) -> None:
    """Watch all sources at once and tell what they find together, after each change."""

    async def follow(index: int, source: Source) -> None:
        async with aclosing(source.watch()) as changes:
            async for now in changes:
                found[index] = now
                on_change({address: may for each in found for address, may in each.items()})

    async def keep_following(index: int, source: Source) -> None:
        while True:
            try:
                return await follow(index, source)
            except Exception:
                # NOTE: after an unexpected error the fleet must still be updated.
                logger.exception("a source of replicas failed; asking it again")
                await asyncio.sleep(_AFTER_FAULT_S)

    await asyncio.gather(*(keep_following(index, source) for index, source in enumerate(sources)))
