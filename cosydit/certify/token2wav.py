"""Checks of token2wav on its device: golden vectors, the served form against float32 on the CPU, prompts, speed.

The engine here is the service's own, without Triton around it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from cosydit.certify.check import CheckFailedError, Findings, NotRunError
from cosydit.certify.context import VOICE, CheckContext, FloatArray, keep_audio
from cosydit.certify.recognition import FRAME_SECONDS, SILENCE_LEVEL, loudness
from cosydit.stack.host import engine_settings, find_host, preset_of
from servicekit.clock import SystemClock
from servicekit.gpu_host import MIB
from token2wav_service.build import build_engine
from token2wav_service.checkpoint.family import open_features
from token2wav_service.config import Token2WavConfig
from token2wav_service.contract import (
    MAX_PROMPT_SECONDS,
    PROMPT_SAMPLE_RATE_HZ,
    SAMPLE_RATE_HZ,
    SAMPLES_PER_TOKEN,
)
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.features.audio import load_prompt_audio
from token2wav_service.features.mel import flow_mel_24k
from token2wav_service.offline import OfflineUtterance, best_chunk_tokens, synthesize_all
from token2wav_service.replay.report import Row
from token2wav_service.replay.run import replay_directory, replay_streams
from token2wav_service.runtime.slots.step_shapes import TOKEN_BUCKETS
from token2wav_service.types import StreamOptions, VoicePrompt

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "assets" / "golden"
GPU_TOLERANCE = 1e-2
"""Largest error of mel and wave on a GPU: its sums run in another order, and the solver's ten steps multiply that."""
LARGEST_DISTANCE = 0.15
"""Largest mean absolute difference of log-mels (natural log) between the served form and float32 on the CPU."""
ROUNDING_TYPE, ROUNDING_MARGIN = "bfloat16", 1.25
"""With random weights the least rounding makes another sound, so this type's error on the CPU gives the bound."""
SPOKEN_TOKENS, CHUNK_TOKENS = 75, TOKEN_BUCKETS[0]
MOST_DECIBELS = 3.0
"""Largest mean difference of loudness between chunks and one piece."""
PROMPT_SECONDS = (3.0, 8.0, MAX_PROMPT_SECONDS)
LEAST_EQUAL_TOKENS = 0.95


def check_golden(context: CheckContext, found: Findings) -> None:
    """Golden vectors of the original, through the modules on the device, in float32: `cosydit replay`."""
    directory = context.plan.golden_dir or GOLDEN
    if not directory.is_dir():
        raise NotRunError("the golden vectors lie in the repository's tests/assets/golden; name them with --golden")
    rows = replay_directory(directory).rows if not context.plan.is_gpu else _replayed_on_gpu(context, directory)
    largest = GPU_TOLERANCE if context.plan.is_gpu else 0.0
    failed = [f"{row.output} {row.error:.3g}" for row in rows if not row.passed and not row.error <= largest]
    found.tell("outputs compared", len(rows), least=1)
    if failed:
        raise CheckFailedError(f"{len(failed)} of {len(rows)} golden outputs differ: {', '.join(failed)[:500]}")


