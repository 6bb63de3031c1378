"""Binds the gateway's ports. If several processes serve one, the kernel spreads new connections over their sockets.

The parent of such processes binds every port first and never listens. So a port that somebody else has is found out
before any worker is started, and nobody else takes one while a worker is away.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

from gateway.errors import ConfigError

Address = tuple[int, tuple[object, ...]]
"""Address family, and the argument of `bind`."""


def reserve_port(host: str, port: int, option: str) -> list[socket.socket]:
    """Bind a port for processes that share it; the sockets must stay open as long as they serve. See `open_port`."""
    for each in open_port(host, port, option):
        each.close()
    return open_port(host, port, option, is_shared=True)


def open_port(host: str, port: int, option: str, *, is_shared: bool = False) -> list[socket.socket]:
    """Bind one process's own sockets on a port.

    Args:
        port: 0 takes any that is free.
        option: that names the port, for the message.
        is_shared: whether other processes of this gateway serve the port too.

    Raises:
        ConfigError: another program listens there; the cause is an OSError.
    """
    bound: list[socket.socket] = []
    try:
        for family, address in _addresses(host, port):
            if bound and not port:
                address = (address[0], port_of(bound), *address[2:])
            bound.append(_bind(family, address, is_shared))
    except OSError as error:
        for each in bound:
            each.close()
        got = f"can't listen on {host}:{port} ({error.strerror or error})"
        raise ConfigError(f"{got}; stop what listens there, or give another {option}") from error
    return bound


def port_of(sockets: list[socket.socket]) -> int:
    """Return the number of a bound port."""
    return int(sockets[0].getsockname()[1])


def _addresses(host: str, port: int) -> Iterator[Address]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    yield from dict.fromkeys((int(family), address) for family, _, _, _, address in found)


def _bind(family: int, address: tuple[object, ...], is_shared: bool) -> socket.socket:
    # NOTE: asyncio sends what is written at once, without Nagle's delay, where the socket names its protocol.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
