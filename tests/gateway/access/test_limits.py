"""What a caller may have: streams at once and seconds of audio in a window, counted on every way out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.access import Access
from gateway.access.caller import Caller, CallerLimits, calling
from gateway.core import AudioChunk, UnspokenText
from gateway.dialects.answers import error_headers, error_metadata
from gateway.errors import AudioLimitError, LLMFailedError, StreamLimitError, TextTooLongError
from gateway.ledger import DAY_S, HOUR_S, MINUTE_S, CallerLedger
from gateway.speech.request import SpeechRequest
from gateway.speech.session import SpeechSession
from gateway.speech.speaker import Speaker
from gateway.voices.registry import NamedVoice, VoiceRegistry
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, ManualClock, speech_deltas

SENTENCE = (
    "This is one sentence of several, which is long enough that nobody would speak it together with the next one. "
)
LONG_TEXT = 4 * SENTENCE


class Stage:
    """A pipeline over fakes, and the access that guards it."""

    def __init__(self, voices: list[NamedVoice], llm: FakeLLM | None = None) -> None:
        self.clock = ManualClock()
        self.access = Access(None, CallerLimits(), self.clock)
        self.llm, self.token2wav = llm or FakeLLM(speech_deltas(50)), FakeToken2Wav()
        registry = VoiceRegistry(self.token2wav, voices)
        self.pipeline = Speaker(self.llm, self.token2wav, registry, None, self.clock, access=self.access)

    def speak(self, text: str = "hello") -> AsyncGenerator[AudioChunk]:
        return self.pipeline.synthesize(SpeechRequest(text))

    async def hear(self, text: str = "hello") -> float:
        async with aclosing(self.speak(text)) as audio:
            return sum([chunk.duration_s async for chunk in audio])

    def streams(self, name: str = "anna") -> int:
        return self.access.ledger.streams(name)

    def used_s(self, name: str = "anna") -> float:
        return self.access.ledger.audio_s(name, DAY_S)


def anna(**limits: float) -> Caller:
    return Caller("anna", CallerLimits(**limits))  # type: ignore[arg-type]


async def test_a_stream_above_the_limit_is_refused_and_the_others_go_on(voices: list[NamedVoice]) -> None:
    stage = Stage(voices)
    with calling(anna(streams=1)):
        async with aclosing(stage.speak()) as first:
            await anext(first)
            assert stage.streams() == 1
            with pytest.raises(StreamLimitError, match="limit is 1"):
                await stage.hear()
            with calling(Caller("bob", CallerLimits(streams=1))):
                assert await stage.hear() == 2.0
            assert [chunk.is_last async for chunk in first][-1]
        assert await stage.hear() == 2.0
    assert stage.streams() == 0


@pytest.mark.parametrize("way_out", ["end", "close", "error", "cancel"])
async def test_every_way_out_frees_the_stream(voices: list[NamedVoice], way_out: str) -> None:
    llm = FakeLLM(speech_deltas(50), error=LLMFailedError("it fell") if way_out == "error" else None)
    if way_out == "cancel":
        llm.gate, llm.ungated = asyncio.Event(), 20
    stage = Stage(voices, llm)
    with calling(anna(streams=1)):
        if way_out == "close":
            async with aclosing(stage.speak()) as audio:
                await anext(audio)
        else:
            hearing = asyncio.create_task(stage.hear())
            while not stage.streams():
                await asyncio.sleep(0)
            if way_out == "cancel":
                hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
    assert (stage.streams(), stage.llm.running, stage.token2wav.open_streams) == (0, 0, 0)


async def test_audio_counts_once_it_is_delivered(voices: list[NamedVoice]) -> None:
    stage = Stage(voices)
    with calling(anna(audio_s_per_day=100.0)):
        async with aclosing(stage.speak()) as audio:
            first = await anext(audio)
            assert stage.used_s() == 0.0
            await anext(audio)
            assert stage.used_s() == first.duration_s
        assert stage.used_s() == first.duration_s
        await stage.hear()
    assert stage.used_s() == pytest.approx(first.duration_s + 2.0)


@pytest.mark.parametrize(
    ("limit", "window_s"), [("audio_s_per_hour", HOUR_S), ("audio_s_per_day", DAY_S)], ids=["hour", "day"]
)
async def test_used_up_audio_comes_back_when_the_window_has_passed(
    voices: list[NamedVoice], limit: str, window_s: float
) -> None:
    stage = Stage(voices)
    with calling(anna(**{limit: 3.0})):
        assert [await stage.hear(), await stage.hear()] == [2.0, 2.0]
        with pytest.raises(AudioLimitError, match="3 s in any") as refused:
            await stage.hear()
        assert refused.value.retry_after_s == window_s + 60
        stage.clock.seconds += refused.value.retry_after_s
        assert await stage.hear() == 2.0
    assert stage.streams() == 0


async def test_a_sentence_that_has_begun_is_spoken_to_its_end_and_the_next_is_refused(voices: list[NamedVoice]) -> None:
    llm = FakeLLM(speech_deltas(50))
    llm.gate, llm.ungated = asyncio.Event(), 45
    stage, heard_s = Stage(voices, llm), 0.0
    with calling(anna(audio_s_per_day=0.5)), pytest.raises(AudioLimitError):
        async with aclosing(stage.speak(LONG_TEXT)) as audio:
            async for chunk in audio:
                heard_s += chunk.duration_s
                if stage.used_s() > 0.5:
                    llm.gate.set()
    assert (heard_s, stage.used_s(), len(llm.utterances)) == (2.0, 2.0, 1)
    assert stage.streams() == 0
    with calling(anna(audio_s_per_day=100.0)):
        assert await stage.hear(LONG_TEXT) == 8.0


def test_clients_are_told_when_to_try_again_and_not_to_where_it_takes_long() -> None:
    soon, late = StreamLimitError("busy", retry_after_s=0.5), AudioLimitError("used up", retry_after_s=7200.2)
    assert error_headers(soon) == {"retry-after": "1", "x-should-retry": "true"}
    assert error_headers(late) == {"retry-after": "7201", "x-should-retry": "false"}
    assert error_metadata(soon) == [("retry-after", "1"), ("grpc-retry-pushback-ms", "500")]
    assert error_metadata(late) == [("retry-after", "7201"), ("grpc-retry-pushback-ms", "-1")]


async def test_all_sessions_of_a_caller_share_the_text_they_may_have_unspoken(voices: list[NamedVoice]) -> None:
    stage = Stage(voices)

    def session() -> SpeechSession:
        return SpeechSession(stage.pipeline, SpeechRequest("", "anna"))

    with calling(anna(unspoken_characters=100)):
        first, second = session(), session()
        first.write("a" * 60)
        with pytest.raises(TextTooLongError, match="60 characters of all your streams wait"):
            second.write("b" * 41)
        second.write("b" * 40)
        with calling(Caller("bob", CallerLimits(unspoken_characters=100))):
            session().write("c" * 100)
        first.end()
        async for _ in first.audio():
            pass
        second.write("b" * 60)


def test_a_session_that_vanishes_takes_the_text_along_that_it_had() -> None:
    of_callers = Counter[str]()
    one = UnspokenText(10, of_callers, "anna")
    one.add(10)
    with pytest.raises(TextTooLongError):
        UnspokenText(10, of_callers, "anna").add(1)
    del one
    UnspokenText(10, of_callers, "anna").add(10)
    assert not of_callers


Events = list[tuple[float, float]]
EVENTS = st.lists(st.tuples(st.floats(0, 20_000), st.floats(0.1, 100)), max_size=30)


def used(events: Events) -> CallerLedger:
    """Count audio, each after a pause."""
    clock = ManualClock()
    ledger = CallerLedger(clock)
    for pause_s, audio_s in events:
        clock.seconds += pause_s
        ledger.add_audio("anna", audio_s)
    return ledger


def exact(events: Events, window_s: float) -> float:
    """Audio that was given in the last `window_s`."""
    now_s, at_s, total_s = sum(pause for pause, _ in events), 0.0, 0.0
    for pause_s, audio_s in events:
        at_s += pause_s
        total_s += audio_s if at_s > now_s - window_s else 0.0
    return total_s


@given(EVENTS)
def test_a_window_forgets_nothing_early_and_at_most_a_minute_late(events: Events) -> None:
    ledger = used(events)
    for window_s in (HOUR_S, DAY_S - MINUTE_S):
        found = ledger.audio_s("anna", window_s)
        assert exact(events, window_s) - 1e-6 <= found <= exact(events, window_s + MINUTE_S) + 1e-6


@given(EVENTS, st.floats(0.5, 500))
def test_after_the_wait_there_is_room_and_not_before(events: Events, limit_s: float) -> None:
    ledger = used(events)
    wait_s = ledger.audio_wait_s("anna", limit_s, HOUR_S)
    ledger._clock.seconds += wait_s + 1e-3  # type: ignore[attr-defined]
    assert ledger.audio_s("anna", HOUR_S) < limit_s + 1e-6
    if wait_s > 0:
        ledger._clock.seconds -= 2e-3  # type: ignore[attr-defined]
        assert ledger.audio_s("anna", HOUR_S) >= limit_s - 1e-6


def test_minutes_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = used([(1200.0, 7.0)] * 200)
    assert ledger._db.execute("SELECT COUNT(*) FROM audio").fetchone()[0] <= DAY_S / 1200.0 + 1
    monkeypatch.setattr("gateway.ledger.MAX_MINUTES", 2)
    for name in ("bob", "carl", "bob"):
        ledger.add_audio(name, 1.0)
    assert [ledger.audio_s(name, DAY_S) for name in ("anna", "bob", "carl")] == [0.0, 2.0, 1.0]
