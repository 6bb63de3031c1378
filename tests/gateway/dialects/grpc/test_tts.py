"""Our own gRPC dialect through a real server, with both services faked."""

from __future__ import annotations

import asyncio
import math
import wave
from io import BytesIO
from typing import Any

import grpc
import numpy as np
import pytest
from tts_api.tts.v1 import speech_pb2, tts_service_pb2

from gateway.errors import LLMInterruptedError
from gateway.host import HostLimits
from gateway.voices.profile import Gender
from gateway.voices.registry import NamedVoice
from tests.gateway.doors.grpc_door import CANCEL, CONFIG, END, FLUSH, Heard, failure_of, listen, opened_grpc, say
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, ManualClock, speech_deltas
from tests.gateway.speech.test_interleaved import TakingLLM

HALF = np.float32(0.5)
ONE, TWO = "This is the first sentence. ", "And here comes another one, a little longer. "
SpeechConfig, AudioFormat = speech_pb2.SpeechConfig, speech_pb2.AudioFormat


def whole(text: str = "Hello.", **config: Any) -> tts_service_pb2.SynthesizeRequest:
    return tts_service_pb2.SynthesizeRequest(text=text, config=SpeechConfig(**config))


async def test_a_text_is_answered_by_start_audio_and_finish(voices: list[NamedVoice]) -> None:
    llm = FakeLLM(speech_deltas(50))
    async with opened_grpc(llm, FakeToken2Wav(), voices) as door:
        heard = await listen(door.tts.Synthesize(whole(ONE, seed=7, request_id="mine")))
    assert heard.kinds == ["started", *["audio"] * len(heard.audio), "finished"]
    started = heard.messages[0].started
    assert (started.request_id, started.seed, started.audio_format.sample_rate_hz) == ("mine", 7, 24000)
    assert llm.seeds == [7]
    assert heard.content == np.full(50 * 960, int(HALF * 32767), "<i2").tobytes()
    assert heard.text == ONE
    finished = heard.finished
    assert finished.reason == speech_pb2.FINISH_REASON_COMPLETED
    assert finished.generated_samples == finished.sent_samples == 50 * 960
    assert (finished.sent_characters, finished.spoken_text) == (len(ONE), ONE)
    assert heard.audio[-1].is_turn_end and heard.audio[-1].end_s == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("audio_format", "expected_bytes"),
    [
        pytest.param({"sample_rate_hz": 16000}, 2 * 16000 * 2, id="16 kHz"),
        pytest.param({"encoding": "AUDIO_ENCODING_MULAW", "sample_rate_hz": 8000}, 2 * 8000, id="mu-law"),
        pytest.param({"encoding": "AUDIO_ENCODING_ALAW"}, 2 * 24000, id="A-law"),
        pytest.param({"encoding": "AUDIO_ENCODING_WAV"}, 2 * 24000 * 2 + 44, id="WAV"),
    ],
)
async def test_the_audio_is_of_the_format_asked_for(
    voices: list[NamedVoice], audio_format: dict[str, Any], expected_bytes: int
) -> None:
    async with opened_grpc(FakeLLM(speech_deltas(50)), FakeToken2Wav(), voices) as door:
        heard = await listen(door.tts.Synthesize(whole(audio_format=AudioFormat(**audio_format))))
    assert len(heard.content) == expected_bytes


@pytest.mark.parametrize(
    ("encoding", "begins"),
    [
        pytest.param("MP3", b"\xff", id="MP3"),
        pytest.param("OGG_OPUS", b"OggS", id="Opus"),
        pytest.param("AAC", b"\xff", id="AAC"),
        pytest.param("FLAC", b"fLaC", id="FLAC"),
    ],
)
async def test_compressed_audio_comes_while_it_is_made(voices: list[NamedVoice], encoding: str, begins: bytes) -> None:
    async with opened_grpc(FakeLLM(speech_deltas(50)), FakeToken2Wav(), voices) as door:
        request = whole(audio_format=AudioFormat(encoding=f"AUDIO_ENCODING_{encoding}"))
        heard = await listen(door.tts.Synthesize(request))
    assert heard.content.startswith(begins)
    assert sum(bool(audio.content) for audio in heard.audio) > 5
    assert (heard.messages[0].started.audio_format.bit_rate_kbps > 0) == (encoding != "FLAC")


