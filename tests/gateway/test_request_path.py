"""How much of the gateway one request runs until the LLM is asked: it may only become less."""

from __future__ import annotations

import subprocess
import sys

import pytest

MOST_FUNCTIONS, MOST_FILES = 185, 45
"""Largest figures of `python -m tests.gateway.request_path`; each change that makes them smaller lowers them. A few are
timers of the gateway that run now and then."""


@pytest.mark.slow
def test_a_request_runs_no_more_functions_and_enters_no_more_files_than_before() -> None:
    # NOTE: sometimes token2wav is asked before the LLM is; both begin at once.
    traced = min((_traced() for _ in range(3)), key=len)
    figures = dict(line.split() for line in traced.splitlines()[-2:])
    assert 50 < int(figures["request_functions"]) <= MOST_FUNCTIONS, traced
    assert 10 < int(figures["request_files"]) <= MOST_FILES, traced


def _traced() -> str:
    command = [sys.executable, "-m", "tests.gateway.request_path"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
