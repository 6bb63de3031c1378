"""Checks of token2wav on its device: golden vectors, the served form against float32 on the CPU, prompts, speed.

The engine here is the service's own, without Triton around it.
"""

from __future__ import annotations

import gc
import importlib.util
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from cosydit.certify.audio_faults import FRAME_SECONDS, SILENCE_LEVEL, loudness
from cosydit.certify.check import CheckFailedError, Findings, NotRunError
from cosydit.certify.context import VOICE, CheckContext, FloatArray, keep_audio
from cosydit.stack.engines import report_engines, serves_engines
from cosydit.stack.host import engine_settings, find_host, preset_of
from servicekit.clock import SystemClock
from servicekit.extras import install_command
from servicekit.gpu_host import MIB
from token2wav_service.build import build_engine
from token2wav_service.checkpoint.family import open_features
from token2wav_service.config import Token2WavConfig
from token2wav_service.contract import (
    LOOKAHEAD_TOKENS,
    MAX_PROMPT_SECONDS,
    PROMPT_SAMPLE_RATE_HZ,
    SAMPLE_RATE_HZ,
    SAMPLES_PER_TOKEN,
)
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.features.audio import load_prompt_audio
from token2wav_service.features.mel import flow_mel_24k
from token2wav_service.graphs.catalogue import ENCODER_CHUNK, ESTIMATOR_CHUNK, VOCODER
from token2wav_service.offline import OfflineUtterance, best_chunk_tokens, synthesize_all
from token2wav_service.replay.report import Row
from token2wav_service.replay.run import replay_directory, replay_streams
from token2wav_service.replay.stream_cases import INJECTED
from token2wav_service.runtime.slots.step_shapes import STREAM_BUCKETS, TOKEN_BUCKETS, StepShapes
from token2wav_service.runtime.tensorrt.manifest import probe_host
from token2wav_service.types import AudioChunk, StreamOptions, TokenChunk, VoicePrompt

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "assets" / "golden"
GPU_TOLERANCE = 1e-2
"""Largest error of mel and wave on a GPU: its sums run in another order, and the solver's ten steps multiply that."""
LARGEST_DISTANCE = 0.15
"""Largest mean absolute difference of log-mels (natural log) between the served form and float32 on the CPU."""
ROUNDING_TYPE, ROUNDING_MARGIN = "bfloat16", 1.25
"""With random weights the least rounding makes another sound, so this type's error on the CPU gives the bound."""
SPOKEN_TOKENS = 75
CHUNK_TOKENS = TOKEN_BUCKETS[0]
MOST_DECIBELS = 3.0
"""Largest mean difference of loudness between chunks and one piece."""
PROMPT_SECONDS = (3.0, 8.0, MAX_PROMPT_SECONDS)
LEAST_EQUAL_TOKENS = 0.95
WARM_UP_RUNS, RUNS = 2, 5
REAL_TIME = 1.0
EXPORTED = (ENCODER_CHUNK, ESTIMATOR_CHUNK, VOCODER)


def check_golden(context: CheckContext, found: Findings) -> None:
    """Golden vectors of the original, through the modules on the device, in float32."""
    directory = context.plan.golden_dir or GOLDEN
    if not directory.is_dir():
        raise NotRunError("the golden vectors lie in the repository's tests/assets/golden; name them with --golden")
    rows = replay_directory(directory).rows if not context.plan.is_gpu else _replayed_on_gpu(context, directory)
    failed = [f"{row.output} {row.error:.3g}" for row in rows if not row.passed]
    found.at_least("outputs compared", len(rows), 1)
    if failed:
        raise CheckFailedError(f"{len(failed)} of {len(rows)} golden outputs differ: {', '.join(failed)[:500]}")


def _replayed_on_gpu(context: CheckContext, directory: Path) -> list[Row]:
    """Return the mels and waves of the streams, judged by what a GPU can keep."""
    with exact_products():
        report = replay_streams(directory, context.plan.device)
    rows = [row for row in report.rows if row.output.endswith((".mel", INJECTED))]
    return [replace(row, passed=row.error <= GPU_TOLERANCE) for row in rows]


def check_reference(context: CheckContext, found: Findings) -> None:
    """Fixed tokens sound the same in the served form as in float32 on the CPU."""
    engine = _engine(context)
    tokens, prompt = _tokens(context), _prompt(context)
    served = _speak(engine, tokens, prompt)
    reference = _spoken_plainly(context, "float32")
    found.equals("samples", len(served), len(reference))
    found.note(f"served: {engine.config.device}, {engine.config.dtype}, runner {engine.config.runner.value}")
    keep_audio(context, found, "token2wav-served", served)
    keep_audio(context, found, "token2wav-float32-cpu", reference)
    found.at_most("log-mel distance", _distance(served, reference), _allowed(context))


