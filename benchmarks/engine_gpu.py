"""The token2wav engine alone on a GPU at full size: first chunks, real-time streams, cost over time, of each family.

Random weights of the official sizes give honest speed. Writes raw samples beside the figures computed from them. With
`--quick` it prepares the programs of few streams only and takes less than a minute.
"""

from __future__ import annotations

import argparse
import copy
import heapq
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cosydit.bench.report import aligned_table, describe_environment, write_json
from servicekit.clock import SystemClock
from token2wav_service.build import build_engine
from token2wav_service.checkpoint.family import Family
from token2wav_service.checkpoint.loader import build_flow
from token2wav_service.checkpoint.make_random import OFFICIAL_SIZES, make_random_token2wav
from token2wav_service.config import HistoryPolicy, SynthesisPolicy, Token2WavConfig
from token2wav_service.contract import LOOKAHEAD_TOKENS, SAMPLE_RATE_HZ, SPEECH_VOCAB_SIZE, TOKEN_RATE_HZ
from token2wav_service.engine.engine import ChunkResult, Token2WavEngine
from token2wav_service.engine.runner import ChunkWork
from token2wav_service.errors import ProgramCaptureError
from token2wav_service.models.causal import FlowInput
from token2wav_service.models.config import UPSTREAM_STEPS, AnyFlowConfig, FlowConfig
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.replay.vectors import snr_db
from token2wav_service.runtime.slots.slot_runner import SlotRunner
from token2wav_service.runtime.slots.step_shapes import StepShapes
from token2wav_service.types import AudioChunk, StreamOptions, TokenChunk, VoiceFeatures, VoicePrompt

FIRST_CHUNK_TOKENS = 18
SECOND_CHUNK_TOKENS = 28
"""Tokens of the second chunk: one second and the look-ahead; a block of the block-masked flows."""
WARM_UP_RUNS = 3
PROMPT_S = 5.0
LISTENER_BUFFER_S = 1.0
RAMP_STREAMS_PER_S = 150.0
LISTENERS, BLOCK_LISTENERS = [500, 600, 700, 750, 800], [100, 150, 200, 250, 300]
"""Numbers of listeners to try; a stream of a block-masked flow takes 0.2 GB."""
COST_S = 60
"""Seconds of the stream whose every chunk is timed."""
QUICK_RUNS, QUICK_COST_S, QUICK_STREAMS = 10, 10, 32
LEAST_MEL_SNR_DB = 20.0
"""Least ratio of the programs' mel to the plain modules' in float32: a wrong kernel makes less than 10."""
BATCH_STREAMS = (1, 4, 16, 64, 128)
BATCH_TOKENS = (15 + LOOKAHEAD_TOKENS, 25 + LOOKAHEAD_TOKENS, 50 + LOOKAHEAD_TOKENS)
BATCH_RUNS = 10
ODE_STEPS, CFG_HALVES, FRAMES_A_TOKEN = 10, 2, 2
MEL_RATE_HZ = 50
PEAK_FLOPS, PEAK_BYTES_PER_S = 790e12, 4.3e12
"""Measured peaks of one H200: half-precision matrix products on random data, and copies."""
BYTES_A_WEIGHT = 2
CLOCK = SystemClock()


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    parser.add_argument("--dtype", default="float16", help="dtype of the flow (default %(default)s)")
    parser.add_argument("--runs", type=int, default=50, help="number of runs of each first-chunk measurement")
    parser.add_argument(
        "--first-chunk", type=int, nargs="*", default=[1, 4, 8, 16, 32, 64], help="numbers of simultaneous streams"
    )
    parser.add_argument(
        "--listeners",
        type=int,
        nargs="*",
        help=f"numbers of listeners to try, ascending (default {LISTENERS} or {BLOCK_LISTENERS})",
    )
    parser.add_argument(
        "--batches",
        type=int,
        nargs="*",
        default=list(BATCH_STREAMS),
        help="numbers of streams to time in one batch, for three lengths of chunks (default %(default)s)",
    )
    parser.add_argument(
        "--listen-s", type=float, default=12.0, help="seconds for which each number of listeners is held"
    )
    parser.add_argument(
        "--family",
        type=Family,
        choices=list(Family),
        default=Family.STEP_AUDIO2,
        help="family of the flow and the vocoder",
    )
    parser.add_argument(
        "--quick", action="store_true", help="measure few programs and runs and no listeners, in less than a minute"
    )
    parser.add_argument(
        "--recent-frames",
        type=int,
        default=SynthesisPolicy().estimator_recent_frames,
        help="newest mel frames that a stream keeps beside its prompt, whole blocks (default %(default)s)",
    )
    parser.add_argument("--commit", default=None, help="commit of the code that runs (default: as git says)")
    args = parser.parse_args(argv)
    if args.listeners is None:
        args.listeners = LISTENERS if args.family is Family.STEP_AUDIO2 else BLOCK_LISTENERS
    if args.quick:
        args.runs, args.first_chunk, args.listeners = QUICK_RUNS, [1, QUICK_STREAMS], []
        args.batches = []
    try:
        raw, engine = measure(args)
    except (ProgramCaptureError, MeasurementError) as err:
        print(f"engine_gpu: {err}", file=sys.stderr)
        return 1
    figures = compute_figures(raw, "" if args.family is Family.STEP_AUDIO2 else f"{args.family.value}_")
    policy = engine.config.synthesis
    setting = {
        "family": args.family.value,
        "history": f"prompt_and_recent, {policy.estimator_recent_frames} and {policy.conformer_recent_frames} frames",
        "prompt_s": PROMPT_S,
        "ode_steps": policy.ode_steps or UPSTREAM_STEPS,
        "dtype": args.dtype,
    }
    environment = describe_environment({k: v for k, v in vars(args).items() if k != "out"}, args.commit)
    write_json(args.out, {"figures": figures, "setting": setting, "environment": environment, "raw": raw})
    print("\n".join(aligned_table([["figure", "value"], *([k, f"{v:.4g}"] for k, v in figures.items())]).splitlines()))
    return 0


