"""Work that runs beside something."""

from __future__ import annotations

import asyncio

import pytest

from servicekit.timeouts import running_meanwhile


async def test_work_runs_until_the_context_is_left() -> None:
    told: list[str] = []

    async def work() -> None:
        told.append("begun")
        try:
            await asyncio.sleep(3600)
        finally:
            told.append("ended")

    async with running_meanwhile(work()):
        await asyncio.sleep(0)
        assert told == ["begun"]
    assert told == ["begun", "ended"]


async def test_what_the_work_fails_with_is_raised_in_the_end() -> None:
    async def work() -> None:
        raise ValueError("no such file")

    with pytest.raises(ValueError, match="no such file"):
        async with running_meanwhile(work()):
            await asyncio.sleep(0)
