"""Measures the lean stream of tokens at the gateway's connection: the server in a process of its own, one machine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch
from tts_api.llm.v1 import speech_token_service_pb2 as messages

from benchmarks.lib.llm_gpu.model import options, random_weights
from gateway.llm.token_connection import TokenConnection
from llm_service.embedded.loop import EngineLoop
from llm_service.embedded.token_stream import SpeechTokenServicer, add_to_server
from llm_service.gpu.build import engine_of
from llm_service.vocab import COSYVOICE2
from servicekit.clock import SystemClock
from servicekit.process import exempt_startup_objects

READY = "serving on "
SLOTS = 256
PROMPT_TOKENS = 165
TENTH = 10
CALL_TIMEOUT_S = 60.0
SWITCH_INTERVAL_S = 0.00002
"""Switch interval of Python's threads, as the service sets it."""


def serve() -> None:
    """Serve random weights until the process is ended; print the port."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    clock = SystemClock()
    engine = engine_of(random_weights(torch.device("cuda"), torch.bfloat16, 1), options(SLOTS), clock)
    loop = EngineLoop(engine, SLOTS, clock)
    loop.start()
    exempt_startup_objects()
    asyncio.run(_serve(SpeechTokenServicer(loop)))


async def _serve(servicer: SpeechTokenServicer) -> None:
    server = grpc.aio.server()
    add_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"{READY}{port}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


@contextmanager
def served(script: Path) -> Iterator[str]:
    """Run the server; yield its address.

    Raises:
        RuntimeError: it ended before it served.
    """
    process = subprocess.Popen([sys.executable, str(script), "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(READY):
                yield f"127.0.0.1:{line.removeprefix(READY).strip()}"
                return
        raise RuntimeError("the server ended before it served; see above")
    finally:
        process.kill()
        process.wait()


async def measure(address: str, alone: int, bursts: int, burst: int) -> dict[str, Any]:
    """Time first and tenth tokens of calls one after another, and of many at once."""
    async with grpc.aio.insecure_channel(address) as channel:
        connection = TokenConnection(channel)
        random = np.random.default_rng(3)
        for _ in range(5):
            await _call(connection, random, 0)
        single = [await _call(connection, random, seed) for seed in range(alone)]
        together: list[list[float]] = []
        for _ in range(bursts):
            together += await asyncio.gather(*(_call(connection, random, seed) for seed in range(burst)))
            await asyncio.sleep(0.2)
        connection.close()
    return {
        "alone_first_ms": [round(times[0], 3) for times in single],
        "alone_tenth_ms": [round(times[TENTH - 1], 3) for times in single],
        "burst_first_ms": [round(times[0], 3) for times in together],
        "burst_tenth_ms": [round(times[TENTH - 1], 3) for times in together],
        "burst": burst,
    }


async def _call(connection: TokenConnection, random: np.random.Generator, seed: int) -> list[float]:
    """Return when each token came, in ms after the call."""
    text = random.integers(0, 151_000, PROMPT_TOKENS - 2).tolist()
    sampling = messages.Sampling(temperature=0.8, top_p=0.95, top_k=50, repetition_penalty=1.1)
    asked = messages.GenerateRequest(
        prompt_ids=[COSYVOICE2.sos_id, *text, COSYVOICE2.task_id],
        sampling=sampling,
        max_tokens=120,
        min_tokens=120,
        seed=seed,
    )
    began = time.perf_counter()
    times: list[float] = []
    answer = connection.begin(asked, CALL_TIMEOUT_S)
    while True:
        news = await answer.read()
        times += [(time.perf_counter() - began) * 1e3] * len(news.token_ids)
        if news.finish_reason is not None:
            return times