class MeasurementError(Exception):
    """The engine ran and gave out what no figure may be made of."""


def measure(args: argparse.Namespace) -> tuple[dict[str, Any], Token2WavEngine]:
    """Make the engine and take the samples that the command line asks for.

    Raises:
        ProgramCaptureError: a step could not be captured.
        MeasurementError: a chunk failed, or mel is not the plain modules'.
    """
    flow, hift = OFFICIAL_SIZES[args.family]
    with tempfile.TemporaryDirectory() as scratch:
        model_dir = Path(scratch) / "token2wav"
        make_random_token2wav(model_dir, seed=0, flow=flow, hift=hift)
        began = CLOCK.now()
        shapes = quick_shapes(flow) if args.quick else None
        engine = _engine(model_dir, args.dtype, max(args.listeners, default=64), args.recent_frames, shapes)
        start_s = CLOCK.now() - began
    print(f"ready after {start_s:.1f} s", file=sys.stderr)
    voice = engine.voices.register(_prompt()).voice_id
    hop = FIRST_CHUNK_TOKENS if isinstance(flow, FlowConfig) else SECOND_CHUNK_TOKENS
    raw: dict[str, Any] = {"start_s": start_s}
    if not isinstance(flow, FlowConfig):
        raw["mel_snr_db"] = mel_snr(engine)
        print(f"mel against the plain modules: {raw['mel_snr_db']:.1f} dB", file=sys.stderr)
    raw |= {
        "new_voice_s": new_voices(engine, args.runs),
        "first_chunk_s": {str(n): first_chunks(engine, voice, n, args.runs) for n in args.first_chunk},
        "batches": batches(engine, voice, estimator_weights(flow), args.batches),
        "chunk_cost_s": chunk_costs(engine, voice, hop, QUICK_COST_S if args.quick else COST_S),
        "listeners": listen_all(engine, voice, args.listeners, args.listen_s),
        "bytes_per_stream": _bytes_per_stream(engine, voice),
        "voice_bytes": engine.stats().voice_bytes,
    }
    engine.check_integrity()
    return raw, engine


def quick_shapes(flow: AnyFlowConfig) -> StepShapes:
    """Return the programs of one stream and of many, for a first chunk and the ones behind it."""
    if isinstance(flow, FlowConfig):
        return StepShapes((1, QUICK_STREAMS), (FIRST_CHUNK_TOKENS - LOOKAHEAD_TOKENS,))
    return StepShapes((1, QUICK_STREAMS), (flow.block_tokens, 2 * flow.block_tokens))


def new_voices(engine: Token2WavEngine, runs: int) -> list[float]:
    """Return seconds from a prompt's features to a voice that streams can start from, per run."""
    features = _features()
    seconds = []
    for _ in range(runs + 1):
        torch.cuda.synchronize()
        began = CLOCK.now()
        engine.runner.prepare_voice(features)
        torch.cuda.synchronize()
        seconds.append(CLOCK.now() - began)
    return seconds[1:]


