"""token2wav's real engine in virtual time: a `Runner` without a model, and the engine's loop as a task.

The runner's programs have the GPU runner's shapes; its audio is silence of the right length. The loop has the same
calls and callbacks as the real one; its steps take what the cost model says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from lab.simulate.compute import Compute, Jitter
from lab.simulate.costs import TOKEN2WAV, TOKEN2WAV_BESIDE, Token2WavCost
from servicekit.clock import Clock
from token2wav_service.contract import LOOKAHEAD_TOKENS, SPEECH_VOCAB_SIZE
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.engine.loop import OnResult, ServingLoop
from token2wav_service.engine.runner import BesideRoom, ChunkOutcome, ChunkWork, Finish, ModelFacts
from token2wav_service.errors import CapacityError
from token2wav_service.features.prompt_models import OnTokens, PromptFeatureExtractor, voice_id_of
from token2wav_service.runtime.slots.step_shapes import STEP_TOKENS, StepShapes
from token2wav_service.types import TokenChunk, VoiceFeatures, VoicePrompt

FRAMES_PER_TOKEN = 2
FRAME_SAMPLES = 480
HELD_FRAMES = 8
"""Frames that the vocoder holds back for its joins."""
VOICE_BYTES, STREAM_BYTES = 170_000_000, 70_000_000
PROMPT_TOKENS = 125
_LONGEST_S = 120
_SILENCE = np.zeros(24_000 * _LONGEST_S, np.float32)


@dataclass(frozen=True)
class ModelledVoice:
    """A voice of 5 s."""

    frames: int = FRAMES_PER_TOKEN * PROMPT_TOKENS
    num_bytes: int = VOICE_BYTES


@dataclass
class ModelledState:
    """How far a stream is; changed in place."""

    num_bytes: int = STREAM_BYTES
    mel_tail: int = 0
    has_speech: bool = False


class ModelledRunner:
    """Makes silence at once; what a batch takes is `StepCost`'s business."""

    def __init__(self, max_streams: int, shapes: StepShapes | None = None) -> None:
        """Begin with every slot free."""
        self.facts = ModelFacts(SPEECH_VOCAB_SIZE, LOOKAHEAD_TOKENS, FRAMES_PER_TOKEN)
        self.shapes = shapes or StepShapes()
        least = self.shapes.beside()
        self.queues = False
        self.beside: BesideRoom | None = BesideRoom(least.stream_buckets[-1], least.token_buckets[-1])
        self._free = max_streams

    def prepare_voice(self, features: VoiceFeatures) -> ModelledVoice:
        """See `Runner.prepare_voice`."""
        return ModelledVoice()

    def open(self, voice: ModelledVoice) -> ModelledState:
        """Take a slot.

        Raises:
            CapacityError: all are taken.
        """
        if not self._free:
            raise CapacityError("all slots are taken; retry later")
        self._free -= 1
        return ModelledState()

    def close(self, state: ModelledState) -> None:
        """Give the slot back."""
        self._free += 1

    def bucket(self, chunk: TokenChunk, state: ModelledState) -> int:
        """See `Runner.bucket`."""
        return self.shapes.token_bucket(_spoken(chunk))

    def step_size(self, bucket: int, ready: int, is_crowded: bool) -> int:
        """See `Runner.step_size`."""
        return self.shapes.step_size(bucket, ready, is_crowded)

    def program(self, works: Sequence[ChunkWork]) -> tuple[int, int]:
        """Return the streams and the tokens that the batch's program has room for."""
        return self.shapes.stream_bucket(len(works)), self.shapes.token_bucket(max(map(_spoken, works)))

    def launch(self, works: Sequence[ChunkWork], *, beside: bool = False) -> Finish:
        """See `Runner.launch`."""
        return lambda: [ChunkOutcome(_SILENCE[: self._advance(work)], work.state) for work in works]

    def _advance(self, work: ChunkWork) -> int:
        """Move a state on; returns the samples that are delivered."""
        state = work.state
        total = state.mel_tail + self.facts.new_frames(len(work.token_ids), work.is_last)
        is_ready = work.is_last or state.has_speech or total >= HELD_FRAMES
        state.mel_tail = min(total, HELD_FRAMES)
        if not is_ready:
            return 0
        state.has_speech = True
        frames: int = total - (0 if work.is_last else HELD_FRAMES)
        return frames * FRAME_SAMPLES


