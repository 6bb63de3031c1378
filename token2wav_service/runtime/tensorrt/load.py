"""Finds the engines that fit machine, checkpoint and configuration, and puts solver and vocoder around them.

Builds nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from servicekit.file_sums import sha256_of_file
from token2wav_service.checkpoint import loader
from token2wav_service.config import Token2WavConfig
from token2wav_service.errors import EngineUnfitError
from token2wav_service.graphs.catalogue import ESTIMATOR_CHUNK, VOCODER, describe_graphs
from token2wav_service.graphs.spec import GraphSpec, Precision
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.models.vocoder.vocoder_stream import OVERLAP_FRAMES
from token2wav_service.runtime.slots.fused_solver import FusedSolver
from token2wav_service.runtime.slots.step_shapes import STEP_TOKENS, STREAM_BUCKETS, TOKEN_BUCKETS
from token2wav_service.runtime.slots.vocoder_network import VocoderNetwork
from token2wav_service.runtime.tensorrt.api import TensorRT, load_tensorrt
from token2wav_service.runtime.tensorrt.contexts import torch_dtype
from token2wav_service.runtime.tensorrt.manifest import ENGINES_FOLDER, GpuHost, architecture_name, find_engine
from token2wav_service.runtime.tensorrt.planned import EstimatorSizes, PlannedEngine, S, VocoderSizes
from token2wav_service.runtime.tensorrt.solver import TensorRTSolver
from token2wav_service.runtime.tensorrt.vocoder import TensorRTNetwork

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProgramSizes:
    """Sizes that the runner prepares programs for."""

    streams: Sequence[int] = STREAM_BUCKETS
    tokens: Sequence[int] = TOKEN_BUCKETS
    step_tokens: int = STEP_TOKENS
    """Most streams times tokens in one step."""


@dataclass(frozen=True)
class EngineParts:
    """What takes the fused kernels' places in a `SlotRunner`."""

    solver: TensorRTSolver
    network: VocoderNetwork | None
    """None without a vocoder engine that fits: the fused kernels run the vocoder."""


def load_parts(config: Token2WavConfig, flow: Flow, hift: HiFT, max_prompt_frames: int) -> EngineParts:
    """Return the parts of the runner's programs that run in engines on the configured GPU.

    Args:
        flow: on the GPU, in the dtype to compute in.
        hift: on the GPU, float32, weight norms folded.
        max_prompt_frames: longest prompt that is accepted.

    Raises:
        EngineUnfitError: no GPU, no TensorRT, or no engine of the flow that fits; it names the command to run.
    """
    device = next(flow.parameters()).device
    if device.type != "cuda":
        raise EngineUnfitError(f"runner=tensorrt needs device=cuda, got {device}; use runner=torch on a CPU")
    tensorrt = load_tensorrt()
    capability = torch.cuda.get_device_capability(device)
    host = GpuHost(architecture_name(*capability), torch.cuda.get_device_name(device), tensorrt.version)
    with torch.cuda.device(device):
        return assemble_parts(config, flow, hift, max_prompt_frames, tensorrt, host, ProgramSizes())


def assemble_parts(
    config: Token2WavConfig,
    flow: Flow,
    hift: HiFT,
    max_prompt_frames: int,
    tensorrt: TensorRT,
    host: GpuHost,
    buckets: ProgramSizes,
) -> EngineParts:
    """Load the engines for a host and plan their sizes.

    Raises:
        EngineUnfitError: no engine of the flow fits.
    """
    parameter = next(flow.parameters())
    precision = Precision(str(parameter.dtype).removeprefix("torch."))
    spec = describe_graphs(flow.config, hift.config, precision)[ESTIMATOR_CHUNK]
    sources = [config.model_dir / name for name in (loader.FLOW_YAML, loader.FLOW_WEIGHTS)]
    planned = _plan(config, flow.config.encoder.up_stride, buckets)
    estimator = _open_engine(config, spec, sources, planned, tensorrt, host, parameter.device)
    left_out = [sizes for sizes in planned if sizes not in estimator.sizes]
    if left_out:
        logger.warning(
            "no profile of the engine holds %d sizes, such as %s: fused kernels run them", len(left_out), left_out[0]
        )
    policy, decoder = config.synthesis, flow.decoder
    solver = TensorRTSolver(
        estimator,
        flow.config.estimator,
        policy.ode_steps,
        decoder.guidance,
        config.tensorrt_prompt_frames,
        max_prompt_frames,
        FusedSolver(decoder, policy.ode_steps, parameter.dtype),
    )
    return EngineParts(solver, _network(config, flow, hift, tensorrt, host, buckets))


def _network(
    config: Token2WavConfig, flow: Flow, hift: HiFT, tensorrt: TensorRT, host: GpuHost, buckets: ProgramSizes
) -> VocoderNetwork | None:
    """Return the vocoder around its engine; None if no engine of it fits."""
    precision = Precision(config.tensorrt_vocoder)
    device = next(flow.parameters()).device
    spec = describe_graphs(flow.config, hift.config, precision, vocoder=precision)[VOCODER]
    columns = hift.config.frame_samples // hift.config.istft_hop
    planned = [
        VocoderSizes(streams, frames, frames * columns + 1)
        for streams, tokens in _chunk_sizes(buckets)
        for frames in (tokens * flow.config.encoder.up_stride + OVERLAP_FRAMES,)
    ]
    try:
        engine = _open_engine(config, spec, loader.hift_files(config.model_dir), planned, tensorrt, host, device)
    except EngineUnfitError as error:
        logger.warning("fused kernels run the vocoder: %s", error)
        return None
    return TensorRTNetwork(hift, torch_dtype(precision.value), engine)


def _open_engine(
    config: Token2WavConfig,
    spec: GraphSpec,
    sources: Sequence[Path],
    planned: Sequence[S],
    tensorrt: TensorRT,
    host: GpuHost,
    device: torch.device,
) -> PlannedEngine[S]:
    """Find the engine of a graph, load it and plan its sizes.

    Raises:
        EngineUnfitError: none fits, or it holds none of the sizes.
    """
    directory = config.engines_dir or config.model_dir / ENGINES_FOLDER
    hashes = {path.name: sha256_of_file(path) for path in sources}
    manifest = find_engine(directory, config.model_dir, spec.name, spec.precision.value, hashes, host)
    if manifest.gpu_name != host.gpu_name:
        logger.warning("the engine was built on %s, this is %s: it may be slower", manifest.gpu_name, host.gpu_name)
    engine = tensorrt.load(manifest.engine_path(directory).read_bytes())
    opened = PlannedEngine(engine, spec, planned, config.tensorrt_contexts, device)
    logger.info("TensorRT %s runs %d sizes with %s", tensorrt.version, len(opened.sizes), manifest.key.stem)
    return opened


def _plan(config: Token2WavConfig, stride: int, buckets: ProgramSizes) -> list[EstimatorSizes]:
    return [
        EstimatorSizes(streams, tokens * stride, prompt, config.synthesis.estimator_recent_frames)
        for streams, tokens in _chunk_sizes(buckets)
        for prompt in config.tensorrt_prompt_frames
    ]


def _chunk_sizes(buckets: ProgramSizes) -> Iterator[tuple[int, int]]:
    """Yield streams and tokens of every program."""
    for streams in buckets.streams:
        for tokens in buckets.tokens:
            if streams * tokens <= buckets.step_tokens or streams == buckets.streams[0]:
                yield streams, tokens
