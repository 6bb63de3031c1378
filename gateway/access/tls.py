"""The certificate of both doors."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import ConfigError


@dataclass(frozen=True)
class TlsFiles:
    """PEM files, read at the start; new ones need a restart."""

    certificate: Path
    """The server's, and those that lead to its root."""
    key: Path
    """Its private key, without a password."""

    def check(self) -> None:
        """See that they can be used.

        Raises:
            ConfigError: one is missing, or they are no pair.
        """
        try:
            # NOTE: an empty password instead of none, as OpenSSL asks the terminal for one otherwise.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, password="")
        except OSError as error:
            got = f"TLS can't start with {self.certificate} and {self.key} ({error})"
            raise ConfigError(f"{got}; give --tls-cert and --tls-key PEM files that belong together") from error
