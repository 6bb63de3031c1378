"""The voices of the gateway's tests, and Debian's Prometheus."""

from __future__ import annotations

import pytest

from tests.gateway.conftest import voices
from tests.observability.debian_prometheus import Binaries, find_binaries

__all__ = ["voices"]


@pytest.fixture(scope="session")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Binaries:
    """Prometheus and promtool; without them the tests that need them are left out, and say why."""
    return find_binaries(tmp_path_factory)
