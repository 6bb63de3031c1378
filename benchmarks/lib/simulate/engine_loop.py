"""The engine's loop as a task instead of a thread: the same calls and callbacks, steps in virtual time."""

from __future__ import annotations

import asyncio
from random import Random

from benchmarks.lib.simulate.costs import TOKEN2WAV, Token2WavCost
from benchmarks.lib.simulate.gpu import Compute
from benchmarks.lib.simulate.jitter import Jitter
from benchmarks.lib.simulate.runner import ModelledRunner
from servicekit.clock import Clock
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.engine.loop import EngineLoop, OnResult
from token2wav_service.runtime.slots.step_shapes import STEP_TOKENS
from token2wav_service.types import TokenChunk


class VirtualEngineLoop(EngineLoop):
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
        self._task: asyncio.Task[None] | None = None
        self.busy_s = 0.0
        """Time spent in steps so far."""

    def start(self) -> None:
        """Begin to serve."""
        self._task = asyncio.create_task(self._serve_virtually())

    def stop(self) -> None:
        """Be gone at once: streams are aborted, later calls refused."""
        self._stopping = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        for stream_id in self.engine.open_stream_ids():
            self.abort(stream_id)
        self._voice_workers.shutdown()

    def push(self, chunk: TokenChunk, on_result: OnResult) -> None:
        """Queue a chunk; see `EngineLoop.push`."""
        super().push(chunk, on_result)
        self._work.set()

    async def _serve_virtually(self) -> None:
        while True:
            begun_s = self._clock.now()
            begun = self.engine.begin_step()
            if begun is None:
                self._work.clear()
                await self._work.wait()
                continue
            streams, tokens = self._runner.program(begun.works)  # type: ignore[arg-type]
            load = min(streams * tokens / STEP_TOKENS, 1.0)
            await asyncio.sleep(self._cost.around_s + self._cost.stream_s * len(begun.works))
            seconds = self._cost.step.of(streams, tokens) * self._jitter.factor()
            await self._gpu.run(TOKEN2WAV, seconds, load)
            for result in self.engine.end_step(begun):
                if self._cost.answer_s:
                    await asyncio.sleep(self._cost.answer_s)
                self._deliver(result)
            self.busy_s += self._clock.now() - begun_s
