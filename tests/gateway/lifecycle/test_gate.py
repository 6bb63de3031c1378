"""Who may begin to speak: before any service does work for it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.errors import LLMUnavailableError, NotReadyError, OverloadedError, Token2WavUnavailableError
from gateway.lifecycle.gate import Gate
from gateway.lifecycle.readiness import Readiness
from gateway.lifecycle.shutdown import drain
from gateway.llm.routed import RoutedSpeechLM
from gateway.speech.request import SpeechRequest
from gateway.speech.session import SessionAudio, SpeechSession
from gateway.speech.speaker import Speaker
from gateway.token2wav.routed import RoutedToken2Wav
from gateway.voices.registry import NamedVoice, VoiceRegistry
from servicekit.clock import SystemClock
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas
from tests.gateway.routing.fakes import QUICK, ScriptedLLM, ScriptedToken2Wav, routed, routed_llm, until

USUAL = 10


async def test_a_full_fleet_refuses_before_the_voice_or_the_llm_is_asked(tmp_path: Path) -> None:
    (tmp_path / "anna.wav").write_bytes(b"anna")
    llm, replica = ScriptedLLM("l"), ScriptedToken2Wav("a", slots=1)
    settings = dataclasses.replace(QUICK, admission_wait_s=0.05)
    async with routed_llm(llm) as llms, routed(replica, settings=settings) as token2wav:
        voices = VoiceRegistry(token2wav, [NamedVoice("anna", tmp_path / "anna.wav", "I am anna.")])
        gate = Gate(llms, token2wav, SystemClock())
        pipeline = Speaker(llms, token2wav, voices, admission=gate)
        voice = (await token2wav.register_voice(b"other")).voice_id
        async with gate.admitted(USUAL), token2wav.open_stream(voice, 1):
            with pytest.raises(OverloadedError):
                async for _ in pipeline.synthesize(SpeechRequest("Hello.", "anna")):
                    pass
        assert replica.registered == [b"other"]
        assert not llm.utterances


async def test_without_an_llm_nobody_is_let_in() -> None:
    llm, replica = ScriptedLLM("l", is_dead=True), ScriptedToken2Wav("a")
    async with routed_llm(llm) as llms, routed(replica) as token2wav:
        gate = Gate(llms, token2wav, SystemClock())
        await until(lambda: llms.fleet.choose() is None, "the ejection")
        with pytest.raises(LLMUnavailableError):
            async with gate.admitted(USUAL):
                raise AssertionError
        assert gate.speaking == 0


async def test_without_token2wav_all_are_refused_at_the_same_time_whatever_voice_they_want(tmp_path: Path) -> None:
    (tmp_path / "anna.wav").write_bytes(b"anna")
    llm, replica = ScriptedLLM("l"), ScriptedToken2Wav("a")
    settings = dataclasses.replace(QUICK, admission_wait_s=0.2)
    async with routed_llm(llm) as llms, routed(replica, settings=settings) as token2wav:
        pipeline = _pipeline(llms, token2wav, tmp_path)
        replica.die()
        await until(lambda: token2wav.fleet.choose() is None, "the ejection")
        asked = [asyncio.create_task(_say(pipeline)) for _ in range(40)]
        done, _ = await asyncio.wait(asked, timeout=40 * settings.admission_wait_s / 2)
        assert len(done) == 40
        assert {type(task.exception()) for task in done} == {Token2WavUnavailableError}


async def test_a_session_between_two_turns_is_waited_for_and_speaks_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "anna.wav").write_bytes(b"anna")
    async with routed_llm(ScriptedLLM("l")) as llms, routed(ScriptedToken2Wav("a")) as token2wav:
        gate = Gate(llms, token2wav, SystemClock())
        pipeline = _pipeline(llms, token2wav, tmp_path, gate)
        session = SpeechSession(pipeline, SpeechRequest("", "anna"))
        session.write("This is the first sentence.")
        session.flush()
        audio = session.audio()
        while not (await anext(audio)).is_turn_end:
            pass
        rest = asyncio.create_task(_count(audio))
        await until(lambda: gate.speaking == 0, "the end of the turn")
        gate.drain()
        stopping = asyncio.create_task(gate.until_idle())
        with pytest.raises(NotReadyError):
            await _say(pipeline)
        session.write("And this is the second one.")
        session.end()
        assert await rest > 0
        await stopping
        assert len(session.results) == 2


async def test_a_writer_who_is_silent_for_long_keeps_no_gateway_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "anna.wav").write_bytes(b"anna")
    monkeypatch.setattr("gateway.speech.session.WAITED_FOR_S", 0.05)
    async with routed_llm(ScriptedLLM("l")) as llms, routed(ScriptedToken2Wav("a")) as token2wav:
        gate = Gate(llms, token2wav, SystemClock())
        session = SpeechSession(_pipeline(llms, token2wav, tmp_path, gate), SpeechRequest("", "anna"))
        session.write("This is the first sentence.")
        session.flush()
        hearing = asyncio.create_task(_count(session.audio()))
        await until(lambda: session.samples > 0 and gate.speaking == 0, "the end of the turn")
        gate.drain()
        await asyncio.wait_for(gate.until_idle(), 10)
        session.write("And this is the second one.")
        session.flush()
        with pytest.raises(NotReadyError):
            await asyncio.wait_for(hearing, 10)


async def test_a_drained_gateway_is_not_ready_and_lets_streams_end() -> None:
    llm, replica = ScriptedLLM("l"), ScriptedToken2Wav("a")
    async with routed_llm(llm) as llms, routed(replica) as token2wav:
        gate = Gate(llms, token2wav, SystemClock())
        readiness = _ready()
        async with gate.admitted(USUAL):
            draining = asyncio.create_task(drain(gate, readiness, delay_s=0.1, timeout_s=5.0))
            await asyncio.sleep(0.02)
            with pytest.raises(NotReadyError, match="stopped"):
                await readiness.check()
            async with gate.admitted(USUAL):
                assert gate.speaking == 2  # still taken: not everybody has heard yet
            await until(lambda: gate.is_draining, "draining")
            with pytest.raises(NotReadyError):
                async with gate.admitted(USUAL):
                    raise AssertionError
            assert not draining.done()
        await draining


async def test_draining_ends_in_time_even_if_a_stream_does_not() -> None:
    async with routed_llm(ScriptedLLM("l")) as llms, routed(ScriptedToken2Wav("a")) as token2wav:
        gate = Gate(llms, token2wav, SystemClock())
        async with gate.admitted(USUAL):
            await drain(gate, _ready(), delay_s=0.0, timeout_s=0.05)


def _ready() -> Readiness:
    llm, token2wav = FakeLLM(speech_deltas(3)), FakeToken2Wav()
    return Readiness(Speaker(llm, token2wav, VoiceRegistry(token2wav)), llm, token2wav, "default")


def _pipeline(llms: RoutedSpeechLM, token2wav: RoutedToken2Wav, folder: Path, gate: Gate | None = None) -> Speaker:
    voices = VoiceRegistry(token2wav, [NamedVoice("anna", folder / "anna.wav", "I am anna.")])
    return Speaker(llms, token2wav, voices, admission=gate or Gate(llms, token2wav, SystemClock()))


async def _say(pipeline: Speaker) -> None:
    async for _ in pipeline.synthesize(SpeechRequest("Hello.", "anna")):
        pass


async def _count(audio: AsyncIterator[SessionAudio]) -> int:
    return sum([len(piece.samples) async for piece in audio])
