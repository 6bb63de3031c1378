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
from token2wav_service.graphs.catalogue import ROTARY_FRAMES, Precision
from token2wav_service.models.causal import AttentionPlan, block_ends, chunk_plan, relative_sinusoids, valid_mask
from token2wav_service.models.config import EncoderConfig
from token2wav_service.models.flow.block_flow import BlockFlow, CosyVoice2Flow, CosyVoice3Flow, Past
from token2wav_service.models.flow.cfm import EstimatorHistory
from token2wav_service.models.flow.dit import DiT
from token2wav_service.models.flow.encoder import EncoderHistory, EncoderPlans
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.flow.rotary_dit import RotaryDiT, rotation_table
from token2wav_service.models.vocoder.causal_hift import CausalHiFT
from token2wav_service.models.vocoder.hift import F0Predictor, HiFT

M = TypeVar("M", bound=nn.Module)

BEYOND = 8
"""Columns of a table behind the last one that may be asked for: the tracer goes one token beyond."""


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
        history = _history(prompt_kv, prompt_row, window_kv, tail)
        with _products(self.precision):
            velocity, own = self.estimator(x, mu, speaker, cond, time, valid[:, None, None, :], lengths, history)
        return velocity, own.kv.to(window_kv.dtype), own.tail.to(tail.dtype)


class _BlockEstimator(nn.Module):
    """What the chunk forms of the block-masked flows' estimators share: the mask.

    The end of each column's block is in a table, because TensorRT divides no whole numbers.
    """

    def __init__(self, estimator: nn.Module, precision: Precision | None, block: int, longest_chunk: int) -> None:
        super().__init__()
        self.estimator, self.precision = _converted(estimator, precision), precision
        self.register_buffer("ends", block_ends(longest_chunk + BEYOND, block), persistent=False)
        self.ends: Tensor

    def mask(
        self, lengths: Tensor, size: int, prompt_valid: Tensor, prompt_row: Tensor, window_valid: Tensor
    ) -> Tensor:
        """Return [rows, 1, size, prompt + window + size]: all that was before, and the chunk to the block's end."""
        before = torch.cat([prompt_valid.index_select(0, prompt_row), window_valid], 1)
        in_block = torch.arange(size, device=lengths.device)[None, :] < self.ends[:size, None]
        own = valid_mask(lengths, size)[:, None, :] & in_block[None]
        return torch.cat([before[:, None, :].expand(-1, size, -1), own], 2)[:, None]


