"""A cut: text is spoken without waiting for what follows, and the turn goes on."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from gateway.errors import InvalidTextError
from gateway.speech.request import SpeechRequest
from gateway.speech.session import SpeechSession
from gateway.text import WHOLE_TEXT
from gateway.voices.registry import NamedVoice
from servicekit.timeouts import timeout
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, make_pipeline, speech_deltas


async def test_a_cut_begins_speech_and_one_turn_speaks_on(voices: list[NamedVoice]) -> None:
    llm, token2wav = FakeLLM(speech_deltas(40)), FakeToken2Wav()
    session = SpeechSession(make_pipeline(llm, token2wav, voices), SpeechRequest(""), 5.0, split=WHOLE_TEXT)
    session.write("Well, yes and no, ")
    session.cut()
    async with aclosing(session.audio()) as audio:
        assert len((await asyncio.wait_for(anext(audio), 5)).samples)
        session.write("or so they say.")
        session.end()
        rest = [piece async for piece in audio]
    assert [each.text for each in llm.utterances] == ["Well, yes and no, ", "or so they say."]
    assert len(token2wav.streams) == 1
    assert rest[-1].is_turn_end
    with pytest.raises(InvalidTextError, match="after the end"):
        session.cut()


@pytest.mark.parametrize("steps", range(-8, 8))
async def test_whoever_breaks_in_just_as_text_comes_stops_both_services(voices: list[NamedVoice], steps: int) -> None:
    llm, token2wav = FakeLLM(speech_deltas(40)), FakeToken2Wav()
    session = SpeechSession(make_pipeline(llm, token2wav, voices), SpeechRequest(""), 5.0, split=WHOLE_TEXT)
    session.write("One. ")
    session.cut()
    listening = asyncio.create_task(_listen(session))
    while not (llm.utterances and llm.running == 0):
        await asyncio.sleep(0)
    llm.deltas = speech_deltas(2000)
    for step in range(-8, 8):
        if step == 0:
            session.write("Two. ")
            session.cut()
        if step == steps:
            listening.cancel()
        await asyncio.sleep(0)
    assert await asyncio.wait({listening}, timeout=2) == ({listening}, set())
    assert (llm.running, token2wav.open_streams) == (0, 0)


@pytest.mark.parametrize("steps", range(6))
async def test_a_deadline_loses_no_cancellation_that_comes_with_the_result(steps: int) -> None:
    results: asyncio.Queue[int] = asyncio.Queue()

    async def wait_and_go_on() -> None:
        async with timeout(5):
            await results.get()
        await asyncio.Event().wait()

    waiting = asyncio.create_task(wait_and_go_on())
    await asyncio.sleep(0.01)
    results.put_nowait(1)
    for _ in range(steps):
        await asyncio.sleep(0)
    waiting.cancel()
    assert await asyncio.wait({waiting}, timeout=1) == ({waiting}, set())


async def _listen(session: SpeechSession) -> None:
    async with aclosing(session.audio()) as audio:
        async for _ in audio:
            pass
