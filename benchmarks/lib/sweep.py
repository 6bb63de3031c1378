"""A sweep of load over running services: closed loops of so many callers, open loops of so many requests a second.

Each run is one file, so that a sweep that was stopped goes on where it was. Knows nothing of the command line.
"""

from __future__ import annotations

import json
import lzma
import os
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.lib.audible import LeadingSilence
from cosydit.bench.doors import PIECES_OF_A_CHUNK_S, HttpDoor, PreparedRequest
from cosydit.bench.inputs import read_samples
from cosydit.bench.load import LoadGenerator, LoadPlan
from cosydit.bench.metrics import summarize
from cosydit.bench.report import summary_json
from cosydit.bench.types import AudioArrival, LoadResult, RequestRecord, SpeechInput
from servicekit.clock import SystemClock
from token2wav_service.contract import SAMPLE_RATE_HZ

RUN_SUFFIX = ".json.xz"
_SENTENCE_LETTERS = 60
LEAST_REQUESTS = 50
REQUESTS_A_CALLER = 5
OPEN_S = 36.0
AUDIBLE_WARM_UP_S = 10.0
"""Seconds of arrivals before those that are timed as `tts_bench` times them, which has 10 s of them, too."""
_WARM_UP_BURSTS = (1, 2, 4, 8, 16, 32, 64, 128)
_DIGITS = 6
"""Digits of times, which are kept to the microsecond."""


@dataclass(frozen=True)
class RunPlan:
    """One run of a sweep."""

    name: str
    """Name of the file without suffix, and of the row in tables."""
    load: LoadPlan
    voices: tuple[str, ...]
    """Voices taken at random; in a run of unseen voices each once, in this order."""
    is_unseen: bool = False
    is_audible: bool = False
    """Whether the client listens for the first sound, as `tts_bench` does."""


@dataclass(frozen=True)
class FinishedRun:
    """What one run measured."""

    name: str
    load: dict[str, Any]
    is_unseen: bool
    result: LoadResult

    @property
    def summary(self) -> dict[str, Any]:
        """Statistics ready for JSON."""
        return summary_json(summarize(self.result))


def closed_run(callers: int, requests: int, voices: Sequence[str]) -> RunPlan:
    """Plan a closed loop."""
    return RunPlan(f"closed-{callers:03d}", LoadPlan(callers, requests), tuple(voices))


def open_run(requests_per_s: float, seconds: float, voices: Sequence[str]) -> RunPlan:
    """Plan Poisson arrivals."""
    return RunPlan(f"poisson-{requests_per_s:03g}", _arrivals(requests_per_s, seconds), tuple(voices))


def audible_run(requests_per_s: float, seconds: float, voices: Sequence[str]) -> RunPlan:
    """Plan Poisson arrivals that are timed as `tts_bench` times them: from dispatch to the first audible sample.

    As there, arrivals at the same rate come before, which are not measured.
    """
    plan = replace(_arrivals(requests_per_s, seconds), warm_up=round(requests_per_s * AUDIBLE_WARM_UP_S))
    return RunPlan(f"audible-{requests_per_s:03g}", plan, tuple(voices), is_audible=True)


def _arrivals(requests_per_s: float, seconds: float) -> LoadPlan:
    requests = round(requests_per_s * seconds)
    return LoadPlan(requests=requests, requests_per_s=requests_per_s, seed=round(requests_per_s))


def unseen_run(voices: Sequence[str]) -> RunPlan:
    """Plan one request after the other, each in a voice that was never used."""
    return RunPlan("unseen-voice", LoadPlan(1, len(voices)), tuple(voices), is_unseen=True)


