"""The voices of the gateway's tests serve the sockets' too."""

from __future__ import annotations

from tests.gateway.conftest import voices

__all__ = ["voices"]
