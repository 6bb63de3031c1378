"""Real processes: one LLM, token2wav servers and a gateway, of which some die or are restarted in mid-stream.

With fewer callers than `python -m benchmarks.failover`, which takes the same steps.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import Iterator

import httpx
import pytest

from benchmarks import failover
from benchmarks.failover import BOUND_DB, TEXTS
from benchmarks.lib.failover import Callers, Processes, Scenario, StepReport
from cosydit.stack.process import ServiceProcess
from cosydit.stack.stack import LocalStack, gateway_spec
from tests.workers import demo_checkpoint, free_ports, is_whole, wait_until

pytestmark = [
    *(pytest.mark.production, pytest.mark.servers, pytest.mark.slow),
    pytest.mark.skipif(not is_whole(), reason="takes minutes; the nightly run has it"),
]

SERVERS, CALLERS = 3, 6
DOORS = ("gateway", "gateway_grpc")
READY_TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failover, "free_ports", free_ports)
        checkpoint = demo_checkpoint(tmp_path_factory)
        options = failover.stack_options(checkpoint, tmp_path_factory.mktemp("production"), SERVERS)
    with LocalStack(options, with_gateway=True) as running:
        yield running


def _check_nothing_lost(report: StepReport) -> None:
    assert (report.lost, report.errors) == (0, ())


async def test_a_stopped_gateway_says_so_and_ends_its_streams_first(stack: LocalStack) -> None:
    options = dataclasses.replace(
        stack.options,
        ports=dataclasses.replace(stack.options.ports, **dict(zip(DOORS, free_ports(2), strict=True))),
        gateway={"drain_delay_s": "1"},
    )
    with ServiceProcess(
        dataclasses.replace(gateway_spec(options), log_path=options.log_dir / "stopped.log")
    ) as gateway:
        gateway.wait_ready(READY_TIMEOUT_S)
        callers = Callers(options.gateway_url, [" ".join(TEXTS)])
        speaking = asyncio.create_task(callers.all_once(1))
        await asyncio.sleep(0)
        await callers.first_audio.wait()
        os.kill(gateway.pid, signal.SIGTERM)
        async with httpx.AsyncClient(trust_env=False) as client:
            while (answer := await client.get(f"{options.gateway_url}/readyz")).status_code == httpx.codes.OK:
                await asyncio.sleep(0.02)
            assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE and "stopped" in answer.text
        (heard,) = await speaking
        assert heard.error is None and len(heard.samples)
        assert await asyncio.to_thread(_status_of, gateway) == 0


def _status_of(service: ServiceProcess) -> int:
    wait_until(lambda: service.returncode is not None, "the gateway's end")
    assert service.returncode is not None
    return service.returncode


async def test_no_request_is_lost_whoever_dies_or_is_restarted(stack: LocalStack) -> None:
    callers = Callers(stack.options.gateway_url, list(TEXTS))
    scenario = Scenario(Processes(stack), callers, CALLERS, BOUND_DB)

    unbroken = await scenario.unbroken()
    _check_nothing_lost(unbroken)
    assert (unbroken.requests, unbroken.failovers) == (CALLERS, 0)

    restarted = await scenario.rolling_restart()
    _check_nothing_lost(restarted)
    assert restarted.different == 0, f"{restarted.worst_snr_db} dB"

    killed = await scenario.kill_token2wav(comes_back=False)
    _check_nothing_lost(killed)
    assert killed.failovers >= 1
    assert killed.different == 0, f"{killed.worst_snr_db} dB"

    without_llm = await scenario.kill_llm()
    _check_nothing_lost(without_llm)
    assert without_llm.failovers >= 1
