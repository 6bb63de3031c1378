"""One GPU: requests are conserved, the same run comes out the same, and models do what their figures say."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from dataclasses import replace

import pytest

from benchmarks.lib.sweep import FinishedRun, RunPlan, jobs_of
from cosydit.bench.load import LoadPlan
from gateway.core import Utterance
from lab.simulate.compute import OwnGPU, SerialProcess, SharedGPU, Slowdown
from lab.simulate.costs import CostModel
from lab.simulate.listeners import listen
from lab.simulate.llm import ModelledLLM
from lab.simulate.single_gpu import SPEECH_TOKENS, simulate_plans
from lab.tests.simulate.costs import COSTS
from tests.virtual_time import ManualClock, run_virtually

CLOSED = RunPlan("closed", LoadPlan(4, 12), ("default", "second"))
OPEN = RunPlan("open", LoadPlan(requests=20, requests_per_s=8.0, seed=3), ("default",))
SPOKEN = Utterance("text", "", ())


def run_both() -> list[FinishedRun]:
    return simulate_plans(COSTS, [CLOSED, OPEN], (2,))


@pytest.mark.slow
def test_every_request_of_a_plan_ends_once_with_all_of_its_audio() -> None:
    for run, plan in zip(run_both(), (CLOSED, OPEN), strict=True):
        records = run.result.records
        assert [record.error for record in records if record.error] == []
        assert Counter(record.utt for record in records) == Counter(
            f"{job.input.utt}|{job.voice}" for job in jobs_of(plan)
        )
        assert [record.audio_s for record in records] == pytest.approx([SPEECH_TOKENS / 25] * len(records))


@pytest.mark.slow
def test_the_same_plans_give_the_same_times() -> None:
    def times() -> list[tuple[float, float]]:
        return [
            (record.sent_s, arrival.at_s)
            for run in run_both()
            for record in run.result.records
            for arrival in record.arrivals
        ]

    assert times() == times()


@pytest.mark.slow
def test_more_callers_wait_longer_and_get_more_out_of_the_gpu() -> None:
    one, many = simulate_plans(COSTS, [replace(CLOSED, load=LoadPlan(n, 16)) for n in (1, 16)], (2,))
    assert many.summary["ttfa_s"]["p50"] > one.summary["ttfa_s"]["p50"]
    assert many.summary["audio_s_per_s"] > 2 * one.summary["audio_s_per_s"]


def test_an_llm_alone_takes_what_its_cost_says() -> None:
    async def speak(clock: ManualClock) -> list[tuple[float, int]]:
        llm = ModelledLLM(COSTS, OwnGPU(), lambda utterance: 10)
        llm.start()
        seen = [(clock.now(), len(delta.token_ids)) async for delta in llm.generate(SPOKEN, SerialProcess())]
        await llm.stop()
        return seen

    cost = COSTS.llm
    step_s = cost.step_fixed_s + cost.step_per_request_s
    entered_s = cost.prompt_step_s + cost.prompt_tokens * cost.prefill_per_token_s
    said_s = cost.request_s + entered_s + cost.message_s + COSTS.gateway.message_s
    expected = [(said_s + tokens * step_s, new) for tokens, new in ((1, 1), (5, 4), (9, 4), (10, 1))]
    seen = run_virtually(speak)
    assert [new for _, new in seen] == [new for _, new in expected]
    assert [at_s for at_s, _ in seen] == pytest.approx([at_s for at_s, _ in expected])


def test_a_step_too_large_for_cuda_graphs_takes_longer_for_all_in_it() -> None:
    async def first_tokens(costs: CostModel, callers: int) -> float:
        llm = ModelledLLM(costs, OwnGPU(), lambda utterance: 10)
        llm.start()
        loop, process = asyncio.get_running_loop(), SerialProcess()

        async def first() -> float:
            async with aclosing(llm.generate(SPOKEN, process)) as deltas:
                async for _ in deltas:
                    break
            return loop.time()

        begun_s = loop.time()
        ended = await asyncio.gather(*(first() for _ in range(callers)))
        await llm.stop()
        return max(ended) - begun_s

    cost = replace(COSTS.llm, request_s=0.0, message_s=0.0, prefill_per_token_s=0.0, step_per_request_s=0.0)
    graph_s, eager_s = cost.step_fixed_s + cost.prompt_step_s, cost.step_fixed_s + cost.eager_step_s
    assert graph_s < eager_s
    fitting = cost.graph_tokens // (cost.prompt_tokens + 1)
    bare = replace(COSTS, llm=cost, gateway=replace(COSTS.gateway, message_s=0.0))
    assert run_virtually(lambda clock: first_tokens(bare, fitting)) == pytest.approx(graph_s)
    assert run_virtually(lambda clock: first_tokens(bare, fitting + 1)) == pytest.approx(eager_s)


@pytest.mark.parametrize(("asked_at_step", "said_after_step"), [(0.0, 1), (0.5, 3), (1.5, 4), (2.5, 5)])
def test_who_asks_while_a_step_runs_enters_the_step_after_next(asked_at_step: float, said_after_step: int) -> None:
    """Prompts cost nothing here, so that every step takes a second."""
    free = replace(COSTS.llm, request_s=0.0, message_s=0.0, prefill_per_token_s=0.0, step_per_request_s=0.0)
    cost = replace(free, prompt_step_s=0.0, step_fixed_s=1.0)
    costs = replace(COSTS, llm=cost, gateway=replace(COSTS.gateway, message_s=0.0))

    async def first_token_at_s(clock: ManualClock) -> float:
        llm = ModelledLLM(costs, OwnGPU(), lambda utterance: 10)
        llm.start()
        loop, process = asyncio.get_running_loop(), SerialProcess()

        async def listen_to(after_s: float, only_first: bool) -> float:
            await asyncio.sleep(after_s)
            async with aclosing(llm.generate(SPOKEN, process)) as deltas:
                async for _ in deltas:
                    if only_first:
                        break
            return loop.time()

        begun_s = loop.time()
        others = [] if asked_at_step == 0.0 else [listen_to(0.0, only_first=False)]
        at_s, *_ = await asyncio.gather(listen_to(asked_at_step, only_first=True), *others)
        await llm.stop()
        return at_s - begun_s

    assert run_virtually(first_token_at_s) == pytest.approx(said_after_step)


def test_an_llm_goes_on_after_what_was_spoken() -> None:
    async def speak(clock: ManualClock) -> list[int]:
        llm = ModelledLLM(COSTS, OwnGPU(), lambda utterance: 10)
        llm.start()
        begun = replace(SPOKEN, spoken_tokens=(0, 1, 2))
        spoken = [token async for delta in llm.generate(begun, SerialProcess()) for token in delta.token_ids]
        await llm.stop()
        return spoken

    assert run_virtually(speak) == [3, 4, 5, 6, 7, 8, 9]


def test_two_services_on_one_gpu_slow_each_other_for_as_long_as_both_compute() -> None:
    async def share(clock: ManualClock) -> dict[str, float]:
        gpu, ended = SharedGPU({"a": Slowdown(1.0, 0.0), "b": Slowdown(0.0, 2.0)}), {}

        async def compute(service: str, seconds: float, load: float) -> None:
            await gpu.run(service, seconds, load)
            ended[service] = clock.now()

        await asyncio.gather(compute("a", 1.0, 0.5), compute("b", 2.0, 0.5))
        return ended

    # Both are half as fast until a ends at 2 s; b then has 1 s left.
    assert run_virtually(share) == pytest.approx({"a": 2.0, "b": 3.0})


def test_what_fills_the_gpu_by_itself_loses_less_and_the_lightest_what_is_said_of_it() -> None:
    slowdown = Slowdown(0.3, 0.2, relief=1.0, light_load=0.01, light=0.1)
    assert slowdown.factor(other=0.5, own=0.02) == pytest.approx(1 + 0.4 / 1.02)
    assert slowdown.factor(other=0.5, own=1.0) == pytest.approx(1.2)
    assert slowdown.factor(other=0.5, own=0.01) == pytest.approx(1.1)


def test_listeners_hear_gaps_only_when_there_are_too_many() -> None:
    assert listen(COSTS, 20, 4.0).underruns == 0
    slow = COSTS.with_parameters({"token2wav.step.per_token_s": 0.004})
    assert listen(slow, 20, 8.0).underruns > 0


@pytest.mark.parametrize("name", ["around_s", "stream_s", "answer_s"])
def test_listeners_of_the_engine_alone_wait_for_nothing_of_a_server(name: str) -> None:
    """The trial that it stands beside calls the engine in its own process."""
    assert listen(COSTS.with_parameters({f"token2wav.{name}": 0.5}), 20, 4.0) == listen(COSTS, 20, 4.0)