def check_speech_tokens(context: CheckContext, found: Findings) -> None:
    """The speech tokenizer on the GPU hears what it hears on the CPU."""
    if not context.plan.is_gpu:
        raise NotRunError("token2wav runs on the CPU, and so does its speech tokenizer")
    if importlib.util.find_spec("s3tokenizer") is None:
        raise NotRunError(f"s3tokenizer is not installed, so the tokenizer runs on the CPU; {install_command('gpu')}")
    prompt = _prompt(context)
    on_gpu, on_cpu = (
        open_features(context.checkpoint.token2wav_dir, 1, device).tokens(prompt.samples)
        for device in (context.plan.device, "cpu")
    )
    found.equals("tokens on the GPU", len(on_gpu), len(on_cpu))
    found.at_least("share of equal tokens", float((on_gpu == on_cpu).mean()), LEAST_EQUAL_TOKENS)


def check_prompts(context: CheckContext, found: Findings) -> None:
    """Voices of short, usual and the longest prompts are prepared, and speak."""
    engine, tokens = _engine(context), _tokens(context)
    for seconds in PROMPT_SECONDS:
        prompt = _prompt(context, seconds)
        began = time.perf_counter()
        engine.voices.register(prompt)
        found.tell(f"a voice of {seconds:g} s prepared in", 1000 * (time.perf_counter() - began), "ms")
        samples = _speak(engine, tokens, prompt)
        found.equals(f"samples spoken with {seconds:g} s", len(samples), len(tokens) * SAMPLES_PER_TOKEN)
        found.at_least(f"loudness with {seconds:g} s", float(np.sqrt((samples**2).mean())), 1e-5)  # not of NaN
    found.tell("memory of voices", engine.stats().voice_bytes / MIB, "MiB")


def check_two_voices(context: CheckContext, found: Findings) -> None:
    """Two streams with different voices in one batch sound as each alone."""
    engine, tokens = _engine(context), _tokens(context)
    prompts = {"short": _prompt(context, 3.0), "usual": _prompt(context)}
    alone = {name: _speak(engine, tokens, prompt) for name, prompt in prompts.items()}
    utterances = [OfflineUtterance(name, tokens, prompt, StreamOptions(seed=1)) for name, prompt in prompts.items()]
    for speech in synthesize_all(engine, utterances, best_chunk_tokens(engine.config)):
        if not isinstance(speech.outcome, np.ndarray):
            raise CheckFailedError(f"the {speech.name} voice: {speech.outcome}")
        found.at_most(
            f"log-mel distance of the {speech.name} voice beside the other",
            _distance(speech.outcome, alone[speech.name]),
            _allowed(context),
        )
    engine.check_integrity()


def check_chunked(context: CheckContext, found: Findings) -> None:
    """Speech in short chunks is as loud, moment by moment, as the same speech made in one piece."""
    engine, tokens, prompt = _engine(context), _tokens(context), _prompt(context)
    whole, chunked = _speak(engine, tokens, prompt), _speak(engine, tokens, prompt, CHUNK_TOKENS)
    keep_audio(context, found, "token2wav-chunked", chunked)
    found.equals("samples", len(chunked), len(whole))
    found.tell("log-mel distance", _distance(chunked, whole))
    levels = np.stack([loudness(samples, SAMPLE_RATE_HZ, FRAME_SECONDS) for samples in (chunked, whole)])
    audible = levels[:, (levels > SILENCE_LEVEL).all(axis=0)]
    if not context.plan.is_audible or not audible.size:
        found.note("the audio has no loudness to compare")
        return
    decibels = float(np.abs(np.diff(20 * np.log10(audible), axis=0)).mean())
    found.at_most("loudness beside one piece", decibels, MOST_DECIBELS, "dB")


def check_buckets(context: CheckContext, found: Findings) -> None:
    """One chunk of so many streams at once, for every program that is served."""
    engine, shapes = _engine(context), StepShapes()
    voice = engine.voices.register(_prompt(context)).voice_id
    token_buckets = TOKEN_BUCKETS if context.plan.is_gpu else TOKEN_BUCKETS[:2]
    most = engine.config.max_streams if context.plan.is_gpu else 2
    for tokens in token_buckets:
        sizes = [size for size in STREAM_BUCKETS if size <= min(most, shapes.most_streams(tokens))]
        for streams in sizes:
            found.tell(f"{streams} streams, {tokens} tokens", 1000 * _chunk_s(engine, voice, streams, tokens), "ms")
    one = next(figure.value for figure in found.figures if figure.name.startswith("1 streams"))
    if context.plan.is_gpu:
        found.at_most("of a chunk's own duration, alone", one / 1000 / (token_buckets[0] / 25), REAL_TIME)


