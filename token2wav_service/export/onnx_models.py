"""The flow and the vocoder on exported files, under ONNX Runtime on the CPU.

They stand where `Flow` and `HiFT` stand, so that streams, caches, solver and joins are the same code for both.
Not fast: it certifies the files.
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
from token2wav_service.export.build import SOURCE_WEIGHTS, has_companions
from token2wav_service.export.manifest import read_manifest
from token2wav_service.export.precision import dtype_of
from token2wav_service.features.prompt_models import open_session
from token2wav_service.graphs import catalogue as graphs
from token2wav_service.graphs.spec import Precision
from token2wav_service.models.config import DiTConfig
from token2wav_service.models.flow.cfm import EstimatorHistory
from token2wav_service.models.flow.encoder import EncoderHistory, EncoderPlans, EncoderUpdate
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.vocoder.hift import HiFT

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
        split = max(0, history.kv.shape[3] - WINDOW_COLUMNS)
        valid = mask[:, 0, 0, : history.kv.shape[3]]
        made = self.graph.run(
            {
                "x": x,
                "mu": mu,
                "speaker": speaker,
                "cond": cond,
                "time": time,
                "lengths": lengths,
                "prompt_kv": _at_least_one(history.kv[:, :, :, :split], 3),
                "prompt_valid": _at_least_one(valid[:, :split], 1),
                "prompt_row": torch.arange(x.shape[0]),
                "window_kv": _at_least_one(history.kv[:, :, :, split:], 3),
                "window_valid": _at_least_one(valid[:, split:], 1),
                "tail": history.tail,
            }
        )
        return made["velocity"], EstimatorHistory(made["chunk_kv"], made["new_tail"])

    def _nothing(self, rows: int) -> EstimatorHistory:
        c = self.config
        return EstimatorHistory(
            kv=torch.zeros(c.depth, rows, c.num_heads, 0, 2 * c.head_dim, dtype=self.dtype),
            tail=torch.zeros(c.depth, rows, 2 * c.hidden_size, graphs.CONVOLUTION_COLUMNS, dtype=self.dtype),
        )


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
