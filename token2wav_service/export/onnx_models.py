"""The flow and the vocoder on exported files, under ONNX Runtime on the CPU.

They stand where the models stand, so that streams, caches, solver and joins are the same code for both. Not fast: it
certifies the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from token2wav_service.checkpoint import loader
from token2wav_service.errors import ExportError
from token2wav_service.export.build import PITCH_PREFIX, SOURCE_WEIGHTS, has_companions
from token2wav_service.export.manifest import read_manifest
from token2wav_service.export.precision import dtype_of
from token2wav_service.features.prompt_models import open_session
from token2wav_service.graphs import catalogue as graphs
from token2wav_service.graphs.spec import Precision
from token2wav_service.models.causal import chunk_plan
from token2wav_service.models.config import CosyVoice2FlowConfig, DiTConfig, FlowConfig
from token2wav_service.models.flow.block_flow import BlockFlow, CosyVoice2Flow, CosyVoice3Flow, MakePlan, Past
from token2wav_service.models.flow.cfm import EstimatorHistory
from token2wav_service.models.flow.encoder import EncoderHistory, EncoderPlans, EncoderUpdate
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.flow.rotary_dit import RotaryDiT
from token2wav_service.models.vocoder.causal_hift import CausalF0Predictor, CausalHiFT
from token2wav_service.models.vocoder.hift import HiFT, fold_weight_norm

RUNNABLE = (Precision.FLOAT32, Precision.FLOAT16)
"""Precisions that ONNX Runtime's CPU provider computes; it has no bfloat16 products."""
WINDOW_COLUMNS = 100
"""Most history columns given as the stream's window; the rest goes in as its prompt."""


