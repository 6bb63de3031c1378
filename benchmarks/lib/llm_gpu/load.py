"""Measures the engine under load, in one process: tokens a second, waits while prompts arrive, streams at 25 Hz."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from llm_service.embedded.engine import SpeechLMEngine
from llm_service.embedded.loop import EngineLoop
from llm_service.embedded.types import GenerationOutput, GenerationRequest, SamplingParams
from llm_service.vocab import COSYVOICE2, SPEECH_TOKENS_PER_SECOND
from servicekit.clock import SystemClock

SAMPLING = SamplingParams(
    max_tokens=500, seed=0, temperature=0.8, top_p=0.95, top_k=50, repetition_penalty=1.1, ignore_eos=True
)
WAIT_S = 120.0
TOKENS = 500
LEAST_TOKENS = 25
_names = itertools.count()
_random = np.random.default_rng(9)


def request(prompt_tokens: int = 165, max_tokens: int = 500, seed: int = 1) -> GenerationRequest:
    """Make a request with a random text."""
    text = _random.integers(0, 151_000, prompt_tokens - 2).tolist()
    params = replace(SAMPLING, max_tokens=max_tokens, seed=seed)
    return GenerationRequest(f"r{next(_names)}", (COSYVOICE2.sos_id, *text, COSYVOICE2.task_id), params)


def tokens_per_s(engine: SpeechLMEngine, rows: int, tokens: int = 200, prompt_tokens: int = 300) -> dict[str, Any]:
    """Run `rows` streams at once, without pause, and time the steps in which all of them advance."""
    for seed in range(rows):
        engine.add_request(request(prompt_tokens, tokens, seed))
    drawn, times = [0], [time.perf_counter()]
    with quiet_heap():
        while engine.idle_s() == 0:
            engine.step()
            drawn.append(engine.stats().generated_tokens)
            times.append(time.perf_counter())
    is_full = np.diff(drawn) == rows
    seconds = float(np.diff(times)[is_full].sum())
    return {
        "rows": rows,
        "steps": int(is_full.sum()),
        "seconds": seconds,
        "tokens_per_s": int(is_full.sum()) * rows / seconds,
    }


@dataclass
class StreamTimes:
    """When the tokens of one stream came."""

    sent_s: float
    tokens: int
    came: list[tuple[float, int]] = field(default_factory=list)  # time, tokens
    is_over: bool = False

    def longest_wait_ms(self) -> float:
        """Return the longest wait between two of its tokens."""
        times = [at for at, _ in self.came]
        return max((b - a for a, b in itertools.pairwise(times)), default=0.0) * 1e3

    def keeps_up(self, until_s: float) -> bool:
        """Tell whether its listener, who hears 25 tokens a second from the first one on, never lacked one by then."""
        if not self.came:
            return False
        first_s, so_far = self.came[0][0], 0
        for at, count in [*self.came, (until_s, 0)]:
            due = min(self.tokens, int((min(at, until_s) - first_s) * SPEECH_TOKENS_PER_SECOND))
            if so_far < due:
                return False
            so_far += count
        return True


class Load:
    """Streams on an engine loop, and when their tokens came."""

    def __init__(self, engine: SpeechLMEngine) -> None:
        """Start the engine's thread; end with `close`."""
        self.loop = EngineLoop(engine, 4096, SystemClock())
        self.loop.start()
        self.streams: list[StreamTimes] = []
        self.on_end: Callable[[], None] = lambda: None

    def submit(self, asked: GenerationRequest) -> StreamTimes:
        """Ask for one answer."""
        stream = StreamTimes(time.perf_counter(), asked.params.max_tokens)

        def on_output(output: GenerationOutput) -> None:
            stream.came.append((time.perf_counter(), len(output.token_ids)))
            if output.is_last:
                stream.is_over = True
                self.on_end()

        self.streams.append(stream)
        self.loop.submit(asked, on_output)
        return stream

    def wait(self) -> None:
        """Wait until all streams have ended."""
        ends_s = time.perf_counter() + WAIT_S
        while not all(stream.is_over for stream in self.streams):
            if time.perf_counter() > ends_s:
                raise TimeoutError("the engine did not end its streams; see its log")
            time.sleep(0.005)

    def close(self) -> None:
        """Stop the engine's thread; what is under way is cut."""
        self.on_end = lambda: None
        self.loop.stop()


