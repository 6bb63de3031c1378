"""How long a service is waited for that is slow or only seems so."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from servicekit.timeouts import MAX_EXTENSIONS, TICK_S, LoopLag, Patience, patient_timeout
from tests.virtual_time import VirtualClock, run_virtually

LIMIT_S = 10.0
needs_movable_limits = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="before Python 3.11 a limit can't be moved"
)


async def _waited_s(patience: Patience, clock: VirtualClock) -> float:
    """Wait for what never comes; return how long."""
    began_s = clock.now()
    with pytest.raises(asyncio.TimeoutError):
        async with patient_timeout(LIMIT_S, patience.begin(LIMIT_S)):
            await asyncio.Event().wait()
    return clock.now() - began_s


async def _progress(patience: Patience, times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(1.0)
        patience.progressed()


def test_a_wait_ends_with_its_limit_where_nobody_is_served() -> None:
    assert run_virtually(lambda clock: _waited_s(Patience(), clock)) == pytest.approx(LIMIT_S)


@needs_movable_limits
def test_a_wait_goes_on_while_others_are_served_but_not_for_ever() -> None:
    async def wait(clock: VirtualClock, times: int) -> float:
        patience = Patience()
        progress = asyncio.create_task(_progress(patience, times))
        waited_s = await _waited_s(patience, clock)
        progress.cancel()
        return waited_s

    assert run_virtually(lambda clock: wait(clock, 5)) == pytest.approx(5.0 + LIMIT_S)
    assert run_virtually(lambda clock: wait(clock, 1000)) == pytest.approx(LIMIT_S * (1 + MAX_EXTENSIONS))


def test_progress_of_before_the_wait_is_none() -> None:
    async def wait(clock: VirtualClock) -> float:
        patience = Patience()
        patience.progressed()
        await asyncio.sleep(1.0)
        return await _waited_s(patience, clock)

    assert run_virtually(wait) == pytest.approx(LIMIT_S)


@needs_movable_limits
def test_what_the_loop_stood_still_is_added_once() -> None:
    async def wait(clock: VirtualClock) -> float:
        lag = LoopLag()
        asyncio.get_running_loop().call_later(5.0, lag.note, 3.0, 5.0)
        return await _waited_s(Patience(lag), clock)

    assert run_virtually(wait) == pytest.approx(LIMIT_S + 3.0)


async def test_the_lag_of_a_loop_is_what_it_stood_still() -> None:
    lag = LoopLag()
    lag.start()
    try:
        await asyncio.sleep(2 * TICK_S)
        before_s = lag.total_s
        time.sleep(5 * TICK_S)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert lag.total_s - before_s > 3 * TICK_S
        assert lag.is_recent(60.0)
    finally:
        lag.stop()
    assert not LoopLag().is_recent(60.0)


async def test_what_comes_in_time_is_given_and_an_error_inside_is_raised() -> None:
    async with patient_timeout(60.0, lambda: 0.0):
        await asyncio.sleep(0)
    with pytest.raises(ValueError, match="inside"):
        async with patient_timeout(60.0, lambda: 0.0):
            raise ValueError("inside")
