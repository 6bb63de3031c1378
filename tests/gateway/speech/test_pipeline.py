"""The pipeline with both services faked at their seams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from gateway import errors
from gateway.chunking.policies import DeadlineChunks, FixedChunks
from gateway.core import AudioChunk, SessionHold, SpeechTokenDelta
from gateway.speech.request import SpeechRequest, SpeechResult, decode_text
from gateway.speech.speaker import PipelineSettings, Speaker
from gateway.text import SpokenSegment, TextFrontEnd
from gateway.text.normalization.language import DeclaredLanguages
from gateway.voices.registry import NamedVoice, VoiceRegistry
from tests.gateway.fakes import (
    PROMPT_TOKENS,
    FakeLLM,
    FakeStream,
    FakeToken2Wav,
    ManualClock,
    make_pipeline,
    speech_deltas,
)


async def speak(pipeline: Speaker, request: SpeechRequest, result: SpeechResult | None = None) -> list[AudioChunk]:
    return [chunk async for chunk in pipeline.synthesize(request, result)]


def assert_all_is_freed(llm: FakeLLM, token2wav: FakeToken2Wav) -> None:
    assert llm.running == 0
    assert token2wav.open_streams == 0
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_a_long_text_is_spoken_by_segments_in_one_stream_each_going_on_from_the_last(
    voices: list[NamedVoice],
) -> None:
    llm, token2wav, result = FakeLLM(speech_deltas(60)), FakeToken2Wav(), SpeechResult()
    text = " ".join(f"This is sentence number {word}, and it goes on for a while." for word in ("a", "b", "c", "d") * 3)
    chunks = await speak(make_pipeline(llm, token2wav, voices), SpeechRequest(text, seed=5), result)
    said = len(llm.utterances)
    assert said > 2
    assert "".join(each.text for each in llm.utterances) == text == result.spoken_text
    assert len(token2wav.streams) == 1
    assert sum(len(c.samples) for c in chunks) == said * 60 * 960
    assert [span.first_token for span in result.spans] == [60 * index for index in range(said)]
    assert llm.utterances[1].reference_text.endswith(llm.utterances[0].text)
    assert len(llm.utterances[1].reference_tokens) == len(PROMPT_TOKENS) + 60
    first, *rest = (each.head_start_tokens for each in llm.utterances)
    assert 5 + 3 <= first <= 15 + 3 and not any(rest)
    assert llm.seeds == list(range(5, 5 + said))
    assert_all_is_freed(llm, token2wav)


async def test_the_llm_speaks_while_token2wav_leases_the_stream(voices: list[NamedVoice]) -> None:
    class SlowToOpen(FakeToken2Wav):
        @asynccontextmanager
        async def open_stream(self, voice_id: str, seed: int, priority: int = 10) -> AsyncIterator[FakeStream]:
            for _ in range(10):
                await asyncio.sleep(0)
            assert llm.utterances
            async with super().open_stream(voice_id, seed, priority) as stream:
                yield stream

    llm, token2wav = FakeLLM(speech_deltas(60)), SlowToOpen()
    assert await speak(make_pipeline(llm, token2wav, voices), SpeechRequest("Hello there."))
    assert_all_is_freed(llm, token2wav)


async def test_a_text_is_judged_foreign_while_the_llm_speaks_it(voices: list[NamedVoice]) -> None:
    asked_before: list[int] = []

    def guess(text: str) -> str:
        asked_before.append(len(llm.utterances))
        return "fr"

    llm, result = FakeLLM(speech_deltas(60)), SpeechResult()
    front_end = TextFrontEnd({}, lambda text: None, declared=DeclaredLanguages(["en"], guess))
    pipeline = make_pipeline(llm, FakeToken2Wav(), voices, front_end=front_end)
    await speak(pipeline, SpeechRequest("Une fois, il y a longtemps. " * 12), result)
    assert asked_before == [1, *range(1, len(llm.utterances))]
    assert result.foreign == ["fr"]


async def test_a_segment_cut_short_is_reported_and_not_gone_on_from(voices: list[NamedVoice]) -> None:
    llm, result = FakeLLM(speech_deltas(60, finish_reason="length")), SpeechResult()
    text = "This is a sentence that is long enough to be spoken for itself, as it must be here. " * 4
    await speak(make_pipeline(llm, FakeToken2Wav(), voices), SpeechRequest(text), result)
    assert len(llm.utterances) > 1
    assert result.is_truncated
    assert {len(each.reference_tokens) for each in llm.utterances} == {len(PROMPT_TOKENS)}


async def test_a_novel_is_not_read_ahead_of_its_listener(voices: list[NamedVoice]) -> None:
    llm, token2wav = FakeLLM(speech_deltas(300, per_delta=10)), FakeToken2Wav()
    request = SpeechRequest("This is one of very many sentences, and nobody can hear them all at once. " * 650)
    async with aclosing(make_pipeline(llm, token2wav, voices).synthesize(request)) as audio:
        await anext(audio)
        for _ in range(20_000):
            await asyncio.sleep(0)
        assert len(llm.utterances) < 25, "the rest waits until this has been heard"
    assert_all_is_freed(llm, token2wav)


async def test_every_token_is_heard_and_the_result_tells_all(voices: list[NamedVoice]) -> None:
    llm, token2wav, result = FakeLLM(speech_deltas(60)), FakeToken2Wav(), SpeechResult()
    chunks = await speak(make_pipeline(llm, token2wav, voices), SpeechRequest("hello", seed=5), result)
    assert sum(len(c.samples) for c in chunks) == 60 * 960 == result.audio_samples
    assert [c.is_last for c in chunks] == [False, False, True]
    assert result.chunk_schedule == [18, 28, 20] == [len(w.token_ids) for w in token2wav.streams[0].chunks]
    assert (result.finish_reason, result.speech_tokens, result.seed, result.stream_id) == ("stop", 60, 5, "stream-0")
    assert not result.is_truncated
    assert result.ttfa_s is not None and result.total_s is not None
    assert_all_is_freed(llm, token2wav)


async def test_a_seed_is_drawn_used_by_both_services_and_reported(voices: list[NamedVoice]) -> None:
    llm, seeds = FakeLLM(speech_deltas(5)), []
    for _ in range(3):
        result = SpeechResult()
        await speak(make_pipeline(llm, FakeToken2Wav(), voices), SpeechRequest("hello"), result)
        seeds.append(result.seed)
    assert llm.seeds == seeds
    assert len(set(seeds)) > 1


async def test_audio_is_heard_while_the_llm_still_speaks(voices: list[NamedVoice]) -> None:
    llm = FakeLLM(speech_deltas(60), gate=asyncio.Event(), ungated=18)
    token2wav = FakeToken2Wav()
    async with aclosing(make_pipeline(llm, token2wav, voices).synthesize(SpeechRequest("hello"))) as audio:
        first = await asyncio.wait_for(anext(audio), 2)
        assert len(first.samples) == 15 * 960
        assert llm.running == 1
    assert_all_is_freed(llm, token2wav)


async def test_the_llm_is_read_while_audio_is_awaited(voices: list[NamedVoice]) -> None:
    llm, token2wav = FakeLLM(speech_deltas(200)), FakeToken2Wav(is_held=True)
    task = asyncio.create_task(speak(make_pipeline(llm, token2wav, voices), SpeechRequest("hello")))
    while llm.running or not (token2wav.streams and token2wav.streams[0].chunks):
        await asyncio.sleep(0)
    assert len(token2wav.streams[0].chunks) > 1, "later chunks are pushed before the first one's audio"
    token2wav.is_held = False
    token2wav.streams[0].answer_all()
    assert sum(len(c.samples) for c in await task) == 200 * 960


async def test_a_slow_caller_bounds_the_windows_under_way(voices: list[NamedVoice]) -> None:
    llm, token2wav = FakeLLM(speech_deltas(900)), FakeToken2Wav()
    settings = PipelineSettings(FixedChunks(), pushes_ahead=1)
    async with aclosing(make_pipeline(llm, token2wav, voices, settings).synthesize(SpeechRequest("hi"))) as audio:
        await anext(audio)
        for _ in range(2000):
            await asyncio.sleep(0)
        assert len(token2wav.streams[0].chunks) == 3
    assert_all_is_freed(llm, token2wav)


class TimedLLM(FakeLLM):
    """Takes 10 ms for a token, on a clock that nobody else moves."""

    def __init__(self, tokens: int, clock: ManualClock) -> None:
        super().__init__(speech_deltas(tokens))
        self._clock = clock

    async def generate(self, *utterance: object) -> AsyncGenerator[SpeechTokenDelta]:
        for delta in self.deltas:
            self._clock.seconds += 0.01 * len(delta.token_ids)
            yield delta
            for _ in range(20):
                await asyncio.sleep(0)


async def test_the_deadline_policy_goes_by_what_the_pipeline_measures(voices: list[NamedVoice]) -> None:
    clock, token2wav, results = ManualClock(), FakeToken2Wav(), [SpeechResult(), SpeechResult()]
    settings = PipelineSettings(DeadlineChunks())
    pipeline = Speaker(TimedLLM(300, clock), token2wav, VoiceRegistry(token2wav, voices), settings, clock)
    for result in results:
        await speak(pipeline, SpeechRequest("hello"), result)
        assert result.audio_samples == 300 * 960
    first, second = (result.chunk_schedule[0] for result in results)
    assert second < first, "the first request taught the pipeline that chunks cost nothing here"
    assert max(results[1].chunk_schedule) == 103


@pytest.mark.parametrize(("callers", "ttfa_s"), [(1, 0.9), (2, 1.8)])
async def test_a_listener_beside_others_begins_when_the_next_chunk_would_come_in_time(
    callers: int, ttfa_s: float, voices: list[NamedVoice]
) -> None:
    clock, token2wav = ManualClock(), FakeToken2Wav(is_held=True)
    settings = PipelineSettings(FixedChunks(15, 15))
    pipeline = Speaker(FakeLLM(speech_deltas(90)), token2wav, VoiceRegistry(token2wav, voices), settings, clock)

    async def all_hear(results: list[SpeechResult], chunk_s: float) -> None:
        heard = [asyncio.create_task(speak(pipeline, SpeechRequest("hello"), result)) for result in results]
        while not all(task.done() for task in heard):
            for _ in range(300):
                await asyncio.sleep(0)
            clock.seconds += chunk_s
            for stream in token2wav.streams:
                waiting = stream.pending[1:]
                del stream.pending[1:]
                stream.answer_all()
                stream.pending += waiting
        assert [sum(len(chunk.samples) for chunk in task.result()) for task in heard] == [90 * 960] * len(heard)

    await all_hear([SpeechResult()], 0.1)  # the voice and what a chunk takes are known from now on
    results = [SpeechResult() for _ in range(callers)]
    await all_hear(results, 0.9)  # a chunk has 0.6 s of audio
    assert [result.ttfa_s for result in results] == [pytest.approx(ttfa_s)] * callers


async def test_a_failed_push_is_no_measurement(voices: list[NamedVoice]) -> None:
    token2wav = FakeToken2Wav(fail_at=1)
    pipeline = make_pipeline(FakeLLM(speech_deltas(200)), token2wav, voices, PipelineSettings(DeadlineChunks()))
    for _ in range(2):
        with pytest.raises(errors.Token2WavInterruptedError):
            await speak(pipeline, SpeechRequest("hello"))
    assert token2wav.open_streams == 0


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        pytest.param(SpeechRequest(""), errors.InvalidTextError, id="empty"),
        pytest.param(SpeechRequest(" \n\t"), errors.InvalidTextError, id="blank"),
        pytest.param(SpeechRequest("a\ud800b"), errors.InvalidTextError, id="lone surrogate"),
        pytest.param(SpeechRequest("x" * 100_001), errors.TextTooLongError, id="too long"),
        pytest.param(SpeechRequest("hi", "nobody"), errors.VoiceNotFoundError, id="unknown voice"),
        pytest.param(SpeechRequest("hi", "../../etc/passwd"), errors.VoiceNotFoundError, id="path as voice"),
        pytest.param(SpeechRequest("hi", seed=-1), errors.InvalidRequestError, id="seed"),
        pytest.param(SpeechRequest("hi", priority=11), errors.InvalidRequestError, id="priority"),
    ],
)
async def test_bad_input_is_refused_before_any_service_is_asked(
    voices: list[NamedVoice], request_: SpeechRequest, expected: type[errors.GatewayError]
) -> None:
    llm, token2wav = FakeLLM(speech_deltas(5)), FakeToken2Wav()
    with pytest.raises(expected):
        await speak(make_pipeline(llm, token2wav, voices), request_)
    assert (llm.utterances, token2wav.registrations, token2wav.streams) == ([], [], [])


def test_the_text_limit_is_named() -> None:
    with pytest.raises(errors.TextTooLongError, match="limit is 10"):
        from gateway.speech.request import check_request

        check_request(SpeechRequest("x" * 11), 10)


def test_bytes_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(errors.InvalidTextError, match="UTF-8"):
        decode_text("grün".encode("latin-1"))


@pytest.mark.parametrize("text", ["🙂 ...", "!?", " - "])
async def test_a_text_that_holds_nothing_to_say_is_refused_before_any_service_is_asked(
    voices: list[NamedVoice], text: str
) -> None:
    llm, token2wav = FakeLLM(speech_deltas(5)), FakeToken2Wav()
    with pytest.raises(errors.InvalidTextError, match="nothing to say") as refused:
        await speak(make_pipeline(llm, token2wav, voices), SpeechRequest(text))
    assert refused.value.param == "input"
    assert (llm.utterances, token2wav.registrations, token2wav.streams) == ([], [], [])


class _NoRoom:
    """An admission that refuses everybody."""

    def session_hold(self) -> SessionHold:
        raise NotImplementedError

    @asynccontextmanager
    async def admitted(
        self, priority: int, patience_s: float | None = None, is_under_way: bool = False
    ) -> AsyncIterator[None]:
        for nothing in ():
            yield nothing
        raise errors.OverloadedError("full", retry_after_s=1.0)


async def test_whoever_is_refused_costs_no_work_on_the_text(voices: list[NamedVoice]) -> None:
    prepared: list[str] = []

    async def segments() -> AsyncGenerator[SpokenSegment]:
        prepared.append("work")
        for nothing in ():
            yield nothing

    token2wav = FakeToken2Wav()
    speaker = Speaker(FakeLLM(speech_deltas(5)), token2wav, VoiceRegistry(token2wav, voices), admission=_NoRoom())
    with pytest.raises(errors.OverloadedError):
        async for _ in speaker.speak(SpeechRequest("hi"), segments()):
            pass
    assert prepared == []


async def test_an_llm_that_dies_midway_fails_after_the_audio_that_was_ready(voices: list[NamedVoice]) -> None:
    llm = FakeLLM(speech_deltas(40)[:-1], errors.LLMInterruptedError("it died; try again"))
    token2wav, heard = FakeToken2Wav(), []
    with pytest.raises(errors.LLMInterruptedError):
        async for chunk in make_pipeline(llm, token2wav, voices).synthesize(SpeechRequest("hello")):
            heard.append(chunk)
    assert [c.index for c in heard] == [0]
    assert_all_is_freed(llm, token2wav)


FAILURES: dict[str, tuple[type[errors.GatewayError], dict[str, Any], dict[str, Any]]] = {
    "no stream": (errors.StreamLostError, {}, {"open_failure": errors.StreamLostError("it died; try again")}),
    "no room": (errors.Token2WavBusyError, {}, {"open_failure": errors.Token2WavBusyError("full; retry")}),
    "token2wav dies midway": (errors.Token2WavInterruptedError, {}, {"fail_at": 1}),
    "no LLM": (errors.LLMUnavailableError, {"deltas": [], "error": errors.LLMUnavailableError("start it")}, {}),
    "no token": (errors.EmptySpeechError, {"deltas": speech_deltas(0)}, {}),
}


@pytest.mark.parametrize(("error", "llm", "token2wav"), FAILURES.values(), ids=FAILURES)
async def test_a_service_that_fails_frees_the_other(
    voices: list[NamedVoice], error: type[errors.GatewayError], llm: dict[str, Any], token2wav: dict[str, Any]
) -> None:
    speaking = {"deltas": speech_deltas(400), "gate": asyncio.Event(), "ungated": 100}
    services = FakeLLM(**{**speaking, **llm}), FakeToken2Wav(**token2wav)
    with pytest.raises(error):
        await speak(make_pipeline(*services, voices), SpeechRequest("hello"))
    assert_all_is_freed(*services)


@pytest.mark.parametrize("is_held", [True, False], ids=["awaiting audio", "awaiting tokens"])
async def test_cancelling_frees_both_services(voices: list[NamedVoice], is_held: bool) -> None:
    llm = FakeLLM(speech_deltas(100), gate=asyncio.Event(), ungated=30)
    token2wav = FakeToken2Wav(is_held=is_held)
    task = asyncio.create_task(speak(make_pipeline(llm, token2wav, voices), SpeechRequest("hello")))
    while not (token2wav.streams and token2wav.streams[0].chunks):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_all_is_freed(llm, token2wav)


async def test_an_evicted_voice_is_registered_again(voices: list[NamedVoice]) -> None:
    token2wav, result = FakeToken2Wav(), SpeechResult()
    pipeline = make_pipeline(FakeLLM(speech_deltas(5)), token2wav, voices)
    await speak(pipeline, SpeechRequest("one"))
    token2wav.voices.clear()
    assert await speak(pipeline, SpeechRequest("two"), result)
    assert len(token2wav.registrations) == 2
    assert result.voice_id == "voice-2"


async def test_a_voice_that_is_always_evicted_is_an_error_after_one_retry(voices: list[NamedVoice]) -> None:
    token2wav = FakeToken2Wav(open_failure=errors.VoiceEvictedError("gone"))
    with pytest.raises(errors.VoiceEvictedError):
        await speak(make_pipeline(FakeLLM(speech_deltas(5)), token2wav, voices), SpeechRequest("hello"))
    assert len(token2wav.registrations) == 2


async def test_concurrent_requests_do_not_mix(voices: list[NamedVoice]) -> None:
    token2wav = FakeToken2Wav()
    pipeline = make_pipeline(FakeLLM(speech_deltas(80)), token2wav, voices)
    heard = await asyncio.gather(*(speak(pipeline, SpeechRequest(f"text {i}")) for i in range(8)))
    assert [sum(len(c.samples) for c in chunks) for chunks in heard] == [80 * 960] * 8
    assert len(token2wav.registrations) == 1
    assert token2wav.open_streams == 0
