"""Builds a running engine from its configuration: loads the checkpoint, places the models."""

from __future__ import annotations

import logging

import torch

from cosydit.clock import Clock
from token2wav_service.checkpoint.loader import load_flow, load_hift, missing_files
from token2wav_service.config import Token2WavConfig
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.engine.loop import EngineLoop
from token2wav_service.engine.model_runner import ModelRunner
from token2wav_service.engine.voices import VoiceStore
from token2wav_service.errors import CheckpointError
from token2wav_service.features.extractor import PromptFeatureExtractor
from token2wav_service.models.flow_stream import StreamFlow
from token2wav_service.models.hift import fold_weight_norm
from token2wav_service.models.vocoder_stream import StreamVocoder

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def build_engine(config: Token2WavConfig, clock: Clock) -> Token2WavEngine:
    """Load the checkpoint and return an engine that has not begun to run.

    Raises:
        CheckpointError: the checkpoint is incomplete or does not fit.
        ValueError: an unknown dtype.
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
    flow = load_flow(config.model_dir).to(config.device, DTYPES[config.dtype])
    hift = fold_weight_norm(load_hift(config.model_dir)).to(config.device)
    streams = StreamFlow(flow, config.synthesis)
    extractor = PromptFeatureExtractor(config.model_dir, onnx_threads=config.num_threads or 1, device=config.device)
    runner = ModelRunner(streams, StreamVocoder(hift, config.synthesis))
    voices = VoiceStore(extractor, runner, config.voice_cache_bytes)
    logger.info("token2wav on %s in %s from %s", config.device, config.dtype, config.model_dir)
    return Token2WavEngine(config, voices, runner, clock)


def build_engine_loop(config: Token2WavConfig, clock: Clock) -> EngineLoop:
    """Return `build_engine`'s engine in a loop that has not been started."""
    return EngineLoop(build_engine(config, clock))
