"""Pages with a source in the code say what the source says; lists that must be whole are."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from gateway.errors import known_codes
from gateway.telemetry.metrics import PREFIX, GatewayMetrics
from tests.docs.pages import DOCS, ROOT

pytestmark = pytest.mark.slow

PRODUCT = ("cosydit", "gateway", "gpukit", "llm_service", "servicekit", "token2wav_service")


def test_the_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "docs/generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"run python docs/generate.py\n{done.stdout}{done.stderr}"


def test_every_environment_variable_of_ours_is_explained() -> None:
    files = [path for package in PRODUCT for path in (ROOT / package).rglob("*.py")]
    read = {name for path in files for name in re.findall(r'"(COSYDIT_[A-Z_]+)"', path.read_text("utf-8"))}
    page = (DOCS / "configuration.md").read_text("utf-8")
    assert read and not [name for name in sorted(read) if f"`{name}`" not in page]


def test_every_error_code_has_an_entry_in_troubleshooting() -> None:
    page = (DOCS / "troubleshooting.md").read_text("utf-8")
    assert not [code for code in known_codes() if f"- `{code}`: " not in page]


def test_every_metric_of_the_gateway_is_named() -> None:
    page = (DOCS / "observability.md").read_text("utf-8")
    for family in GatewayMetrics().registry.collect():
        if family.name.startswith(PREFIX):
            assert family.name.removeprefix(f"{PREFIX}_") in page, family.name