@torch.inference_mode()
def mel_snr(engine: Token2WavEngine) -> float:
    """Return the least dB of three chunks' mel from one stream's programs, against the plain modules' in float32.

    Raises:
        MeasurementError: too few.
    """
    runner = engine.runner
    assert isinstance(runner, SlotRunner)
    features = _features()
    plain = StreamFlow(copy.deepcopy(runner.flow.flow).float(), runner.policy)
    speaker = torch.from_numpy(features.speaker_embedding)
    tokens, prompt_mel = torch.from_numpy(features.prompt_tokens), torch.from_numpy(features.prompt_mel)
    state = runner.open(runner.prepare_voice(features))
    trimmed = plain.trimmed(len(tokens), FIRST_CHUNK_TOKENS - LOOKAHEAD_TOKENS)
    expected_state = plain.run_prompt(tokens, prompt_mel, speaker, trimmed)
    found = []
    for index, count in enumerate((FIRST_CHUNK_TOKENS, SECOND_CHUNK_TOKENS, SECOND_CHUNK_TOKENS)):
        ids = _tokens(count, index)
        bucket = runner.bucket(TokenChunk("", index, ids, False), state)
        runner.run([ChunkWork(ids, False, 7, state)])
        (expected,), (expected_state,) = plain.forward(
            [FlowInput(expected_state, torch.tensor(ids), speaker, 7, is_last=False)]
        )
        made = runner.program(1, bucket).mel
        assert made is not None
        found.append(snr_db(made[0, : expected.shape[1]].T, expected))
    runner.close(state)
    if not min(found) >= LEAST_MEL_SNR_DB:
        raise MeasurementError(
            f"mel of three chunks is {', '.join(f'{one:.1f}' for one in found)} dB from the plain modules', "
            f"expected at least {LEAST_MEL_SNR_DB}: a kernel is wrong on this GPU"
        )
    return min(found)


