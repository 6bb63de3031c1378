"""Compares the LLM servers that a GPU host can have, as the gateway sees them: `python -m benchmarks.llm_backends`.

Each server is started by `python -m llm_service` with the settings that `cosydit serve` gives it on this GPU, one after
the other in one run, and asked with the gateway's own client: one caller at a time, then 64 at once. The checkpoint's
weights may be random; then every answer has as many tokens as asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cosydit.bench.metrics import percentile
from cosydit.bench.report import aligned_table, describe_environment, write_json
from cosydit.stack.host import find_host, llm_settings, preset_of, served_form
from cosydit.stack.process import ServiceProcess, ServiceSpec
from gateway.core import Sampling, Utterance
from gateway.llm.client import SpeechLMClient
from gateway.llm.token_client import TokenStreamClient
from gateway.llm.wire import LLMWire
from llm_service.config import LLMBackend
from llm_service.text_encoder import load_text_encoder
from llm_service.vocab import SPEECH_TOKEN_COUNT
from servicekit.settings import as_options

PORT, GRPC_PORT = 8000, 8100
READY_TIMEOUT_S = 300.0
ALONE, AT_ONCE, BURSTS = 20, 64, 3
TENTH = 10
MOST_TOKENS = 200
"""Most tokens of an answer: 8 s of speech."""
PROMPT_SPEECH_TOKENS = 125
TRANSCRIPT = "The voice that is heard here has said this sentence once before."
TEXT = "A sentence of eight seconds is about as long as this one is."
_MS = 1000


@dataclass(frozen=True)
class Way:
    """One server, and how the gateway talks to it."""

    backend: LLMBackend
    url: str

    @property
    def is_lean(self) -> bool:
        """Whether tokens come over gRPC."""
        return self.url.startswith("grpc:")


WAYS = {
    "embedded-grpc": Way(LLMBackend.EMBEDDED, f"grpc://127.0.0.1:{GRPC_PORT}"),
    "embedded-http": Way(LLMBackend.EMBEDDED, f"http://127.0.0.1:{PORT}"),
    "vllm-http": Way(LLMBackend.VLLM, f"http://127.0.0.1:{PORT}"),
    "trtllm-http": Way(LLMBackend.TRTLLM, f"http://127.0.0.1:{PORT}"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llm_backends", description=__doc__, allow_abbrev=False)
    parser.add_argument("--checkpoint", type=Path, required=True, help="directory with llm/")
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    parser.add_argument("--work-dir", type=Path, required=True, help="directory for the converted form and logs")
    parser.add_argument("--ways", nargs="*", choices=tuple(WAYS), default=["embedded-grpc", "embedded-http"])
    parser.add_argument("--commit", help="commit of the code that runs (default: as git says)")
    args = parser.parse_args(argv)
    args.work_dir.mkdir(parents=True, exist_ok=True)
    environment = describe_environment(vars(args), args.commit)
    document: dict[str, Any] = {"figures": {}, "samples": {}, "environment": environment}
    for backend in dict.fromkeys(WAYS[name].backend for name in args.ways):
        names = [name for name in args.ways if WAYS[name].backend is backend]
        with _served(args, backend) as command:
            for name in names:
                samples = asyncio.run(_measure(WAYS[name], args.checkpoint / "llm"))
                document["samples"][name] = {"command": command, **samples}
                document["figures"][name] = figures(samples)
                write_json(args.out, document)
    print(table(document["figures"]), end="")
    return 0


def figures(samples: dict[str, Any]) -> dict[str, float]:
    """Return the figures of one way from its samples."""
    return {
        "first_token_1_p50_ms": percentile(samples["alone_first_ms"], 50),
        "tenth_token_1_p50_ms": percentile(samples["alone_tenth_ms"], 50),
        "tokens_per_s_1": percentile(samples["alone_tokens_per_s"], 50),
        "first_token_64_p95_ms": percentile(samples["burst_first_ms"], 95),
        "tenth_token_64_p95_ms": percentile(samples["burst_tenth_ms"], 95),
        "tokens_per_s_64": max(samples["burst_tokens_per_s"]),
    }


def table(found: dict[str, dict[str, float]]) -> str:
    """Return one column a way."""
    names = list(next(iter(found.values()), {}))
    rows = [[name, *(f"{each[name]:.4g}" for each in found.values())] for name in names]
    return aligned_table([["figure", *found], *rows])


async def _measure(way: Way, llm_dir: Path) -> dict[str, Any]:
    wire = LLMWire(load_text_encoder(llm_dir), way.backend, max_speech_tokens=MOST_TOKENS)
    client = TokenStreamClient(way.url, wire, pace=0.0) if way.is_lean else SpeechLMClient(way.url, wire)
    try:
        for count in (1, AT_ONCE):  # to warm up
            await asyncio.gather(*(_answer(client, -seed) for seed in range(1, count + 1)))
        alone = [await _answer(client, seed) for seed in range(ALONE)]
        bursts = []
        for burst in range(BURSTS):
            seeds = range(AT_ONCE * (burst + 1), AT_ONCE * (burst + 2))
            bursts.append(await asyncio.gather(*(_answer(client, seed) for seed in seeds)))
    finally:
        await client.close()
    together = [times for burst in bursts for times in burst]
    return {
        "alone_first_ms": [times[0] for times in alone],
        "alone_tenth_ms": [times[TENTH - 1] for times in alone],
        "alone_tokens_per_s": [round(_MS * len(times) / times[-1], 1) for times in alone],
        "burst_first_ms": [times[0] for times in together],
        "burst_tenth_ms": [times[TENTH - 1] for times in together],
        "burst_tokens_per_s": [round(_MS * sum(map(len, burst)) / max(t[-1] for t in burst), 1) for burst in bursts],
    }


async def _answer(client: SpeechLMClient | TokenStreamClient, seed: int) -> list[float]:
    """Return when each token came, in ms after the request; of an answer with ten tokens at least."""
    reference = tuple(np.random.default_rng(abs(seed)).integers(0, SPEECH_TOKEN_COUNT, PROMPT_SPEECH_TOKENS).tolist())
    began, times = time.perf_counter(), list[float]()
    answer = client.generate(Utterance(TEXT, TRANSCRIPT, reference), Sampling(), abs(seed))
    async with aclosing(answer) as deltas:
        async for delta in deltas:
            times += [round(_MS * (time.perf_counter() - began), 3)] * len(delta.token_ids)
    if len(times) < TENTH:
        raise RuntimeError(f"an answer had {len(times)} tokens, expected {TENTH} or more")
    return times


@contextmanager
def _served(args: argparse.Namespace, backend: LLMBackend) -> Iterator[list[str]]:
    """Run the backend's server; yield its command.

    Raises:
        ServiceStartError: it did not become ready.
    """
    model_dir = served_form(args.checkpoint / "llm", backend.value, args.work_dir)
    command = [sys.executable, "-m", "llm_service", "--backend", backend.value, "--model-dir", str(model_dir)]
    command += ["--port", str(PORT)]
    host = find_host("auto")
    command += as_options(llm_settings(preset_of(host), backend.value, shared=True)) if host.gpus else []
    if backend is LLMBackend.EMBEDDED:
        command += ["--grpc-port", str(GRPC_PORT)]
    log = args.work_dir / f"llm_{backend.value}.log"
    with ServiceProcess(ServiceSpec("llm_service", command, f"http://127.0.0.1:{PORT}/health", log)) as service:
        service.wait_ready(READY_TIMEOUT_S)
        yield command


if __name__ == "__main__":
    sys.exit(main())
