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
from token2wav_service.checkpoint.write_description import hift_arguments
from token2wav_service.export.modules import (
    EncoderChunk,
    EncoderWhole,
    EstimatorChunk,
    EstimatorWhole,
    PitchPredictor,
    VocoderStack,
)
from token2wav_service.graphs import catalogue as graphs
from token2wav_service.graphs.spec import GraphSpec, Precision
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.vocoder.hift import HiFT, fold_weight_norm

SOURCE_WEIGHTS = "source.safetensors"
"""Weights of the harmonic source, which stays outside the graphs."""
COMPANIONS = (loader.FLOW_YAML, loader.HIFT_CONFIG, SOURCE_WEIGHTS)


class Models:
    """A checkpoint's models, float32 on the CPU."""

    def __init__(self, model_dir: Path) -> None:
        self._model_dir = model_dir

    @cached_property
    def flow(self) -> Flow:
        """The flow, loaded on first use."""
        return loader.load_flow(self._model_dir)

    @cached_property
    def hift(self) -> HiFT:
        """The vocoder with its weight norms folded, loaded on first use."""
        return fold_weight_norm(loader.load_hift(self._model_dir))


def module_for(spec: GraphSpec, models: Models, *, is_plain: bool = False) -> nn.Module:
    """Return the module of a graph.

    Args:
        is_plain: return the plain float32 model behind the same inputs instead, for comparing.
    """
    precision: Precision | None = None if is_plain else spec.precision
    if spec.name == graphs.ESTIMATOR_CHUNK:
        return EstimatorChunk(models.flow.decoder.estimator, precision)
    if spec.name == graphs.ESTIMATOR_WHOLE:
        return EstimatorWhole(models.flow.decoder.estimator, precision)
    if spec.name == graphs.ENCODER_CHUNK:
        return EncoderChunk(models.flow, precision, spec.limit("chunk_frames"), spec.limit("history_frames"))
    if spec.name == graphs.ENCODER_WHOLE:
        return EncoderWhole(models.flow, precision, spec.limit("whole_frames"), 0)
    if spec.name == graphs.F0_PREDICTOR:
        return PitchPredictor(models.hift.f0_predictor)
    assert spec.name == graphs.VOCODER
    return VocoderStack(models.hift, precision)


def has_companions(out_dir: Path) -> bool:
    """True when both configurations and the source's weights are there."""
    return all((out_dir / name).is_file() for name in COMPANIONS)


def write_companions(model_dir: Path, out_dir: Path, models: Models) -> None:
    """Write both configurations and the source's weights, each whole or not at all."""
    write_text(out_dir / loader.FLOW_YAML, (model_dir / loader.FLOW_YAML).read_text("utf-8"))
    arguments = hift_arguments(models.hift.config)
    write_text(out_dir / loader.HIFT_CONFIG, json.dumps(arguments, indent=1) + "\n")
    partial = out_dir / f".{SOURCE_WEIGHTS}.{os.getpid()}.part"
    partial.write_bytes(save(dict(models.hift.m_source.state_dict())))
    os.replace(partial, out_dir / SOURCE_WEIGHTS)
