"""What models of these sizes cost on a CPU, with random weights: `python -m lab.train.measure_cpu`.

One JSON line for token2wav and one for the LLM. Costs are CPU seconds of this process per second of audio, on one
thread, so that what else runs on the machine changes them little; the first chunk is in wall time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from demo_voice.unpack import VOICES, write_llm
from lab.train.models.llm import TrainableLLM
from lab.train.models.llm_data import train_text_tokenizer
from lab.train.package import llm_arrays, llm_shape
from lab.train.sizes import SIZES, DemoSizes
from llm_service.embedded.model import DecodeRow, SpeechLanguageModel
from llm_service.vocab import COSYVOICE2
from servicekit.clock import SystemClock
from token2wav_service.build import build_engine
from token2wav_service.checkpoint.make_random import make_random_token2wav
from token2wav_service.config import Token2WavConfig
from token2wav_service.contract import LOOKAHEAD_TOKENS, SAMPLE_RATE_HZ, SPEECH_VOCAB_SIZE
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.features.audio import load_prompt_audio
from token2wav_service.types import AudioChunk, StreamOptions, TokenChunk, VoicePrompt

HOPS = (15, 25, 50, 60)
"""Six seconds in the gateway's default schedule."""
PROMPT_PLACES, SPOKEN_TOKENS = 150, 100
"""Positions of the LLM's prompt (transcript, text and speech tokens), and tokens of an answer of four seconds."""
TOKEN_RATE_HZ = 25
_MS = 1000.0


def measure_token2wav(sizes: DemoSizes) -> dict[str, float]:
    """Speak random tokens through the engine in streaming chunks, after a warm-up."""
    with tempfile.TemporaryDirectory() as scratch:
        make_random_token2wav(Path(scratch), 0, sizes.flow, sizes.hift)
        engine = build_engine(Token2WavConfig(model_dir=Path(scratch), num_threads=1), SystemClock())
    prompt = VoicePrompt(load_prompt_audio((VOICES / "default.wav").read_bytes()))
    voice_id = engine.voices.register(prompt).voice_id
    _speak(engine, voice_id)
    began_cpu = time.process_time()
    first_s, audio_s = _speak(engine, voice_id)
    return {"cpu_s_per_audio_s": (time.process_time() - began_cpu) / audio_s, "first_chunk_ms": _MS * first_s}


def measure_llm(sizes: DemoSizes, rows_per_forward: int) -> dict[str, float]:
    """Prefill a prompt and decode an answer through the embedded server's model, after a warm-up."""
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = train_text_tokenizer(["random weights read no text"], sizes.llm.text_tokens)
        arrays = llm_arrays(TrainableLLM(sizes.llm))
        write_llm(Path(scratch), llm_shape(sizes.llm), arrays, json.loads(tokenizer.to_str()))
        model = SpeechLanguageModel.load(Path(scratch), "cpu", "float32")
    model.allocate_cache(8, PROMPT_PLACES + SPOKEN_TOKENS, rows_per_forward)
    _decode(model)
    began = time.perf_counter()
    model.prefill(0, list(range(PROMPT_PLACES)))
    prefill_s, began_cpu = time.perf_counter() - began, time.process_time()
    _decode(model)
    cpu_s = time.process_time() - began_cpu
    return {"cpu_s_per_audio_s": cpu_s * TOKEN_RATE_HZ / SPOKEN_TOKENS, "prefill_ms": _MS * prefill_s}


def _speak(engine: Token2WavEngine, voice_id: str) -> tuple[float, float]:
    """Return the wall seconds of the first chunk and the seconds of audio."""
    tokens = np.random.default_rng(0).integers(0, SPEECH_VOCAB_SIZE, sum(HOPS)).tolist()
    stream_id = engine.open_stream(voice_id, StreamOptions())
    began, first_s, samples, start = time.perf_counter(), 0.0, 0, 0
    for index, hop in enumerate(HOPS):
        is_last = index == len(HOPS) - 1
        window = tokens[start:] if is_last else tokens[start : start + hop + LOOKAHEAD_TOKENS]
        engine.add_chunk(TokenChunk(stream_id, index, tuple(window), is_last))
        start += hop
        samples += sum(len(r.outcome.samples) for r in engine.step() if isinstance(r.outcome, AudioChunk))
        first_s = first_s or time.perf_counter() - began
    return first_s, samples / SAMPLE_RATE_HZ


def _decode(model: SpeechLanguageModel) -> None:
    for place in range(PROMPT_PLACES, PROMPT_PLACES + SPOKEN_TOKENS):
        model.decode([DecodeRow(0, COSYVOICE2.first_id + place, place)])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.train.measure_cpu", description=__doc__)
    parser.add_argument("--sizes", choices=list(SIZES), default="demo", help="default %(default)s")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    sizes = SIZES[args.sizes]
    for name, result in (("token2wav", measure_token2wav(sizes)), ("llm", measure_llm(sizes, rows_per_forward=1))):
        figures = {key: round(value, 4) for key, value in result.items()}
        sys.stdout.write(json.dumps({"part": name, "sizes": args.sizes, **figures}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
