"""One stream's flow state, the way from many streams' states to a batch and back, and which of its past is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from token2wav_service.config import HistoryPolicy, SynthesisPolicy
from token2wav_service.models.causal import CacheSpec
from token2wav_service.models.flow.any_flow import AnyFlow, Caches, Past

UPSTREAM_RECENT_FRAMES = 100
UPSTREAM_LIMIT_FRAMES = 5000
"""Frames of prompt and audio (100 s) that the position table of Step-Audio2's original holds."""
EXACT_TOKENS = 750
"""Tokens of prompt and audio (30 s) up to which history policy `auto` keeps every block of a block-masked flow."""
SOLVER_KV = "solver_kv"

Labels = npt.NDArray[np.int64]
"""Absolute frame numbers: 0..P-1 the prompt's, then the stream's own."""


@dataclass(frozen=True)
class FlowState:
    """Everything the flow remembers of one stream; never changed in place. Positions count the prompt."""

    prompt_tokens: int
    first_token: int
    """A: number of tokens whose blocks are complete, or without a block mask of all; the caches hold no others."""
    end_token: int
    """E of the last chunk: number of tokens whose mel was given out."""
    pending: Tensor
    """[E - A] int64 token ids that the next chunk computes again."""
    cond: Tensor
    """[80, F] the prompt's mel from frame `stride A` on; empty once A is past the prompt."""
    caches: Caches
    """Caches as the flow's `state_specs` describes them, without a batch."""
    labels: Labels
    """[K] the absolute frame at each column of the solver's keys and values."""
    prompt_kv: Tensor | None = None
    """The voice's own solver columns, shared, for the change from `upstream` to `prompt_and_recent`; None under a block
    mask, which keeps them in place."""

    @property
    def num_bytes(self) -> int:
        """Bytes this state holds beyond what it shares with its voice."""
        return tensor_bytes((self.pending, self.cond, *self.caches.values()))

    @property
    def is_time_ordered(self) -> bool:
        """True when the solver's columns already stand as `prompt_and_recent` keeps them."""
        return bool(np.all(np.diff(self.labels) > 0))


@dataclass(frozen=True)
class FlowVoice:
    """A voice's prompt, and what streams start from, by how much of the prompt's start was left away."""

    tokens: Tensor
    """[T] int64 tokens of the prompt."""
    mel: Tensor
    """[2 T, 80] mel of the prompt."""
    speaker: Tensor
    """[192] raw speaker embedding."""
    num_bytes: int
    """Bytes of memory with all its starts."""
    starts: dict[int, FlowState] = field(default_factory=dict)
    """Number of prompt tokens left away -> state; the oldest is dropped. Changed by `StreamFlow.begin` alone."""


