"""The dialect of Riva's clients through a real server, with both services faked; what they send is what was seen."""

from __future__ import annotations

import asyncio
import json
import wave
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from riva.proto import riva_audio_pb2, riva_common_pb2, riva_tts_pb2

from gateway.dialects.grpc.riva_grpc import RivaServicer
from gateway.dialects.grpc.riva_request import read_request
from gateway.errors import TextTooLongError
from gateway.host import HostLimits
from gateway.text.styles import Style
from gateway.voices.registry import NamedVoice, VoiceRegistry
from tests.gateway.doors.grpc_door import PATIENCE_S, failure_of, listen, opened_grpc
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, ManualClock, make_host, make_pipeline, speech_deltas

ONE, TWO = "This is the first sentence.", "And here comes another one."
PCM = 50 * 960 * 2
"""Bytes of 50 tokens at 24 kHz."""


def order(text: str = ONE, **changes: Any) -> riva_tts_pb2.SynthesizeSpeechRequest:
    """Make a request as nvidia-riva-client does."""
    fields: dict[str, Any] = {"language_code": "en-US", "encoding": "LINEAR_PCM", "sample_rate_hz": 24000, **changes}
    return riva_tts_pb2.SynthesizeSpeechRequest(text=text, **fields)


def prompt(audio: bytes = b"RIFFmine", **fields: Any) -> riva_tts_pb2.ZeroShotData:
    return riva_tts_pb2.ZeroShotData(audio_prompt=audio, quality=20, **fields)


def words_of(responses: list[Any]) -> list[tuple[str, int, int]]:
    return [(word.word, word.start_time, word.end_time) for each in responses for word in each.meta.words]


async def test_a_text_is_answered_by_all_its_audio(voices: list[NamedVoice]) -> None:
    llm = FakeLLM(speech_deltas(50))
    async with opened_grpc(llm, FakeToken2Wav(), voices) as door:
        answer = await door.riva.Synthesize(order(id=riva_common_pb2.RequestId(value="mine")))
    assert answer.audio == np.full(50 * 960, 0.5 * 32767, "<i2").tobytes()
    assert (answer.id.value, answer.meta.text, answer.meta.processed_text) == ("mine", ONE, ONE)
    assert len(answer.meta.words) == 0
    assert llm.utterances[0].reference_text == "I am default."


@pytest.mark.parametrize(
    ("fields", "expected_bytes"),
    [
        pytest.param({"sample_rate_hz": 22050}, 2 * 22050 * 2, id="the client's default rate"),
        pytest.param({"sample_rate_hz": 44100}, 2 * 44100 * 2, id="44.1 kHz"),
        pytest.param({"sample_rate_hz": 0, "encoding": 0}, PCM, id="nothing said"),
        pytest.param({"sample_rate_hz": 8000, "encoding": "MULAW"}, 2 * 8000, id="mu-law"),
        pytest.param({"sample_rate_hz": 8000, "encoding": "ALAW"}, 2 * 8000, id="A-law"),
    ],
)
async def test_audio_is_of_the_encoding_and_rate_asked_for(
    voices: list[NamedVoice], fields: dict[str, Any], expected_bytes: int
) -> None:
    async with opened_grpc(FakeLLM(speech_deltas(50)), FakeToken2Wav(), voices) as door:
        whole = (await door.riva.Synthesize(order(**fields))).audio
        parts = await listen(door.riva.SynthesizeOnline(iter([order(**fields)])))
    assert whole == b"".join(part.audio for part in parts.messages)
    assert len(whole) == expected_bytes


@pytest.mark.parametrize(("encoding", "begins"), [("FLAC", b"fLaC"), ("OGGOPUS", b"OggS")])
async def test_compressed_texts_are_one_file(voices: list[NamedVoice], encoding: str, begins: bytes) -> None:
    async with opened_grpc(FakeLLM(speech_deltas(50)), FakeToken2Wav(), voices) as door:
        orders = [order(text, encoding=encoding, sample_rate_hz=22050) for text in (ONE, TWO)]
        parts = await listen(door.riva.SynthesizeOnline(iter(orders)))
    audio = b"".join(part.audio for part in parts.messages)
    assert audio.startswith(begins)
    assert len(parts.messages) > 10
    assert audio.count(b"OpusHead") + audio.count(b"fLaC") == 1


