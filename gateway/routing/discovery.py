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
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

logger = logging.getLogger(__name__)

Found = Mapping[str, bool]
"""Address -> whether new streams may go there."""


class ReplicaSource(Protocol):
    """Finds replicas."""

    @property
    def known(self) -> Found:
        """The addresses that are known before the first look-up."""

    def watch(self) -> AsyncGenerator[Found]:
        """Yield what is found, whenever it may have changed; raises what is wrong with the place that is asked."""


class StaticReplicas:
    """A list that never changes."""

    def __init__(self, addresses: Sequence[str]) -> None:
        """Keep the list."""
        self.known: Found = dict.fromkeys(addresses, True)

    async def watch(self) -> AsyncGenerator[Found]:
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
        self.known: Found = {}
        self._host = host
        self._port = port
        self._scheme = scheme
        self._interval_s = interval_s

    async def watch(self) -> AsyncGenerator[Found]:
        """Yield the addresses after each look-up; a name without addresses removes no replica."""
        while True:
            if addresses := await resolve(self._host, self._port):
                yield {self._scheme + join_address(address, self._port): True for address in addresses}
            await asyncio.sleep(self._interval_s)


def join_address(host: str, port: int) -> str:
    """Write host and port as one; an IPv6 address gets its brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def merged(sources: Sequence[ReplicaSource], on_change: Callable[[Found], Any], interval_s: float) -> None:
    """Tell what all sources find together, after each change; one that fails is asked again after `interval_s`."""
    found = [source.known for source in sources]

    async def follow(index: int, source: ReplicaSource) -> None:
        async with aclosing(source.watch()) as changes:
            async for now in changes:
                found[index] = now
                on_change({address: may for each in found for address, may in each.items()})

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
