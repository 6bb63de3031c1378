"""Text that is still being written, spoken by the pipeline with both services faked: turns, flushes and cuts."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from gateway import errors
from gateway.errors import InvalidTextError
from gateway.speech.request import SpeechRequest
from gateway.speech.session import SessionAudio, SpeechSession
from gateway.text import WHOLE_TEXT
from gateway.voices.registry import NamedVoice
from servicekit.timeouts import timeout
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, make_pipeline, speech_deltas

ONE, TWO = "This is the first sentence. ", "And here comes another one, a little longer. "


def make_session(
    voices: list[NamedVoice], llm: FakeLLM, token2wav: FakeToken2Wav, pause_s: float = 5.0, limit: int = 1000
) -> SpeechSession:
    return SpeechSession(make_pipeline(llm, token2wav, voices), SpeechRequest("", seed=1), pause_s, limit)


async def hear(session: SpeechSession) -> list[SessionAudio]:
    return [audio async for audio in session.audio()]


def text_of(audio: list[SessionAudio]) -> str:
    return "".join(each.character for piece in audio for each in piece.characters)


async def test_text_in_any_pieces_is_spoken_whole_in_one_stream(voices: list[NamedVoice]) -> None:
    llm, token2wav = FakeLLM(speech_deltas(30)), FakeToken2Wav()
    session = make_session(voices, llm, token2wav)
    for character in ONE + TWO:
        session.write(character)
    session.end()
    audio = await hear(session)
    assert "".join(each.text for each in llm.utterances) == ONE + TWO == text_of(audio)
    assert len(token2wav.streams) == 1
    assert sum(len(each.samples) for each in audio) == session.samples == 30 * 960 * len(llm.utterances)
    assert [each.is_turn_end for each in audio].count(True) == 1


async def test_a_flush_ends_a_turn_and_the_next_goes_on_from_its_prosody(voices: list[NamedVoice]) -> None:
    llm, token2wav = FakeLLM(speech_deltas(30)), FakeToken2Wav()
    session = make_session(voices, llm, token2wav)
    session.write("No end")
    session.flush()
    session.write("of it")
    session.end()
    audio = await hear(session)
    assert [each.text for each in llm.utterances] == ["No end.", "of it."]
    assert len(token2wav.streams) == len(session.results) == 2
    assert llm.utterances[1].reference_text.endswith("No end.")
    assert llm.utterances[1].reference_tokens[-30:] == tuple(t for d in speech_deltas(30) for t in d.token_ids)
    starts = [each.start_s for piece in audio for each in piece.characters]
    assert starts == sorted(starts), "times count on over the turns"


async def test_a_pause_of_the_writer_ends_a_turn(voices: list[NamedVoice]) -> None:
    llm, token2wav = FakeLLM(speech_deltas(30)), FakeToken2Wav()
    session = make_session(voices, llm, token2wav, pause_s=0.01)
    session.write(ONE + "And")
    async with aclosing(session.audio()) as audio:
        async for piece in audio:
            if piece.is_turn_end:
                break
    assert token2wav.open_streams == 0


@pytest.mark.parametrize("text", ["", "  ", "...", "\n\n"])
async def test_text_with_nothing_to_say_is_silence_and_no_error(voices: list[NamedVoice], text: str) -> None:
    llm = FakeLLM(speech_deltas(30))
    session = make_session(voices, llm, FakeToken2Wav())
    session.write(text)
    session.flush()
    session.end()
    session.end()
    assert await hear(session) == []
    assert llm.utterances == []


async def test_a_writer_far_ahead_is_told_so_and_loses_nothing(voices: list[NamedVoice]) -> None:
    llm = FakeLLM(speech_deltas(30))
    session = make_session(voices, llm, FakeToken2Wav(), limit=60)
    session.write(ONE)
    with pytest.raises(errors.TextTooLongError, match="limit is 60"):
        session.write("x" * 40)
    session.end()
    assert text_of(await hear(session)) == ONE


async def test_text_after_the_end_is_refused(voices: list[NamedVoice]) -> None:
    session = make_session(voices, FakeLLM([]), FakeToken2Wav())
    session.end()
    with pytest.raises(errors.InvalidTextError, match="after the end"):
        session.write("more")
    with pytest.raises(errors.InvalidTextError, match="after the end"):
        session.flush()


async def test_a_lone_surrogate_is_refused_and_the_session_goes_on(voices: list[NamedVoice]) -> None:
    session = make_session(voices, FakeLLM(speech_deltas(20)), FakeToken2Wav())
    with pytest.raises(errors.InvalidTextError):
        session.write("a\ud800")
    session.write(ONE)
    session.end()
    assert text_of(await hear(session)) == ONE


async def test_a_service_that_fails_ends_the_audio_with_its_error(voices: list[NamedVoice]) -> None:
    llm = FakeLLM(speech_deltas(20)[:-1], errors.LLMInterruptedError("it died; try again"))
    session = make_session(voices, llm, FakeToken2Wav())
    session.write(ONE)
    session.end()
    with pytest.raises(errors.LLMInterruptedError):
        await hear(session)


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


@pytest.mark.parametrize("last", ["cut", "flush"])
@pytest.mark.parametrize("mark", ["cut", "flush"])
async def test_blanks_between_two_cuts_are_told_with_what_follows_them(
    voices: list[NamedVoice], mark: str, last: str
) -> None:
    session = make_session(voices, FakeLLM(speech_deltas(20)), FakeToken2Wav())
    session.write("Hello")
    getattr(session, mark)()
    session.write("\n")
    session.cut()
    getattr(session, last)()
    session.write("Hello")
    session.end()
    assert text_of(await hear(session)) == "Hello\nHello"


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