async def test_faster_speech_is_shorter_and_its_times_too(voices: list[NamedVoice]) -> None:
    async with opened_grpc(FakeLLM(speech_deltas(50)), FakeToken2Wav(), voices) as door:
        heard = await listen(door.tts.Synthesize(whole(ONE, speed=2.0)))
    assert len(heard.content) == 24000 * 2
    assert heard.audio[-1].characters[-1].end_s == pytest.approx(1.0)
    assert heard.finished.sent_samples == 50 * 960


async def test_a_voice_prompt_speaks(voices: list[NamedVoice]) -> None:
    token2wav, llm = FakeToken2Wav(), FakeLLM(speech_deltas(10))
    prompt = speech_pb2.VoicePrompt(audio=b"RIFFmine", transcript=" I\u00a0am ne\u00adw. ")
    async with opened_grpc(llm, token2wav, voices) as door:
        await listen(door.tts.Synthesize(whole(voice=speech_pb2.Voice(prompt=prompt))))
    assert token2wav.registrations == [b"RIFFmine"]
    assert llm.utterances[0].reference_text == "I am new."


PROMPT = speech_pb2.Voice(prompt=speech_pb2.VoicePrompt())


@pytest.mark.parametrize(
    ("asked", "error_code", "param"),
    [
        (whole(""), "invalid_text", "input"),
        (whole("🙂 ..."), "invalid_text", "input"),
        (whole("x" * 100_001), "text_too_long", "input"),
        (whole(voice=speech_pb2.Voice(name="v" * 5000)), "voice_not_found", "voice"),
        (whole(voice=PROMPT), "invalid_voice_prompt", "voice"),
        (whole(audio_format=AudioFormat(encoding=77)), "unsupported_option", "audio_format"),
        (whole(audio_format=AudioFormat(sample_rate_hz=-1)), "unsupported_option", "sample_rate_hz"),
        (whole(speed=math.nan), "unsupported_option", "speed"),
        (whole(seed=-1), "invalid_request", "seed"),
        (whole(priority=11), "invalid_request", "priority"),
        (whole(language_code="e"), "invalid_request", "language"),
        (whole(run_ahead_s=math.nan), "invalid_request", "run_ahead_s"),
        (whole(request_id="a b"), "invalid_request", "request_id"),
        (whole(text_normalization=9), "unsupported_option", "text_normalization"),
        (whole(text_mode=9), "unsupported_option", "text_mode"),
        (whole(text_mode=speech_pb2.TEXT_MODE_INTERLEAVED), "unsupported_option", "text_mode"),
    ],
    ids=range(16),
)
async def test_a_bad_request_is_told_what_is_wrong(
    voices: list[NamedVoice], asked: tts_service_pb2.SynthesizeRequest, error_code: str, param: str
) -> None:
    llm = FakeLLM(speech_deltas(5))
    async with opened_grpc(llm, FakeToken2Wav(), voices) as door:
        status, details, metadata = await failure_of(door.tts.Synthesize(asked))
    assert status.name == ("NOT_FOUND" if error_code == "voice_not_found" else "INVALID_ARGUMENT")
    assert (metadata["error-code"], metadata["error-param"]) == (error_code, param)
    assert details and len(details) <= 1000
    assert llm.utterances == []


async def test_a_service_that_fails_leaves_the_audio_before_good(voices: list[NamedVoice]) -> None:
    llm = FakeLLM(speech_deltas(60)[:-1], LLMInterruptedError("it died; try again"))
    async with opened_grpc(llm, FakeToken2Wav(), voices) as door:
        heard, call = Heard(), door.tts.Synthesize(whole())
        with pytest.raises(grpc.aio.AioRpcError, match="the speech LLM was interrupted; try again") as failure:
            while True:
                heard.messages.append(await call.read())
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    assert len(heard.content) >= 15 * 960 * 2


async def test_an_error_that_nobody_foresaw_tells_nothing(voices: list[NamedVoice]) -> None:
    token2wav = FakeToken2Wav(open_failure=RuntimeError("secret path"))  # type: ignore[arg-type]
    async with opened_grpc(FakeLLM(speech_deltas(5)), token2wav, voices) as door:
        status, details, metadata = await failure_of(door.tts.Synthesize(whole()))
    assert status is grpc.StatusCode.INTERNAL
    assert "secret" not in details + str(metadata)


