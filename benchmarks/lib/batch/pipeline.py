"""Works a list of utterances through prompt features, LLM, token2wav and files; the stages overlap.

A row that fails fails alone. Knows the services by their seams, and files by the ledger.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path

from benchmarks.lib.batch.ledger import Ledger
from benchmarks.lib.batch.types import (
    BatchPlan,
    BatchReport,
    BatchVoice,
    BusyTime,
    Failure,
    Token2WavStage,
    TokenisedUtterance,
)
from benchmarks.lib.types import BadRow, BenchmarkError, InputRow, SpeechInput
from cosydit.clock import Clock
from gateway.core import FloatArray, SpeechLM, Utterance
from token2wav_service.contract import SAMPLE_RATE_HZ
from token2wav_service.features.audio import load_prompt_audio

logger = logging.getLogger(__name__)

STAGES = ("features", "llm", "token2wav", "write")
_SEED_BYTES = 6
_TRUNCATED = "length"


class BatchPipeline:
    """One batch on its way."""

    def __init__(self, llm: SpeechLM, token2wav: Token2WavStage, ledger: Ledger, plan: BatchPlan, clock: Clock) -> None:
        """Keep the parts; their owner opens and closes them."""
        self._llm = llm
        self._token2wav = token2wav
        self._ledger = ledger
        self._plan = plan
        self._clock = clock
        self._busy = {stage: BusyTime(clock) for stage in STAGES}
        self._spoken: asyncio.Queue[TokenisedUtterance | None] = asyncio.Queue(2 * plan.token2wav_batch_size)

    async def run(self, rows: Sequence[InputRow], on_row: Callable[[BatchReport], None]) -> BatchReport:
        """Speak every row that is not done yet.

        Args:
            rows: what to speak.
            on_row: hears of every row that is settled: done now, done before, or failed.

        Returns:
            Counts, times and failures; never raises for a row.
        """
        report = BatchReport(len(rows))
        began_s = self._clock.now()
        waiting = self._todo(rows, report, on_row)
        tasks = [
            asyncio.create_task(self._tokenise_all(waiting, report, on_row)),
            asyncio.create_task(self._write_all(report, on_row)),
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        report.wall_s = self._clock.now() - began_s
        report.stage_busy_s = {stage: busy.total_s for stage, busy in self._busy.items()}
        return report

    def _todo(
        self, rows: Sequence[InputRow], report: BatchReport, on_row: Callable[[BatchReport], None]
    ) -> Iterator[SpeechInput]:
        for row in rows:
            try:
                if isinstance(row, BadRow):
                    raise BenchmarkError(row.reason)
                is_done = self._ledger.is_done(row.utt)
            except BenchmarkError as error:
                _fail(report, row.utt, "input", error)
                on_row(report)
                continue
            if not is_done:
                yield row
                continue
            report.done_before += 1
            on_row(report)

    async def _tokenise_all(
        self, waiting: Iterator[SpeechInput], report: BatchReport, on_row: Callable[[BatchReport], None]
    ) -> None:
        async def work() -> None:
            for row in waiting:
                utterance = await self._tokenise(row, report)
                if utterance is None:
                    on_row(report)
                else:
                    await self._spoken.put(utterance)

        await asyncio.gather(*(work() for _ in range(self._plan.batch_size)))
        await self._spoken.put(None)

    async def _tokenise(self, row: SpeechInput, report: BatchReport) -> TokenisedUtterance | None:
        seed = utterance_seed(self._plan.seed, row.utt)
        stage = "features"
        try:
            with self._timed(stage) as features_s:
                voice = await self._voice(row)
            stage = "llm"
            with self._timed(stage) as llm_s:
                token_ids, finish_reason = await self._generate(row, voice, seed)
        except Exception as error:  # the row's failure, whatever it was
            _fail(report, row.utt, stage, error)
            return None
        return TokenisedUtterance(row, voice, seed, token_ids, finish_reason, features_s[0], llm_s[0])

    async def _voice(self, row: SpeechInput) -> BatchVoice:
        if row.prompt is None:
            raise BenchmarkError("the row has no prompt audio; add it, or give --prompt-speech-path for all rows")
        data = await asyncio.to_thread(row.prompt.read_bytes) if isinstance(row.prompt, Path) else row.prompt
        return await self._token2wav.make_voice(await asyncio.to_thread(load_prompt_audio, data))

    async def _generate(self, row: SpeechInput, voice: BatchVoice, seed: int) -> tuple[tuple[int, ...], str | None]:
        prompt_tokens = voice.prompt_tokens if row.prompt_text else ()
        utterance = Utterance(row.text, row.prompt_text or "", prompt_tokens)
        token_ids: list[int] = []
        finish_reason = None
        async with aclosing(self._llm.generate(utterance, self._plan.sampling, seed)) as deltas:
            async for delta in deltas:
                token_ids.extend(delta.token_ids)
                finish_reason = delta.finish_reason
        if not token_ids:
            raise BenchmarkError("the LLM ended without a single speech token; try another text, --seed or prompt")
        if finish_reason == _TRUNCATED:
            logger.warning("%s: the bound for the text's length ended the speech, not the LLM", row.utt)
        return tuple(token_ids), finish_reason

    async def _write_all(self, report: BatchReport, on_row: Callable[[BatchReport], None]) -> None:
        is_open = True
        while is_open:
            batch: list[TokenisedUtterance] = []
            while is_open and len(batch) < self._plan.token2wav_batch_size:
                utterance = await self._spoken.get()
                is_open = utterance is not None
                batch += [] if utterance is None else [utterance]
            if batch:
                await self._speak_and_write(batch, report, on_row)

    async def _speak_and_write(
        self, batch: Sequence[TokenisedUtterance], report: BatchReport, on_row: Callable[[BatchReport], None]
    ) -> None:
        with self._timed("token2wav") as token2wav_s:
            try:
                outcomes = await self._token2wav.speak(batch)
            except Exception as error:  # the batch's failure is each row's
                outcomes = [error] * len(batch)
        for utterance, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Exception):
                _fail(report, utterance.input.utt, "token2wav", outcome)
            else:
                await self._write(utterance, outcome, token2wav_s[0], len(batch), report)
            on_row(report)

    async def _write(
        self, utterance: TokenisedUtterance, samples: FloatArray, token2wav_s: float, together: int, report: BatchReport
    ) -> None:
        utt = utterance.input.utt
        try:
            with self._timed("write") as write_s:
                path = await asyncio.to_thread(self._ledger.write_audio, utt, samples)
        except Exception as error:
            _fail(report, utt, "write", error)
            return
        result = {
            "utt": utt,
            "audio": path.name,
            "audio_s": len(samples) / SAMPLE_RATE_HZ,
            "text": utterance.input.text,
            "speech_tokens": len(utterance.token_ids),
            "finish_reason": utterance.finish_reason,
            "seed": utterance.seed,
            "features_s": utterance.features_s,
            "llm_s": utterance.llm_s,
            "token2wav_s": token2wav_s,
            "token2wav_batch": together,
            "write_s": write_s[0],
        }
        self._ledger.append(result)
        report.done += 1
        report.audio_s += len(samples) / SAMPLE_RATE_HZ
        logger.info(
            "%s: %.2f s of audio, features %.3f s, LLM %.3f s, token2wav %.3f s (batch of %d), write %.3f s",
            utt,
            len(samples) / SAMPLE_RATE_HZ,
            utterance.features_s,
            utterance.llm_s,
            token2wav_s,
            together,
            write_s[0],
        )

    @contextmanager
    def _timed(self, stage: str) -> Iterator[list[float]]:
        """Count a span to its stage; the list holds its seconds afterwards."""
        took: list[float] = []
        began_s = self._clock.now()
        with self._busy[stage]:
            yield took
        took.append(self._clock.now() - began_s)


def utterance_seed(seed: int, utt: str) -> int:
    """Return the seed of one utterance: the same whatever is spoken before it."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{utt}".encode()).digest()[:_SEED_BYTES], "big")


def _fail(report: BatchReport, utt: str, stage: str, error: Exception) -> None:
    failure = Failure(utt, stage, f"{type(error).__name__}: {error}")
    report.failures.append(failure)
    logger.error("%s failed in %s: %s", utt, stage, failure.reason)
