"""Builds a running engine from its configuration: loads the checkpoint, places the models."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from servicekit.clock import Clock
from servicekit.stream_limit import COLD_STREAMS, LEAST_STREAMS
from token2wav_service.checkpoint.family import missing_files, open_features, voice_model_version
from token2wav_service.checkpoint.loader import LoadedModels, load_models
from token2wav_service.config import RunnerKind, Token2WavConfig
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.engine.loop import OnFatal, ServingLoop
from token2wav_service.engine.runner import Runner
from token2wav_service.engine.voices import VoiceModel, VoiceStore
from token2wav_service.errors import CheckpointError, EngineUnfitError
from token2wav_service.models.flow.any_flow import AnyFlow, state_bytes
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.flow.flow_stream import MAX_STARTS, StreamFlow
from token2wav_service.models.vocoder.causal_hift import CausalHiFT
from token2wav_service.models.vocoder.causal_vocoder_stream import CausalStreamVocoder
from token2wav_service.models.vocoder.hift import HiFT, fold_weight_norm
from token2wav_service.models.vocoder.vocoder_stream import StreamVocoder
from token2wav_service.runtime.cpu.packed_flow import ColumnHiFT, PackedFlow
from token2wav_service.runtime.slots.step_shapes import StepShapes, stream_buckets_up_to
from token2wav_service.runtime.tensorrt.manifest import ENGINES_FOLDER
from token2wav_service.runtime.torch_runner import ModelRunner

if TYPE_CHECKING:
    from token2wav_service.runtime.slots.slot_runner import SlotRunner

logger = logging.getLogger(__name__)

MAX_PROMPT_FRAMES = 900
"""Frames of the longest prompt that is accepted, 18 s."""
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def build_engine(
    config: Token2WavConfig, clock: Clock, shapes: StepShapes | None = None, *, is_realtime: bool = False
) -> Token2WavEngine:
    """Load the checkpoint and return an engine that has not begun to run.

    Args:
        config: says what to load and how to run it.
        clock: tells the engine's time.
        shapes: programs to prepare, for those who measure few; None prepares what the service needs.
        is_realtime: see `Token2WavEngine`.

    Raises:
        CheckpointError: the checkpoint is incomplete or does not fit.
        MemoryBudgetError: the GPU's memory does not hold what the settings ask for.
        ValueError: an unknown dtype.
        ProgramCaptureError: a program could not be captured.
    """
    if config.dtype not in DTYPES:
        raise ValueError(f"got dtype {config.dtype!r}, expected one of {sorted(DTYPES)}")
    missing = missing_files(config.model_dir)
    if missing:
        raise CheckpointError(
            f"{config.model_dir} lacks {missing}; download the checkpoint, or make a small one with "
            "`cosydit checkpoint make-random`"
        )
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    models = load_models(config.model_dir)
    models.flow.to(config.device, DTYPES[config.dtype])
    fold_weight_norm(models.vocoder).to(config.device)
    extractor = open_features(config.model_dir, config.num_threads or 1, config.device)
    runner = _build_runner(config, models, shapes)
    version = partial(voice_model_version, config.model_dir)
    sizes = models.config.flow
    model = VoiceModel(version, sizes.output_size, sizes.spk_embed_dim)
    voices = VoiceStore(extractor, runner, _voice_cache_bytes(config, models), model)
    logger.info(
        "token2wav (%s) on %s in %s from %s", models.config.family.value, config.device, config.dtype, config.model_dir
    )
    probe, cold = _device_probe(config.device), LEAST_STREAMS if _is_cpu(config) else COLD_STREAMS
    return Token2WavEngine(config, voices, runner, clock, probe, is_realtime=is_realtime, cold_streams=cold)


def _voice_cache_bytes(config: Token2WavConfig, models: LoadedModels) -> int:
    """Return the cache's size: room for one voice of a block-masked flow at least, which may take gigabytes."""
    if not models.flow.block_tokens:
        return config.voice_cache_bytes
    steps, longest = models.flow.steps(config.synthesis.ode_steps), MAX_PROMPT_FRAMES // models.flow.stride
    return max(config.voice_cache_bytes, MAX_STARTS * state_bytes(models.flow, steps, longest))


def choose_runner(config: Token2WavConfig) -> RunnerKind:
    """Return what `auto` means: slots on a CUDA device, packed on a CPU, unless a policy needs the plain modules.

    See `_engine_parts` for engines in slots.
    """
    if config.runner is not RunnerKind.AUTO:
        return config.runner
    kinds = {"cuda": RunnerKind.SLOTS, "cpu": RunnerKind.PACKED if config.dtype == "float32" else RunnerKind.TORCH}
    device = torch.device(config.device).type
    return RunnerKind.TORCH if config.synthesis.is_reference else kinds.get(device, RunnerKind.TORCH)


