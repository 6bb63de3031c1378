"""Finds the engine that fits machine, checkpoint and configuration, and puts a solver around it. Builds nothing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from servicekit.file_sums import sha256_of_file
from token2wav_service.checkpoint import loader
from token2wav_service.config import Token2WavConfig
from token2wav_service.errors import EngineUnfitError
from token2wav_service.graphs.catalogue import ESTIMATOR_CHUNK, describe_graphs
from token2wav_service.graphs.spec import Precision
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.runtime.slots.fused_solver import FusedSolver
from token2wav_service.runtime.slots.step_shapes import STEP_TOKENS, STREAM_BUCKETS, TOKEN_BUCKETS
from token2wav_service.runtime.tensorrt.api import TensorRT, load_tensorrt
from token2wav_service.runtime.tensorrt.estimator import EstimatorSizes, TensorRTEstimator
from token2wav_service.runtime.tensorrt.manifest import ENGINES_FOLDER, GpuHost, architecture_name, find_engine
from token2wav_service.runtime.tensorrt.solver import TensorRTSolver

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Buckets:
    """Sizes that the runner prepares programs for."""

    streams: Sequence[int] = STREAM_BUCKETS
    tokens: Sequence[int] = TOKEN_BUCKETS
    step_tokens: int = STEP_TOKENS
    """Streams times tokens at most."""


def load_solver(config: Token2WavConfig, flow: Flow, hift: HiFT, max_prompt_frames: int) -> TensorRTSolver:
    """Return the solver for the runner's programs on the configured GPU.

    Args:
        flow: on the GPU, in the dtype to compute in.
        max_prompt_frames: longest prompt that is accepted.

    Raises:
        EngineUnfitError: no GPU, no TensorRT, or no engine that fits; it names the command to run.
    """
    device = next(flow.parameters()).device
    if device.type != "cuda":
        raise EngineUnfitError(f"runner=tensorrt needs device=cuda, got {device}; use runner=torch on a CPU")
    tensorrt = load_tensorrt()
    capability = torch.cuda.get_device_capability(device)
    host = GpuHost(architecture_name(*capability), torch.cuda.get_device_name(device), tensorrt.version)
    with torch.cuda.device(device):
        return assemble_solver(config, flow, hift, max_prompt_frames, tensorrt, host, Buckets())


def assemble_solver(
    config: Token2WavConfig,
    flow: Flow,
    hift: HiFT,
    max_prompt_frames: int,
    tensorrt: TensorRT,
    host: GpuHost,
    buckets: Buckets,
) -> TensorRTSolver:
    """Load the engine for a host and plan its sizes.

    Raises:
        EngineUnfitError: no engine fits.
    """
    parameter = next(flow.parameters())
    precision = Precision(str(parameter.dtype).removeprefix("torch."))
    directory = config.engines_dir or config.model_dir / ENGINES_FOLDER
    sources = {name: sha256_of_file(config.model_dir / name) for name in (loader.FLOW_YAML, loader.FLOW_WEIGHTS)}
    manifest = find_engine(directory, config.model_dir, ESTIMATOR_CHUNK, precision.value, sources, host)
    if manifest.gpu_name != host.gpu_name:
        logger.warning("the engine was built on %s, this is %s: it may be slower", manifest.gpu_name, host.gpu_name)
    engine = tensorrt.load(manifest.engine_path(directory).read_bytes())
    spec = describe_graphs(flow.config, hift.config, precision)[ESTIMATOR_CHUNK]
    planned = _plan(config, flow.config.encoder.up_stride, buckets)
    estimator = TensorRTEstimator(engine, spec, planned, config.tensorrt_contexts, parameter.device)
    logger.info("TensorRT %s runs %d sizes with %s", tensorrt.version, len(estimator.sizes), manifest.key.stem)
    left_out = [sizes for sizes in planned if sizes not in estimator.sizes]
    if left_out:
        logger.warning(
            "no profile of the engine holds %d sizes, such as %s: fused kernels run them", len(left_out), left_out[0]
        )
    policy, decoder = config.synthesis, flow.decoder
    return TensorRTSolver(
        estimator,
        flow.config.estimator,
        policy.ode_steps,
        decoder.guidance,
        config.tensorrt_prompt_frames,
        max_prompt_frames,
        FusedSolver(decoder, policy.ode_steps, parameter.dtype),
    )


def _plan(config: Token2WavConfig, stride: int, buckets: Buckets) -> list[EstimatorSizes]:
    return [
        EstimatorSizes(streams, tokens * stride, prompt, config.synthesis.estimator_recent_frames)
        for streams in buckets.streams
        for tokens in buckets.tokens
        if streams * tokens <= buckets.step_tokens or streams == buckets.streams[0]
        for prompt in config.tensorrt_prompt_frames
    ]
