"""Finds the engines that fit machine, checkpoint and configuration, and puts solver and vocoder around them.

Builds nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from servicekit.file_sums import sha256_of_file
from token2wav_service.checkpoint import loader
from token2wav_service.config import RunnerKind, Token2WavConfig
from token2wav_service.errors import EngineUnfitError
from token2wav_service.graphs import ESTIMATOR_CHUNK, VOCODER, GraphSpec, Precision, describe_graph
from token2wav_service.models.flow.any_flow import AnyFlow
from token2wav_service.models.vocoder.causal_hift import CausalHiFT, Spectra
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.models.vocoder.vocoder_stream import OVERLAP_FRAMES
from token2wav_service.runtime.slots.pool import PoolSizes
from token2wav_service.runtime.slots.slot_flow import make_solver
from token2wav_service.runtime.slots.step_shapes import StepShapes
from token2wav_service.runtime.slots.vocoder_network import VocoderNetwork
from token2wav_service.runtime.tensorrt.api import TensorRT, load_tensorrt
from token2wav_service.runtime.tensorrt.manifest import (
    ENGINES_FOLDER,
    EngineManifest,
    GpuHost,
    architecture_name,
    find_engine,
    installed_libraries,
)
from token2wav_service.runtime.tensorrt.planned import (
    Axes,
    PlannedEngine,
    estimator_axes,
    torch_dtype,
    vocoder_axes,
)
from token2wav_service.runtime.tensorrt.solver import PROMPT_SIZES, TensorRTSolver

logger = logging.getLogger(__name__)

Load = Callable[[str], TensorRT]
"""Imports the library of a name and version."""


@dataclass(frozen=True)
class EngineParts:
    """What takes the fused kernels' places in a runner."""

    solver: TensorRTSolver
    convolutions: VocoderNetwork | Spectra | None
    """None without a vocoder engine that fits: the runner computes the vocoder as it does without engines."""


def load_parts(
    config: Token2WavConfig,
    flow: AnyFlow,
    hift: HiFT | CausalHiFT,
    shapes: StepShapes,
) -> EngineParts:
    """Return the parts of the runner's programs that run in engines on the configured GPU.

    Args:
        flow: on the GPU, in the dtype to compute in.
        hift: on the GPU, float32, weight norms folded.
        shapes: programs that the runner prepares.

    Raises:
        EngineUnfitError: no GPU, no TensorRT, or no engine of the flow that fits; it names the command to run.
    """
    device = torch.device(config.device)
    if device.type != "cuda":
        raise EngineUnfitError(f"runner=tensorrt needs device=cuda, got {device}; use runner=torch on a CPU")
    architecture = architecture_name(*torch.cuda.get_device_capability(device))
    host = GpuHost(architecture, torch.cuda.get_device_name(device), installed_libraries())
    with torch.cuda.device(device):
        finder = EngineFinder(config, host, load_tensorrt)
        return assemble_parts(finder, flow, hift, shapes)


class EngineFinder:
    """Opens a checkpoint's engines that fit a machine; under `runner=auto`, only those timed to be faster there."""

    def __init__(self, config: Token2WavConfig, host: GpuHost, load: Load) -> None:
        self.config, self._host, self._load = config, host, load

    def open(
        self, spec: GraphSpec, sources: Sequence[Path], planned: Sequence[Axes], device: torch.device
    ) -> PlannedEngine:
        """Find the engine of a graph, load it and plan its sizes.

        Raises:
            EngineUnfitError: none fits, or it holds none of the sizes.
        """
        config, host = self.config, self._host
        directory = config.engines_dir or config.model_dir / ENGINES_FOLDER
        hashes = {path.name: sha256_of_file(path) for path in sources}
        manifest = find_engine(directory, config.model_dir, spec.name, spec.precision.value, hashes, host)
        if config.runner is RunnerKind.AUTO:
            self._check_speed(manifest)
        tensorrt = self._load(manifest.key.library)
        engine = tensorrt.load(manifest.engine_path(directory).read_bytes())
        opened = PlannedEngine(engine, spec, planned, device)
        left_out = [sizes for sizes in planned if sizes not in opened.sizes]
        if left_out:
            logger.warning(
                "the engine does not hold %d sizes, such as %s: they run without it", len(left_out), left_out[0]
            )
        logger.info("%s runs %d sizes with %s", tensorrt.library, len(opened.sizes), manifest.key.stem)
        return opened

    def _check_speed(self, manifest: EngineManifest) -> None:
        speed = manifest.speed
        if speed is None or speed.gpu_name != self._host.gpu_name:
            raise EngineUnfitError(
                f"{manifest.key.stem} was not timed on {self._host.gpu_name}; run `cosydit build-engines` there"
            )
        if not speed.is_faster:
            raise EngineUnfitError(f"{manifest.key.stem} is not faster: {speed}")


