"""Real processes: one LLM, three token2wav servers and a gateway, of which some die or are restarted in mid-stream.

With fewer callers than `python -m benchmarks.failover`, which takes the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.failover import BOUND_DB, TEXTS, stack_options
from benchmarks.lib.failover.callers import Callers
from benchmarks.lib.failover.processes import Processes
from benchmarks.lib.failover.scenario import Scenario, StepReport
from cosydit.local.stack import LocalStack

CALLERS = 6


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    options = stack_options(None, tmp_path_factory.mktemp("production"), servers=3)
    with LocalStack(options, with_gateway=True) as running:
        yield running


def _check_nothing_lost(report: StepReport) -> None:
    assert (report.lost, report.errors) == (0, ())


async def test_no_request_is_lost_whoever_dies_or_is_restarted(stack: LocalStack) -> None:
    callers = Callers(stack.options.gateway_url, list(TEXTS))
    scenario = Scenario(Processes(stack), callers, CALLERS, BOUND_DB)

    unbroken = await scenario.unbroken()
    _check_nothing_lost(unbroken)
    assert (unbroken.requests, unbroken.failovers) == (CALLERS, 0)

    killed = await scenario.kill_token2wav(comes_back=False)
    _check_nothing_lost(killed)
    assert killed.failovers >= 1
    assert killed.different == 0, f"{killed.worst_snr_db} dB"

    without_llm = await scenario.kill_llm()
    _check_nothing_lost(without_llm)
    assert without_llm.failovers >= 1

    restarted = await scenario.rolling_restart(servers=1)
    _check_nothing_lost(restarted)
    assert restarted.different == 0, f"{restarted.worst_snr_db} dB"
