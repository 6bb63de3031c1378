"""Settings of the Wyoming door, and the rule by which it stays shut: the protocol has neither keys nor encryption."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from gateway.access.settings import AccessSettings, is_loopback
from gateway.errors import ConfigError, InvalidRequestError
from gateway.host import HostLimits
from gateway.text import TextOptions

DEFAULT_WYOMING_PORT = 10200
"""Port where Home Assistant expects a speech service."""
WYOMING_OPTION = "--wyoming-port, 0 for none"
"""Option that names the port, with what to do about it; for messages."""
DEFAULT_MAX_EVENT_BYTES = 1024 * 1024


@dataclass(frozen=True)
class WyomingSettings:
    """How the Wyoming door is opened."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_WYOMING_PORT
    """Port to listen on; 0 takes any free port."""
    is_port_asked_for: bool = True
    """Whether a taken port keeps the gateway from starting."""
    shut_because: str | None = None
    """Why the door stays shut although it is not switched off; None: it opens."""
    languages: tuple[str, ...] = ()
    """Languages of the checkpoint; see `gateway.dialects.wyoming.connection.describe`."""
    max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES
    idle_timeout_s: float = HostLimits.idle_timeout_s
    """Seconds that a connection may stay without an event or audio."""
    grace_s: float = 2.0
    """Seconds that open streams may take to end when the door closes; `shutdown` has ended streams before."""
    shares_port: bool = False
    """Whether other processes of this gateway serve the same port."""


def wyoming_settings(args: argparse.Namespace, access: AccessSettings) -> WyomingSettings | None:
    """Read the settings; None: the door was switched off.

    Args:
        args: the gateway's settings.
        access: of the other doors.

    Raises:
        ConfigError: a door was asked for that would let in anyone; or a language that can't be read.
    """
    if args.wyoming_port == 0:
        return None
    host = args.wyoming_host if args.wyoming_host is not None else args.host
    languages = tuple(_read_language(tag) for tag in args.wyoming_language)
    reason = None if args.insecure_wyoming else _reason_to_stay_shut(host, access)
    if reason is not None and (args.wyoming_port is not None or args.wyoming_host is not None):
        raise ConfigError(f"{reason}; leave --wyoming-port and --wyoming-host out, or say --insecure-wyoming")
    return WyomingSettings(
        host=host,
        port=DEFAULT_WYOMING_PORT if args.wyoming_port is None else args.wyoming_port,
        is_port_asked_for=args.wyoming_port is not None,
        shut_because=reason,
        languages=languages,
    )


def _reason_to_stay_shut(host: str, access: AccessSettings) -> str | None:
    if access.has_keys:
        return "API keys are set, and Wyoming has no keys"
    if is_loopback(host):
        return None
    if access.tls is not None:
        return f"the other doors use TLS, Wyoming has no encryption, and it would listen on {host or 'all addresses'}"
    if not access.is_insecure:
        return f"it would let anyone speak who reaches {host or 'all addresses'}"
    return None


def _read_language(tag: str) -> str:
    try:
        TextOptions(tag)
    except InvalidRequestError as error:
        raise ConfigError(f"--wyoming-language: {error}") from error
    return tag
