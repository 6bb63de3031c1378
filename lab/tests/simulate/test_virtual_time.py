"""The loop that makes up its time: it jumps, keeps order, and never waits for the machine."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.virtual_time import ManualClock, StandstillError, run_virtually

YEAR_S = 365 * 24 * 3600.0


def test_sleeping_takes_virtual_seconds_and_no_real_ones() -> None:
    async def sleep_long(clock: ManualClock) -> float:
        await asyncio.sleep(YEAR_S)
        return clock.now()

    began = time.process_time(), time.monotonic()
    assert run_virtually(sleep_long) == pytest.approx(YEAR_S)
    assert time.monotonic() - began[1] < YEAR_S / 1000 + time.process_time() - began[0]


def test_the_loop_and_its_clock_tell_the_same_time() -> None:
    async def compare(clock: ManualClock) -> list[tuple[float, float]]:
        seen = []
        for seconds in (0.0, 0.25, 3.5):
            await asyncio.sleep(seconds)
            seen.append((clock.now(), asyncio.get_running_loop().time()))
        return seen

    assert run_virtually(compare) == [(0.0, 0.0), (0.25, 0.25), (3.75, 3.75)]


def test_timers_run_by_time_and_those_of_one_moment_in_the_order_they_were_set() -> None:
    async def schedule(clock: ManualClock) -> list[str]:
        seen: list[str] = []
        loop = asyncio.get_running_loop()
        for name in (f"second-{number}" for number in range(50)):
            loop.call_at(2.0, seen.append, name)
        for name in (f"first-{number}" for number in range(50)):
            loop.call_at(1.0, seen.append, name)
        await asyncio.sleep(3.0)
        return seen

    expected = [f"{moment}-{number}" for moment in ("first", "second") for number in range(50)]
    assert run_virtually(schedule) == expected


def test_a_cancelled_timer_holds_up_nobody() -> None:
    async def cancel_one(clock: ManualClock) -> float:
        asyncio.get_running_loop().call_later(1000.0, lambda: None).cancel()
        await asyncio.sleep(1.0)
        return clock.now()

    assert run_virtually(cancel_one) == 1.0


def test_timeouts_expire_in_virtual_time() -> None:
    async def wait_too_long(clock: ManualClock) -> float:
        done, _ = await asyncio.wait([asyncio.create_task(asyncio.sleep(60.0))], timeout=5.0)
        assert not done
        return clock.now()

    assert run_virtually(wait_too_long) == 5.0


def test_threads_are_run_on_the_spot(tmp_path: Path) -> None:
    path = tmp_path / "voice"
    path.write_bytes(b"voice")

    async def read(clock: ManualClock) -> tuple[bytes, float]:
        return await asyncio.to_thread(path.read_bytes), clock.now()

    assert run_virtually(read) == (b"voice", 0.0)


def test_waiting_for_what_no_timer_brings_is_an_error() -> None:
    async def wait_for_ever(clock: ManualClock) -> None:
        await asyncio.Event().wait()

    with pytest.raises(StandstillError, match="waits for what never comes"):
        run_virtually(wait_for_ever)


def test_tasks_left_over_are_cancelled_and_closed() -> None:
    closed: list[str] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(YEAR_S)
        finally:
            closed.append("task")

    async def leave(clock: ManualClock) -> asyncio.Task[None]:
        task = asyncio.create_task(linger())
        await asyncio.sleep(1.0)
        return task

    assert run_virtually(leave).cancelled()
    assert closed == ["task"]