async def test_the_voices_are_listed(voices: list[NamedVoice]) -> None:
    async with opened_grpc(FakeLLM([]), FakeToken2Wav(), voices) as door:
        answer = await door.tts.ListVoices(tts_service_pb2.ListVoicesRequest())
    anna, default = answer.voices
    assert (anna.name, anna.description) == ("anna", "A woman, warm and quick, German.")
    assert (anna.gender, anna.language_code) == (tts_service_pb2.VOICE_GENDER_FEMALE, "de-DE")
    assert default == tts_service_pb2.VoiceInfo(name="default")


def test_every_gender_has_a_word_on_the_wire() -> None:
    words = {f"VOICE_GENDER_{gender.name}" for gender in Gender}
    assert words == set(tts_service_pb2.VoiceGender.keys()) - {"VOICE_GENDER_UNSPECIFIED"}


async def test_text_in_pieces_is_spoken_whole(voices: list[NamedVoice]) -> None:
    llm = FakeLLM(speech_deltas(30))
    async with opened_grpc(llm, FakeToken2Wav(), voices) as door:
        pieces = [say(text=character) for character in ONE + TWO]
        heard = await listen(door.tts.StreamingSynthesize(iter([CONFIG, *pieces])))
    assert heard.text == ONE + TWO == "".join(each.text for each in llm.utterances)
    assert len(heard.content) == 2 * heard.finished.sent_samples == 2 * 30 * 960 * len(llm.utterances)
    assert heard.finished.reason == speech_pb2.FINISH_REASON_COMPLETED
    assert heard.finished.sent_characters == len(ONE + TWO)


async def test_text_that_the_llm_takes_while_it_speaks_is_one_answer(voices: list[NamedVoice]) -> None:
    llm = TakingLLM()
    config = speech_pb2.SpeechConfig(text_mode=speech_pb2.TEXT_MODE_INTERLEAVED)
    asked = tts_service_pb2.StreamingSynthesizeRequest(config=config)
    async with opened_grpc(llm, FakeToken2Wav(), voices) as door:  # type: ignore[arg-type]
        pieces = [say(text=character) for character in ONE + TWO]
        heard = await listen(door.tts.StreamingSynthesize(iter([asked, *pieces])))
    assert ["".join(answer) for answer in llm.answers] == [ONE + TWO] and heard.text == ONE + TWO
    assert heard.finished.reason == speech_pb2.FINISH_REASON_COMPLETED


async def test_audio_leaves_before_the_text_ends(voices: list[NamedVoice]) -> None:
    async with opened_grpc(FakeLLM(speech_deltas(40)), FakeToken2Wav(), voices) as door:
        call = door.tts.StreamingSynthesize()
        await call.write(CONFIG)
        assert (await call.read()).HasField("started"), "the start comes before any text"
        await call.write(say(text=ONE + "And"))
        assert (await call.read()).audio.content
        await call.write(END)
        await listen(call)


async def test_a_flush_speaks_what_there_is_and_the_call_goes_on(voices: list[NamedVoice]) -> None:
    llm = FakeLLM(speech_deltas(30))
    async with opened_grpc(llm, FakeToken2Wav(), voices) as door:
        call = door.tts.StreamingSynthesize()
        for message in (CONFIG, say(text="No end"), FLUSH, FLUSH):
            await call.write(message)
        first = Heard()
        while not (first.audio and first.audio[-1].is_turn_end):
            first.messages.append(await call.read())
        await call.write(say(text="of it"))
        await call.done_writing()
        rest = await listen(call)
    assert [each.text for each in llm.utterances] == ["No end.", "of it."]
    assert len(first.content) == len(rest.content) == 30 * 960 * 2
    assert rest.audio[-1].end_s == pytest.approx(60 / 25)


@pytest.mark.parametrize("encoding", ["AUDIO_ENCODING_PCM_S16LE", "AUDIO_ENCODING_OGG_OPUS"])
async def test_a_cancel_stops_both_services_and_tells_how_far_speech_came(
    voices: list[NamedVoice], encoding: str
) -> None:
    llm, token2wav = FakeLLM(speech_deltas(400), gate=asyncio.Event(), ungated=100), FakeToken2Wav()
    async with opened_grpc(llm, token2wav, voices) as door:
        call = door.tts.StreamingSynthesize()
        await call.write(say(config=SpeechConfig(audio_format=AudioFormat(encoding=encoding))))
        await call.write(say(text=ONE + TWO))
        heard = Heard([await call.read() for _ in range(8)])
        await call.write(CANCEL)
        heard.messages += (await listen(call)).messages
        assert (llm.running, token2wav.open_streams) == (0, 0), "both are free before the call ends"
    finished = heard.finished
    assert finished.reason == speech_pb2.FINISH_REASON_CANCELLED
    assert 0 < finished.sent_samples <= finished.generated_samples < 400 * 960
    assert (ONE + TWO).startswith(heard.text) and finished.sent_characters == len(heard.text)
    assert finished.spoken_text == ONE