@dataclass(frozen=True)
class ChunkSpan:
    """What one row computes, in tokens from the prompt's start."""

    first: int
    """A: the first token that is computed."""
    start: int
    """The first token whose mel is given out."""
    end: int
    """E: the token behind the last whose mel is given out."""
    committed: int
    """End of the last complete block, at least A; without a block mask E."""

    @classmethod
    def of(cls, first: int, start: int, spoken: int, block: int) -> ChunkSpan:
        """Return the span of a chunk that gives out `spoken` tokens' mel; `block` is 1 without a block mask."""
        end = start + spoken
        return cls(first, start, end, max(first, end // block * block))


@dataclass(frozen=True)
class HistoryRules:
    """Which columns of the past one chunk leaves: the first, and the newest of the others."""

    prompt_tokens: int
    """Tokens at the beginning whose columns are kept."""
    stride: int
    recent_tokens: int | None = None
    """Newest tokens that the encoder's caches keep; None keeps all."""
    recent_frames: int | None = None
    """Newest frames that the solver's keep; None keeps all."""
    newest_first: bool = False
    """Whether the newest chunk is put first, as Step-Audio2's original does, which therefore keeps the newest P columns
    in chunk order and the last 100 of what is left. Source: specification section 7."""

    def frame_order(self, held: int, new: int) -> Labels:
        """Return which of [held | new] solver columns are kept, in order."""
        order = np.arange(held + new)
        if self.newest_first:
            order = np.concatenate([order[held:], order[:held]])
        return prompt_and_tail(order, self.stride * self.prompt_tokens, self.recent_frames)

    def kept(self, spec: CacheSpec, held: int, new: int) -> Labels:
        """Return which of [held | new] columns of a growing cache are kept, in order."""
        if spec.name == SOLVER_KV:
            return self.frame_order(held, new)
        rate = spec.columns_per_token
        tokens = prompt_and_tail(np.arange((held + new) // rate), self.prompt_tokens, self.recent_tokens)
        return np.asarray(tokens[:, None] * rate + np.arange(rate)).ravel()


def rules_for(policy: SynthesisPolicy, flow: AnyFlow, prompt_tokens: int, end: int) -> HistoryRules:
    """Decide the rules of a chunk that brings a stream to `end` tokens, prompt included."""
    stride, block = flow.stride, flow.block_tokens
    is_auto = policy.history is HistoryPolicy.AUTO
    if block:
        shared = shared_tokens(flow, prompt_tokens)
        if is_auto and end <= EXACT_TOKENS:
            return HistoryRules(shared, stride)
        recent = -(-policy.estimator_recent_frames // (block * stride)) * block
        return HistoryRules(shared, stride, recent, stride * recent)
    if is_auto and end * stride <= UPSTREAM_LIMIT_FRAMES:
        return HistoryRules(prompt_tokens, stride, None, UPSTREAM_RECENT_FRAMES, newest_first=True)
    return HistoryRules(prompt_tokens, stride, policy.conformer_recent_frames // stride, policy.estimator_recent_frames)


def shared_tokens(flow: AnyFlow, count: int) -> int:
    """Return the tokens of a prompt of `count` that need none of a stream's: all its streams share what they leave."""
    block = flow.block_tokens
    return max(0, count - flow.lookahead) // block * block if block else count


def prompt_and_tail(order: Labels, prompt: int, recent: int | None) -> Labels:
    """Keep the first `prompt` and the last `recent` entries when there are more than that; None keeps all."""
    if recent is None or len(order) <= prompt + recent:
        return order
    return np.concatenate([order[:prompt], order[len(order) - recent :]])


def before_chunk(state: FlowState, rules: HistoryRules, specs: Sequence[CacheSpec]) -> FlowState:
    """Return the state a chunk under `rules` must start from: where `auto` leaves `upstream`, in the order of time."""
    if rules.newest_first or state.is_time_ordered:
        return state
    assert rules.recent_frames is not None
    prompt = rules.stride * rules.prompt_tokens
    own = np.flatnonzero(state.labels >= prompt)
    recent = own[np.argsort(state.labels[own], kind="stable")]
    recent = recent[max(0, len(recent) - rules.recent_frames) :]
    caches = dict(state.caches)
    for spec in specs:
        if spec.time_axis is not None and spec.name in caches:
            cache = caches[spec.name]
            if spec.name == SOLVER_KV:
                assert state.prompt_kv is not None
                kept = [state.prompt_kv, _take(cache, spec.time_axis, recent)]
                caches[spec.name] = torch.cat(kept, spec.time_axis)
            else:
                order = rules.kept(spec, cache.shape[spec.time_axis], 0)
                caches[spec.name] = _take(cache, spec.time_axis, order)
    labels = np.concatenate([np.arange(prompt), state.labels[recent]])
    return dataclasses.replace(state, caches=caches, labels=labels)


def advance(
    state: FlowState, span: ChunkSpan, ids: Tensor, added: Mapping[str, Tensor], row: int,
    specs: Sequence[CacheSpec], rules: HistoryRules,
) -> FlowState:  # fmt: skip
    """Return the state after a chunk: what complete blocks leave joins the caches, the rest of the tokens waits.

    Args:
        state: the state that went into the chunk (after `before_chunk`).
        span: what the row computed.
        ids: [at least E - A] int64 tokens of the chunk.
        added: what the batch left, of some caches; the others stay as they are.
        row: the stream's row in it.
        specs: of the caches.
        rules: the chunk's history rules.
    """
    tokens = span.committed - span.first
    own = np.arange(rules.stride * span.first, rules.stride * span.committed)
    caches = dict(state.caches)
    for spec in (each for each in specs if each.name in added):
        new, axis = added[spec.name].select(spec.batch_axis, row), spec.time_axis
        if axis is None:
            caches[spec.name] = new.clone()
            continue
        held, count = caches[spec.name], tokens * spec.columns_per_token
        whole = torch.cat([held, new.narrow(axis, 0, count)], axis)
        caches[spec.name] = _take(whole, axis, rules.kept(spec, held.shape[axis], count))
    return dataclasses.replace(
        state,
        first_token=span.committed,
        end_token=span.end,
        pending=ids[tokens : span.end - span.first].clone(),
        cond=state.cond[:, rules.stride * tokens :],
        caches=caches,
        labels=np.concatenate([state.labels, own])[rules.frame_order(len(state.labels), len(own))],
    )


def collate(states: Sequence[FlowState], specs: Sequence[CacheSpec]) -> Past:
    """Pad the states of a batch to one size, aligned to the right on time; leaves out caches that states don't have."""
    caches, device = [state.caches for state in states], states[0].pending.device
    held = [_held_tokens(each, specs) for each in caches]
    return Past(
        {spec.name: _stack([each[spec.name] for each in caches], spec) for spec in specs if spec.name in caches[0]},
        torch.tensor(held, device=device),
        torch.tensor([len(state.labels) for state in states], device=device),
        torch.tensor([state.first_token for state in states], device=device),
    )


def tensor_bytes(tensors: Sequence[Tensor]) -> int:
    """Return the memory of tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)


def _held_tokens(caches: Caches, specs: Sequence[CacheSpec]) -> int:
    """Return the tokens that the encoder's growing caches hold; without an encoder's, the solver's."""
    for spec in specs:
        if spec.time_axis is not None and spec.name in caches:
            return caches[spec.name].shape[spec.time_axis] // spec.columns_per_token
    return 0


def _take(values: Tensor, dim: int, index: Labels) -> Tensor:
    if len(index) == values.shape[dim] and bool(np.all(index == np.arange(len(index)))):
        return values
    return values.index_select(dim, torch.from_numpy(index).to(values.device))


def _stack(rows: Sequence[Tensor], spec: CacheSpec) -> Tensor:
    if spec.time_axis is None:
        return torch.stack(list(rows), spec.batch_axis)
    size = max(row.shape[spec.time_axis] for row in rows)
    shape = list(rows[0].shape)
    shape[spec.time_axis] = size
    shape.insert(spec.batch_axis, len(rows))
    out = rows[0].new_zeros(shape)
    for index, row in enumerate(rows):
        held = row.shape[spec.time_axis]
        out.select(spec.batch_axis, index).narrow(spec.time_axis, size - held, held).copy_(row)
    return out
