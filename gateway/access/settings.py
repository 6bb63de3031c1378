"""The gateway's settings that concern access: keys, limits, origins, TLS, what a caller may send at once; and what the
HTTP server is told of them.
"""

from __future__ import annotations

import argparse
import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from gateway.access.access import Access
from gateway.access.caller import CallerLimits
from gateway.access.connections import Connections, WireLimits
from gateway.access.http_connection import BoundedProtocol, RefusableSocket
from gateway.access.http_middleware import ANY_ORIGIN, HttpRules, check_origins
from gateway.access.keys import ApiKey, KeyBook, parse_keys
from gateway.errors import ConfigError
from gateway.ledger import CallerLedger
from servicekit.clock import Clock


@dataclass(frozen=True)
class TlsFiles:
    """PEM files, read at the start; new ones need a restart."""

    certificate: Path
    """File with the server's certificate and those between it and its root."""
    key: Path
    """File with the certificate's private key, without a password."""

    def context(self, *protocols: str) -> ssl.SSLContext:
        """Read them, for a server that speaks some protocols (ALPN).

        Raises:
            ConfigError: one is missing, or they are no pair.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # NOTE: an empty password instead of none, as OpenSSL asks the terminal for one otherwise.
            context.load_cert_chain(self.certificate, self.key, password="")
        except OSError as error:
            got = f"TLS can't start with {self.certificate} and {self.key} ({error})"
            raise ConfigError(f"{got}; give --tls-cert and --tls-key PEM files that belong together") from error
        context.set_alpn_protocols(protocols)
        return context


KEYS_VARIABLE = "COSYDIT_API_KEYS"
"""Environment variable with keys: lines as in the file, or one line whose keys are separated by `; `."""


@dataclass(frozen=True)
class AccessSettings:
    """Which callers may come in, from where, and with which limits."""

    keys_file: Path | None = None
    """File of API keys, see `keys`; read again when it changes."""
    fixed_keys: tuple[ApiKey, ...] = ()
    """API keys of the environment variable."""
    is_insecure: bool = False
    """Whether the operator allows anyone to call from anywhere."""
    limits: CallerLimits = field(default_factory=CallerLimits)
    """Limits of a key whose line names none; without keys, of each address."""
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    """Host names of a gateway without keys on a loopback address, beside localhost and addresses."""
    trusted_proxies: tuple[str, ...] = ()
    """Proxies whose header for the caller's address is believed."""
    tls: TlsFiles | None = None
    wire: WireLimits = field(default_factory=WireLimits)

    def __post_init__(self) -> None:
        check_origins(self.allowed_origins)
        if self.is_insecure and self.has_keys:
            raise ConfigError("got both API keys and --insecure-no-keys; leave one of them out")

    @property
    def has_keys(self) -> bool:
        """Whether callers need one."""
        return self.keys_file is not None or bool(self.fixed_keys)

    def check_host(self, host: str) -> None:
        """Refuse to be reached from elsewhere without keys.

        Raises:
            ConfigError: `host` is not this machine alone.
        """
        if self.has_keys or self.is_insecure or is_loopback(host):
            return
        got = f"listening on {host or 'all addresses'} without API keys would let anyone speak who reaches it"
        make = "make a key (cosydit keys new NAME --file keys.txt) and start with --keys-file keys.txt"
        raise ConfigError(f"{got}; {make}, or listen on 127.0.0.1, or say --insecure-no-keys")


def open_access(settings: AccessSettings, clock: Clock, ledger: CallerLedger | None = None) -> Access:
    """Read the keys; for the other arguments see `Access`.

    Raises:
        ConfigError: they can't be read, or the certificate can't.
    """
    if settings.tls is not None:
        settings.tls.context()
    book = None
    if settings.has_keys:
        book = KeyBook(settings.fixed_keys, settings.keys_file, settings.limits, clock)
    return Access(book, settings.limits, clock, ledger, Connections(_wire_limits(settings)))


def access_settings(args: argparse.Namespace, environment: Mapping[str, str]) -> AccessSettings:
    """Read the settings.

    Raises:
        ConfigError: values that can't work.
    """
    limits = CallerLimits(args.max_streams, args.max_audio_s_per_hour, args.max_audio_s_per_day)
    return AccessSettings(
        keys_file=args.keys_file,
        fixed_keys=tuple(parse_keys(environment.get(KEYS_VARIABLE, ""), limits, KEYS_VARIABLE)),
        is_insecure=args.insecure_no_keys,
        limits=limits,
        allowed_origins=tuple(args.allowed_origin),
        allowed_hosts=tuple(args.allowed_host),
        trusted_proxies=tuple(args.trusted_proxy),
        tls=_tls_files(args.tls_cert, args.tls_key),
    )


def _tls_files(certificate: Path | None, key: Path | None) -> TlsFiles | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("got one of --tls-cert and --tls-key, expected both")
    return TlsFiles(certificate, key)


def is_loopback(host: str) -> bool:
    """Tell whether an address to listen on is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def http_rules(settings: AccessSettings, host: str) -> HttpRules:
    """Return the rules of `guarded`."""
    is_private = not settings.has_keys and is_loopback(host) and ANY_ORIGIN not in settings.allowed_origins
    hosts = frozenset(map(str.lower, settings.allowed_hosts)) if is_private else None
    return HttpRules(settings.allowed_origins, settings.has_keys, hosts)


def _wire_limits(settings: AccessSettings) -> WireLimits:
    """Return the limits; a trusted proxy is the peer of all callers."""
    wire = settings.wire
    return replace(wire, max_connections_per_peer=wire.max_connections) if settings.trusted_proxies else wire


def uvicorn_options(settings: AccessSettings, connections: Connections) -> dict[str, Any]:
    """Return arguments of `uvicorn.Config`, for a server that serves sockets of `connections`."""
    wire, tls = settings.wire, settings.tls
    options: dict[str, Any] = {
        "loop": "asyncio",  # NOTE: uvloop, if it is installed, accepts without `Listener`, which counts connections
        # NOTE: the one of its parsers that bounds headers; they may pass the limit by what one read brings, 256 KiB.
        "http": partial(BoundedProtocol, connections),
        "ws": partial(RefusableSocket, connections),
        "h11_max_incomplete_event_size": wire.max_header_bytes,
        "ws_max_size": wire.max_socket_message_bytes,
        "limit_concurrency": wire.max_connections,
        "server_header": False,
        "proxy_headers": bool(settings.trusted_proxies),
        "forwarded_allow_ips": list(settings.trusted_proxies),
    }
    if tls is not None:
        options |= {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key}
    return options