async def test_a_cancel_after_the_end_of_the_text_stops_too(voices: list[NamedVoice]) -> None:
    llm = FakeLLM(speech_deltas(400), gate=asyncio.Event(), ungated=100)
    async with opened_grpc(llm, FakeToken2Wav(), voices) as door:
        call = door.tts.StreamingSynthesize()
        for message in (CONFIG, say(text=ONE), END):
            await call.write(message)
        await call.read()
        await call.write(CANCEL)
        assert (await listen(call)).finished.reason == speech_pb2.FINISH_REASON_CANCELLED


async def test_no_more_than_the_run_ahead_is_sent_before_it_is_played(voices: list[NamedVoice]) -> None:
    limits, clock = HostLimits(run_ahead_s=1.0), ManualClock()
    async with opened_grpc(FakeLLM(speech_deltas(250)), FakeToken2Wav(), voices, clock=clock, limits=limits) as door:
        call = door.tts.StreamingSynthesize()
        for message in (CONFIG, say(text=ONE), END):
            await call.write(message)
        heard = Heard()
        while not heard.audio or heard.audio[-1].end_s < 0.99:
            heard.messages.append(await call.read())
        await call.write(CANCEL)
        finished = (await listen(call)).finished
    assert finished.sent_samples == 24000 < finished.generated_samples


async def test_a_caller_may_choose_its_run_ahead(voices: list[NamedVoice]) -> None:
    async with opened_grpc(FakeLLM(speech_deltas(250)), FakeToken2Wav(), voices, clock=ManualClock()) as door:
        call = door.tts.Synthesize(whole(run_ahead_s=0.5))
        heard = Heard()
        while not heard.audio or heard.audio[-1].end_s < 0.49:
            heard.messages.append(await call.read())
        reading = asyncio.ensure_future(call.read())
        assert not (await asyncio.wait({reading}, timeout=0.1))[0], "the clock stands still"
        call.cancel()


@pytest.mark.parametrize(
    ("messages", "details"),
    [
        pytest.param([], "without a message", id="nothing"),
        pytest.param([say(text="Hello.")], "got text first", id="no config"),
        pytest.param([CONFIG, CONFIG], "second config", id="two configs"),
        pytest.param([CONFIG, say()], "empty message", id="empty message"),
        pytest.param([CONFIG, say(text="Hello."), END, say(text="More.")], "after the end", id="text after the end"),
        pytest.param([CONFIG, say(text="x" * 20_001)], "limit", id="too much text"),
        pytest.param([say(config=SpeechConfig(voice=speech_pb2.Voice(name="nobody")))], "nobody", id="unknown voice"),
    ],
)
async def test_messages_out_of_order_are_refused(
    voices: list[NamedVoice], messages: list[tts_service_pb2.StreamingSynthesizeRequest], details: str
) -> None:
    llm = FakeLLM(speech_deltas(5), gate=asyncio.Event())
    async with opened_grpc(llm, FakeToken2Wav(), voices) as door:
        status, got, metadata = await failure_of(door.tts.StreamingSynthesize(iter(messages)))
    assert status in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    assert details in got and metadata["error-code"]


@pytest.mark.parametrize("text", ["", "  ", "...\n"])
async def test_streamed_text_with_nothing_to_say_is_silence(voices: list[NamedVoice], text: str) -> None:
    async with opened_grpc(FakeLLM([]), FakeToken2Wav(), voices) as door:
        heard = await listen(door.tts.StreamingSynthesize(iter([CONFIG, say(text=text), FLUSH])))
    assert heard.kinds == ["started", "finished"]


async def test_a_wav_without_speech_is_still_a_file(voices: list[NamedVoice]) -> None:
    config = say(config=SpeechConfig(audio_format=AudioFormat(encoding="AUDIO_ENCODING_WAV")))
    async with opened_grpc(FakeLLM([]), FakeToken2Wav(), voices) as door:
        heard = await listen(door.tts.StreamingSynthesize(iter([config])))
    with wave.open(BytesIO(heard.content)) as wav:
        assert wav.getframerate() == 24000
