"""A text that is still being written, spoken clause by clause and interleaved inside the LLM, in virtual time.

    writer ── N words a second ─► session ─► front end ─► pipeline ─► stand-ins of both services ─► first audio

Everything of the gateway is the real one: sessions, front end, pipeline, chunks, the LLM's wire. The stand-ins take the
time that they are told to. The LLM's says 1.6 tokens a letter, as the bundled voice does; interleaved, it goes by the
order of the embedded engine (`Interleaver`). The bundled voice has not learnt to be interleaved, and no other one comes
with the project, so nobody can listen to this.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.cpu_speed import SENTENCES, SHORT_SENTENCES
from cosydit.bench.metrics import percentile
from gateway.chunking.chunker import TokenChunk
from gateway.core import AudioChunk, FloatArray, InlineVoice, RegisteredVoice, Sampling, SpeechTokenDelta, Utterance
from gateway.llm.wire import LLMWire
from gateway.speech.guard import GuardMode, GuardSettings
from gateway.speech.request import SpeechRequest
from gateway.speech.session import SpeechSession
from gateway.speech.speaker import PipelineSettings, Speaker
from gateway.voices.registry import VoiceRegistry
from llm_service.embedded.interleaving import InterleavedPrompt, Interleaver
from llm_service.text_encoder import TextEncoder
from llm_service.vocab import COSYVOICE2
from tests.virtual_time import ManualClock, run_virtually
from token2wav_service.contract import DEFAULT_PRIORITY, LOOKAHEAD_TOKENS, SAMPLE_RATE_HZ, SAMPLES_PER_TOKEN

CLAUSES, INTERLEAVED = "clauses", "interleaved"
MODES = (CLAUSES, INTERLEAVED)
SHOWN = ("first_audio_p50", "first_audio_p95", "total")
WORDS_PER_S = (3.0, 5.0, 10.0, 20.0, 40.0)
TEXTS = tuple(
    f"{SENTENCES[index % len(SENTENCES)]} {SHORT_SENTENCES[index % len(SHORT_SENTENCES)]} "
    f"{SENTENCES[(index + 1) % len(SENTENCES)]} {SHORT_SENTENCES[(index + 5) % len(SHORT_SENTENCES)]}"
    for index in range(12)
)
PROMPT = "The old boat drifted past the bridge while we watched from the shore."
PROMPT_TOKENS = 109
"""The bundled voice `default`: 4.4 s."""
TOKENS_A_LETTER = 1.6
POSITIONS = 1 << 16
"""Of an answer in the LLM's cache: more than any text here takes."""
_WORD_PIECE = re.compile(r"\s*(?:\w{1,8}|[^\w\s])")


@dataclass(frozen=True)
class Speeds:
    """What the stand-ins take. The defaults are the bundled voice's, with others at work on the two CPU cores."""

    prompt_s: float = 0.08
    token_s: float = 0.016
    """Of the LLM, a token."""
    chunk_s: float = 0.1
    chunk_token_s: float = 0.025
    """Of token2wav: a chunk, and each token of it."""


@dataclass(frozen=True)
class Heard:
    """One text, from its first word on."""

    text_s: float
    """When the LLM had the text that it needs to begin."""
    first_s: float
    """The first audio."""
    audio_s: float
    total_s: float
    """The last audio."""
    stalled_s: float
    """What a listener who begins with the first audio had to wait later."""


class WordEncoder:
    """Stands for the tokenizer of the official checkpoints: a token for up to 8 letters of a word, and one a mark."""

    vocabulary = COSYVOICE2

    def encode(self, text: str) -> list[int]:
        """Return an id for each piece; which one does not matter."""
        return list(range(len(_WORD_PIECE.findall(text))))