def compute_figures(raw: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Compute the published figures from raw samples; their names begin with the prefix."""
    figures = {}
    for streams, samples in raw["first_chunk_s"].items():
        name = "first_chunk_1_ms" if streams == "1" else f"first_chunk_{streams}_last_ms"
        figures[name] = 1000 * statistics.median(samples)
    if "new_voice_s" in raw:
        figures["new_voice_ms"] = 1000 * statistics.median(raw["new_voice_s"])
    costs = raw["chunk_cost_s"]
    figures["chunk_cost_last_over_first"] = statistics.median(costs[-5:]) / statistics.median(costs[:5])
    held = [entry["listeners"] for entry in raw["listeners"] if entry["underruns"] == 0]
    if raw["listeners"]:
        figures["realtime_streams"] = max(held, default=0)
    return {prefix + name: value for name, value in figures.items()}


def first_chunks(
    engine: Token2WavEngine, voice: str, streams: int, runs: int, tokens: int = FIRST_CHUNK_TOKENS
) -> list[float]:
    """Return seconds from tokens to the last stream's first audio, per run; the voice is cached."""
    seconds = []
    for run in range(WARM_UP_RUNS + runs):
        opened = [engine.open_stream(voice, StreamOptions(seed=run * streams + i)) for i in range(streams)]
        chunks = [TokenChunk(stream, 0, _tokens(tokens, i), False) for i, stream in enumerate(opened)]
        began = CLOCK.now()
        for chunk in chunks:
            engine.add_chunk(chunk)
        done = 0
        while done < streams:
            done += len([_audio(result) for result in engine.step()])
        seconds.append(CLOCK.now() - began)
        for stream in opened:
            engine.abort(stream)
    return seconds[WARM_UP_RUNS:]


def _audio(result: ChunkResult) -> AudioChunk:
    if not isinstance(result.outcome, AudioChunk):
        raise MeasurementError(f"a chunk failed: {result.outcome}")
    return result.outcome


def estimator_weights(flow: AnyFlowConfig) -> int:
    """Count the weights of the full-size estimator that every solver step uses; the modulation's are read at load."""
    with torch.device("meta"):
        estimator = build_flow(flow).decoder.estimator
    tables = ("adaLN", "attn_norm", "norm_out", "time_mlp", "mlp.1.")
    return sum(p.numel() for name, p in estimator.named_parameters() if not any(part in name for part in tables))


def batches(engine: Token2WavEngine, voice: str, weights: int, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Measure one chunk of every stream for each number of streams and chunk length, and compare with the floor."""
    rows = []
    for tokens in BATCH_TOKENS:
        for streams in numbers:
            seconds = first_chunks(engine, voice, streams, BATCH_RUNS, tokens)
            median, floor = statistics.median(seconds), floor_s(weights, streams, tokens)
            row = {"streams": streams, "tokens": tokens, "seconds": seconds, "stream_s": median / streams}
            rows.append({**row, "floor_s": floor, "share_of_floor": floor / median})
    return rows


def floor_s(weights: int, streams: int, tokens: int) -> float:
    """Return the least time of the estimator's products with its weights: multiplied, or only read.

    Attention, encoder and vocoder are left out, so that nothing reaches it.
    """
    rows = streams * FRAMES_A_TOKEN * (tokens - LOOKAHEAD_TOKENS) * CFG_HALVES
    multiplied = ODE_STEPS * 2 * weights * rows / PEAK_FLOPS
    read = ODE_STEPS * BYTES_A_WEIGHT * weights / PEAK_BYTES_PER_S
    return max(multiplied, read)


def chunk_costs(engine: Token2WavEngine, voice: str, tokens: int, audio_s: float) -> list[float]:
    """Return seconds of each chunk of `tokens` tokens of one stream of `audio_s`."""
    stream = engine.open_stream(voice, StreamOptions(seed=1))
    seconds = []
    for index in range(math.ceil(audio_s * TOKEN_RATE_HZ / (tokens - LOOKAHEAD_TOKENS)) + 1):
        began = CLOCK.now()
        engine.add_chunk(TokenChunk(stream, index, _tokens(tokens, index), False))
        for result in engine.step():
            _audio(result)
        seconds.append(CLOCK.now() - began)
    engine.abort(stream)
    # The first one runs the prompt for its own alignment, and more tokens than the others.
    return seconds[1:]


def listen_all(engine: Token2WavEngine, voice: str, numbers: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    """Try each number of listeners until one hears a gap."""
    tried: list[dict[str, Any]] = []
    for number in numbers:
        tried.append(listen(engine, voice, number, seconds))
        if tried[-1]["underruns"]:
            break
    return tried


def listen(engine: Token2WavEngine, voice: str, listeners: int, seconds: float) -> dict[str, Any]:
    """Serve listeners in real time: each asks for the next second when it has one second left to play."""
    streams = [engine.open_stream(voice, StreamOptions(seed=i)) for i in range(listeners)]
    number_of = {stream: i for i, stream in enumerate(streams)}
    began = CLOCK.now()
    due = [(began + i / RAMP_STREAMS_PER_S, i) for i in range(listeners)]
    heapq.heapify(due)
    plays_until = [0.0] * listeners
    next_index = [0] * listeners
    underruns, worst_s, chunks = 0, 0.0, 0
    end = began + listeners / RAMP_STREAMS_PER_S + seconds
    while (now := CLOCK.now()) < end:
        while due and due[0][0] <= now:
            _, i = heapq.heappop(due)
            engine.add_chunk(TokenChunk(streams[i], next_index[i], _tokens(SECOND_CHUNK_TOKENS, i), False))
            next_index[i] += 1
        for result in engine.step():
            i, arrived = number_of[result.stream_id], CLOCK.now()
            late = arrived - plays_until[i] if result.index else 0.0
            underruns, worst_s, chunks = underruns + (late > 0), max(worst_s, late), chunks + 1
            plays_until[i] = max(arrived, plays_until[i]) + len(_audio(result).samples) / SAMPLE_RATE_HZ
            heapq.heappush(due, (plays_until[i] - LISTENER_BUFFER_S, i))
    for stream in streams:
        engine.abort(stream)
    return {"listeners": listeners, "underruns": underruns, "worst_s": worst_s, "chunks": chunks, "held_s": seconds}


def _engine(
    model_dir: Path, dtype: str, max_streams: int, recent_frames: int, shapes: StepShapes | None
) -> Token2WavEngine:
    config = Token2WavConfig(
        model_dir=model_dir,
        device="cuda",
        dtype=dtype,
        max_batch_size=64,
        max_streams=max_streams,
        voice_cache_bytes=8 * 1024**3,
        synthesis=SynthesisPolicy(history=HistoryPolicy.PROMPT_AND_RECENT, estimator_recent_frames=recent_frames),
    )
    return build_engine(config, CLOCK, shapes)


def _bytes_per_stream(engine: Token2WavEngine, voice: str) -> int:
    stream = engine.open_stream(voice, StreamOptions())
    held = engine.stats().state_bytes
    engine.abort(stream)
    return held


def _prompt() -> VoicePrompt:
    time = np.arange(int(PROMPT_S * 16_000)) / 16_000
    return VoicePrompt((0.2 * np.sign(np.sin(2 * np.pi * 120 * time))).astype(np.float32))


def _features() -> VoiceFeatures:
    rng, frames = np.random.default_rng(0), int(PROMPT_S * MEL_RATE_HZ)
    return VoiceFeatures(
        "voice",
        rng.integers(0, SPEECH_VOCAB_SIZE, frames // FRAMES_A_TOKEN),
        rng.standard_normal((frames, 80), dtype=np.float32),
        rng.standard_normal(192, dtype=np.float32),
    )


def _tokens(count: int, seed: int) -> tuple[int, ...]:
    drawn = np.random.default_rng(seed).integers(0, SPEECH_VOCAB_SIZE, count)
    return tuple(int(token) for token in drawn)


if __name__ == "__main__":
    torch.backends.cudnn.allow_tf32 = True
    sys.exit(main())
