"""The voices of the gateway's tests serve here too."""

from __future__ import annotations

from tests.gateway.conftest import voices

__all__ = ["voices"]