def _replayed_on_gpu(context: CheckContext, directory: Path) -> list[Row]:
    """Return the mels and waves of the streams, computed without TF32."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        rows = replay_streams(directory, context.plan.device).rows
    return [row for row in rows if row.output.endswith((".mel", ".wav (source injected)"))]


def check_reference(context: CheckContext, found: Findings) -> None:
    """Fixed tokens sound the same in the served form as in float32 on the CPU."""
    engine = _engine(context)
    served, reference = _speak(engine, _tokens(context), _prompt(context)), _spoken_plainly(context, "float32")
    found.tell("samples", len(served), least=len(reference), most=len(reference))
    found.note(f"served: {engine.config.device}, {engine.config.dtype}, runner {engine.config.runner.value}")
    keep_audio(context, found, "token2wav-served", served)
    keep_audio(context, found, "token2wav-float32-cpu", reference)
    found.tell("log-mel distance", _distance(served, reference), most=_allowed(context))


def check_speech_tokens(context: CheckContext, found: Findings) -> None:
    """The speech tokenizer on the GPU hears what it hears on the CPU."""
    if not context.plan.is_gpu:
        raise NotRunError("the speech tokenizer runs on the CPU")
    directory, samples = context.checkpoint.token2wav_dir, _prompt(context).samples
    on_gpu, on_cpu = (open_features(directory, 1, device).tokens(samples) for device in (context.plan.device, "cpu"))
    found.tell("tokens on the GPU", len(on_gpu), least=len(on_cpu), most=len(on_cpu))
    found.tell("share of equal tokens", float((on_gpu == on_cpu).mean()), least=LEAST_EQUAL_TOKENS)


def check_prompts(context: CheckContext, found: Findings) -> None:
    """Voices of short, usual and the longest prompts are prepared, and speak."""
    engine, tokens = _engine(context), _tokens(context)
    for seconds in PROMPT_SECONDS:
        prompt, began = _prompt(context, seconds), time.perf_counter()
        engine.voices.register(prompt)
        found.tell(f"a voice of {seconds:g} s prepared in", 1000 * (time.perf_counter() - began), "ms")
        samples = _speak(engine, tokens, prompt)
        found.tell(
            f"samples spoken with {seconds:g} s",
            len(samples),
            least=len(tokens) * SAMPLES_PER_TOKEN,
            most=len(tokens) * SAMPLES_PER_TOKEN,
        )
        found.tell(f"loudness with {seconds:g} s", float(np.sqrt((samples**2).mean())), least=1e-5)  # not of NaN
    found.tell("memory of voices", engine.stats().voice_bytes / MIB, "MiB")


def check_two_voices(context: CheckContext, found: Findings) -> None:
    """Two streams with different voices in one batch sound as each alone."""
    engine, tokens = _engine(context), _tokens(context)
    prompts = {"short": _prompt(context, 3.0), "usual": _prompt(context)}
    utterances = [OfflineUtterance(name, tokens, prompt, StreamOptions(seed=1)) for name, prompt in prompts.items()]
    for speech in synthesize_all(engine, utterances, best_chunk_tokens(engine.config)):
        if not isinstance(speech.outcome, np.ndarray):
            raise CheckFailedError(f"the {speech.name} voice: {speech.outcome}")
        distance = _distance(speech.outcome, _speak(engine, tokens, prompts[speech.name]))
        found.tell(f"log-mel distance of the {speech.name} voice beside the other", distance, most=_allowed(context))
    engine.check_integrity()


def check_chunked(context: CheckContext, found: Findings) -> None:
    """Speech in short chunks is as loud, moment by moment, as the same speech made in one piece."""
    engine, tokens, prompt = _engine(context), _tokens(context), _prompt(context)
    whole, chunked = _speak(engine, tokens, prompt), _speak(engine, tokens, prompt, CHUNK_TOKENS)
    keep_audio(context, found, "token2wav-chunked", chunked)
    found.tell("samples", len(chunked), least=len(whole), most=len(whole))
    found.tell("log-mel distance", _distance(chunked, whole))
    levels = np.stack([loudness(samples, SAMPLE_RATE_HZ, FRAME_SECONDS) for samples in (chunked, whole)])
    audible = levels[:, (levels > SILENCE_LEVEL).all(axis=0)]
    if context.plan.is_audible and audible.size:
        decibels = float(np.abs(np.diff(20 * np.log10(audible), axis=0)).mean())
        found.tell("loudness beside one piece", decibels, "dB", most=MOST_DECIBELS)


def _config(context: CheckContext, **fields: str) -> Token2WavConfig:
    """Return the engine's settings: the plan's, some replaced."""
    directory, given, host = context.checkpoint.token2wav_dir, context.plan.settings, find_host(context.plan.device)
    chosen = engine_settings(preset_of(host), directory, given) if host.gpus else {}
    known = set(Token2WavConfig.__dataclass_fields__)
    settings = {name: value for name, value in {**chosen, **given, **fields}.items() if name in known}
    return Token2WavConfig.from_mapping({"model_dir": str(directory), **settings})


def _engine(context: CheckContext) -> Token2WavEngine:
    """Return the engine as it serves, built by the first check that asks."""
    return context.shared("token2wav", lambda: _opened(_config(context)))


@contextmanager
def _opened(config: Token2WavConfig) -> Iterator[Token2WavEngine]:
    engine = build_engine(config, SystemClock())
    try:
        yield engine
    finally:
        del engine
        gc.collect()
        torch.cuda.empty_cache()  # does nothing where CUDA was not used


def _spoken_plainly(context: CheckContext, dtype: str) -> FloatArray:
    """Return the fixed tokens' audio by the plain modules on the CPU, made once."""

    def speak() -> FloatArray:
        with _opened(_config(context, device="cpu", dtype=dtype, runner="torch")) as plain:
            return _speak(plain, _tokens(context), _prompt(context))

    return context.kept(f"token2wav/{dtype}", speak)


def _allowed(context: CheckContext) -> float:
    """Return how far two log-mels of the same tokens may lie apart."""
    if context.plan.is_audible:
        return LARGEST_DISTANCE
    rounded = _distance(_spoken_plainly(context, ROUNDING_TYPE), _spoken_plainly(context, "float32"))
    return max(LARGEST_DISTANCE, ROUNDING_MARGIN * rounded)


def _prompt(context: CheckContext, seconds: float | None = None) -> VoicePrompt:
    """Return the default voice, repeated or cut to a length."""
    samples = load_prompt_audio((context.checkpoint.voices_dir / f"{VOICE}.wav").read_bytes())
    return VoicePrompt(samples if seconds is None else np.resize(samples, int(seconds * PROMPT_SAMPLE_RATE_HZ)))


def _tokens(context: CheckContext) -> tuple[int, ...]:
    """Return tokens that any checkpoint can speak: those of its own default voice."""
    heard = open_features(context.checkpoint.token2wav_dir).tokens(_prompt(context).samples)
    return tuple(int(token) for token in np.resize(heard, SPOKEN_TOKENS))


def _speak(
    engine: Token2WavEngine, tokens: Sequence[int], prompt: VoicePrompt, chunk_tokens: int | None = None
) -> FloatArray:
    utterance = OfflineUtterance("one", tuple(tokens), prompt, StreamOptions(seed=1))
    (speech,) = synthesize_all(engine, [utterance], chunk_tokens or best_chunk_tokens(engine.config))
    if not isinstance(speech.outcome, np.ndarray):
        raise speech.outcome
    return speech.outcome


def _distance(first: FloatArray, second: FloatArray) -> float:
    """Return the mean absolute difference of two log-mels, natural log, over the time that both have."""
    mels = [flow_mel_24k(samples) for samples in (first, second)]
    count = min(map(len, mels))
    return float(np.abs(mels[0][:count] - mels[1][:count]).mean())
