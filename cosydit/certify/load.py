"""The check under load: some listeners for minutes, none of whose answers fails; the runner is `cosydit bench`'s."""

from __future__ import annotations

import asyncio
import time

from cosydit.bench.doors import PIECES_OF_A_CHUNK_S, DoorOptions, HttpDoor, SpeechJob
from cosydit.bench.load import LoadGenerator, LoadPlan
from cosydit.bench.metrics import summarize
from cosydit.bench.types import LoadResult, SpeechInput
from cosydit.certify.check import Findings
from cosydit.certify.context import TEXTS, VOICE, CheckContext
from cosydit.certify.end_to_end import TIMEOUT_S, running
from servicekit.clock import SystemClock

ROUND = 4
"""Requests of each listener between two looks at the time."""
PAUSE_S = 1.0
"""Pause after a failure: services that are gone refuse at once."""
_JOBS = [SpeechJob(SpeechInput(f"text-{number}", text), None) for number, text in enumerate(TEXTS)]


def check_steady(context: CheckContext, found: Findings) -> None:
    """Listeners ask again and again, and nothing fails."""
    result = asyncio.run(_under_load(running(context).options.gateway_url, context))
    told = summarize(result)
    found.tell("listeners", context.plan.load_streams)
    found.tell("seconds", result.wall_s, "s")
    found.tell("answers", told.requests - told.failures, least=1)
    found.tell("failed answers", told.failures, most=0)
    found.notes += [str(record.error)[:300] for record in result.records if not record.is_ok][:3]
    if told.ttfa_s is not None:
        for percent in (50, 95):
            found.tell(f"time to first audio, {percent} %", 1000 * told.ttfa_s.percentiles[percent], "ms")


async def _under_load(url: str, context: CheckContext) -> LoadResult:
    listeners, door = context.plan.load_streams, HttpDoor(DoorOptions(url, TIMEOUT_S), VOICE)
    load = LoadGenerator(door, lambda job: job.utt, SystemClock(), PIECES_OF_A_CHUNK_S)
    result, began_s = LoadResult([], [], 0.0), time.perf_counter()
    try:
        while result.wall_s < context.plan.load_s:
            records = (await load.run(_JOBS, LoadPlan(listeners, ROUND * listeners), lambda _: None)).records
            result = LoadResult(result.records + records, [], time.perf_counter() - began_s)
            if not records[-1].is_ok:
                await asyncio.sleep(PAUSE_S)
    finally:
        await door.close()
    return result