def _build_runner(config: Token2WavConfig, models: LoadedModels, shapes: StepShapes | None) -> Runner:
    """Make what the configuration asks for, warmed up.

    Raises:
        CheckpointError: the runner is not one of the checkpoint's family.
        MemoryBudgetError: the GPU's memory does not hold the pool and a voice.
    """
    flow, vocoder, policy = models.flow, models.vocoder, config.synthesis
    kind = choose_runner(config)
    # The LLM, which has the other half of a CPU's cores, often waits: so more chunks than threads.
    at_once = min(2 * torch.get_num_threads(), len(os.sched_getaffinity(0))) if _is_cpu(config) else 1
    if isinstance(flow, Flow) and isinstance(vocoder, HiFT) and kind is RunnerKind.PACKED:
        return ModelRunner(PackedFlow(flow, policy), StreamVocoder(ColumnHiFT(vocoder), policy), at_once)
    if kind is RunnerKind.PACKED and config.runner is not RunnerKind.AUTO:
        raise CheckpointError(
            f"{config.model_dir} is of family {models.config.family.value}, which runner `{config.runner.value}` does "
            "not serve; set runner to auto, slots, tensorrt or torch"
        )
    if kind in (RunnerKind.TORCH, RunnerKind.PACKED):
        plain: Any = CausalStreamVocoder if isinstance(vocoder, CausalHiFT) else StreamVocoder
        return ModelRunner(StreamFlow(flow, policy), plain(vocoder, policy), at_once)
    return _build_slots(config, models, shapes)


def _is_cpu(config: Token2WavConfig) -> bool:
    return torch.device(config.device).type == "cpu"


def _build_slots(config: Token2WavConfig, models: LoadedModels, shapes: StepShapes | None) -> SlotRunner:
    # NOTE: imported here, so that hosts without Triton (the language) can run the plain modules.
    from token2wav_service.runtime.slots.memory import memory_need, runner_that_fits, warn_of_cache
    from token2wav_service.runtime.slots.pool import PoolSizes
    from token2wav_service.runtime.slots.slot_runner import SlotRunner, token_buckets_of

    flow, vocoder, policy = models.flow, models.vocoder, config.synthesis
    sizes = PoolSizes(
        config.max_streams, policy.estimator_recent_frames, policy.conformer_recent_frames, MAX_PROMPT_FRAMES
    )
    planned = shapes or StepShapes(stream_buckets_up_to(config.max_batch_size), token_buckets_of(flow))

    def make() -> SlotRunner:
        parts = _engine_parts(config, flow, vocoder, planned)
        return SlotRunner(flow, vocoder, policy, sizes, planned.stream_buckets, planned.token_buckets, **parts)

    def make_warm() -> SlotRunner:
        runner = make()
        runner.warm_up()
        logger.info("token2wav itself holds %.1f GB of the GPU", torch.cuda.memory_reserved(config.device) / 1e9)
        return runner

    if torch.device(config.device).type != "cuda":
        return make()
    need = memory_need(sizes, flow, vocoder, flow.steps(policy.ode_steps))
    runner = runner_that_fits(need, partial(_free_bytes, config.device), make_warm)
    warn_of_cache(_voice_cache_bytes(config, models), _free_bytes(config.device))
    return runner


def _free_bytes(device: str) -> int:
    torch.cuda.empty_cache()
    free: int = torch.cuda.mem_get_info(torch.device(device))[0]
    return free


def _engine_parts(
    config: Token2WavConfig, flow: AnyFlow, hift: HiFT | CausalHiFT, shapes: StepShapes
) -> dict[str, Any]:
    """Return the arguments of a slot runner that put TensorRT engines in the place of fused kernels.

    `runner=auto` takes them where they fit and were measured to be faster, and says why not where there are some.

    Raises:
        EngineUnfitError: `runner=tensorrt`, and no engine fits.
    """
    is_wanted = config.runner is RunnerKind.TENSORRT
    folder = config.engines_dir or config.model_dir / ENGINES_FOLDER
    if not is_wanted and not (config.runner is RunnerKind.AUTO and folder.is_dir()):
        return {}
    from token2wav_service.runtime.tensorrt.load import load_parts

    try:
        parts = load_parts(config, flow, hift, shapes)
    except EngineUnfitError as err:
        if is_wanted:
            raise
        logger.warning("runner=auto takes slots, no engine of %s: %s", folder, err)
        return {}
    return {"solver": parts.solver, "convolutions": parts.convolutions}


def _device_probe(device: str) -> Callable[[], None]:
    """Return what raises once the device is lost: any CUDA call does after an error that is for good."""
    if torch.device(device).type != "cuda":
        return lambda: None
    return partial(torch.cuda.synchronize, device)


def build_engine_loop(config: Token2WavConfig, clock: Clock, on_fatal: OnFatal | None = None) -> ServingLoop:
    """Return an engine for listeners in a loop that has not been started; `on_fatal`: see `ServingLoop`."""
    return ServingLoop(build_engine(config, clock, is_realtime=True), on_fatal)
