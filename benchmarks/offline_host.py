"""What the offline batch's own work costs: the real pipeline, client and files, with services that cost nothing.

`python -m benchmarks.offline_host --llm-model-name-or-path DIR --voice FILE`. The LLM is a process that answers every
request with the same tokens; token2wav gives noise of the right length. What is left is what bounds a batch on the
fastest GPU: prompts, HTTP, JSON, queues, encoding, files.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import multiprocessing
import pstats
import sys
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from aiohttp import web

from cosydit.batch.ledger import FORMATS, Ledger
from cosydit.batch.llm import WholeAnswerClient
from cosydit.batch.pipeline import BatchPipeline
from cosydit.batch.services import EngineStage
from cosydit.batch.types import BatchPlan, BatchReport, TokenisedUtterance
from cosydit.bench.types import SpeechInput, count
from gateway.core import FloatArray, RegisteredVoice
from gateway.llm.wire import LLMWire
from llm_service.config import LLMBackend
from llm_service.text_encoder import load_text_encoder
from llm_service.vocab import llm_id_from_speech_id
from servicekit.clock import SystemClock
from token2wav_service.contract import SAMPLE_RATE_HZ, TOKEN_RATE_HZ

ANSWER_TOKENS = 200
"""Tokens of an answer, 8 s."""
PROMPT_TOKENS = 125
"""Tokens of a prompt, 5 s."""
SAMPLES_A_TOKEN = SAMPLE_RATE_HZ // TOKEN_RATE_HZ
NOISE_PEAK = 0.1
TEXT = "A sentence of about eight seconds, as a list of texts may hold some hundreds of."
READY_TIMEOUT_S = 30.0
_PROFILE_LINES = 25


class FreeToken2Wav(EngineStage):
    """Gives the same noise for all."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._samples = NOISE_PEAK * rng.standard_normal(ANSWER_TOKENS * SAMPLES_A_TOKEN, dtype=np.float32)

    async def make_voice(self, samples: FloatArray) -> RegisteredVoice:
        """See `EngineStage.make_voice`."""
        return RegisteredVoice("voice", tuple(range(PROMPT_TOKENS)))

    async def speak(self, utterances: Sequence[TokenisedUtterance]) -> list[FloatArray | Exception]:
        """See `EngineStage.speak`."""
        return [self._samples] * len(utterances)

    async def close(self) -> None:
        """Hold nothing."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    args = _parser().parse_args(argv)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve_llm, args=(theirs,), daemon=True)
    server.start()
    try:
        if not ours.poll(READY_TIMEOUT_S):
            print("offline_host: the stand-in for the LLM did not start", file=sys.stderr)
            return 1
        url = f"http://127.0.0.1:{ours.recv()}"
        profile = cProfile.Profile() if args.profile else None
        if profile is not None:
            profile.enable()
        report = asyncio.run(speak(args, url))
        if profile is not None:
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(_PROFILE_LINES)
    finally:
        server.kill()
        server.join()
    busy = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in report.stage_busy_s.items())
    print(f"{report.done} utterances, {report.audio_s:.0f} s of audio in {report.wall_s:.2f} s; busy: {busy}")
    print(f"{report.done / report.wall_s:.0f} utterances a second, {report.audio_s / report.wall_s:.0f} x real time")
    return 1 if report.failures else 0


async def speak(args: argparse.Namespace, url: str) -> BatchReport:
    """Work the batch into a directory that is thrown away."""
    clock = SystemClock()
    wire = LLMWire(load_text_encoder(args.llm_model_name_or_path), LLMBackend.VLLM)
    client = WholeAnswerClient(url, wire, "free", READY_TIMEOUT_S, clock)
    rows = [SpeechInput(f"utterance-{i:05d}", TEXT, TEXT, args.voice) for i in range(args.utterances)]
    report = BatchReport(len(rows))
    plan = BatchPlan(args.batch_size, args.token2wav_batch_size)
    try:
        with tempfile.TemporaryDirectory() as scratch, Ledger(Path(scratch), args.format, set()) as ledger:
            pipeline = BatchPipeline(client.complete, FreeToken2Wav(), ledger, plan, clock)
            await pipeline.run(rows, report, lambda report: None)
    finally:
        await client.close()
    return report


def serve_llm(ready: Connection) -> None:
    """Answer every completion with the same tokens; sends its port when it listens."""
    ids = [llm_id_from_speech_id(token) for token in range(ANSWER_TOKENS)]
    prompt_ids = list(range(PROMPT_TOKENS))
    choice = {"index": 0, "text": "", "token_ids": ids, "prompt_token_ids": prompt_ids, "finish_reason": "stop"}
    answer = json.dumps({"id": "cmpl-0", "object": "text_completion", "choices": [choice]}).encode()

    async def complete(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=answer, content_type="application/json")

    app = web.Application()
    app.add_routes([web.post("/v1/completions", complete)])
    asyncio.run(_serve(app, ready.send))


async def _serve(app: web.Application, announce: Callable[[int], None]) -> None:
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    announce(runner.addresses[0][1])
    await asyncio.Event().wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.offline_host", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--llm-model-name-or-path", type=Path, required=True, help="directory of the LLM, for its tokenizer"
    )
    parser.add_argument("--voice", type=Path, required=True, help="audio file of the prompt")
    parser.add_argument(
        "--utterances", type=count, default=512, help="number of utterances, of 8 s each (default %(default)s)"
    )
    parser.add_argument(
        "--batch-size", type=count, default=256, help="number of requests under way (default %(default)s)"
    )
    parser.add_argument(
        "--token2wav-batch-size", type=count, default=64, help="utterances in token2wav (default %(default)s)"
    )
    parser.add_argument(
        "--format", choices=sorted(FORMATS), default="wav", help="format of the audio (default %(default)s)"
    )
    parser.add_argument("--profile", action="store_true", help="print a profile of the main thread")
    return parser


if __name__ == "__main__":
    sys.exit(main())