class OnnxGraph:
    """One exported file; tensors in and out by name."""

    def __init__(self, directory: Path, name: str, precision: Precision, threads: int = 1) -> None:
        """Open a file.

        Raises:
            ExportError: the file or its manifest is missing, or ONNX Runtime can't compute in this precision.
            CheckpointError: ONNX Runtime can't load it.
        """
        if precision not in RUNNABLE:
            raise ExportError(f"ONNX Runtime has no {precision.value} on a CPU; use {[p.value for p in RUNNABLE]}")
        path = directory / f"{name}.{precision.value}.onnx"
        read_manifest(path)
        self._session = open_session(path, threads)
        self._outputs = [output.name for output in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs by name."""
        feeds = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in inputs.items()}
        results = self._session.run(self._outputs, feeds)
        return {name: torch.from_numpy(result) for name, result in zip(self._outputs, results, strict=True)}


class OnnxEstimator(nn.Module):
    """Stands where a `DiT` stands; history columns go in as a prompt and a window."""

    def __init__(self, graph: OnnxGraph, config: DiTConfig, precision: Precision) -> None:
        super().__init__()
        self.graph, self.config, self.dtype = graph, config, dtype_of(precision)

    def forward(
        self,
        x: Tensor,
        mu: Tensor,
        speaker: Tensor,
        cond: Tensor,
        time: Tensor,
        mask: Tensor,
        lengths: Tensor,
        history: EstimatorHistory | None = None,
    ) -> tuple[Tensor, EstimatorHistory]:
        """Estimate the velocity as `DiT.forward` does; `mask` must be the same for every query."""
        history = history or self._nothing(x.shape[0])
        inputs = {"x": x, "mu": mu, "speaker": speaker, "cond": cond, "time": time, "lengths": lengths}
        made = self.graph.run(inputs | _estimator_history(history, mask))
        return made["velocity"], EstimatorHistory(made["chunk_kv"], made["new_tail"])

    def _nothing(self, rows: int) -> EstimatorHistory:
        c = self.config
        return EstimatorHistory(
            kv=torch.zeros(c.depth, rows, c.num_heads, 0, 2 * c.head_dim, dtype=self.dtype),
            tail=torch.zeros(c.depth, rows, 2 * c.hidden_size, graphs.CONVOLUTION_COLUMNS, dtype=self.dtype),
        )


class OnnxBlockEstimator(nn.Module):
    """Stands where a `UNet` or `RotaryDiT` stands, under the block mask."""

    def __init__(self, graph: OnnxGraph, block: int, *, has_positions: bool) -> None:
        """Keep the file.

        Args:
            block: mel frames of a block of the mask.
            has_positions: whether the file takes `first_frames`.
        """
        super().__init__()
        self.graph, self.block, self.has_positions = graph, block, has_positions

    def forward(
        self,
        x: Tensor,
        mu: Tensor,
        speaker: Tensor,
        cond: Tensor,
        time: Tensor,
        mask: Tensor,
        lengths: Tensor,
        history: EstimatorHistory,
        *,
        first_frames: Tensor,
    ) -> tuple[Tensor, EstimatorHistory]:
        """Estimate the velocity as the models' `forward` does.

        Raises:
            ExportError: the mask is not the one under which the models stream.
        """
        if mask.shape[2] < x.shape[2] and x.shape[2] > self.block:
            raise ExportError("the exported chunk form computes under the block mask alone; use the PyTorch flow")
        # The last query sees every valid frame of the chunk.
        valid = mask[:, 0, -1, history.kv.shape[3] :].sum(1)
        inputs = {"x": x, "mu": mu, "speaker": speaker, "cond": cond, "time": time, "lengths": valid}
        inputs |= {"committed": lengths, **({"first_frames": first_frames} if self.has_positions else {})}
        made = self.graph.run(inputs | _estimator_history(history, mask))
        return made["velocity"], EstimatorHistory(made["chunk_kv"], made["new_tail"])


def _estimator_history(history: EstimatorHistory, mask: Tensor) -> dict[str, Tensor]:
    """Return history columns as a prompt and a window; `mask` must let every query see the same of them."""
    held = history.kv.shape[3]
    split, valid = max(0, held - WINDOW_COLUMNS), mask[:, 0, 0, :held]
    return {
        "prompt_kv": _at_least_one(history.kv[:, :, :, :split], 3),
        "prompt_valid": _at_least_one(valid[:, :split], 1),
        "prompt_row": torch.arange(len(mask)),
        "window_kv": _at_least_one(history.kv[:, :, :, split:], 3),
        "window_valid": _at_least_one(valid[:, split:], 1),
        "tail": history.tail,
    }


def open_flow(directory: Path, precision: Precision = Precision.FLOAT32) -> Flow | BlockFlow:
    """Return the flow of a directory of `cosydit export`, of any family.

    Raises:
        ExportError, CheckpointError: as `OnnxGraph`.
    """
    _check_complete(directory)
    config = loader.read_config(directory).flow
    if isinstance(config, FlowConfig):
        return OnnxFlow(directory, precision)
    flow: _OnnxBlockFlow
    with torch.device("meta"):
        flow = _OnnxCosyVoice2(config) if isinstance(config, CosyVoice2FlowConfig) else _OnnxCosyVoice3(config)
    flow.open(directory, precision)
    return flow


def open_vocoder(directory: Path) -> HiFT | CausalHiFT:
    """Return the vocoder of a directory of `cosydit export`, of any family.

    Raises:
        ExportError, CheckpointError: as `OnnxGraph`.
    """
    _check_complete(directory)
    is_causal = loader.read_config(directory).hift.is_causal
    return OnnxCausalHiFT(directory) if is_causal else OnnxHiFT(directory)


class _OnnxBlockFlow(BlockFlow):
    """Stands where a `BlockFlow` stands; embedding, encoder, projections and estimator come from two files."""

    def open(self, directory: Path, precision: Precision) -> None:
        """Open both files, see `open_flow`."""
        self.graph = OnnxGraph(directory, graphs.ENCODER_CHUNK, precision)
        estimator = OnnxGraph(directory, graphs.ESTIMATOR_CHUNK, precision)
        has_positions = isinstance(self.decoder.estimator, RotaryDiT)
        block = self.block_tokens * self.stride
        self.decoder.estimator = OnnxBlockEstimator(estimator, block, has_positions=has_positions)
        self.cache_dtype = dtype_of(precision)

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Type of the files' caches."""
        return self.cache_dtype

    def condition(
        self,
        tokens: Tensor,
        token_lengths: Tensor,
        is_last: Tensor,
        speaker: Tensor,
        committed: Tensor,
        past: Past,
        size: int,
        *,
        is_masked: bool,
        make_plan: MakePlan = chunk_plan,
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Encode as `BlockFlow.condition` does; only what a chunk of a stream needs.

        Raises:
            ExportError: another mask than the block mask was asked for.
        """
        if not is_masked or make_plan is not chunk_plan:
            raise ExportError("the exported chunk form computes under the block mask alone; use the PyTorch flow")
        # The file takes look-ahead columns in any case; behind a last row they are padding.
        tokens = functional.pad(tokens, (0, size + self.lookahead - tokens.shape[1]))
        inputs = {"tokens": tokens, "lengths": token_lengths, "speaker": speaker}
        inputs |= {"is_last": is_last, "committed": committed}
        specs = [spec for spec in self.state_specs(1) if not spec.name.startswith("solver_")]
        for spec in specs:
            cache = past.caches[spec.name]
            inputs[spec.name] = cache if spec.time_axis is None else _at_least_one(cache, spec.time_axis + 1)
        if any(spec.time_axis is not None for spec in specs):
            inputs["token_lengths"] = past.tokens
        made = self.graph.run(inputs)
        added = {spec.name: made[f"{'new' if spec.time_axis is None else 'chunk'}_{spec.name}"] for spec in specs}
        return made["mu"], made["speaker_vector"], added


class _OnnxCosyVoice2(_OnnxBlockFlow, CosyVoice2Flow):
    """CosyVoice2's flow on files."""


class _OnnxCosyVoice3(_OnnxBlockFlow, CosyVoice3Flow):
    """CosyVoice3's flow on files."""


class OnnxFlow(Flow):
    """Stands where a `Flow` stands; embedding, encoder, projections and estimator come from two files."""

    def __init__(self, directory: Path, precision: Precision = Precision.FLOAT32) -> None:
        """Open both files of a directory of `cosydit export`.

        Raises:
            ExportError, CheckpointError: as `OnnxGraph`.
        """
        _check_complete(directory)
        config = loader.read_flow_config(directory / loader.FLOW_YAML)
        with torch.device("meta"):
            super().__init__(config)
        self.encode = OnnxGraph(directory, graphs.ENCODER_CHUNK, precision)
        estimator = OnnxGraph(directory, graphs.ESTIMATOR_CHUNK, precision)
        self.decoder.estimator = OnnxEstimator(estimator, config.estimator, precision)  # type: ignore[assignment]
        self.dtype = dtype_of(precision)

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def condition(
        self,
        tokens: Tensor,
        token_lengths: Tensor,
        is_last: Tensor,
        speaker: Tensor,
        history: EncoderHistory | None = None,
        *,
        plans: EncoderPlans | None = None,
        size: int | None = None,
        upstream_padding_leak: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor, EncoderUpdate]:
        """Encode as `Flow.condition` does; only what a chunk of a stream needs.

        Raises:
            ExportError: another attention or a reproduced padding leak was asked for.
        """
        if plans is not None or upstream_padding_leak:
            raise ExportError("the exported encoder attends to [history | own chunk] alone; use the PyTorch flow")
        lookahead = self.config.encoder.pre_lookahead_len
        if bool(is_last.any()):
            # The file takes look-ahead columns in any case; behind a last row they are padding.
            tokens = functional.pad(tokens, (0, lookahead))
        history = history or self.encoder.empty_history(torch.zeros(tokens.shape[0], 1, dtype=self.dtype))
        made = self.encode.run(
            {
                "tokens": tokens,
                "lengths": token_lengths,
                "speaker": speaker,
                "is_last": is_last,
                "token_kv": _at_least_one(history.token_kv, 3),
                "token_lengths": history.token_lengths,
                "frame_kv": _at_least_one(history.frame_kv, 3),
                "frame_lengths": history.frame_lengths,
                "lookahead_tail": history.lookahead_tail,
                "upsample_tail": history.upsample_tail,
            }
        )
        update = EncoderUpdate(
            made["chunk_token_kv"], made["chunk_frame_kv"], made["new_lookahead_tail"], made["new_upsample_tail"]
        )
        spoken = token_lengths - lookahead * ~is_last
        return made["mu"], made["speaker_vector"], spoken * self.config.encoder.up_stride, update


class OnnxHiFT(HiFT):
    """Stands where a `HiFT` stands; pitch and convolutions come from two files, the rest is PyTorch."""

    def __init__(self, directory: Path) -> None:
        """Open both files of a directory of `cosydit export`, and the source's weights.

        Raises:
            ExportError, CheckpointError: as `OnnxGraph`.
        """
        _check_complete(directory)
        config = loader.read_hift_config(directory)
        with torch.device("meta"):
            super().__init__(config)
        self.window = torch.hann_window(config.istft_n_fft, periodic=True)
        self.m_source = type(self.m_source)(config)
        self.m_source.load_state_dict(load_file(directory / SOURCE_WEIGHTS))
        self.f0_predictor = OnnxPitch(OnnxGraph(directory, graphs.F0_PREDICTOR, Precision.FLOAT32))  # type: ignore[assignment]
        self.stack = OnnxGraph(directory, graphs.VOCODER, Precision.FLOAT32)

    def spectra(self, mel: Tensor, spectrum: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Run the convolutions as `HiFT.spectra` does."""
        lengths = _all_frames(mel) if lengths is None else lengths
        return self.stack.run({"mel": mel, "spectrum": spectrum, "lengths": lengths})["spectra"]


class OnnxCausalHiFT(CausalHiFT):
    """Stands where a `CausalHiFT` stands; the convolutions come from a file, the rest and the pitch are PyTorch."""

    def __init__(self, directory: Path) -> None:
        """Open the file of a directory of `cosydit export`, and the weights beside it.

        Raises:
            ExportError, CheckpointError: as `OnnxGraph`.
        """
        _check_complete(directory)
        config = loader.read_config(directory).hift
        with torch.device("meta"):
            super().__init__(config)
        self.window = torch.hann_window(config.istft_n_fft, periodic=True)
        weights = load_file(directory / SOURCE_WEIGHTS)
        pitch = {
            name.removeprefix(PITCH_PREFIX): weights.pop(name)
            for name in list(weights)
            if name.startswith(PITCH_PREFIX)
        }
        self.m_source = type(self.m_source)(config)
        self.m_source.load_state_dict(weights)
        predictor = CausalF0Predictor(config.in_channels, config.f0_cond_channels)
        self.f0_predictor = fold_weight_norm(predictor.double())
        self.f0_predictor.load_state_dict(pitch)
        self.stack = OnnxGraph(directory, graphs.VOCODER, Precision.FLOAT32)

    def spectra(
        self, mel: Tensor, spectrum: Tensor, frames: Tensor, is_first: Tensor, context: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run the convolutions as `CausalHiFT.spectra` does."""
        inputs = {"mel": mel, "spectrum": spectrum, "lengths": frames, "is_first": is_first, "context": context}
        made = self.stack.run(inputs)
        return made["spectra"], made["new_context"]


class OnnxPitch(nn.Module):
    """Stands where an `F0Predictor` stands."""

    def __init__(self, graph: OnnxGraph) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, mel: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Map mel to pitch as `F0Predictor.forward` does."""
        return self.graph.run({"mel": mel, "lengths": _all_frames(mel) if lengths is None else lengths})["f0"]


def _check_complete(directory: Path) -> None:
    if not has_companions(directory):
        raise ExportError(f"{directory} holds no complete export; run `cosydit export CHECKPOINT --out {directory}`")


def _at_least_one(values: Tensor, dim: int) -> Tensor:
    """Return values, or one column of zeros where there is none: the files take no empty axis."""
    if values.shape[dim]:
        return values
    shape = list(values.shape)
    shape[dim] = 1
    return values.new_zeros(shape)


def _all_frames(mel: Tensor) -> Tensor:
    return torch.full((mel.shape[0],), mel.shape[2])