async def test_texts_are_spoken_in_order_each_going_on_from_the_one_before(voices: list[NamedVoice]) -> None:
    llm, token2wav = FakeLLM(speech_deltas(50)), FakeToken2Wav()
    async with opened_grpc(llm, token2wav, voices) as door:
        parts = await listen(door.riva.SynthesizeOnline(iter([order(ONE), order(TWO)])))
    assert [each.text for each in llm.utterances] == [ONE, TWO]
    assert llm.utterances[1].reference_text.endswith(ONE)
    assert sum(len(part.audio) for part in parts.messages) == 2 * PCM
    assert all(part.audio for part in parts.messages), "clients push whatever audio a message has"
    assert [part.meta.text for part in parts.messages if part.meta.text] == [ONE, TWO]


async def test_another_voice_begins_anew(voices: list[NamedVoice]) -> None:
    llm = FakeLLM(speech_deltas(50))
    async with opened_grpc(llm, FakeToken2Wav(), voices) as door:
        await listen(door.riva.SynthesizeOnline(iter([order(ONE), order(TWO, voice_name="anna")])))
    assert llm.utterances[1].reference_text == "I am anna."


async def test_texts_sent_over_time_are_answered_over_time(voices: list[NamedVoice]) -> None:
    async with opened_grpc(FakeLLM(speech_deltas(50)), FakeToken2Wav(), voices) as door:
        call = door.riva.SynthesizeOnline()
        for text in (ONE, TWO):
            await call.write(order(text))
            heard = 0
            while heard < PCM:
                heard += len((await asyncio.wait_for(call.read(), PATIENCE_S)).audio)
        await call.done_writing()
        assert (await listen(call)).messages == []


@pytest.mark.parametrize("text", ["", "  \n", "...", "😀"])
async def test_a_text_with_nothing_to_say_is_silence_between_the_others(voices: list[NamedVoice], text: str) -> None:
    async with opened_grpc(FakeLLM(speech_deltas(50)), FakeToken2Wav(), voices) as door:
        parts = await listen(door.riva.SynthesizeOnline(iter([order(ONE), order(text), order(TWO)])))
    assert sum(len(part.audio) for part in parts.messages) == 2 * PCM


async def test_words_are_timed_if_asked_for(voices: list[NamedVoice]) -> None:
    asked = order("One two three.", enable_word_time_offsets=True)
    # NOTE: a word's time is estimated from the tokens that have come by then; here all come at once.
    async with opened_grpc(FakeLLM(speech_deltas(50, per_delta=50)), FakeToken2Wav(), voices) as door:
        whole = words_of([await door.riva.Synthesize(asked)])
        online = words_of((await listen(door.riva.SynthesizeOnline(iter([asked])))).messages)
    assert [word for word, _, _ in whole] == ["One", "two", "three."]
    assert whole == online
    assert whole[0][1] == 0 and whole[-1][2] == 2000


@pytest.mark.parametrize("name", ["anna", "cosydit.anna"])
async def test_a_voice_is_found_by_its_name_and_as_it_is_listed(voices: list[NamedVoice], name: str) -> None:
    llm = FakeLLM(speech_deltas(5))
    async with opened_grpc(llm, FakeToken2Wav(), voices) as door:
        await door.riva.Synthesize(order(voice_name=name))
    assert llm.utterances[0].reference_text == "I am anna."


