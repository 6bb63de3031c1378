"""Which web pages may make a browser call the gateway, and under which names. Pure.

A browser sends forms and opens WebSockets to any address on behalf of any page, also to a gateway that only its own
machine can reach. It tells the page's origin then; programs that are no browsers tell none.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from urllib.parse import urlsplit

from gateway.errors import ConfigError, ForeignHostError, ForeignOriginError

ANY_ORIGIN = "*"
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_SHOWN_CHARACTERS = 100


class OriginPolicy:
    """Admits pages of the gateway itself and of listed origins."""

    def __init__(self, allowed: tuple[str, ...] = (), *, trusts_names: bool = True) -> None:
        """Keep the list.

        Args:
            allowed: such as `https://app.example`; `*` is all.
            trusts_names: whether a page is the gateway's own under any host name. Without keys it must not be: whoever
                owns a name can have it point here, and its pages would be taken for ours.

        Raises:
            ConfigError: something that is no origin.
        """
        for origin in allowed:
            if origin != ANY_ORIGIN and not _is_origin(origin):
                raise ConfigError(f"got --allowed-origin {origin!r}, expected something like https://app.example")
        self.allowed = allowed
        self._trusts_names = trusts_names

    def check(self, method: str | None, origin: str | None, host: str | None) -> None:
        """Refuse what a foreign page asks; reading is left to CORS, which keeps answers from it.

        Args:
            method: HTTP's; None for a WebSocket.
            origin: the header, if it came.
            host: the header.

        Raises:
            ForeignOriginError: the page is neither ours nor listed.
        """
        if origin is None or method in _SAFE_METHODS or self._is_allowed(origin, host):
            return
        got = f"a page of {origin[:_SHOWN_CHARACTERS]!r} asks, which is not this server's own"
        raise ForeignOriginError(f"{got}; the operator can allow it with --allowed-origin")

    def _is_allowed(self, origin: str, host: str | None) -> bool:
        if ANY_ORIGIN in self.allowed or origin in self.allowed:
            return True
        parts = _split(origin)
        if parts is None or host is None or parts != _split(f"{origin.partition('://')[0]}://{host}"):
            return False
        return self._trusts_names or _is_fixed(parts[0])


class HostNames:
    """The names under which a gateway answers that is open to its own machine.

    Whoever owns a name can have it point to 127.0.0.1; a browser then takes the gateway's answers for that site's own
    and lets its pages read them. An address in place of a name can't be bent so.
    """

    def __init__(self, allowed: tuple[str, ...] = (), *, is_checked: bool) -> None:
        """Keep the list.

        Args:
            allowed: names beside localhost and addresses, without ports; case does not matter.
            is_checked: False lets every name in.
        """
        self._allowed = frozenset(name.lower() for name in allowed)
        self._is_checked = is_checked

    def check(self, host: str | None) -> None:
        """Refuse a request under a foreign name; browsers always send one.

        Args:
            host: the header.

        Raises:
            ForeignHostError: the name is neither listed nor this machine's.
        """
        if not self._is_checked or host is None:
            return
        parts = _split(f"http://{host}")
        if parts is None or not (_is_fixed(parts[0]) or parts[0] in self._allowed):
            got = f"asked as {host[:_SHOWN_CHARACTERS]!r}, which is not this machine's name"
            raise ForeignHostError(f"{got}; ask as localhost, or the operator can allow it with --allowed-host")


def _is_origin(text: str) -> bool:
    return _split(text) is not None and text == text.lower() and text.count("/") == len("//")


@lru_cache(maxsize=256)
def _split(origin: str) -> tuple[str, int] | None:
    """Return host and port; None if there are none."""
    try:
        parts = urlsplit(origin)
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return (parts.hostname, port) if parts.hostname else None


@lru_cache(maxsize=256)
def _is_fixed(host: str) -> bool:
    """Whether a host's address is in its name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True
