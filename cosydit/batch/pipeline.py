"""Works a list of utterances through voices, LLM, token2wav and files; the last three overlap.

```
 voices, once a prompt ─► LLM, batch_size at once ─► window: like lengths ─► token2wav, a batch at a time ─► files
```

A row that fails fails alone. Between the LLM and token2wav, utterances wait until a batch of like length can be taken.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cosydit.batch.ledger import Ledger
from cosydit.batch.types import BatchPlan, BatchReport, BatchVoice, Complete, Failure, TokenisedUtterance
from cosydit.bench.types import BenchmarkError, SpeechInput
from gateway.core import FloatArray, Utterance
from servicekit.clock import Clock
from servicekit.tasks import stop
from token2wav_service.contract import SAMPLE_RATE_HZ

if TYPE_CHECKING:
    from cosydit.batch.services import EngineStage

logger = logging.getLogger(__name__)

STAGES = ("llm", "token2wav", "write")
BATCHES_AHEAD = 4
"""Batches of the larger stage that the LLM may be ahead of token2wav, which chooses batches of like length from
them."""
VOICES_AT_ONCE = 4
"""Prompts worked on side by side: their feature models take one CPU thread each."""
_SEED_BYTES = 6
_TRUNCATED = "length"


class BatchPipeline:
    """One batch on its way."""

    def __init__(
        self, llm: Complete, token2wav: EngineStage, ledger: Ledger, plan: BatchPlan, report: BatchReport, clock: Clock
    ) -> None:
        """Keep the parts, which their owner opens and closes; `report` gets counts, times and failures added."""
        self._llm = llm
        self._token2wav = token2wav
        self._ledger = ledger
        self._plan = plan
        self._report = report
        self._clock = clock
        self._busy = {stage: BusyTime(clock) for stage in STAGES}
        self._voices: dict[Path | bytes, BatchVoice | Exception] = {}
        self._window = LengthWindow(BATCHES_AHEAD * max(plan.batch_size, plan.token2wav_batch_size))
        self._began_s = 0.0

    async def run(self, rows: Sequence[SpeechInput]) -> None:
        """Speak every row; none of them is done.

        Raises:
            OSError: results can't be written; never raises for a row.
        """
        report, began_s = self._report, self._clock.now()
        await self._make_voices(rows)
        report.voices += sum(isinstance(voice, BatchVoice) for voice in self._voices.values())
        report.voices_s += self._clock.now() - began_s
        await self._warm_up(rows[: self._plan.warm_up])
        self._began_s = self._clock.now()
        tasks = [asyncio.create_task(self._tokenise_all(iter(rows))), asyncio.create_task(self._speak_all())]
        try:
            await asyncio.gather(*tasks)
        finally:
            await stop(*tasks)
        report.wall_s += self._now_s()
        for stage, busy in self._busy.items():
            report.stage_busy_s[stage] = report.stage_busy_s.get(stage, 0.0) + busy.total_s

    async def _make_voices(self, rows: Sequence[SpeechInput]) -> None:
        """Make every distinct prompt ready; one that can't be used fails for every row that has it."""
        permits = asyncio.Semaphore(VOICES_AT_ONCE)

        async def make(prompt: Path | bytes) -> None:
            async with permits:
                try:
                    self._voices[prompt] = await self._token2wav.make_voice(prompt)
                except Exception as error:  # the rows' failure, whatever it was
                    self._voices[prompt] = error

        await asyncio.gather(*map(make, dict.fromkeys(row.prompt for row in rows if row.prompt is not None)))

    def _voice_of(self, row: SpeechInput) -> BatchVoice:
        if row.prompt is None:
            raise BenchmarkError("the row has no prompt audio; add it, or give --prompt-speech-path for all rows")
        voice = self._voices[row.prompt]
        if isinstance(voice, Exception):
            raise voice
        return voice

    async def _warm_up(self, rows: Sequence[SpeechInput]) -> None:
        outcomes = await asyncio.gather(*map(self._tokenise, rows))
        utterances = [each for each in outcomes if isinstance(each, TokenisedUtterance)]
        for start in range(0, len(utterances), self._plan.token2wav_batch_size):
            await self._speak(utterances[start : start + self._plan.token2wav_batch_size])
        self._busy = {stage: BusyTime(self._clock) for stage in STAGES}

    async def _tokenise_all(self, rows: Iterator[SpeechInput]) -> None:
        async def work() -> None:
            for row in rows:
                outcome = await self._tokenise(row)
                if isinstance(outcome, Failure):
                    self._report.fail(outcome)
                else:
                    await self._window.put(outcome)

        await asyncio.gather(*(work() for _ in range(self._plan.batch_size)))
        await self._window.close()

    async def _tokenise(self, row: SpeechInput) -> TokenisedUtterance | Failure:
        seed = utterance_seed(self._plan.seed, row.utt)
        stage = "voices"
        try:
            voice = self._voice_of(row)
            stage = "llm"
            utterance = Utterance(row.text, row.prompt_text or "", voice.prompt_tokens if row.prompt_text else ())
            with self._timed(stage) as times:
                answer = await self._llm(utterance, self._plan.sampling, seed)
            if not answer.token_ids:
                raise BenchmarkError("the LLM ended without a single speech token; try another text, --seed or prompt")
        except Exception as error:  # the row's failure, whatever it was
            return Failure.of(row.utt, stage, error)
        if answer.finish_reason == _TRUNCATED:
            logger.warning("%s: the bound for the text's length ended the speech, not the LLM", row.utt)
        return TokenisedUtterance(row, voice, seed, answer.token_ids, answer.finish_reason, times)

    async def _speak_all(self) -> None:
        """Speak batch after batch; while one is spoken, the one before it is written."""
        writing: asyncio.Task[None] | None = None
        try:
            while batch := await self._window.take(self._plan.token2wav_batch_size):
                with self._timed("token2wav") as times:
                    outcomes = await self._speak(batch)
                if writing is not None:
                    await writing
                writing = asyncio.create_task(self._write_all(batch, outcomes, times))
            if writing is not None:
                await writing
        finally:
            if writing is not None:
                await stop(writing)

    async def _speak(self, batch: Sequence[TokenisedUtterance]) -> list[FloatArray | Exception]:
        try:
            return await self._token2wav.speak(batch)
        except Exception as error:  # the batch's failure is each row's
            return [error] * len(batch)

    async def _write_all(
        self,
        batch: Sequence[TokenisedUtterance],
        outcomes: Sequence[FloatArray | Exception],
        times: dict[str, float],
    ) -> None:
        async def settle(utterance: TokenisedUtterance, outcome: FloatArray | Exception) -> None:
            if isinstance(outcome, Exception):
                self._report.fail(Failure.of(utterance.input.utt, "token2wav", outcome))
            else:
                await self._write(utterance, outcome, {**utterance.times, **times, "token2wav_batch": len(batch)})

        await asyncio.gather(*map(settle, batch, outcomes))

    async def _write(self, utterance: TokenisedUtterance, samples: FloatArray, times: dict[str, float]) -> None:
        utt, audio_s = utterance.input.utt, len(samples) / SAMPLE_RATE_HZ
        try:
            with self._timed("write") as written:
                name = await asyncio.to_thread(self._ledger.write_audio, utt, samples)
        except Exception as error:
            return self._report.fail(Failure.of(utt, "write", error))
        times = {**times, "write_s": written["write_s"]}
        result = {
            "utt": utt,
            "audio": name,
            "audio_s": audio_s,
            "text": utterance.input.text,
            "speech_tokens": len(utterance.token_ids),
            "finish_reason": utterance.finish_reason,
            "seed": utterance.seed,
            **{what: round(value, 6) for what, value in times.items()},
            "written_s": round(self._now_s(), 6),
        }
        self._ledger.append(result)
        took = ", ".join(f"{what} {value:.3f}" for what, value in times.items())
        logger.info("%s: %.2f s of audio; %s", utt, audio_s, took)
        self._report.add(audio_s)

    def _now_s(self) -> float:
        """Return seconds since the first utterance was begun."""
        return self._clock.now() - self._began_s

    @contextmanager
    def _timed(self, stage: str) -> Iterator[dict[str, float]]:
        """Count a span to its stage; gives a dictionary that has its `<stage>_began_s` and `<stage>_s` afterwards."""
        times = {f"{stage}_began_s": self._now_s()}
        with self._busy[stage]:
            yield times
        times[f"{stage}_s"] = self._now_s() - times[f"{stage}_began_s"]