@dataclass(frozen=True)
class SweepLoad:
    """How much load, run by run: closed loops of so many callers, then so many requests a second."""

    callers: tuple[int, ...]
    requests_per_s: tuple[float, ...]
    open_s: float = OPEN_S
    """Seconds of arrivals, longer where LEAST_REQUESTS do not come in them."""
    requests_a_caller: int = REQUESTS_A_CALLER
    """Requests of each caller in a closed loop, which has LEAST_REQUESTS at least."""
    audible_per_s: tuple[float, ...] = ()
    """Requests a second of runs that listen for the first sound."""

    def plans(self, voices: Sequence[str]) -> list[RunPlan]:
        """Return the runs, in order."""
        closed = [closed_run(n, max(LEAST_REQUESTS, self.requests_a_caller * n), voices) for n in self.callers]
        audible = [audible_run(rate, self._arrivals_s(rate), voices) for rate in self.audible_per_s]
        loops = [open_run(rate, self._arrivals_s(rate), voices) for rate in self.requests_per_s]
        return [*closed, *loops, *audible]

    def _arrivals_s(self, requests_per_s: float) -> float:
        return max(self.open_s, LEAST_REQUESTS / requests_per_s)


def warm_up_bursts(largest: int) -> list[int]:
    """Return how many requests to send at once before a sweep, burst by burst."""
    return [burst for burst in (*_WARM_UP_BURSTS, *[LEAST_REQUESTS] * 2) if burst <= largest]


def warm_up_jobs(bursts: Sequence[int], voices: Sequence[str]) -> list[list[PreparedRequest]]:
    """Return each burst's jobs, every one in the next voice."""
    sentences, next_voice = unique_sentences("warm-up"), cycle(voices)
    return [[_job(next(sentences), next(next_voice)) for _ in range(burst)] for burst in bursts]


def jobs_of(plan: RunPlan) -> list[PreparedRequest]:
    """Return a plan's requests, its warm-up's first; the same plan has the same ones every time."""
    draw = random.Random(plan.name)
    sentences = unique_sentences(plan.name)
    pick = iter(plan.voices) if plan.is_unseen else (draw.choice(plan.voices) for _ in count())
    return [_job(next(sentences), next(pick)) for _ in range(plan.load.warm_up + plan.load.requests)]


class Sweep:
    """Runs plans against one gateway and keeps their raw samples in a directory."""

    def __init__(self, url: str, directory: Path, timeout_s: float) -> None:
        """Make the directory; nothing is sent yet."""
        self._url = url
        self._directory = directory
        self._timeout_s = timeout_s
        directory.mkdir(parents=True, exist_ok=True)

    def has(self, plan: RunPlan) -> bool:
        """Tell whether a run of that name is finished."""
        return self._path(plan.name).exists()

    async def warm_up(self, bursts: Sequence[int], voices: Sequence[str]) -> list[str]:
        """Send bursts of so many requests at once, each in the next voice; returns what went wrong."""
        failures: list[str] = []
        for jobs in tqdm(warm_up_jobs(bursts, voices), desc="warm-up", unit="burst"):
            done = await self._run(jobs, LoadPlan(len(jobs), len(jobs)))
            failures += [record.error or "no audio" for record in done.records if not record.is_ok]
        return failures

    async def run(self, plan: RunPlan) -> FinishedRun:
        """Run one plan and write its samples; failed requests are counted, never raised."""
        jobs = jobs_of(plan)
        result = await self._run(jobs, replace(plan.load, requests=len(jobs)), plan.name, plan.is_audible)
        result = without_first(result, plan.load.warm_up)
        done = FinishedRun(plan.name, asdict(plan.load), plan.is_unseen, result)
        write_run(self._path(plan.name), done)
        return done

    async def _run(
        self, jobs: Sequence[PreparedRequest], load: LoadPlan, name: str = "warm-up", is_audible: bool = False
    ) -> LoadResult:
        silences: defaultdict[str, LeadingSilence] = defaultdict(partial(LeadingSilence, SAMPLE_RATE_HZ))
        hear = (lambda request_id, samples: silences[request_id].feed(samples)) if is_audible else None
        async with aclosing(HttpDoor(self._url, self._timeout_s, jobs[0].voice or "", hear)) as door:
            generator = LoadGenerator(
                door.speak, lambda job: f"{job.input.utt}|{job.voice}", SystemClock(), PIECES_OF_A_CHUNK_S
            )
            with tqdm(total=len(jobs), desc=name, unit="request", leave=False) as bar:
                result = await generator.run(jobs, load, lambda record: _advance(bar))
            for record in result.records:
                record.silence_s = silences[record.request_id].seconds if is_audible else None
            return result

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}{RUN_SUFFIX}"


