"""No text keeps the others from their turn: whatever it holds, the event loop goes on after every segment."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.errors import InvalidTextError
from gateway.speech.request import SpeechRequest
from gateway.speech.session import SpeechSession
from gateway.speech.speaker import Speaker
from gateway.text import TextFrontEnd, TextOptions, TextStream
from gateway.text.alignment import NormalizedText, unchanged
from gateway.voices.registry import NamedVoice, VoiceRegistry
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas

Voices = list[NamedVoice]
ENGLISH = TextOptions("en")
MARKS = "." * 5000
LONGEST_SEGMENT = 300


class Rounds:
    """Counts the rounds of the event loop, and the characters that were normalised in each of them."""

    def __init__(self) -> None:
        self.current = 0
        self.characters = Counter[int]()

    def __call__(self, text: str) -> NormalizedText:
        self.characters[self.current] += len(text)
        return unchanged(text)

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        counting = asyncio.create_task(self._count())
        await asyncio.sleep(0)
        try:
            yield
        finally:
            counting.cancel()

    async def _count(self) -> None:
        while True:
            self.current += 1
            await asyncio.sleep(0)


def make_pipeline(voices: Voices, rounds: Rounds) -> Speaker:
    token2wav = FakeToken2Wav()
    front_end = TextFrontEnd({"en": rounds}, lambda text: None)
    return Speaker(FakeLLM(speech_deltas(3)), token2wav, VoiceRegistry(token2wav, voices), front_end=front_end)


def assert_one_each(rounds: Rounds) -> None:
    assert len(rounds.characters) > 20
    assert max(rounds.characters.values()) <= LONGEST_SEGMENT


@pytest.mark.parametrize("text", [MARKS, f"Hello.\n\n{MARKS}"], ids=["marks", "behind a word"])
async def test_a_whole_text_of_marks_lets_others_run_after_each_segment(voices: Voices, text: str) -> None:
    rounds = Rounds()
    pipeline = make_pipeline(voices, rounds)
    async with rounds.counted():
        try:
            async for _ in pipeline.synthesize(SpeechRequest(text, text_options=ENGLISH)):
                pass
        except InvalidTextError:
            assert text == MARKS
    assert_one_each(rounds)


@pytest.mark.parametrize("text", [MARKS, f"Hello there, my friend. {MARKS}"], ids=["marks", "behind a word"])
async def test_a_session_of_marks_lets_others_run_after_each_segment(voices: Voices, text: str) -> None:
    rounds = Rounds()
    session = SpeechSession(make_pipeline(voices, rounds), SpeechRequest("", text_options=ENGLISH))
    session.write(text)
    session.end()
    async with rounds.counted():
        async for _ in session.audio():
            pass
    assert_one_each(rounds)


def test_what_is_written_is_not_cut_before_somebody_listens(voices: Voices, monkeypatch: pytest.MonkeyPatch) -> None:
    session = SpeechSession(make_pipeline(voices, Rounds()), SpeechRequest("", text_options=ENGLISH))
    monkeypatch.setattr(TextStream, "cutting", lambda *_: pytest.fail("the text was cut"))
    session.write(20_000 * ".")
    session.end()


async def test_of_many_sessions_that_begin_at_once_one_reads_its_text_at_a_time(voices: Voices) -> None:
    rounds, text = Rounds(), "This is sentence 1 of 1."
    pipeline = make_pipeline(voices, rounds)
    sessions = [SpeechSession(pipeline, SpeechRequest("", seed=1, text_options=ENGLISH)) for _ in range(20)]

    async def hear(session: SpeechSession) -> None:
        async for _ in session.audio():
            pass

    for session in sessions:
        session.write(text)
        session.end()
    async with rounds.counted():
        await asyncio.gather(*(hear(session) for session in sessions))
    assert sum(rounds.characters.values()) >= 20 * len(text)
    assert max(rounds.characters.values()) <= len(text)
