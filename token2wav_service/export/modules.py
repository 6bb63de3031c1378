"""The graphs as modules: the project's own models behind the flat inputs and outputs that `graphs.py` describes.

No numerics here. Arguments and results stand in the order of the descriptions. A module of precision None is the plain
float32 model, which the exported ones are compared with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from token2wav_service.export.precision import MixedPrecision, in_precision
from token2wav_service.graphs.catalogue import Precision
from token2wav_service.models.causal import AttentionPlan, chunk_plan, relative_sinusoids, valid_mask
from token2wav_service.models.flow.cfm import EstimatorHistory
from token2wav_service.models.flow.dit import DiT
from token2wav_service.models.flow.encoder import EncoderHistory, EncoderPlans
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.vocoder.hift import F0Predictor, HiFT

M = TypeVar("M", bound=nn.Module)


class EstimatorChunk(nn.Module):
    """The DiT over [prompt | window | own chunk]."""

    def __init__(self, estimator: DiT, precision: Precision | None) -> None:
        super().__init__()
        self.estimator, self.precision = _converted(estimator, precision), precision

    def forward(
        self,
        x: Tensor,
        mu: Tensor,
        speaker: Tensor,
        cond: Tensor,
        time: Tensor,
        lengths: Tensor,
        prompt_kv: Tensor,
        prompt_valid: Tensor,
        prompt_row: Tensor,
        window_kv: Tensor,
        window_valid: Tensor,
        tail: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return velocity, chunk_kv and new_tail."""
        own_valid = valid_mask(lengths, x.shape[2])
        valid = torch.cat([prompt_valid.index_select(0, prompt_row), window_valid, own_valid], 1)
        # The estimator only iterates over the blocks: joined block by block, one block's keys are alive at a time.
        kv = cast(Tensor, list(_joined(prompt_kv, prompt_row, window_kv)))
        history = EstimatorHistory(kv, tail)
        with _products(self.precision):
            velocity, own = self.estimator(x, mu, speaker, cond, time, valid[:, None, None, :], lengths, history)
        return velocity, own.kv.to(window_kv.dtype), own.tail.to(tail.dtype)


class EstimatorWhole(nn.Module):
    """The DiT over whole utterances."""

    def __init__(self, estimator: DiT, precision: Precision | None) -> None:
        super().__init__()
        self.estimator, self.precision = _converted(estimator, precision), precision

    def forward(self, x: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor, time: Tensor, lengths: Tensor) -> Tensor:
        """Return velocity."""
        mask = valid_mask(lengths, x.shape[2])[:, None, None, :]
        with _products(self.precision):
            velocity, _ = self.estimator(x, mu, speaker, cond, time, mask, lengths)
        return cast(Tensor, velocity)


class _Encoder(nn.Module):
    """What both forms of the encoder share: the flow up to its solver, and a table of relative positions.

    The table holds every distance that may occur, because angles need float64 and TensorRT has none.
    """

    def __init__(self, flow: Flow, precision: Precision | None, longest_chunk: int, longest_history: int) -> None:
        super().__init__()
        self.flow, self.precision = _converted(flow, precision), precision
        self.first_distance = 1 - longest_chunk
        nothing = torch.zeros(1, dtype=torch.long)
        every = chunk_plan(nothing, longest_history, nothing, longest_chunk)
        table = relative_sinusoids(every, flow.config.encoder.output_size, torch.float32)
        self.register_buffer("sinusoids", table, persistent=False)
        self.sinusoids: Tensor

    def plan(self, history_lengths: Tensor, history_size: int, chunk_lengths: Tensor, size: int) -> AttentionPlan:
        """Return the plan of one attention; its positions are read from the table, but not in the plain model."""
        plan = chunk_plan(history_lengths, history_size, chunk_lengths, size)
        if self.precision is None:
            return plan
        distances = torch.arange(plan.relative_min, plan.relative_max + 1, device=self.sinusoids.device)
        return dataclasses.replace(plan, sinusoids=self.sinusoids.index_select(0, distances - self.first_distance))


class EncoderChunk(_Encoder):
    """Embedding, conformer and projections over [history | own chunk]."""

    def forward(
        self,
        tokens: Tensor,
        lengths: Tensor,
        speaker: Tensor,
        is_last: Tensor,
        token_kv: Tensor,
        token_lengths: Tensor,
        frame_kv: Tensor,
        frame_lengths: Tensor,
        lookahead_tail: Tensor,
        upsample_tail: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return mu, speaker_vector, chunk_token_kv, chunk_frame_kv, new_lookahead_tail and new_upsample_tail."""
        c = self.flow.config.encoder
        size = tokens.shape[1] - c.pre_lookahead_len
        spoken = torch.where(is_last, lengths, lengths - c.pre_lookahead_len)
        plans = EncoderPlans(
            self.plan(token_lengths, token_kv.shape[3], spoken, size),
            self.plan(frame_lengths, frame_kv.shape[3], spoken * c.up_stride, size * c.up_stride),
        )
        history = EncoderHistory(token_kv, frame_kv, token_lengths, frame_lengths, lookahead_tail, upsample_tail)
        with _products(self.precision):
            mu, vector, _, own = self.flow.condition(tokens, lengths, is_last, speaker, history, plans=plans, size=size)
        caches = (own.token_kv, own.frame_kv, own.lookahead_tail, own.upsample_tail)
        return mu, vector, *(cache.to(token_kv.dtype) for cache in caches)


class EncoderWhole(_Encoder):
    """Embedding, conformer and projections over whole utterances."""

    def forward(self, tokens: Tensor, lengths: Tensor, speaker: Tensor) -> tuple[Tensor, Tensor]:
        """Return mu and speaker_vector."""
        stride, size = self.flow.config.encoder.up_stride, tokens.shape[1]
        nothing = torch.zeros_like(lengths)
        plans = EncoderPlans(
            self.plan(nothing, 0, lengths, size), self.plan(nothing, 0, lengths * stride, size * stride)
        )
        last = torch.ones_like(lengths, dtype=torch.bool)
        with _products(self.precision):
            mu, vector, _, _ = self.flow.condition(tokens, lengths, last, speaker, plans=plans, size=size)
        return mu, vector


class PitchPredictor(nn.Module):
    """The vocoder's pitch from mel."""

    def __init__(self, predictor: F0Predictor) -> None:
        super().__init__()
        self.predictor = predictor

    def forward(self, mel: Tensor, lengths: Tensor) -> Tensor:
        """Return f0."""
        return cast(Tensor, self.predictor(mel, lengths))


class VocoderStack(nn.Module):
    """The vocoder's convolutions, from the source's STFT to the inverse STFT's input."""

    def __init__(self, hift: HiFT, precision: Precision | None) -> None:
        super().__init__()
        self.hift, self.precision = _converted(hift, precision), precision

    def forward(self, mel: Tensor, spectrum: Tensor, lengths: Tensor) -> Tensor:
        """Return spectra."""
        with _products(self.precision):
            return self.hift.spectra(mel, spectrum, lengths)


def _converted(module: M, precision: Precision | None) -> M:
    return module if precision is None else in_precision(module, precision)


def _products(precision: Precision | None) -> AbstractContextManager[object]:
    return nullcontext() if precision is None else MixedPrecision(precision)


def _joined(prompt_kv: Tensor, prompt_row: Tensor, window_kv: Tensor) -> Iterator[Tensor]:
    """Yield each block's [rows, h, prompt + window, 2d] history."""
    for prompt, window in zip(prompt_kv.unbind(0), window_kv.unbind(0), strict=True):
        yield torch.cat([prompt.index_select(0, prompt_row), window], 2)