def without_first(result: LoadResult, requests: int) -> LoadResult:
    """Return a result without so many of the requests that came first; its time begins with the next one."""
    if not requests:
        return result
    began_s = sorted(record.sent_s for record in result.records)[requests]
    kept = [replace(each, sent_s=each.sent_s - began_s) for each in result.records if each.sent_s >= began_s]
    return LoadResult(kept, result.warm_up, result.wall_s - began_s)


def unique_sentences(name: str) -> Iterator[SpeechInput]:
    """Yield inputs whose texts no other run has: plain words at random, about 60 letters, so that all are as long."""
    samples = [row.text for row in read_samples()]
    words = sorted({word for text in samples for word in re.findall(r"\b[a-z]{3,8}\b", text)})
    draw = random.Random(name)
    for number in count():
        text = draw.choice(words).capitalize()
        while len(text) < _SENTENCE_LETTERS:
            text += f" {draw.choice(words)}"
        yield SpeechInput(f"{name}-{number:05d}", text + ".")


def write_run(path: Path, run: FinishedRun) -> None:
    """Write a run whole or not at all."""
    records = [_pack(record) for record in sorted(run.result.records, key=lambda record: record.sent_s)]
    content = {"name": run.name, "load": run.load, "is_unseen": run.is_unseen, "wall_s": run.result.wall_s}
    text = json.dumps({**content, "requests": records}, separators=(",", ":"))
    partial = path.with_name(f".{path.name}.part")
    partial.write_bytes(lzma.compress(text.encode(), preset=9))
    os.replace(partial, path)


def read_run(path: Path) -> FinishedRun:
    """Read what `write_run` wrote.

    Raises:
        OSError: no such file.
        ValueError: it is something else.
    """
    content = json.loads(lzma.decompress(path.read_bytes()))
    records = [_unpack(entry) for entry in content["requests"]]
    return FinishedRun(
        content["name"], content["load"], content["is_unseen"], LoadResult(records, [], content["wall_s"])
    )


def _job(sentence: SpeechInput, voice: str) -> PreparedRequest:
    return PreparedRequest(sentence, None, voice)


def _pack(record: RequestRecord) -> dict[str, Any]:
    arrivals = [[round(arrival.at_s, _DIGITS), round(arrival.audio_s, _DIGITS)] for arrival in record.arrivals]
    packed: dict[str, Any] = {"utt": record.utt, "sent_s": round(record.sent_s, _DIGITS), "arrivals": arrivals}
    packed["total_s"] = round(record.total_s, _DIGITS)
    packed["dispatch_s"] = round(record.dispatch_s, _DIGITS)
    if record.silence_s is not None:
        packed["silence_s"] = round(record.silence_s, _DIGITS)
    return packed | ({"error": record.error} if record.error is not None else {})


def _unpack(entry: dict[str, Any]) -> RequestRecord:
    arrivals = [AudioArrival(at_s, audio_s) for at_s, audio_s in entry["arrivals"]]
    optional = {"dispatch_s": entry.get("dispatch_s", 0.0), "silence_s": entry.get("silence_s")}
    return RequestRecord(
        "",
        entry["utt"],
        entry["sent_s"],
        arrivals=arrivals,
        total_s=entry["total_s"],
        error=entry.get("error"),
        **optional,
    )


def _advance(bar: Any) -> None:
    bar.update()
