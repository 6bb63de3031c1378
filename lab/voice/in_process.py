"""Both services in this process and the gateway's own path in front of them, for studies of what is spoken.

The models, the sampler, the token2wav engine, the front end and the chunk policy are those of a served checkpoint with
default settings; only the wires between them are left out. One thread, one text at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import numpy as np

from gateway.chunking.chunker import TokenChunk
from gateway.chunking.policies import ChunkPolicy, ExponentialChunks
from gateway.core import (
    AudioChunk,
    FloatArray,
    RegisteredVoice,
    Sampling,
    SpeechLM,
    SpeechTokenDelta,
    Token2Wav,
    Utterance,
)
from gateway.llm.wire import LLMWire
from gateway.speech.guard import GuardMode, GuardSettings
from gateway.speech.prosody_carry import CarryLimits
from gateway.speech.request import SpeechRequest
from gateway.speech.speaker import PipelineSettings, Speaker
from gateway.text import load_text_front_end
from gateway.voices.registry import VoiceRegistry, load_voices
from llm_service.aligner import load_aligner
from llm_service.embedded.eager import eager_engine
from llm_service.embedded.engine import EngineLimits
from llm_service.embedded.model import SpeechLanguageModel
from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.types import GenerationRequest, SamplingParams
from llm_service.speech_bounds import load_speech_bounds
from llm_service.text_encoder import load_text_encoder
from servicekit.checkpoint_file import find_declaration
from servicekit.clock import SystemClock
from token2wav_service.build import build_engine
from token2wav_service.config import Token2WavConfig
from token2wav_service.contract import DEFAULT_PRIORITY
from token2wav_service.features.audio import load_prompt_audio
from token2wav_service.types import AudioChunk as EngineAudio
from token2wav_service.types import StreamOptions, VoicePrompt
from token2wav_service.types import TokenChunk as EngineChunk

_MAX_SEQUENCE_TOKENS = 2048


class EmbeddedLM:
    """Implements `gateway.core.SpeechLM` over the embedded engine, one answer at a time."""

    def __init__(self, llm_dir: Path) -> None:
        """Load the model on the CPU, as the embedded server does."""
        encoder = load_text_encoder(llm_dir)
        self._wire = LLMWire(encoder)
        self._vocabulary = encoder.vocabulary
        self._model = SpeechLanguageModel.load(llm_dir, "cpu", "float32")
        self._model.allocate_cache(1, _MAX_SEQUENCE_TOKENS, rows_per_forward=1)
        self._limits = EngineLimits(1, _MAX_SEQUENCE_TOKENS)
        self._names = count()

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        """See `SpeechLM.generate`."""
        if self._wire.is_spoken_out(utterance):
            yield SpeechTokenDelta((), "length")
            return
        engine = eager_engine(self._model, self._limits, RepetitionGuard(), SystemClock(), self._vocabulary)
        engine.add_request(self._request(utterance, sampling, seed))
        while engine.idle_s() == 0:
            for output in engine.step():
                if output.error is not None:
                    raise output.error
                reason = output.finish_reason
                ids = tuple(self._vocabulary.speech_id(each) for each in output.token_ids)
                yield SpeechTokenDelta(ids, None if reason is None else reason.value)
            await asyncio.sleep(0)

    async def is_ready(self) -> bool:
        """See `SpeechLM.is_ready`."""
        return True

    def _request(self, utterance: Utterance, sampling: Sampling, seed: int) -> GenerationRequest:
        prompt = self._wire.token_prompt(utterance)
        params = SamplingParams(
            max_tokens=prompt.bounds.max_tokens,
            min_tokens=prompt.bounds.min_tokens,
            seed=seed,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            repetition_penalty=sampling.repetition_penalty,
            stop_token_ids=frozenset(self._vocabulary.end_ids),
        )
        return GenerationRequest(str(next(self._names)), prompt.token_ids, params)


class EngineToken2Wav:
    """Implements `gateway.core.Token2Wav` over an engine of this process; every chunk is made when it is pushed."""

    def __init__(self, token2wav_dir: Path) -> None:
        """Load the models on the CPU."""
        config = Token2WavConfig(model_dir=token2wav_dir, num_threads=1)
        self.engine = build_engine(config, SystemClock())

    async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice:
        """See `Token2Wav.register_voice`."""
        samples = load_prompt_audio(audio) if isinstance(audio, bytes) else audio
        features = self.engine.voices.register(VoicePrompt(samples))
        return RegisteredVoice(features.voice_id, tuple(features.prompt_tokens.tolist()))

    @asynccontextmanager
    async def open_stream(
        self, voice_id: str, seed: int, priority: int = DEFAULT_PRIORITY
    ) -> AsyncIterator[_EngineStream]:
        """See `Token2Wav.open_stream`."""
        stream_id = self.engine.open_stream(voice_id, StreamOptions(seed))
        try:
            yield _EngineStream(self, stream_id)
        finally:
            self.engine.abort(stream_id)

    async def is_ready(self) -> bool:
        """See `Token2Wav.is_ready`."""
        return True


class _EngineStream:
    hop_multiple = 1

    def __init__(self, owner: EngineToken2Wav, stream_id: str) -> None:
        self._engine = owner.engine
        self.stream_id = stream_id

    def push(self, chunk: TokenChunk) -> asyncio.Future[AudioChunk]:
        """See `Token2WavStream.push`."""
        future: asyncio.Future[AudioChunk] = asyncio.get_running_loop().create_future()
        self._engine.add_chunk(EngineChunk(self.stream_id, chunk.index, chunk.token_ids, chunk.is_last))
        (result,) = self._engine.step()
        if isinstance(result.outcome, EngineAudio):
            future.set_result(AudioChunk(chunk.index, np.asarray(result.outcome.samples), chunk.is_last))
        else:
            future.set_exception(result.outcome)
        return future


def make_pipeline(
    checkpoint: Path, llm: SpeechLM, token2wav: Token2Wav, guard: GuardMode, policy: ChunkPolicy | None = None
) -> Speaker:
    """Put the gateway's path together over both services, with the settings that the checkpoint asks for.

    Args:
        checkpoint: directory with llm/, token2wav/ and voices/.
        llm: its LLM, perhaps wrapped.
        token2wav: its token2wav, or a stand-in.
        guard: what is done where speech leaves its text.
        policy: of chunks; None: exponential, which cuts alike on machines of any speed.
    """
    llm_dir = checkpoint / "llm"
    aligner = load_aligner(llm_dir)
    bounds = load_speech_bounds(llm_dir)
    voices = VoiceRegistry(token2wav, load_voices(checkpoint / "voices"))
    settings = PipelineSettings(
        chunk_policy=policy or ExponentialChunks(),
        carry=CarryLimits.within(bounds),
        guard=GuardSettings.of_checkpoint(guard, bounds, aligner),
        aligner=aligner,
    )
    front_end = load_text_front_end(bounds.segment_letters, find_declaration(llm_dir))
    return Speaker(llm, token2wav, voices, settings, front_end=front_end)


def open_pipeline(checkpoint: Path) -> Speaker:
    """Load a checkpoint with llm/, token2wav/ and voices/, and speak as it would be served."""
    token2wav = EngineToken2Wav(checkpoint / "token2wav")
    return make_pipeline(checkpoint, EmbeddedLM(checkpoint / "llm"), token2wav, GuardMode.MEND)


def speak(pipeline: Speaker, text: str, voice: str, seed: int) -> FloatArray:
    """Return all samples of a text, [N] in +-1 at 24 kHz."""

    async def whole() -> FloatArray:
        request = SpeechRequest(text, voice, seed)
        return np.concatenate([chunk.samples async for chunk in pipeline.synthesize(request)])

    return asyncio.run(whole())
