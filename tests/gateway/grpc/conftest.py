"""Fixtures of the gRPC tests."""

from __future__ import annotations

from tests.gateway.conftest import voices

__all__ = ["voices"]
