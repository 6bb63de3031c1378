"""Tasks are stopped for certain: a cancellation that is lost comes again, and none is lost by those who stop."""

from __future__ import annotations

import asyncio

import pytest

from servicekit import tasks
from servicekit.tasks import running_meanwhile, stop, until_first
from servicekit.timeouts import timeout

BOUND_S = 30.0
"""Seconds against a test that hangs."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "AGAIN_S", 0.001)


async def _deaf(times: float) -> None:
    """Lose so many cancellations, as code below us does."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            times -= 1
            if times < 0:
                raise


async def _begun(task: asyncio.Task[None]) -> asyncio.Task[None]:
    await asyncio.sleep(0)
    return task


async def test_a_task_that_loses_its_cancellations_is_cancelled_until_it_has_ended() -> None:
    task = await _begun(asyncio.create_task(_deaf(5)))
    async with timeout(BOUND_S):
        await stop(task)
    assert task.cancelled()


async def test_a_task_that_can_not_be_stopped_is_left_and_the_log_says_where_it_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tasks, "LIMIT_S", 0.01)
    task = await _begun(asyncio.create_task(_deaf(float("inf")), name="the deaf one"))
    async with timeout(BOUND_S):
        await stop(task)
    assert not task.done()
    assert "the deaf one" in caplog.text
    assert "test_tasks.py:" in caplog.text
    task.get_coro().close()  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["stop", "running_meanwhile"])
async def test_who_is_cancelled_while_he_stops_a_task_ends_behind_it_and_cancelled(how: str) -> None:
    is_freeing, is_free = asyncio.Event(), asyncio.Event()
    has_freed = False

    async def work() -> None:
        nonlocal has_freed
        try:
            await asyncio.sleep(3600)
        finally:
            is_freeing.set()
            while not is_free.is_set():  # last work that no cancellation ends
                try:
                    await asyncio.sleep(0.001)
                except asyncio.CancelledError:
                    continue
            has_freed = True

    async def owner() -> None:
        if how == "stop":
            await stop(await _begun(asyncio.create_task(work())))
        else:
            async with running_meanwhile(work()):
                await asyncio.sleep(0)

    owning = asyncio.create_task(owner())
    async with timeout(BOUND_S):
        await is_freeing.wait()
        owning.cancel()
        await asyncio.sleep(0)
        is_free.set()
        await asyncio.wait([owning])
    assert owning.cancelled()
    assert has_freed


async def test_what_the_work_beside_something_fails_with_is_raised_in_the_end() -> None:
    async def work() -> None:
        raise ValueError("no such file")

    with pytest.raises(ValueError, match="no such file"):
        async with running_meanwhile(work()):
            await asyncio.sleep(0)


async def test_of_several_works_the_first_end_stops_the_others_and_its_error_is_raised() -> None:
    stopped: list[str] = []

    async def other() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.append("other")

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("no such file")

    with pytest.raises(ValueError, match="no such file"):
        await until_first(other(), failing())
    await until_first(other(), asyncio.sleep(0.001))
    assert stopped == ["other", "other"]