class ModelledExtractor(PromptFeatureExtractor):
    """Features of no prompt in particular, told apart by its samples."""

    def __init__(self) -> None:
        """Load nothing."""

    def extract(self, prompt: VoicePrompt, on_tokens: OnTokens = lambda tokens: None) -> VoiceFeatures:
        """See `PromptFeatureExtractor.extract`."""
        tokens = np.arange(PROMPT_TOKENS, dtype=np.int64)
        on_tokens(tokens)
        mel = np.zeros((FRAMES_PER_TOKEN * PROMPT_TOKENS, 80), np.float32)
        return VoiceFeatures(voice_id_of(prompt.samples), tokens, mel, np.zeros(192, np.float32))


def _spoken(chunk: TokenChunk | ChunkWork) -> int:
    return len(chunk.token_ids) - (0 if chunk.is_last else LOOKAHEAD_TOKENS)


class VirtualEngineLoop(ServingLoop):
    """Runs the real engine; a step takes what the cost model says."""

    def __init__(
        self,
        engine: Token2WavEngine,
        runner: ModelledRunner,
        cost: Token2WavCost,
        gpu: Compute,
        clock: Clock,
        draw: Random,
    ) -> None:
        """Keep the parts; `runner` is the engine's, `draw` gives its steps' times."""
        super().__init__(engine)
        self._runner = runner
        self._cost = cost
        self._gpu = gpu
        self._clock = clock
        self._jitter = Jitter(cost.step_spread, draw)
        self._work = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.busy_s = 0.0
        """Time spent in steps so far."""

    def start(self) -> None:
        """Begin to serve."""
        self._tasks = [asyncio.create_task(self._serve_virtually(TOKEN2WAV))]
        if self._runner.beside is not None:
            self._tasks.append(asyncio.create_task(self._serve_virtually(TOKEN2WAV_BESIDE)))

    def stop(self) -> None:
        """Be gone at once: streams are aborted, later calls refused."""
        self._stopping = True
        while self._tasks:
            self._tasks.pop().cancel()
        for stream_id in self.engine.open_stream_ids():
            self.abort(stream_id)
        self._voice_workers.shutdown()

    def push(self, chunk: TokenChunk, on_result: OnResult) -> None:
        """Queue a chunk; see `ServingLoop.push`."""
        super().push(chunk, on_result)
        self._work.set()

    async def _serve_virtually(self, service: str) -> None:
        while True:
            begun_s = self._clock.now()
            begun = self.engine.begin_step(beside=service == TOKEN2WAV_BESIDE)
            if begun is None:
                self._work.clear()
                await self._work.wait()
                continue
            streams, tokens = self._runner.program(begun.works)
            load = min(streams * tokens / STEP_TOKENS, 1.0)
            if len(begun.works) < self._runner.step_size(
                begun.kind[0], self.engine.config.max_batch_size, is_crowded=False
            ):
                # Else the host prepared it while the one before ran.
                await asyncio.sleep(self._cost.around_s + self._cost.stream_s * len(begun.works))
            seconds = self._cost.step.of(streams, tokens) * self._jitter.factor()
            await self._gpu.run(service, seconds, load)
            for result in self.engine.end_step(begun):
                if self._cost.answer_s:
                    await asyncio.sleep(self._cost.answer_s)
                self._deliver([result])
            self._work.set()  # its streams may be ready for a step of the other kind
            self.busy_s += self._clock.now() - begun_s
