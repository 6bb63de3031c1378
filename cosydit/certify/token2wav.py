"""Checks of token2wav on its device: golden vectors, the served form against float32 on the CPU, the speech tokenizer.

The engine here is the service's own, without Triton around it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from cosydit.certify.check import VOICE, CheckContext, CheckFailedError, Findings, NotRunError
from cosydit.certify.recognition import FloatArray, keep_audio
from cosydit.stack.host import engine_settings, find_host, preset_of
from servicekit.clock import SystemClock
from token2wav_service.build import build_engine
from token2wav_service.checkpoint.family import open_features
from token2wav_service.config import Token2WavConfig
from token2wav_service.contract import MAX_PROMPT_SECONDS, PROMPT_SAMPLE_RATE_HZ
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.features.audio import load_prompt_audio
from token2wav_service.features.mel import flow_mel_24k
from token2wav_service.offline import OfflineUtterance, synthesize_all
from token2wav_service.replay.run import replay_directory
from token2wav_service.runtime.slots.step_shapes import TOKEN_BUCKETS
from token2wav_service.types import StreamOptions, VoicePrompt

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "assets" / "golden"
GPU_TOLERANCE = 1e-2
"""Largest error of mel and wave on a GPU: its sums run in another order, and the solver's ten steps multiply that."""
LARGEST_DISTANCE = 0.15
"""Largest mean absolute difference of log-mels (natural log) between the served form and float32 on the CPU."""
SPOKEN_TOKENS, CHUNK_TOKENS = 75, TOKEN_BUCKETS[0]
PROMPT_SECONDS = (3.0, MAX_PROMPT_SECONDS)
LEAST_EQUAL_TOKENS = 0.95


def check_golden(context: CheckContext, found: Findings) -> None:
    """Golden vectors of the original, through the modules in float32: `cosydit replay`; on a GPU its mels and waves."""
    if not GOLDEN.is_dir():
        raise NotRunError("the golden vectors lie in the repository's tests/assets/golden")
    is_gpu = context.plan.is_gpu
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        rows = replay_directory(GOLDEN, context.plan.device)
    if is_gpu:
        rows = [row for row in rows if row.output.endswith((".mel", ".wav (source injected)"))]
    largest = GPU_TOLERANCE if is_gpu else 0.0
    failed = [f"{row.output} {row.error:.3g}" for row in rows if not row.passed and not row.error <= largest]
    found.tell("outputs compared", len(rows), least=1)
    if failed:
        raise CheckFailedError(f"{len(failed)} of {len(rows)} golden outputs differ: {', '.join(failed)[:500]}")


def check_reference(context: CheckContext, found: Findings) -> None:
    """Two voices in one batch sound in the served form as each in float32 on the CPU."""
    engine = context.shared("token2wav", lambda: _opened(_config(context)))
    tokens = _tokens(context)
    prompts = {f"{seconds:g} s": _prompt(context, seconds) for seconds in PROMPT_SECONDS}
    found.notes.append(f"served: {engine.config.device}, {engine.config.dtype}, runner {engine.config.runner.value}")
    served = _speak(engine, tokens, *prompts.values())
    with _opened(_config(context, device="cpu", dtype="float32", runner="torch")) as plain:
        references = [_speak(plain, tokens, prompt)[0] for prompt in prompts.values()]
    for name, samples, reference in zip(prompts, served, references, strict=True):
        keep_audio(context, found, f"token2wav-{name}-served", samples)
        keep_audio(context, found, f"token2wav-{name}-float32-cpu", reference)
        found.tell(f"samples, voice of {name}", len(samples), least=len(reference), most=len(reference))
        most = LARGEST_DISTANCE if context.plan.is_audible else None  # random weights make noise of any rounding
        found.tell(f"log-mel distance, voice of {name}", _distance(samples, reference), most=most)
    engine.check_integrity()


def check_speech_tokens(context: CheckContext, found: Findings) -> None:
    """The speech tokenizer on the GPU hears what it hears on the CPU."""
    if not context.plan.is_gpu:
        raise NotRunError("the speech tokenizer runs on the CPU")
    directory, samples = context.checkpoint.token2wav_dir, _prompt(context).samples
    on_gpu, on_cpu = (open_features(directory, 1, device).tokens(samples) for device in (context.plan.device, "cpu"))
    found.tell("tokens on the GPU", len(on_gpu), least=len(on_cpu), most=len(on_cpu))
    found.tell("share of equal tokens", float((on_gpu == on_cpu).mean()), least=LEAST_EQUAL_TOKENS)


def _config(context: CheckContext, **fields: str) -> Token2WavConfig:
    directory, given, host = context.checkpoint.token2wav_dir, context.plan.settings, find_host(context.plan.device)
    chosen = engine_settings(preset_of(host), directory, given) if host.gpus else {}
    known = set(Token2WavConfig.__dataclass_fields__)
    settings = {name: value for name, value in {**chosen, **given, **fields}.items() if name in known}
    return Token2WavConfig.from_mapping({"model_dir": str(directory), **settings})


@contextmanager
def _opened(config: Token2WavConfig) -> Iterator[Token2WavEngine]:
    engine = build_engine(config, SystemClock())
    try:
        yield engine
    finally:
        del engine
        gc.collect()
        torch.cuda.empty_cache()  # does nothing where CUDA was not used


def _prompt(context: CheckContext, seconds: float | None = None) -> VoicePrompt:
    samples = load_prompt_audio((context.checkpoint.voices_dir / f"{VOICE}.wav").read_bytes())
    return VoicePrompt(samples if seconds is None else np.resize(samples, int(seconds * PROMPT_SAMPLE_RATE_HZ)))


def _tokens(context: CheckContext) -> tuple[int, ...]:
    """Return tokens that any checkpoint can speak: those of its own default voice."""
    heard = open_features(context.checkpoint.token2wav_dir).tokens(_prompt(context).samples)
    return tuple(int(token) for token in np.resize(heard, SPOKEN_TOKENS))


def _speak(engine: Token2WavEngine, tokens: tuple[int, ...], *prompts: VoicePrompt) -> list[FloatArray]:
    """Return the tokens' audio in each voice, all in one batch."""
    options = StreamOptions(seed=1)
    utterances = [OfflineUtterance(str(at), tokens, prompt, options) for at, prompt in enumerate(prompts)]
    spoken = {speech.name: speech.outcome for speech in synthesize_all(engine, utterances, CHUNK_TOKENS)}
    if failed := [each for each in spoken.values() if not isinstance(each, np.ndarray)]:
        raise failed[0]
    return [np.asarray(spoken[each.name]) for each in utterances]


def _distance(first: FloatArray, second: FloatArray) -> float:
    """Return the mean absolute difference of two log-mels, natural log, over the time that both have."""
    mels = [flow_mel_24k(samples) for samples in (first, second)]
    count = min(map(len, mels))
    return float(np.abs(mels[0][:count] - mels[1][:count]).mean())