class PacedLM:
    """Implements `core.SpeechLM`: answers as long as their text asks for, a token at a time."""

    def __init__(self, speeds: Speeds, clock: ManualClock) -> None:
        """Say nothing yet."""
        self._speeds, self._clock = speeds, clock
        encoder: TextEncoder = WordEncoder()  # type: ignore[assignment]
        self._wire = LLMWire(encoder)
        self.began_s: float | None = None
        """When the first answer had the text that it needs."""

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        """See `core.SpeechLM.generate`."""
        answer = self._whole if utterance.coming_text is None else self._interleaved
        async with aclosing(answer(utterance)) as tokens:
            async for token in tokens:
                yield SpeechTokenDelta((token,))
        yield SpeechTokenDelta((), "stop")

    async def _whole(self, utterance: Utterance) -> AsyncGenerator[int]:
        self._begin()
        await asyncio.sleep(self._speeds.prompt_s)
        for token in range(_tokens_of(utterance.text)):
            await asyncio.sleep(self._speeds.token_s)
            yield token

    async def _interleaved(self, utterance: Utterance) -> AsyncGenerator[int]:
        prompt = self._wire.interleaved_prompt(utterance)
        layout = InterleavedPrompt(prompt.begin_tokens, prompt.transcript_tokens)
        feeds = _FedText(self._wire, utterance, Interleaver(prompt.token_ids, layout, COSYVOICE2, POSITIONS))
        feeding = asyncio.ensure_future(feeds.run())
        try:
            for token in count():
                await feeds.until_it_can_go_on(feeding)
                if token == 0:
                    self._begin()
                    await asyncio.sleep(self._speeds.prompt_s)
                if feeds.order.is_closed and token >= _tokens_of(feeds.text):
                    return
                await asyncio.sleep(self._speeds.token_s)
                feeds.order.note(COSYVOICE2.llm_id(token))
                yield token
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])

    def _begin(self) -> None:
        self.began_s = self._clock.now() if self.began_s is None else self.began_s

    async def is_ready(self) -> bool:
        """See `core.SpeechLM.is_ready`."""
        return True


class _FedText:
    """Brings the text to the order of one interleaved answer as it comes."""

    def __init__(self, wire: LLMWire, utterance: Utterance, order: Interleaver) -> None:
        assert utterance.coming_text is not None
        self.order = order
        self._wire, self._coming = wire, utterance.coming_text
        self._utterance = utterance
        self._has_come = asyncio.Event()

    @property
    def text(self) -> str:
        return self._utterance.text + "".join(self._coming.pieces)

    async def run(self) -> None:
        async with aclosing(self._wire.text_pieces(self._utterance)) as pieces:
            async for ids, is_last in pieces:
                self.order.push(ids, is_last)
                self._has_come.set()

    async def until_it_can_go_on(self, feeding: asyncio.Future[None]) -> None:
        while (feed := self.order.take()) is None or not feed.draws:
            if feed is None:
                self._has_come.clear()
                either: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._has_come.wait()), feeding]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if feeding.done():
                    feeding.result()


def _tokens_of(text: str) -> int:
    return round(TOKENS_A_LETTER * len(text.strip()))


class PacedToken2Wav:
    """Implements `core.Token2Wav`: silence, a chunk after the other."""

    def __init__(self, speeds: Speeds, clock: ManualClock) -> None:
        """Have no stream."""
        self._speeds, self._clock = speeds, clock

    async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice:
        """See `core.Token2Wav`."""
        return RegisteredVoice("voice", tuple(range(PROMPT_TOKENS)))

    @asynccontextmanager
    async def open_stream(
        self, voice_id: str, seed: int, priority: int = DEFAULT_PRIORITY
    ) -> AsyncIterator[_PacedStream]:
        """See `core.Token2Wav`."""
        yield _PacedStream(self._speeds, self._clock)

    async def is_ready(self) -> bool:
        """See `core.Token2Wav`."""
        return True


class _PacedStream:
    stream_id = "paced"
    hop_multiple = 1

    def __init__(self, speeds: Speeds, clock: ManualClock) -> None:
        self._speeds, self._clock = speeds, clock
        self._free_s = 0.0

    def push(self, chunk: TokenChunk) -> asyncio.Future[AudioChunk]:
        tokens = len(chunk.token_ids) - (0 if chunk.is_last else LOOKAHEAD_TOKENS)
        audio = AudioChunk(chunk.index, np.zeros(tokens * SAMPLES_PER_TOKEN, np.float32), chunk.is_last)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[AudioChunk] = loop.create_future()
        took_s = self._speeds.chunk_s + self._speeds.chunk_token_s * tokens
        self._free_s = max(self._free_s, self._clock.now()) + took_s
        loop.call_at(self._free_s, lambda: None if answer.done() else answer.set_result(audio))
        return answer