def check_export(context: CheckContext, found: Findings) -> None:
    """The chunk forms and the vocoder as ONNX files compute what the plain modules do."""
    if importlib.util.find_spec("onnxscript") is None:
        raise NotRunError(f"ONNX files are written with onnxscript; {install_command('export')}")
    from token2wav_service.export.compare import MIN_SNR_DB, Executor, Sweep, compare_graph, verdicts
    from token2wav_service.export.directory import ExportDirectory, ExportOptions

    sweep = Sweep(streams=(1, 3), frames=(2, 60), history=(1, 120))
    context.plan.work_dir.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=context.plan.work_dir) as folder:
        directory = ExportDirectory(context.checkpoint.token2wav_dir, Path(folder), ExportOptions(graphs=EXPORTED))
        for task in directory.plan():
            directory.run(task)
            made = verdicts(list(compare_graph(directory.out_dir, task.spec, directory.models, sweep)))
            for one in made:
                if one.executor is Executor.ONNX_RUNTIME and one.snr_db is not None:
                    found.at_least(f"{one.graph} from float32", one.snr_db, MIN_SNR_DB[one.precision], "dB")


def check_tensorrt(context: CheckContext, found: Findings) -> None:
    """The engine of TensorRT sounds as the fused kernels; says which of the two is faster."""
    if not context.plan.is_gpu or importlib.util.find_spec("tensorrt") is None:
        raise NotRunError(f"TensorRT needs a GPU and its package; install with: {install_command('tensorrt')}")
    if not serves_engines(context.checkpoint.token2wav_dir):
        raise NotRunError("runner=tensorrt does not serve this checkpoint's family")
    reports = report_engines(context.checkpoint.token2wav_dir, probe_host())
    if not any(report.graph and not report.problems for report in reports):
        told = "; ".join(f"{report.name}: {', '.join(report.problems)}" for report in reports) or "none is built"
        raise NotRunError(f"no engine that fits ({told}); cosydit build-engines {context.checkpoint.token2wav_dir}")
    tokens, prompt = _tokens(context), _prompt(context)
    engine = _engine(context)
    voice = engine.voices.register(prompt).voice_id
    slots, slots_s = _speak(engine, tokens, prompt), _chunk_s(engine, voice, 1, TOKEN_BUCKETS[0])
    with _opened(_config(context, runner="tensorrt")) as other:
        voice = other.voices.register(prompt).voice_id
        spoken, seconds = _speak(other, tokens, prompt), _chunk_s(other, voice, 1, TOKEN_BUCKETS[0])
    found.at_most("log-mel distance from slots", _distance(spoken, slots), _allowed(context))
    found.tell("one chunk, slots", 1000 * slots_s, "ms")
    found.tell("one chunk, tensorrt", 1000 * seconds, "ms")
    graphs = sorted({report.graph for report in reports if report.graph and not report.problems})
    found.note(f"engines of {' and '.join(graphs)}; fused kernels run the rest")
    found.note(f"faster: {'tensorrt' if seconds < slots_s else 'slots'}")


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
    if seconds is None:
        return VoicePrompt(samples)
    return VoicePrompt(np.resize(samples, int(seconds * PROMPT_SAMPLE_RATE_HZ)))


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


def _chunk_s(engine: Token2WavEngine, voice: str, streams: int, tokens: int) -> float:
    """Return the median seconds from the tokens of a chunk to the last stream's audio."""
    seconds = []
    for run in range(WARM_UP_RUNS + RUNS):
        opened = [engine.open_stream(voice, StreamOptions(seed=run * streams + i)) for i in range(streams)]
        token_ids = tuple(range(tokens + LOOKAHEAD_TOKENS))
        began = time.perf_counter()
        for stream in opened:
            engine.add_chunk(TokenChunk(stream, 0, token_ids, False))
        done = 0
        while done < streams:
            results = engine.step()
            failed = [result.outcome for result in results if not isinstance(result.outcome, AudioChunk)]
            if failed:
                raise CheckFailedError(f"{streams} streams of {tokens} tokens: {failed[0]}")
            done += len(results)
        seconds.append(time.perf_counter() - began)
        for stream in opened:
            engine.abort(stream)
    return float(np.median(seconds[WARM_UP_RUNS:]))


def _distance(first: FloatArray, second: FloatArray) -> float:
    """Return the mean absolute difference of two log-mels, natural log, over the time that both have."""
    mels = [flow_mel_24k(samples) for samples in (first, second)]
    count = min(map(len, mels))
    return float(np.abs(mels[0][:count] - mels[1][:count]).mean())


@contextmanager
def exact_products() -> Iterator[None]:
    """Float32 products without TF32, while it lasts."""
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
