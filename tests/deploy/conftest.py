"""What the tests of the containers and manifests share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tool_cache(pytestconfig: pytest.Config) -> Path:
    """Return a folder that lasts beyond this run."""
    assert pytestconfig.cache is not None
    return Path(pytestconfig.cache.mkdir("deploy-tools"))