class BusyTime:
    """Sums the time in which at least one of many overlapping spans was open; a context manager per span."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open = 0
        self._since_s = 0.0
        self.total_s = 0.0

    def __enter__(self) -> None:
        if self._open == 0:
            self._since_s = self._clock.now()
        self._open += 1

    def __exit__(self, *exc: object) -> None:
        self._open -= 1
        if self._open == 0:
            self.total_s += self._clock.now() - self._since_s


class LengthWindow:
    """A bounded queue that gives out utterances of like length together, the oldest always among them."""

    def __init__(self, room: int) -> None:
        """Begin empty and open; `room` utterances may wait."""
        self._room = room
        self._waiting: list[TokenisedUtterance] = []
        self._is_open = True
        self._changed = asyncio.Condition()

    async def put(self, utterance: TokenisedUtterance) -> None:
        """Add one, waiting while there is no room."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._waiting) < self._room)
            self._waiting.append(utterance)
            self._changed.notify_all()

    async def close(self) -> None:
        """Say that no more will come."""
        async with self._changed:
            self._is_open = False
            self._changed.notify_all()

    async def take(self, size: int) -> list[TokenisedUtterance]:
        """Return `size` utterances of like length, fewer once no more will come, none at the end."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._is_open or len(self._waiting) >= size)
            taken = take_alike([len(each.token_ids) for each in self._waiting], size)
            batch = [self._waiting[index] for index in taken]
            self._waiting = [each for index, each in enumerate(self._waiting) if index not in taken]
            self._changed.notify_all()
        return batch


def take_alike(lengths: Sequence[int], size: int) -> dict[int, int]:
    """Choose the `size` entries closest in length among those that include the first, which has waited longest.

    Returns:
        Index -> length, shortest first; all of them if there are no more than `size`.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    if len(order) > size:
        oldest = order.index(0)
        starts = range(max(0, oldest - size + 1), min(oldest, len(order) - size) + 1)
        start = min(starts, key=lambda at: lengths[order[at + size - 1]] - lengths[order[at]])
        order = order[start : start + size]
    return {index: lengths[index] for index in order}


def utterance_seed(seed: int, utt: str) -> int:
    """Return the seed of one utterance: the same whatever is spoken before it."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{utt}".encode()).digest()[:_SEED_BYTES], "big")