def assemble_parts(finder: EngineFinder, flow: AnyFlow, hift: HiFT | CausalHiFT, shapes: StepShapes) -> EngineParts:
    """Load the engines for a host and plan their sizes.

    Raises:
        EngineUnfitError: no engine of the flow fits.
    """
    config, parameter = finder.config, next(flow.parameters())
    name = str(parameter.dtype).removeprefix("torch.")
    if name not in {precision.value for precision in Precision}:
        raise EngineUnfitError(f"engines compute in float32 or float16, got dtype={name}")
    spec = describe_graph(ESTIMATOR_CHUNK, flow.config, hift.config, Precision(name))
    stride = flow.stride
    window, _ = PoolSizes(0, config.synthesis.estimator_recent_frames, 0, PROMPT_SIZES[-1]).rings(flow)
    planned = [
        estimator_axes(streams, tokens * stride, prompt, window)
        for streams, tokens in shapes.programs()
        for prompt in PROMPT_SIZES
    ]
    estimator = finder.open(spec, loader.flow_files(config.model_dir), planned, parameter.device)
    fused = make_solver(flow, flow.steps(config.synthesis.ode_steps))
    solver = TensorRTSolver(estimator, fused)
    # A plain vocoder's call has frames of the chunk before; a causal one's the frames that wait, and some to look into.
    columns = [vocoder_axes(streams, tokens * stride + OVERLAP_FRAMES) for streams, tokens in shapes.programs()]
    return EngineParts(solver, _convolutions(finder, flow, hift, columns))


def _convolutions(
    finder: EngineFinder, flow: AnyFlow, hift: HiFT | CausalHiFT, planned: Sequence[Axes]
) -> VocoderNetwork | Spectra | None:
    """Return the vocoder's convolutions in their engine; None if no engine of them fits."""
    config, device = finder.config, next(flow.parameters()).device
    precision = Precision(config.tensorrt_vocoder)
    spec = describe_graph(VOCODER, flow.config, hift.config, precision)
    try:
        engine = finder.open(spec, loader.hift_files(config.model_dir), planned, device)
    except EngineUnfitError as error:
        logger.warning("the vocoder runs without an engine: %s", error)
        return None
    if isinstance(hift, CausalHiFT):
        return TensorRTSpectra(hift, engine)
    return TensorRTNetwork(hift, torch_dtype(precision.value), engine)


class TensorRTNetwork(VocoderNetwork):
    """Computes `spectra` in the engine where it was planned for the size; the fused kernels compute other sizes."""

    def __init__(self, hift: HiFT, dtype: torch.dtype, engine: PlannedEngine) -> None:
        """Pack the weights of what the engine does not hold.

        Args:
            hift: as for `VocoderNetwork`.
            dtype: of the fused kernels' products, and of the mel and spectrum that come in.
            engine: of the graph `vocoder`.
        """
        super().__init__(hift, dtype)
        self._engine = engine

    def spectra(self, mel: Tensor, spectrum: Tensor, lengths: Tensor) -> Tensor:
        """See `VocoderNetwork.spectra`."""
        sizes = vocoder_axes(mel.shape[0], mel.shape[1])
        if sizes not in self._engine.sizes:
            return super().spectra(mel, spectrum, lengths)
        bound = self._engine.bind(sizes)
        tensors = bound.tensors
        tensors["mel"].copy_(mel.transpose(1, 2))
        # The fused kernels' spectrum has padded channels.
        tensors["spectrum"].copy_(spectrum[:, :, : tensors["spectrum"].shape[1]].transpose(1, 2))
        tensors["lengths"].copy_(lengths)
        bound.run()
        return tensors["spectra"].transpose(1, 2).contiguous()


class TensorRTSpectra:
    """Stands where `CausalHiFT.spectra` stands; the model itself computes sizes that the engine is not planned for."""

    def __init__(self, hift: CausalHiFT, engine: PlannedEngine) -> None:
        self._hift, self._engine = hift, engine

    def __call__(
        self, mel: Tensor, spectrum: Tensor, frames: Tensor, is_first: Tensor, context: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `CausalHiFT.spectra`; what is returned is valid until the next call."""
        sizes = vocoder_axes(mel.shape[0], mel.shape[2])
        if sizes not in self._engine.sizes:
            return self._hift.spectra(mel, spectrum, frames, is_first, context)
        bound = self._engine.bind(sizes)
        inputs = {"mel": mel, "spectrum": spectrum, "lengths": frames, "is_first": is_first, "context": context}
        for name, value in inputs.items():
            bound.tensors[name].copy_(value)
        bound.run()
        return bound.tensors["spectra"], bound.tensors["new_context"]