def stalls(engine: SpeechLMEngine, prompts_per_s: float, seconds: float) -> dict[str, Any]:
    """Let streams of 500 tokens arrive, each after a prompt of 165; return each one's longest wait between tokens."""
    load = Load(engine)
    with quiet_heap():
        began = time.perf_counter()
        for number in range(int(prompts_per_s * seconds)):
            time.sleep(max(0.0, began + number / prompts_per_s - time.perf_counter()))
            load.submit(request(seed=number))
        load.wait()
    load.close()
    waits = [stream.longest_wait_ms() for stream in load.streams]
    firsts = [(stream.came[0][0] - stream.sent_s) * 1e3 for stream in load.streams]
    gaps = np.concatenate([np.diff([at for at, _ in stream.came]) for stream in load.streams]) * 1e3
    return {
        "prompts_per_s": prompts_per_s,
        "seconds": seconds,
        "streams": len(waits),
        "longest_wait_ms": [round(wait, 3) for wait in waits],
        "first_token_ms": [round(first, 3) for first in firsts],
        "gap_ms_p50_p99_p999": " ".join(f"{value:.3f}" for value in np.percentile(gaps, [50, 99, 99.9])),
    }


def capacity(engine: SpeechLMEngine, streams: int, seconds: float) -> dict[str, Any]:
    """Keep so many streams under way, a new one for each that ends; count those whose listeners never lacked a token.

    A listener hears 25 tokens a second from the first token on; a stream ends, and the next one comes, when its last
    token is drawn, which may be long before it is heard. Streams asked for in the last second don't count.
    """
    load = Load(engine)
    missing = threading.Semaphore(0)
    load.on_end = missing.release
    with quiet_heap():
        began = time.perf_counter()
        ends_s = began + seconds
        for number in range(streams):
            # Lengths differ, as if the streams had begun one after the other.
            load.submit(request(max_tokens=LEAST_TOKENS + number * (TOKENS - LEAST_TOKENS) // streams, seed=number))
        while (left_s := ends_s - time.perf_counter()) > 0:
            if missing.acquire(timeout=left_s):
                load.submit(request(seed=len(load.streams)))
        until_s = time.perf_counter()
    load.close()
    old = [stream for stream in load.streams if stream.sent_s < until_s - 1.0]
    first = [(stream.came[0][0] - stream.sent_s) * 1e3 for stream in old[streams:] if stream.came]
    tokens = sum(count for stream in load.streams for at, count in stream.came if at <= until_s)
    return {
        "streams": streams,
        "seconds": seconds,
        "begun": len(load.streams),
        "counted": len(old),
        "kept_up": sum(stream.keeps_up(until_s) for stream in old),
        "tokens_per_s": tokens / (until_s - began),
        "first_token_ms_p50_p99": " ".join(f"{value:.1f}" for value in np.percentile(first or [0.0], [50, 99])),
    }


def burst_ms(engine: SpeechLMEngine, prompts: int, token: int) -> list[float]:
    """Ask for so many answers at once; return when the token of that number came to each, in ms."""
    load = Load(engine)
    with quiet_heap():
        asked = [request(max_tokens=60, seed=seed) for seed in range(prompts)]
        began = time.perf_counter()
        for each in asked:
            load.submit(each)
        load.wait()
    load.close()
    return [round((stream.came[token - 1][0] - began) * 1e3, 3) for stream in load.streams]


@contextmanager
def quiet_heap() -> Iterator[None]:
    """Keep the garbage collector off what is there already, as the service does."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
