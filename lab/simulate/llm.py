"""A model of an LLM server with continuous batching, in virtual time.

    requests ─► talking process ─► waiting ─► planned ─► running ─ steps ─► every 4th token ─► talking process ─►
                                              └─── 64 at most ───┘

A step takes what the cost model says of its running requests and of the prompts that enter with it. While one runs the
next is planned already, as vLLM does it: who comes then enters the one after. A token is its place in the utterance, so
that whoever goes on for a lost server says what that one would have said.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from random import Random

from gateway.core import SpeechTokenDelta, Utterance
from gateway.errors import LLMUnavailableError
from gateway.routing.replica import LoadReport
from lab.simulate.compute import Compute, Jitter, SerialProcess
from lab.simulate.costs import LLM, CostModel
from token2wav_service.contract import SPEECH_VOCAB_SIZE

STOP = "stop"
LengthOf = Callable[[Utterance], int]
"""Returns the speech tokens of a whole utterance."""


@dataclass(eq=False)
class _Request:
    gateway: SerialProcess
    tokens: int
    spoken: int
    """Tokens that a lost server spoke before."""
    messages: asyncio.Queue[SpeechTokenDelta | None] = field(default_factory=asyncio.Queue)
    """Messages; None says that the server is gone."""
    made: int = 0
    ends_at_step: int = -1
    is_closed: bool = False


class ModelledLLM:
    """One server; `start` it in a running loop."""

    def __init__(self, costs: CostModel, gpu: Compute, length_of: LengthOf, draw: Random | None = None) -> None:
        """Begin idle.

        Args:
            costs: what everything takes.
            gpu: where it computes.
            length_of: how long an utterance gets.
            draw: of its steps' times; by default the same for every server.
        """
        self._costs, self._cost = costs, costs.llm
        self._gpu = gpu
        self._length_of = length_of
        self._jitter = Jitter(self._cost.step_spread, draw or Random(0))
        self._talking = SerialProcess()
        self._waiting: deque[_Request] = deque()
        self._planned: list[_Request] = []
        self._running: set[_Request] = set()
        self._due: defaultdict[int, list[_Request]] = defaultdict(list)
        self._step = 0
        self._work = asyncio.Event()
        self._server: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Requests that no step has taken yet."""
        return len(self._waiting) + len(self._planned)

    @property
    def running(self) -> int:
        """Requests in every step."""
        return len(self._running)

    def start(self) -> None:
        """Begin to serve."""
        self._server = asyncio.create_task(self._serve())

    async def stop(self) -> None:
        """Be gone at once: whoever waits for tokens is told so."""
        server, self._server = self._server, None
        if server is not None:
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)
        for request in [*self._running, *self._planned, *self._waiting]:
            request.messages.put_nowait(None)
        self._running.clear()
        self._planned.clear()
        self._waiting.clear()
        self._due.clear()

    async def is_ready(self) -> bool:
        """Tell whether it serves."""
        return self._server is not None

    async def probe(self) -> LoadReport:
        """See `SpeechLMClient.probe`."""
        if self._server is None:
            raise LLMUnavailableError("the LLM server is gone; ask another")
        return LoadReport()

    async def generate(self, utterance: Utterance, gateway: SerialProcess) -> AsyncGenerator[SpeechTokenDelta]:
        """Speak to a gateway's process; see `SpeechLM.generate`."""
        spoken = len(utterance.spoken_tokens)
        request = _Request(gateway, max(self._length_of(utterance) - spoken, 1), spoken)
        try:
            await self._talking.use(self._cost.request_s)
            if self._server is None:
                raise LLMUnavailableError("the LLM server is gone; ask another")
            self._waiting.append(request)
            self._work.set()
            while (delta := await request.messages.get()) is not None:
                yield delta
                if delta.finish_reason is not None:
                    return
            raise LLMUnavailableError("the LLM server went away in mid-stream; ask another")
        finally:
            request.is_closed = True
            self._running.discard(request)

    async def _serve(self) -> None:
        while True:
            prompt_tokens = self._begin() or self._begin_at_once()
            if not self._running:
                self._work.clear()
                await self._work.wait()
                continue
            await self._gpu.run(
                LLM, self._step_s(prompt_tokens) * self._jitter.factor(), len(self._running) / self._cost.max_requests
            )
            self._step += 1
            self._speak()

    def _begin(self) -> int:
        """Let in who was planned and plan the step after; returns the prompts' tokens."""
        entering = [request for request in self._planned if not request.is_closed]
        for request in entering:
            request.ends_at_step = self._step + request.tokens
            self._running.add(request)
            self._due[self._step + 1].append(request)
        self._planned = self._plan()
        return len(entering) * self._cost.prompt_tokens

    def _begin_at_once(self) -> int:
        """Begin who has just been planned if no step would run meanwhile."""
        return 0 if self._running or not self._planned else self._begin()

    def _plan(self) -> list[_Request]:
        """Choose from those who wait."""
        cost, planned = self._cost, list[_Request]()
        while self._waiting and len(self._running) + len(planned) < cost.max_requests:
            if planned and (len(planned) + 1) * cost.prompt_tokens > cost.max_batched_tokens:
                break
            request = self._waiting.popleft()
            if not request.is_closed:
                planned.append(request)
        return planned

    def _step_s(self, prompt_tokens: int) -> float:
        cost = self._cost
        decoding = cost.step_fixed_s + cost.step_per_request_s * len(self._running)
        if not prompt_tokens:
            return decoding
        fits_graph = len(self._running) + prompt_tokens <= cost.graph_tokens
        entering = cost.prompt_step_s if fits_graph else cost.eager_step_s
        return decoding + entering + cost.prefill_per_token_s * prompt_tokens

    def _speak(self) -> None:
        """Send the messages that are due after this step."""
        for request in self._due.pop(self._step, ()):
            if request.is_closed:
                continue
            has_ended = request.ends_at_step == self._step
            self._send(request, request.tokens - (request.ends_at_step - self._step), has_ended)
            if has_ended:
                self._running.discard(request)
            else:
                self._due[min(self._step + self._cost.stream_interval, request.ends_at_step)].append(request)

    def _send(self, request: _Request, made: int, has_ended: bool) -> None:
        loop = asyncio.get_running_loop()
        ids = tuple(at % SPEECH_VOCAB_SIZE for at in range(request.spoken + request.made, request.spoken + made))
        request.made = made
        said_s = self._talking.reserve(loop.time(), self._cost.message_s)
        read_s = request.gateway.reserve(said_s, self._costs.gateway.message_s)
        loop.call_at(read_s, request.messages.put_nowait, SpeechTokenDelta(ids, STOP if has_ended else None))