async def test_the_voices_are_listed_as_clients_read_them(voices: list[NamedVoice]) -> None:
    async with opened_grpc(FakeLLM([]), FakeToken2Wav(), voices) as door:
        answer = await door.riva.GetRivaSynthesisConfig(riva_tts_pb2.RivaSynthesisConfigRequest())
        other = await door.riva.GetRivaSynthesisConfig(riva_tts_pb2.RivaSynthesisConfigRequest(model_name="other"))
    (model,) = answer.model_config
    assert model.parameters["voice_name"] == "cosydit"
    assert model.parameters["subvoices"] == "anna:0,default:1"
    anna = {"description": "A woman, warm and quick, German.", "gender": "female", "language": "de-DE"}
    assert json.loads(model.parameters["subvoice_profiles"]) == {"anna": anna, "default": {}}
    assert len(other.model_config) == 0


@pytest.mark.parametrize("transcript", ["", "I am new."])
async def test_a_prompt_speaks_with_and_without_transcript(voices: list[NamedVoice], transcript: str) -> None:
    token2wav, llm = FakeToken2Wav(), FakeLLM(speech_deltas(50))
    zero_shot = prompt(transcript=transcript)
    async with opened_grpc(llm, token2wav, voices) as door:
        await door.riva.Synthesize(order(zero_shot_data=zero_shot))
        await listen(door.riva.SynthesizeOnline(iter([order(zero_shot_data=zero_shot)])))
    assert token2wav.registrations == [b"RIFFmine"], "the file as it is, so that its own header tells the rate"
    assert [each.reference_text for each in llm.utterances] == [transcript] * 2
    assert bool(llm.utterances[0].reference_tokens) == bool(transcript)


async def test_a_prompt_without_header_gets_one(voices: list[NamedVoice]) -> None:
    token2wav, pcm = FakeToken2Wav(), np.arange(100, dtype="<i2").tobytes()
    zero_shot = prompt(pcm, encoding="LINEAR_PCM", sample_rate_hz=22050)
    async with opened_grpc(FakeLLM(speech_deltas(5)), token2wav, voices) as door:
        await door.riva.Synthesize(order(zero_shot_data=zero_shot))
    (registered,) = token2wav.registrations
    assert isinstance(registered, bytes)
    with wave.open(BytesIO(registered)) as wav:
        assert (wav.getframerate(), wav.readframes(100)) == (22050, pcm)


@pytest.mark.parametrize(
    ("text", "language", "normalized_as"),
    [
        pytest.param("I have 2 cats.", "en-US", "en-US", id="the client's default fits"),
        pytest.param("我有2只猫。", "en-US", None, id="the client's default does not fit"),
        pytest.param("我有2只猫。", "zh-CN", "zh-CN", id="said"),
        pytest.param("I have 2 cats.", "", None, id="nothing said"),
    ],
)
def test_the_language_that_clients_send_unasked_is_not_forced_on_other_scripts(
    text: str, language: str, normalized_as: str | None
) -> None:
    read = read_request(order(text, language_code=language), lambda name: True)
    assert read.speech.text_options.language == normalized_as


@pytest.mark.parametrize(
    ("name", "voice", "style"),
    [
        ("cosydit.anna.Happy", "anna", Style("happy", "voice_name")),
        ("anna.happy", "anna", Style("happy", "voice_name")),
        ("cosydit.Happy", "default", Style("happy", "voice_name")),
        ("anna.Neutral", "anna", None),
    ],
)
def test_a_voice_s_name_ends_in_its_style(name: str, voice: str, style: Style | None) -> None:
    speech = read_request(order(voice_name=name), lambda name: name == "anna").speech
    assert (speech.voice, speech.text_options.style) == (voice, style)


