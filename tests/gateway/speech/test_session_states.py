"""A session in any order of writing, flushing, listening, failing and leaving: both services are freed."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway import errors
from gateway.speech.request import SpeechRequest
from gateway.speech.session import SessionAudio, SpeechSession
from gateway.voices.profile import VoiceProfile
from gateway.voices.registry import NamedVoice
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, make_pipeline, speech_deltas
from tests.workers import is_whole

MAX_UNSPOKEN = 120
NEVER_S = 1e6
pieces = st.sampled_from(["Hello", " there. ", "One two three, ", "four. ", "Five! ", " six seven", "\n"])


class SessionStates(RuleBasedStateMachine):
    """What is heard belongs to what was written, in order; an end of any kind leaves nothing behind."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        recording = Path(self.folder.name) / "anna.wav"
        recording.write_bytes(b"RIFFanna")
        voice = NamedVoice("anna", recording, "I am anna.", VoiceProfile())
        self.llm, self.token2wav = FakeLLM(speech_deltas(12)), FakeToken2Wav()
        self.pipeline = make_pipeline(self.llm, self.token2wav, [voice])
        self.loop.run_until_complete(self._begin())
        self.written, self.heard = "", list[SessionAudio]()
        self.has_ended = self.is_over = False
        self.listening: asyncio.Task[SessionAudio] | None = None

    async def _begin(self) -> None:
        async for _ in self.pipeline.synthesize(SpeechRequest("A.", "anna", seed=1)):
            pass  # the voice is read by a thread, once; from here on the loop's rounds alone decide
        self.session = SpeechSession(self.pipeline, SpeechRequest("", "anna", seed=1), NEVER_S, MAX_UNSPOKEN)
        self.audio: AsyncGenerator[SessionAudio] = self.session.audio()

    @rule(piece=pieces)
    def write(self, piece: str) -> None:
        try:
            self.session.write(piece)
        except errors.TextTooLongError:
            assert len(self.written) + len(piece) > MAX_UNSPOKEN
        except errors.InvalidTextError:
            assert self.has_ended
        else:
            self.written += piece

    @rule(how=st.sampled_from(("cut", "flush")))
    def mark(self, how: str) -> None:
        try:
            getattr(self.session, how)()
        except errors.InvalidTextError:
            assert self.has_ended

    @rule()
    def end(self) -> None:
        self.session.end()
        self.has_ended = True

    @precondition(lambda self: not self.is_over)
    @rule(times=st.integers(1, 600))
    def listen(self, times: int) -> None:
        self.loop.run_until_complete(self._listen(times))

    async def _listen(self, times: int) -> None:
        """Take what comes while the event loop goes round so often."""
        for _ in range(times):
            if self.listening is None:
                self.listening = asyncio.ensure_future(anext(self.audio))
            await asyncio.sleep(0)
            if self.listening.done():
                task, self.listening = self.listening, None
                try:
                    self.heard.append(task.result())
                except StopAsyncIteration:
                    self.is_over = True
                    assert self.has_ended
                    assert self._heard_text().strip() == self.written.strip(), "text was lost"
                    return
                except errors.GatewayError:
                    self.is_over = True
                    return

    @rule(gate=st.booleans())
    def hold_the_llm(self, gate: bool) -> None:
        self.llm.gate = asyncio.Event() if gate and self.llm.gate is None else self.llm.gate
        if not gate and self.llm.gate is not None:
            self.llm.gate.set()
            self.llm.gate = None

    @rule()
    def fail_the_llm(self) -> None:
        self.llm.error = errors.LLMFailedError("it failed")

    @rule(at=st.integers(0, 9))
    def fail_token2wav(self, at: int) -> None:
        self.token2wav.fail_at = at

    @precondition(lambda self: not self.is_over)
    @rule()
    def leave(self) -> None:
        self.loop.run_until_complete(self._leave())

    async def _leave(self) -> None:
        if self.listening is not None:
            self.listening.cancel()
            await asyncio.gather(self.listening, return_exceptions=True)
            self.listening = None
        await self.audio.aclose()
        self.is_over = True

    @invariant()
    def one_stream_at_most_and_none_when_over(self) -> None:
        most = 0 if self.is_over else 1
        assert self.token2wav.open_streams <= most
        assert self.llm.running <= (0 if self.is_over else 2)

    @invariant()
    def what_is_heard_was_written(self) -> None:
        assert self.written.startswith(self._heard_text())
        times = [each.start_s for piece in self.heard for each in piece.characters]
        assert times == sorted(times)
        assert sum(len(piece.samples) for piece in self.heard) == self.session.samples

    def teardown(self) -> None:
        if not self.is_over:
            self._end_well()
        self.one_stream_at_most_and_none_when_over()
        self.what_is_heard_was_written()
        self.loop.close()
        self.folder.cleanup()

    def _end_well(self) -> None:
        self.hold_the_llm(gate=False)
        self.end()
        self.listen(20_000)
        assert self.is_over

    def _heard_text(self) -> str:
        return "".join(each.character for piece in self.heard for each in piece.characters)


TestSessionStates = SessionStates.TestCase
TestSessionStates.settings = settings(max_examples=1000 if is_whole() else 40, stateful_step_count=25, deadline=None)
