"""One stream's flow state, the way from many streams' states to a batch and back, and which of its past is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from token2wav_service.config import HistoryPolicy, SynthesisPolicy
from token2wav_service.models.flow.cfm import SolverHistory
from token2wav_service.models.flow.encoder import EncoderHistory, EncoderUpdate
from token2wav_service.models.flow.flow import FlowHistory, FlowUpdate

UPSTREAM_RECENT_FRAMES = 100
UPSTREAM_LIMIT_FRAMES = 5000
"""Frames of prompt and audio (100 s) that the original's position table holds."""

Labels = npt.NDArray[np.int64]
"""Absolute frame numbers: 0..P-1 the prompt's, then the stream's own."""


@dataclass(frozen=True)
class HistoryRules:
    """One policy's decisions for the two caches."""

    policy: HistoryPolicy
    """UPSTREAM or PROMPT_AND_RECENT, never AUTO."""
    estimator_recent: int
    conformer_recent: int

    def merge_order(self, held: int, new: int, prompt: int) -> Labels:
        """Return which of [held | new] estimator columns are kept, in order.

        Args:
            held: columns in the cache.
            new: columns of the newest chunk, numbered after the held ones.
            prompt: prompt frames P.

        Returns:
            Indices into the concatenation [held | new].

        Source: specification section 7 for UPSTREAM, which puts the newest chunk first and therefore keeps the
        newest P columns in block order and the last 100 of what is left.
        """
        own = np.arange(held, held + new)
        past = np.arange(held)
        if self.policy is HistoryPolicy.UPSTREAM:
            order, recent = np.concatenate([own, past]), UPSTREAM_RECENT_FRAMES
        else:
            order, recent = np.concatenate([past, own]), self.estimator_recent
        return prompt_and_tail(order, prompt, recent)

    def conformer_order(self, held: int, new: int, prompt: int, stride: int) -> Labels:
        """Return which of [held | new] conformer columns are kept, time ascending.

        Args:
            held, new, prompt: as in `merge_order`, in columns of the layer's own rate.
            stride: mel frames per column (2 for the token-rate layers).
        """
        order = np.arange(held + new)
        if self.policy is HistoryPolicy.UPSTREAM:
            return order
        return prompt_and_tail(order, prompt, self.conformer_recent // stride)


def prompt_and_tail(order: Labels, prompt: int, recent: int) -> Labels:
    """Keep the first `prompt` and the last `recent` entries when there are more than that."""
    if len(order) <= prompt + recent:
        return order
    return np.concatenate([order[:prompt], order[len(order) - recent :]])


def rules_for(policy: SynthesisPolicy, frames_after: int) -> HistoryRules:
    """Decide the rules of a chunk that brings a stream to `frames_after` frames, prompt included.

    Raises:
        ValueError: the policy is `upstream` and the chunk would pass its limit.
    """
    within = frames_after <= UPSTREAM_LIMIT_FRAMES
    if policy.history is HistoryPolicy.UPSTREAM and not within:
        raise ValueError(
            f"prompt and audio would reach {frames_after / 50:.2f} s, history policy `upstream` ends at "
            f"{UPSTREAM_LIMIT_FRAMES / 50:.0f} s; use `auto` or `prompt_and_recent` for longer streams"
        )
    kind = policy.history
    if kind is HistoryPolicy.AUTO:
        kind = HistoryPolicy.UPSTREAM if within else HistoryPolicy.PROMPT_AND_RECENT
    return HistoryRules(kind, policy.estimator_recent_frames, policy.conformer_recent_frames)


def sorted_recent(labels: Labels, prompt: int) -> Labels:
    """Return indices of the columns that are not the prompt's, oldest first."""
    index = np.flatnonzero(labels >= prompt)
    return index[np.argsort(labels[index], kind="stable")]


@dataclass(frozen=True)
class FlowState:
    """Everything the flow remembers of one stream; never changed in place.

    Shapes: L1 blocks, L2 up-blocks, h heads, d head_dim, C width of the encoder; n solver steps, L layers of the
    DiT, hidden size H; the axis of length 2 is [conditional, unconditional].
    """

    prompt_frames: int
    """P, the frames of the prompt, an even number."""
    frames: int
    """Absolute frames so far, prompt included."""
    token_kv: Tensor
    """[L1, h, S, 2d] time ascending."""
    frame_kv: Tensor
    """[L2, h, F, 2d] time ascending."""
    lookahead_tail: Tensor
    """[C, 2]."""
    upsample_tail: Tensor
    """[C, 4]."""
    solver_kv: Tensor
    """[n, L, 2, h, K, 2d]."""
    solver_tail: Tensor
    """[n, L, 2, 2H, 2]."""
    solver_labels: Labels
    """[K] the absolute frame at each solver column."""
    prompt_solver_kv: Tensor | None = None
    """The voice's own solver columns, shared, for the change from `upstream` to `prompt_and_recent`."""

    @property
    def solver_length(self) -> int:
        return int(self.solver_kv.shape[4])

    @property
    def prompt_tokens(self) -> int:
        return self.prompt_frames // 2

    @property
    def caches(self) -> dict[str, Tensor]:
        """The tensors, by the names that `Flow.state_specs` gives them."""
        names = ("token_kv", "frame_kv", "lookahead_tail", "upsample_tail", "solver_kv", "solver_tail")
        return {name: getattr(self, name) for name in names}

    @property
    def num_bytes(self) -> int:
        """Bytes this state holds beyond what it shares with its voice."""
        return sum(t.numel() * t.element_size() for t in self.caches.values())

    def compacted(self, rules: HistoryRules) -> FlowState:
        """Return this state cut down to [prompt | newest frames] in time order, as `prompt_and_recent` keeps it."""
        recent = sorted_recent(self.solver_labels, self.prompt_frames)
        recent = recent[max(0, len(recent) - rules.estimator_recent) :]
        if self.prompt_solver_kv is not None:
            prompt, prompt_labels = self.prompt_solver_kv, np.arange(self.prompt_frames)
        else:
            held = np.flatnonzero(self.solver_labels < self.prompt_frames)
            prompt, prompt_labels = _take(self.solver_kv, 4, held), self.solver_labels[held]
        return dataclasses.replace(
            self.with_compacted_encoder(rules),
            solver_kv=torch.cat([prompt, _take(self.solver_kv, 4, recent)], 4),
            solver_labels=np.concatenate([prompt_labels, self.solver_labels[recent]]),
        )

    def with_compacted_encoder(self, rules: HistoryRules) -> FlowState:
        """Return this state with the conformer's part cut down as in `compacted`, and the solver's as it is."""
        tokens = prompt_and_tail(
            np.arange(self.token_kv.shape[2]), self.prompt_frames // 2, rules.conformer_recent // 2
        )
        frames = prompt_and_tail(np.arange(self.frame_kv.shape[2]), self.prompt_frames, rules.conformer_recent)
        return dataclasses.replace(
            self, token_kv=_take(self.token_kv, 2, tokens), frame_kv=_take(self.frame_kv, 2, frames)
        )

    @property
    def is_time_ordered(self) -> bool:
        """True when the solver's columns already stand as `prompt_and_recent` keeps them."""
        return bool(np.all(np.diff(self.solver_labels) > 0))


def before_chunk(state: FlowState, rules: HistoryRules) -> FlowState:
    """Return the state a chunk under `rules` must start from."""
    if rules.policy is HistoryPolicy.PROMPT_AND_RECENT and not state.is_time_ordered:
        return state.compacted(rules)
    return state


def collate(states: Sequence[FlowState]) -> FlowHistory:
    """Pad the states of a batch to one size: encoder histories to the right, the solver's to the left."""
    first = states[0]
    device = first.solver_kv.device
    lengths = torch.tensor([s.solver_length for s in states], device=device)
    size = max(s.solver_length for s in states)
    solver_kv = first.solver_kv.new_zeros(
        *first.solver_kv.shape[:3], len(states), *first.solver_kv.shape[3:4], size, first.solver_kv.shape[5]
    )
    for row, state in enumerate(states):
        solver_kv[:, :, :, row, :, : state.solver_length] = state.solver_kv
    solver = SolverHistory(solver_kv, torch.stack([s.solver_tail for s in states], 3))
    return FlowHistory(collate_encoder(states), solver, torch.arange(size, device=device)[None] < lengths[:, None])


def collate_encoder(states: Sequence[FlowState]) -> EncoderHistory:
    """Pad the conformer's part of the states of a batch to one size, to the right."""
    device = states[0].token_kv.device
    return EncoderHistory(
        token_kv=_pad_left([s.token_kv for s in states]),
        frame_kv=_pad_left([s.frame_kv for s in states]),
        token_lengths=torch.tensor([s.token_kv.shape[2] for s in states], device=device),
        frame_lengths=torch.tensor([s.frame_kv.shape[2] for s in states], device=device),
        lookahead_tail=torch.stack([s.lookahead_tail for s in states]),
        upsample_tail=torch.stack([s.upsample_tail for s in states]),
    )


def prompt_state(update: FlowUpdate, row: int, prompt_frames: int) -> FlowState:
    """Make a voice's state from the run over its prompt."""
    tokens = prompt_frames // 2
    encoder, solver = update.encoder, update.solver
    solver_kv = solver.kv[:, :, :, row, :, :prompt_frames].contiguous()
    return FlowState(
        prompt_frames=prompt_frames,
        frames=prompt_frames,
        token_kv=encoder.token_kv[:, row, :, :tokens].contiguous(),
        frame_kv=encoder.frame_kv[:, row, :, :prompt_frames].contiguous(),
        lookahead_tail=encoder.lookahead_tail[row],
        upsample_tail=encoder.upsample_tail[row],
        solver_kv=solver_kv,
        solver_tail=solver.tail[:, :, :, row],
        solver_labels=np.arange(prompt_frames),
        prompt_solver_kv=solver_kv,
    )


def advance(state: FlowState, update: FlowUpdate, row: int, new_frames: int, rules: HistoryRules) -> FlowState:
    """Return the state after a chunk: what it added, cut by the rules.

    Args:
        state: the state that went into the chunk (after `before_chunk`).
        update: what the batch returned.
        row: the stream's row in it.
        new_frames: mel frames the row really made.
        rules: the chunk's history rules.
    """
    labels = np.concatenate([state.solver_labels, np.arange(state.frames, state.frames + new_frames)])
    kept = rules.merge_order(state.solver_length, new_frames, state.prompt_frames)
    return dataclasses.replace(
        advance_encoder(state, update.encoder, row, new_frames, rules),
        solver_kv=_merge(state.solver_kv, update.solver.kv[:, :, :, row, :, :new_frames], 4, kept),
        solver_tail=update.solver.tail[:, :, :, row].clone(),
        solver_labels=labels[kept],
    )


def advance_encoder(
    state: FlowState, encoder: EncoderUpdate, row: int, new_frames: int, rules: HistoryRules
) -> FlowState:
    """Return the state after a chunk, its frames counted, with the conformer's part of it; see `advance`."""
    new_tokens = new_frames // 2
    tokens = rules.conformer_order(state.token_kv.shape[2], new_tokens, state.prompt_frames // 2, stride=2)
    frames = rules.conformer_order(state.frame_kv.shape[2], new_frames, state.prompt_frames, stride=1)
    return dataclasses.replace(
        state,
        frames=state.frames + new_frames,
        token_kv=_merge(state.token_kv, encoder.token_kv[:, row, :, :new_tokens], 2, tokens),
        frame_kv=_merge(state.frame_kv, encoder.frame_kv[:, row, :, :new_frames], 2, frames),
        lookahead_tail=encoder.lookahead_tail[row].clone(),
        upsample_tail=encoder.upsample_tail[row].clone(),
    )


def _merge(held: Tensor, new: Tensor, dim: int, order: Labels) -> Tensor:
    return _take(torch.cat([held, new], dim), dim, order)


def _take(values: Tensor, dim: int, index: Labels) -> Tensor:
    if len(index) == values.shape[dim] and bool(np.all(index == np.arange(len(index)))):
        return values
    return values.index_select(dim, torch.from_numpy(index).to(values.device))


def _pad_left(rows: Sequence[Tensor]) -> Tensor:
    """Stack [L, h, S, 2d] rows into [L, B, h, S, 2d], each aligned to the right."""
    size = max(row.shape[2] for row in rows)
    out = rows[0].new_zeros(rows[0].shape[0], len(rows), rows[0].shape[1], size, rows[0].shape[3])
    for index, row in enumerate(rows):
        out[:, index, :, size - row.shape[2] :] = row
    return out
