"""Makes the modules to export from a checkpoint, loading each model once and only when it is needed."""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path

from safetensors.torch import save
from torch import nn

from servicekit.files import write_text
from token2wav_service.checkpoint import loader
from token2wav_service.checkpoint.family import Family, find_family, read_family
from token2wav_service.checkpoint.write_description import hift_arguments
from token2wav_service.export.modules import (
    BlockEncoderChunk,
    BlockEncoderWhole,
    CausalVocoderStack,
    EncoderChunk,
    EncoderWhole,
    EstimatorChunk,
    EstimatorWhole,
    LookaheadChunk,
    PitchPredictor,
    RotaryChunk,
    UNetChunk,
    VocoderStack,
)
from token2wav_service.graphs import catalogue as graphs
from token2wav_service.graphs.spec import GraphSpec, Precision
from token2wav_service.models.flow.block_flow import BlockFlow, CosyVoice2Flow, CosyVoice3Flow
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.flow.rotary_dit import RotaryDiT
from token2wav_service.models.vocoder.causal_hift import CausalHiFT
from token2wav_service.models.vocoder.hift import HiFT, fold_weight_norm

SOURCE_WEIGHTS = "source.safetensors"
"""Weights of what stays outside the graphs: the harmonic source, and under `PITCH_PREFIX` the pitch predictor in
float64 of a vocoder that has one."""
PITCH_PREFIX = "f0_predictor."


class Models:
    """A checkpoint's models, float32 on the CPU."""

    def __init__(self, model_dir: Path) -> None:
        self._model_dir = model_dir

    @cached_property
    def flow(self) -> Flow | BlockFlow:
        """The flow, loaded on first use."""
        return loader.load_flow_of(self._model_dir)

    @cached_property
    def hift(self) -> HiFT | CausalHiFT:
        """The vocoder with its weight norms folded, loaded on first use."""
        return fold_weight_norm(loader.load_vocoder_of(self._model_dir))


def module_for(spec: GraphSpec, models: Models, *, is_plain: bool = False) -> nn.Module:
    """Return the module of a graph.

    Args:
        is_plain: return the plain float32 model behind the same inputs instead, for comparing.
    """
    precision: Precision | None = None if is_plain else spec.precision
    if spec.name == graphs.F0_PREDICTOR:
        assert isinstance(models.hift, HiFT), "the causal vocoder's is described as no graph"
        return PitchPredictor(models.hift.f0_predictor)
    if spec.name == graphs.VOCODER:
        hift = models.hift
        return CausalVocoderStack(hift, precision) if isinstance(hift, CausalHiFT) else VocoderStack(hift, precision)
    flow = models.flow
    if spec.name == graphs.ESTIMATOR_WHOLE:
        return EstimatorWhole(flow.decoder.estimator, precision, spec.limit("whole_frames"))
    if isinstance(flow, Flow):
        return _flow_module(spec, flow, precision)
    return _block_flow_module(spec, flow, precision)


def _flow_module(spec: GraphSpec, flow: Flow, precision: Precision | None) -> nn.Module:
    if spec.name == graphs.ESTIMATOR_CHUNK:
        return EstimatorChunk(flow.decoder.estimator, precision)
    if spec.name == graphs.ENCODER_WHOLE:
        return EncoderWhole(flow, precision, spec.limit("whole_frames"))
    assert spec.name == graphs.ENCODER_CHUNK
    return EncoderChunk(flow, precision, spec.limit("chunk_frames"), spec.limit("history_frames"))


def _block_flow_module(spec: GraphSpec, flow: BlockFlow, precision: Precision | None) -> nn.Module:
    if spec.name == graphs.ESTIMATOR_CHUNK:
        estimator, block = flow.decoder.estimator, flow.block_tokens * flow.stride
        if isinstance(estimator, RotaryDiT):
            return RotaryChunk(estimator, precision, block, spec.limit("chunk_frames"))
        return UNetChunk(estimator, precision, block, spec.limit("chunk_frames"))
    if spec.name == graphs.ENCODER_WHOLE:
        return BlockEncoderWhole(flow, precision, spec.limit("whole_frames"))
    assert spec.name == graphs.ENCODER_CHUNK
    if isinstance(flow, CosyVoice3Flow):
        return LookaheadChunk(flow, precision)
    assert isinstance(flow, CosyVoice2Flow)
    return BlockEncoderChunk(flow, precision, spec.limit("chunk_frames"), spec.limit("history_frames"))


def has_companions(out_dir: Path) -> bool:
    """True when the models' sizes and the weights outside the graphs are there."""
    family = find_family(out_dir)
    names = (loader.HIFT_CONFIG, SOURCE_WEIGHTS) if family is Family.STEP_AUDIO2 else (SOURCE_WEIGHTS,)
    return family is not None and all((out_dir / name).is_file() for name in names)


def write_companions(model_dir: Path, out_dir: Path, models: Models) -> None:
    """Write the models' sizes and the weights outside the graphs, each whole or not at all."""
    family, hift = read_family(model_dir), models.hift
    description = family.files.description
    write_text(out_dir / description, (model_dir / description).read_text("utf-8"))
    if family is Family.STEP_AUDIO2:
        write_text(out_dir / loader.HIFT_CONFIG, json.dumps(hift_arguments(hift.config), indent=1) + "\n")
    weights = dict(hift.m_source.state_dict())
    if isinstance(hift, CausalHiFT):
        weights |= {PITCH_PREFIX + name: value for name, value in hift.f0_predictor.state_dict().items()}
    partial = out_dir / f".{SOURCE_WEIGHTS}.{os.getpid()}.part"
    partial.write_bytes(save(weights))
    os.replace(partial, out_dir / SOURCE_WEIGHTS)