def hear(text: str, words_per_s: float, mode: str, transcript: str, speeds: Speeds) -> Heard:
    """Write one text at a steady pace and listen.

    Args:
        text: its first word is written at 0 s.
        words_per_s: the writer's pace.
        mode: of MODES.
        transcript: of the voice; empty: the LLM does not go on from the voice's speech.
        speeds: of the stand-ins.
    """
    return run_virtually(lambda clock: _hear(text, words_per_s, mode == INTERLEAVED, transcript, speeds, clock))


async def _hear(
    text: str, words_per_s: float, is_interleaved: bool, transcript: str, speeds: Speeds, clock: ManualClock
) -> Heard:
    llm, token2wav = PacedLM(speeds, clock), PacedToken2Wav(speeds, clock)
    settings = PipelineSettings(guard=GuardSettings(GuardMode.MEND))
    speaker = Speaker(llm, token2wav, VoiceRegistry(token2wav), settings, clock)
    request = SpeechRequest("", InlineVoice(b"audio", transcript), seed=0, is_interleaved=is_interleaved)
    session = SpeechSession(speaker, request)
    writing = asyncio.ensure_future(_write(session, text, words_per_s))
    first_s = played_until_s = stalled_s = None
    try:
        async for audio in session.audio():
            if not len(audio.samples):
                continue
            now_s = clock.now()
            if first_s is None or played_until_s is None or stalled_s is None:
                first_s, played_until_s, stalled_s = now_s, now_s, 0.0
            stalled_s += max(0.0, now_s - played_until_s)
            played_until_s = max(played_until_s, now_s) + len(audio.samples) / SAMPLE_RATE_HZ
    finally:
        await writing
    assert llm.began_s is not None and first_s is not None and stalled_s is not None
    return Heard(llm.began_s, first_s, session.samples / SAMPLE_RATE_HZ, clock.now(), stalled_s)


async def _write(session: SpeechSession, text: str, words_per_s: float) -> None:
    for index, word in enumerate(text.split()):
        if index:
            await asyncio.sleep(1 / words_per_s)
        session.write(f"{word} ")
    session.end()


Found = dict[str, dict[str, dict[str, dict[str, float]]]]
"""By voice, pace, mode (or `ratio`) and name."""


def figures(heard: Sequence[Heard]) -> dict[str, float]:
    """Return what one pace and mode come to, in seconds."""
    firsts = [each.first_s for each in heard]
    return {
        "text_p50": percentile([each.text_s for each in heard], 50),
        "first_audio_p50": percentile(firsts, 50),
        "first_audio_p95": percentile(firsts, 95),
        "audio": mean(each.audio_s for each in heard),
        "total": mean(each.total_s for each in heard),
        "stalled": mean(each.stalled_s for each in heard),
    }


def compare(words_per_s: Sequence[float], speeds: Speeds, texts: Sequence[str] = TEXTS) -> Found:
    """Return the figures of some texts by voice, pace and mode, and the ratios of interleaved over clauses."""
    found: Found = {}
    for voice, transcript in (("prompt", PROMPT), ("no_prompt", "")):
        for pace in words_per_s:
            modes = {mode: figures([hear(text, pace, mode, transcript, speeds) for text in texts]) for mode in MODES}
            clauses, interleaved = modes[CLAUSES], modes[INTERLEAVED]
            names = ("first_audio_p50", "first_audio_p95", "audio", "total")
            ratios = {name: interleaved[name] / clauses[name] for name in names}
            found.setdefault(voice, {})[f"{pace:g}"] = {**modes, "ratio": ratios}
    return found


def rounded(found: Found) -> Found:
    """Return figures that are no more exact than they can be."""
    return {
        voice: {
            pace: {mode: {name: round(value, 2) for name, value in each.items()} for mode, each in modes.items()}
            for pace, modes in paces.items()
        }
        for voice, paces in found.items()
    }