@pytest.mark.parametrize(
    ("asked", "details"),
    [
        (order(""), "text is empty"),
        (order("🙂 ..."), "nothing to say"),
        (order(voice_name="nobody"), "nobody"),
        (order(voice_name="anna.Greedy"), "anna.Greedy"),
        (order(sample_rate_hz=7999), "7999"),
        (order(encoding=19), "19"),
        (order(custom_dictionary="a b"), "custom_dictionary"),
        (order(custom_configuration={"a": "1"}), "custom_configuration"),
        (order(zero_shot_data=prompt(b"")), "empty"),
        (order(zero_shot_data=prompt(b"\0" * 9)), "rate"),
        (order(zero_shot_data=prompt(b"\0\0", encoding=riva_audio_pb2.MULAW)), "WAV"),
        (order(zero_shot_data=prompt(transcript="x" * 2001)), "2001"),
        (order(language_code="e"), "language"),
    ],
    ids=range(13),
)
async def test_a_bad_request_is_told_what_is_wrong(voices: list[NamedVoice], asked: Any, details: str) -> None:
    llm = FakeLLM(speech_deltas(5))
    async with opened_grpc(llm, FakeToken2Wav(), voices) as door:
        status, got, metadata = await failure_of(door.riva.Synthesize(asked))
    assert status.name == ("NOT_FOUND" if asked.voice_name else "INVALID_ARGUMENT")
    assert details in got and metadata["error-code"]
    assert llm.utterances == []


async def test_audio_that_no_message_can_hold_is_refused_while_it_is_made(voices: list[NamedVoice]) -> None:
    token2wav = FakeToken2Wav()
    pipeline = make_pipeline(FakeLLM(speech_deltas(100)), token2wav, voices)
    with ThreadPoolExecutor(1) as executor:
        servicer = RivaServicer(make_host(pipeline, VoiceRegistry(token2wav, voices), executor))
        servicer.max_answer_bytes = PCM
        with pytest.raises(TextTooLongError, match="use SynthesizeOnline"):
            await servicer.Synthesize(order(), SimpleNamespace(time_remaining=lambda: None))
    assert token2wav.open_streams == 0


async def test_a_caller_that_drops_the_call_frees_everything(voices: list[NamedVoice]) -> None:
    llm, token2wav = FakeLLM(speech_deltas(400), gate=asyncio.Event(), ungated=100), FakeToken2Wav()
    async with opened_grpc(llm, token2wav, voices) as door:
        call = door.riva.SynthesizeOnline(iter([order(ONE), order(TWO)]))
        await call.read()
        call.cancel()
        await door.until_idle()
    assert len(llm.utterances) == 1


async def test_a_caller_that_says_nothing_when_interrupted_gets_only_the_run_ahead(voices: list[NamedVoice]) -> None:
    limits, clock = HostLimits(run_ahead_s=1.0), ManualClock()
    async with opened_grpc(FakeLLM(speech_deltas(250)), FakeToken2Wav(), voices, clock=clock, limits=limits) as door:
        call = door.riva.SynthesizeOnline(iter([order(ONE)]))
        await _read_bytes(call, 24000 * 2)
        assert await _is_silent(asyncio.ensure_future(call.read()))
        call.cancel()


async def test_a_call_ends_when_its_audio_is_nearly_played(voices: list[NamedVoice]) -> None:
    limits, clock = HostLimits(run_ahead_s=0.5), ManualClock()
    async with opened_grpc(FakeLLM(speech_deltas(10)), FakeToken2Wav(), voices, clock=clock, limits=limits) as door:
        call = door.riva.SynthesizeOnline(iter([order(ONE)]))
        await _read_bytes(call, 10 * 960 * 2)
        end = asyncio.ensure_future(call.read())
        assert await _is_silent(end), "the next sentence would come 0.4 s before its time"
        clock.seconds = 0.2
        assert await asyncio.wait_for(end, PATIENCE_S) is grpc.aio.EOF


async def _read_bytes(call: Any, expected_bytes: int) -> None:
    """Read just so much audio."""
    heard = 0
    while heard < expected_bytes:
        heard += len((await asyncio.wait_for(call.read(), PATIENCE_S)).audio)
    assert heard == expected_bytes


async def _is_silent(reading: asyncio.Future[Any]) -> bool:
    """Tell whether nothing more comes while the clock stands still."""
    done, _ = await asyncio.wait({reading}, timeout=0.1)
    return not done