class UNetChunk(_BlockEstimator):
    """CosyVoice2's U-Net over [prompt | window | own chunk]."""

    def forward(
        self,
        x: Tensor,
        mu: Tensor,
        speaker: Tensor,
        cond: Tensor,
        time: Tensor,
        lengths: Tensor,
        committed: Tensor,
        prompt_kv: Tensor,
        prompt_valid: Tensor,
        prompt_row: Tensor,
        window_kv: Tensor,
        window_valid: Tensor,
        tail: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return velocity, chunk_kv and new_tail."""
        mask = self.mask(lengths, x.shape[2], prompt_valid, prompt_row, window_valid)
        history = _history(prompt_kv, prompt_row, window_kv, tail)
        with _products(self.precision):
            velocity, own = self.estimator(x, mu, speaker, cond, time, mask, committed, history)
        return velocity, own.kv.to(window_kv.dtype), own.tail.to(tail.dtype)


class RotaryChunk(_BlockEstimator):
    """CosyVoice3's DiT over [prompt | window | own chunk].

    A table holds every frame's rotation, because angles need float64 and TensorRT has none; the plain model makes them.
    """

    def __init__(self, estimator: RotaryDiT, precision: Precision | None, block: int, longest_chunk: int) -> None:
        super().__init__(estimator, precision, block, longest_chunk)
        self.register_buffer("rotations", _rotations(estimator, ROTARY_FRAMES), persistent=False)
        self.rotations: Tensor

    def forward(
        self,
        x: Tensor,
        mu: Tensor,
        speaker: Tensor,
        cond: Tensor,
        time: Tensor,
        lengths: Tensor,
        committed: Tensor,
        first_frames: Tensor,
        prompt_kv: Tensor,
        prompt_valid: Tensor,
        prompt_row: Tensor,
        window_kv: Tensor,
        window_valid: Tensor,
        tail: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return velocity, chunk_kv and new_tail."""
        mask = self.mask(lengths, x.shape[2], prompt_valid, prompt_row, window_valid)
        history = _history(prompt_kv, prompt_row, window_kv, tail)
        where = {"first_frames": first_frames}
        if self.precision is not None:
            frames = first_frames[:, None] + torch.arange(x.shape[2], device=x.device)
            taken = self.rotations.index_select(0, frames.flatten())
            where = {"rotation": taken.view(*frames.shape, *taken.shape[1:])}
        with _products(self.precision):
            velocity, own = self.estimator(x, mu, speaker, cond, time, mask, committed, history, **where)
        return velocity, own.kv.to(window_kv.dtype), own.tail.to(tail.dtype)


class EstimatorWhole(nn.Module):
    """An estimator over whole utterances, every frame seeing all others."""

    def __init__(self, estimator: nn.Module, precision: Precision | None, longest: int) -> None:
        super().__init__()
        self.estimator, self.precision = _converted(estimator, precision), precision
        is_tabled = isinstance(estimator, RotaryDiT) and precision is not None
        table = _rotations(estimator, longest + BEYOND) if is_tabled else None
        self.register_buffer("rotations", table, persistent=False)
        self.rotations: Tensor | None

    def forward(self, x: Tensor, mu: Tensor, speaker: Tensor, cond: Tensor, time: Tensor, lengths: Tensor) -> Tensor:
        """Return velocity."""
        mask = valid_mask(lengths, x.shape[2])[:, None, None, :]
        where = {} if self.rotations is None else {"rotation": self.rotations[None, : x.shape[2]]}
        with _products(self.precision):
            velocity, _ = self.estimator(x, mu, speaker, cond, time, mask, lengths, **where)
        return cast(Tensor, velocity)


class _Encoder(nn.Module):
    """What all forms of the conformer share: a table of relative positions, and one of each block size's ends.

    The tables hold every distance and column that may occur, because angles need float64, blocks a division of whole
    numbers, and TensorRT has neither. The plain model computes both.
    """

    def __init__(
        self,
        config: EncoderConfig,
        precision: Precision | None,
        longest_chunk: int,
        longest_history: int,
        blocks: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.precision = precision
        self.first_distance = 1 - longest_chunk
        nothing = torch.zeros(1, dtype=torch.long)
        every = chunk_plan(nothing, longest_history, nothing, longest_chunk)
        self.register_buffer(
            "sinusoids", relative_sinusoids(every, config.output_size, torch.float32), persistent=False
        )
        self.sinusoids: Tensor
        for block in blocks:
            self.register_buffer(f"ends_of_{block}", block_ends(longest_chunk + BEYOND, block), persistent=False)

    def plan(
        self, history_lengths: Tensor, history_size: int, chunk_lengths: Tensor, size: int, block: int | None = None
    ) -> AttentionPlan:
        """Return the plan of one attention, as `chunk_plan` makes it."""
        if self.precision is None:
            return chunk_plan(history_lengths, history_size, chunk_lengths, size, block)
        ends = None if block is None else self.get_buffer(f"ends_of_{block}")
        plan = chunk_plan(history_lengths, history_size, chunk_lengths, size, block, ends)
        distances = torch.arange(plan.relative_min, plan.relative_max + 1, device=self.sinusoids.device)
        return dataclasses.replace(plan, sinusoids=self.sinusoids.index_select(0, distances - self.first_distance))


class EncoderChunk(_Encoder):
    """Embedding, conformer and projections over [history | own chunk]."""

    def __init__(self, flow: Flow, precision: Precision | None, longest_chunk: int, longest_history: int) -> None:
        super().__init__(flow.config.encoder, precision, longest_chunk, longest_history)
        self.flow = _converted(flow, precision)

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

    def __init__(self, flow: Flow, precision: Precision | None, longest: int) -> None:
        super().__init__(flow.config.encoder, precision, longest, 0)
        self.flow = _converted(flow, precision)

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


class BlockEncoderChunk(_Encoder):
    """CosyVoice2's embedding, conformer and projections over [history | own chunk], under the block mask."""

    def __init__(
        self, flow: CosyVoice2Flow, precision: Precision | None, longest_chunk: int, longest_history: int
    ) -> None:
        blocks = (flow.block_tokens, flow.block_tokens * flow.stride)
        super().__init__(flow.config.encoder, precision, longest_chunk, longest_history, blocks)
        self.flow = _converted(flow, precision)

    def forward(
        self,
        tokens: Tensor,
        lengths: Tensor,
        speaker: Tensor,
        is_last: Tensor,
        committed: Tensor,
        token_kv: Tensor,
        token_lengths: Tensor,
        frame_kv: Tensor,
        lookahead_tail: Tensor,
        upsample_tail: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return mu, speaker_vector, chunk_token_kv, chunk_frame_kv, new_lookahead_tail and new_upsample_tail."""
        caches = {
            "token_kv": token_kv,
            "frame_kv": frame_kv,
            "lookahead_tail": lookahead_tail,
            "upsample_tail": upsample_tail,
        }
        past, size = Past(caches, token_lengths, token_lengths), tokens.shape[1] - self.flow.lookahead
        with _products(self.precision):
            mu, vector, added = self.flow.condition(
                tokens, lengths, is_last, speaker, committed, past, size, is_masked=True, make_plan=self.plan
            )
        return mu, vector, *(added[name].to(token_kv.dtype) for name in caches)


class LookaheadChunk(nn.Module):
    """CosyVoice3's embedding, look-ahead layer and projection of a chunk."""

    def __init__(self, flow: CosyVoice3Flow, precision: Precision | None) -> None:
        super().__init__()
        self.flow, self.precision = _converted(flow, precision), precision

    def forward(
        self,
        tokens: Tensor,
        lengths: Tensor,
        speaker: Tensor,
        is_last: Tensor,
        committed: Tensor,
        lookahead_tail: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return mu, speaker_vector and new_lookahead_tail."""
        past = Past({"lookahead_tail": lookahead_tail}, committed, committed)
        size = tokens.shape[1] - self.flow.lookahead
        with _products(self.precision):
            mu, vector, added = self.flow.condition(
                tokens, lengths, is_last, speaker, committed, past, size, is_masked=True
            )
        return mu, vector, added["lookahead_tail"].to(lookahead_tail.dtype)


class BlockEncoderWhole(nn.Module):
    """What stands before a block-masked flow's estimator, over whole utterances: every token sees all others."""

    def __init__(self, flow: BlockFlow, precision: Precision | None, longest: int) -> None:
        super().__init__()
        self.flow, self.precision = _converted(flow, precision), precision
        self.conformer: _Encoder | None = None
        if isinstance(flow, CosyVoice2Flow):
            self.conformer = _Encoder(flow.config.encoder, precision, longest, 0)

    def forward(self, tokens: Tensor, lengths: Tensor, speaker: Tensor) -> tuple[Tensor, Tensor]:
        """Return mu and speaker_vector."""
        last, past = torch.ones_like(lengths, dtype=torch.bool), self.flow.empty_past(tokens.shape[0], 1)
        make_plan = chunk_plan if self.conformer is None else self.conformer.plan
        with _products(self.precision):
            mu, vector, _ = self.flow.condition(
                tokens, lengths, last, speaker, lengths, past, tokens.shape[1], is_masked=False, make_plan=make_plan
            )
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


class CausalVocoderStack(nn.Module):
    """CosyVoice3's vocoder from the source's STFT to the inverse STFT's input, for a piece of a stream."""

    def __init__(self, hift: CausalHiFT, precision: Precision | None) -> None:
        super().__init__()
        self.hift, self.precision = _converted(hift, precision), precision

    def forward(
        self, mel: Tensor, spectrum: Tensor, lengths: Tensor, is_first: Tensor, context: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return spectra and new_context."""
        with _products(self.precision):
            return self.hift.spectra(mel, spectrum, lengths, is_first, context)


def _converted(module: M, precision: Precision | None) -> M:
    return module if precision is None else in_precision(module, precision)


def _products(precision: Precision | None) -> AbstractContextManager[object]:
    return nullcontext() if precision is None else MixedPrecision(precision)


def _rotations(estimator: nn.Module, frames: int) -> Tensor:
    """Return [frames, head_dim / 2, 2] cosines and sines of every frame from 0 on."""
    assert isinstance(estimator, RotaryDiT)
    return rotation_table(None, frames, estimator.config.head_dim, like=torch.zeros(1))[0]


def _history(prompt_kv: Tensor, prompt_row: Tensor, window_kv: Tensor, tail: Tensor) -> EstimatorHistory:
    # The estimators only iterate over the layers: joined one by one, one layer's keys are alive at a time.
    return EstimatorHistory(cast(Tensor, list(_joined(prompt_kv, prompt_row, window_kv))), tail)


def _joined(prompt_kv: Tensor, prompt_row: Tensor, window_kv: Tensor) -> Iterator[Tensor]:
    """Yield each layer's [rows, h, prompt + window, 2d] history."""
    for prompt, window in zip(prompt_kv.unbind(0), window_kv.unbind(0), strict=True):
        yield torch.cat([prompt.index_select(0, prompt_row), window], 2)
