"""Our own LLM in virtual time: the real engine, its schedule and its admission; a step takes what was measured.

    requests ─► EngineLoop ─► SpeechLMEngine ─► a step on the GPU ─► outputs ─► the gateway's process

A step that was launched is read when the GPU has run it. The tokens are always the same one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from gateway import errors
from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.llm.token_client import DEFAULT_PACE
from gateway.routing.replica import LoadReport
from lab.simulate.compute import Compute, SerialProcess
from lab.simulate.costs import LLM
from llm_service.embedded.engine import EngineLimits, SpeechLMEngine
from llm_service.embedded.loop import EngineLoop
from llm_service.embedded.sampling import RepetitionGuard
from llm_service.embedded.steps import Ints, PromptPiece, RunnerLimits
from llm_service.embedded.types import GenerationOutput, GenerationRequest, SamplingParams
from llm_service.errors import QueueFullError
from llm_service.vocab import COSYVOICE2
from servicekit.clock import Clock
from servicekit.stream_limit import NEXT_END_S, OPEN_STREAMS, STREAMS
from token2wav_service.contract import TOKEN_RATE_HZ

SLOTS, MAX_QUEUE, MAX_SEQUENCE_TOKENS = 1024, 64, 4096
PROMPT_TOKENS, STEP_PROMPT_TOKENS = 190, 2048
"""Tokens of a prompt, a voice of 5 s and some 60 letters, and most tokens of prompts in a step."""


@dataclass(frozen=True)
class OwnLLMCost:
    """Seconds that steps take alone on an H200 (`benchmarks/results/llm_h200.json`)."""

    decode_s: float = 0.00085
    decode_row_s: float = 3.1e-6
    prompt_s: float = 0.0006
    prompt_token_s: float = 2.25e-6


class _Step:
    """A step; its rows are all the same."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def tokens(self) -> list[int]:
        return [0] * self._rows


class _Runner:
    """Notes what a launched step takes."""

    limits = RunnerLimits(SLOTS, STEP_PROMPT_TOKENS, SLOTS, COSYVOICE2.table_rows)

    def __init__(self, cost: OwnLLMCost) -> None:
        self._cost = cost
        self.launched_s, self.rows = 0.0, 0
        """Seconds and rows of the step that was launched last; 0 s: none since it was last asked for."""

    def decode(self, slots: Ints) -> _Step:
        self.launched_s, self.rows = self._cost.decode_s + self._cost.decode_row_s * len(slots), len(slots)
        return _Step(len(slots))

    def prompt(self, pieces: Sequence[PromptPiece]) -> _Step:
        tokens = sum(len(piece.token_ids) for piece in pieces)
        self.launched_s, self.rows = self._cost.prompt_s + self._cost.prompt_token_s * tokens, tokens
        return _Step(sum(piece.ends for piece in pieces))


class OwnLLM(EngineLoop):
    """The engine's loop as a task."""

    def __init__(self, gpu: Compute, clock: Clock, cost: OwnLLMCost = OwnLLMCost()) -> None:
        """Begin idle."""
        self._runner = _Runner(cost)
        limits = EngineLimits(SLOTS, MAX_SEQUENCE_TOKENS)
        engine = SpeechLMEngine(self._runner, limits, RepetitionGuard(0), clock)
        super().__init__(engine, MAX_QUEUE, clock)
        self._gpu = gpu
        self._mail = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to serve."""
        self._is_running = True
        self._task = asyncio.create_task(self._serve())

    def submit(self, request: GenerationRequest, on_output: Callable[[GenerationOutput], None]) -> None:
        """Queue a request; see `EngineLoop.submit`."""
        super().submit(request, on_output)
        self._mail.set()

    async def _serve(self) -> None:
        while True:
            self._mail.clear()
            idle_s = self._engine.idle_s()
            if not self._inbox.has_mail() and idle_s > 0:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._mail.wait(), None if math.isinf(idle_s) else idle_s)
            self._runner.launched_s = 0.0
            self._turn()
            if self._runner.launched_s:
                load = min(self._runner.rows / STEP_PROMPT_TOKENS, 1.0)
                await self._gpu.run(LLM, self._runner.launched_s, load)


class OwnLLMLink:
    """A gateway's client of it (`gateway.routing`'s `LLMReplicaClient`)."""

    continues_exactly = True

    def __init__(self, server: OwnLLM, gateway: SerialProcess, message_s: float, speech_tokens: int) -> None:
        """Keep the gateway's process, what a message costs it, and how many tokens each answer has."""
        self._server, self._gateway = server, gateway
        self._message_s, self._speech_tokens = message_s, speech_tokens
        self._numbers = count()

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        """See `SpeechLM.generate`."""
        loop, outputs = asyncio.get_running_loop(), asyncio.Queue[GenerationOutput]()
        request = GenerationRequest(
            f"{id(self)}-{next(self._numbers)}",
            (COSYVOICE2.sos_id,) * PROMPT_TOKENS,
            SamplingParams(self._speech_tokens, seed=0, ignore_eos=True),
            priority=utterance.priority,
            tokens_per_s=DEFAULT_PACE * TOKEN_RATE_HZ,
            head_start_tokens=utterance.head_start_tokens,
        )

        def hand_on(output: GenerationOutput) -> None:
            loop.call_at(self._gateway.reserve(loop.time(), self._message_s), outputs.put_nowait, output)

        try:
            self._server.submit(request, hand_on)
        except QueueFullError as error:
            raise errors.LLMBusyError(str(error), retry_after_s=error.retry_after_s) from error
        try:
            while True:
                output = await outputs.get()
                yield SpeechTokenDelta(
                    tuple(id_ - COSYVOICE2.first_id for id_ in output.token_ids), "length" if output.is_last else None
                )
                if output.is_last:
                    return
        finally:
            self._server.abort(request.request_id)

    async def probe(self) -> LoadReport:
        """See `SpeechLMClient.probe`."""
        room = self._server.room()
        slots, open_streams = int(room[STREAMS]), int(room[OPEN_STREAMS])
        return LoadReport(slots=slots, open_streams=open_streams, next_end_s=float(room[NEXT_END_S]))

    async def close(self) -> None:
        """Nothing is held."""
