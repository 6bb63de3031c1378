"""Chunked running of block-masked flows: prepares voices, computes `[A, E)` of every stream, commits whole blocks.

A is a stream's last complete block, E the end of its chunk. A chunk that ends inside a block is computed again with
the next one, at most one block less a token. The states' layout comes from the flow. Long streams keep the prompt's
blocks and the newest ones (see `SynthesisPolicy`), so that a chunk's cost does not grow.

Source: specification of the flows, sections 6 and 7; differs in the default noise (see `SynthesisPolicy`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional

from token2wav_service.config import HistoryPolicy, NoiseSource, SynthesisPolicy
from token2wav_service.contract import CHUNK_SIZES_TOKENS
from token2wav_service.models.flow.block_flow import BlockFlow, Caches, Past
from token2wav_service.models.noise import NoiseDomain, counter_normal, frozen_normal
from token2wav_service.models.streaming import CacheSpec, FlowInput

PROMPT_SEED = 0
"""Seed of a prompt's noise, the same for every stream, so that its blocks can be shared."""
NOISE_FRAMES = 15_000
"""Columns (300 s with the prompt) of the original's noise buffer."""
EXACT_TOKENS = 750
"""Tokens of prompt and audio (30 s) up to which history policy `auto` keeps every block."""
MAX_STARTS = 2
"""Most states of a voice for streams to start from: they differ by the first chunk's length modulo a block."""


@dataclass(frozen=True)
class BlockState:
    """Everything a block-masked flow remembers of one stream; never changed in place. Positions count the prompt."""

    prompt_tokens: int
    first_token: int
    """A: number of tokens whose blocks are complete; the caches hold no others."""
    end_token: int
    """E of the last chunk: number of tokens whose mel was given out."""
    pending: Tensor
    """[E - A] int64 token ids that the next chunk computes again."""
    cond: Tensor
    """[80, F] the prompt's mel from frame `stride A` on; empty once A is past the prompt."""
    caches: Caches
    """Caches as the flow's `state_specs` describes them, without a batch."""

    @property
    def num_bytes(self) -> int:
        """Memory it holds."""
        tensors = (self.pending, self.cond, *self.caches.values())
        return sum(t.numel() * t.element_size() for t in tensors)


@dataclass(frozen=True)
class BlockVoice:
    """A voice's prompt, and what streams start from, by how much of the prompt's start was left away."""

    tokens: Tensor
    """[T] int64 tokens of the prompt."""
    mel: Tensor
    """[2 T, 80] mel of the prompt."""
    speaker: Tensor
    """[192] raw speaker embedding."""
    frames: int
    """Mel frames (50 Hz) of the whole prompt."""
    num_bytes: int
    """Bytes of memory with all its starts."""
    starts: dict[int, BlockState] = field(default_factory=dict)
    """Number of prompt tokens left away -> state; at most `MAX_STARTS`, the oldest is dropped. Changed by `begin`
    alone."""


Row = FlowInput[BlockState]


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
    """End of the last complete block; at least A."""


class BlockStreamFlow:
    """Runs a block-masked flow in chunks; holds the model and the policy, no stream's state."""

    def __init__(self, flow: BlockFlow, policy: SynthesisPolicy, noise_buffer: Tensor | None = None) -> None:
        """Hold the model.

        Args:
            flow: in eval mode, on its device.
            policy: noise and solver steps.
            noise_buffer: [80, frames] for `NoiseSource.UPSTREAM`; None draws the original's.
        """
        self.flow = flow
        self.policy = policy
        self.device = flow.device
        self.stride = flow.stride
        self.lookahead = flow.lookahead
        self.hop_multiple = flow.block_tokens
        self.specs = flow.state_specs(policy.ode_steps)
        self.noise_buffer = noise_buffer
        if policy.noise is NoiseSource.UPSTREAM and noise_buffer is None:
            self.noise_buffer = frozen_normal(flow.output_size, NOISE_FRAMES)

    @property
    def vocab_size(self) -> int:
        """Speech tokens are 0 to one less."""
        return self.flow.vocab_size

    def prepare_voice(self, tokens: Tensor, mel: Tensor, speaker: Tensor) -> BlockVoice:
        """Run the prompt for streams whose first chunk has the usual size.

        Args:
            tokens: [T] int64 prompt speech tokens.
            mel: [F, 80] prompt log-mel; tokens and mel are cut to the shorter of the two.
            speaker: [192] raw speaker embedding.
        """
        count = min(mel.shape[0] // self.stride, tokens.shape[0])
        tokens, mel = tokens[:count], mel[: count * self.stride]
        trimmed = self.trimmed(count, CHUNK_SIZES_TOKENS[0])
        start = self.run_prompt(tokens, mel, speaker, trimmed)
        num_bytes = MAX_STARTS * start.num_bytes + sum(t.numel() * t.element_size() for t in (tokens, mel, speaker))
        return BlockVoice(tokens, mel, speaker, count * self.stride, num_bytes, {trimmed: start})

    def begin(self, prompt: BlockVoice, hop: int) -> BlockState:
        """Return what a stream starts from whose first chunk speaks `hop` tokens, so that it ends a block.

        The usual start where `hop` is 0: the first chunk is the last, and ends no block.

        Runs the prompt, shortened at its start, where no newer stream of the voice began with such a chunk.
        """
        starts, trimmed = prompt.starts, self.trimmed(len(prompt.tokens), hop)
        if trimmed not in starts:
            state = self.run_prompt(prompt.tokens, prompt.mel, prompt.speaker, trimmed)
            while len(starts) >= MAX_STARTS:
                del starts[next(iter(starts))]
            starts[trimmed] = state
        return starts[trimmed]

    def trimmed(self, count: int, hop: int) -> int:
        """Return the tokens to leave away at a prompt's start, for `begin`: none of one no longer than a block."""
        if count <= self.flow.block_tokens:
            return 0
        return (count + (hop or CHUNK_SIZES_TOKENS[0])) % self.flow.block_tokens

    def waiting_tokens(self, prompt: BlockVoice, hop: int) -> int:
        """Return the prompt's tokens that a stream computes with its first chunk, which speaks `hop` tokens."""
        count = len(prompt.tokens) - self.trimmed(len(prompt.tokens), hop)
        return count - self.shared_tokens(count)

    def shared_tokens(self, count: int) -> int:
        """Return the tokens of a prompt of `count` whose blocks need none of a stream's: all its streams share them."""
        block = self.flow.block_tokens
        return max(0, count - self.lookahead) // block * block

    def run_prompt(self, tokens: Tensor, mel: Tensor, speaker: Tensor, trimmed: int = 0) -> BlockState:
        """Run the complete blocks of a prompt.

        Args:
            tokens: [T] int64 prompt speech tokens.
            mel: [F, 80] prompt log-mel; tokens and mel are cut to the shorter of the two.
            speaker: [192] raw speaker embedding.
            trimmed: tokens to leave away at the prompt's start, so that a stream's first chunk can end a block.

        Returns:
            The state from which a stream of the voice starts.
        """
        count = min(mel.shape[0] // self.stride, tokens.shape[0])
        ids = tokens[trimmed:count].to(self.device)
        cond = mel[trimmed * self.stride : count * self.stride].T.to(self.device)
        state = BlockState(len(ids), 0, 0, ids[:0], cond, self._empty_caches())
        whole = self.shared_tokens(len(ids))
        if whole:
            chunk = FlowInput(state, ids[: whole + self.lookahead], speaker, PROMPT_SEED, is_last=False)
            _, (state,) = self.forward([chunk])
        return replace(state, end_token=len(ids), pending=ids[state.first_token :])

    def forward(self, rows: Sequence[Row]) -> tuple[list[Tensor], list[BlockState]]:
        """Run one chunk of every row.

        Returns:
            Mel [80, F] float32 per row, and the new states; the input states are unchanged.

        Raises:
            ValueError: a row would pass the end of the noise buffer of noise policy `upstream`.
        """
        spans = [self._span(row) for row in rows]
        self._check_limit(spans)
        tokens = [torch.cat([row.state.pending, row.token_ids.to(self.device)]) for row in rows]
        longest = max(len(ids) for ids in tokens)
        firsts = torch.tensor([span.first for span in spans], device=self.device)
        past = Past(self._collate(rows), self._held(rows), firsts)
        mel, added = self.flow(
            torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True),
            torch.tensor([len(ids) for ids in tokens], device=self.device),
            torch.tensor([row.is_last for row in rows], device=self.device),
            torch.stack([row.speaker for row in rows]).to(self.device),
            self._noise(rows, longest * self.stride),
            self.policy.ode_steps,
            cond=self._cond(rows, tokens),
            past=past,
            committed=torch.tensor([span.committed - span.first for span in spans], device=self.device),
        )
        mels, states = [], []
        for index, (row, span, ids) in enumerate(zip(rows, spans, tokens, strict=True)):
            first, last = ((at - span.first) * self.stride for at in (span.start, span.end))
            mels.append(mel[index, :, first:last].float())
            own = {spec.name: added[spec.name].select(spec.batch_axis, index) for spec in self.specs}
            states.append(self._advance(row.state, span, ids, own))
        return mels, states

    def _span(self, row: Row) -> ChunkSpan:
        state, block = row.state, self.flow.block_tokens
        end = state.end_token + len(row.token_ids) - (0 if row.is_last else self.lookahead)
        return ChunkSpan(state.first_token, state.end_token, end, max(state.first_token, end // block * block))

    def _check_limit(self, spans: Sequence[ChunkSpan]) -> None:
        if self.policy.noise is not NoiseSource.UPSTREAM or self.noise_buffer is None:
            return
        frames, limit = max(span.end for span in spans) * self.stride, self.noise_buffer.shape[1]
        if frames > limit:
            raise ValueError(
                f"prompt and audio would reach {frames / 50:.2f} s, noise policy `upstream` ends at "
                f"{limit / 50:.0f} s; use `counter` for longer streams"
            )

    def _advance(self, state: BlockState, span: ChunkSpan, ids: Tensor, own: Caches) -> BlockState:
        """Return the state after a chunk: complete blocks join the caches, the rest of the tokens waits."""
        added = span.committed - span.first
        kept = self._kept_tokens(state.prompt_tokens, span, _held_tokens(state, self.specs) + added)
        caches = {}
        for spec in self.specs:
            if spec.time_axis is None:
                caches[spec.name] = own[spec.name].clone()
                continue
            columns = own[spec.name].narrow(spec.time_axis, 0, added * spec.columns_per_token)
            whole = torch.cat([state.caches[spec.name], columns], spec.time_axis)
            caches[spec.name] = whole if kept is None else _without_middle(whole, spec, *kept)
        return BlockState(
            prompt_tokens=state.prompt_tokens,
            first_token=span.committed,
            end_token=span.end,
            pending=ids[added : span.end - span.first].clone(),
            cond=state.cond[:, added * self.stride :],
            caches=caches,
        )

    def _kept_tokens(self, prompt: int, span: ChunkSpan, held: int) -> tuple[int, int] | None:
        """Return how many tokens of the caches' begin and end the history policy keeps; None is all."""
        policy, block = self.policy, self.flow.block_tokens
        if policy.history is HistoryPolicy.UPSTREAM:
            return None
        if policy.history is HistoryPolicy.AUTO and span.end <= EXACT_TOKENS:
            return None
        first = self.shared_tokens(prompt)
        last = -(-policy.estimator_recent_frames // (block * self.stride)) * block
        return (first, last) if held > first + last else None

    def _empty_caches(self) -> Caches:
        return {spec.name: torch.zeros(spec.shape, dtype=self.flow.dtype, device=self.device) for spec in self.specs}

    def _held(self, rows: Sequence[Row]) -> Tensor:
        """[B] tokens that each row's growing caches hold."""
        return torch.tensor([_held_tokens(row.state, self.specs) for row in rows], device=self.device)

    def _collate(self, rows: Sequence[Row]) -> Caches:
        """Pad the rows' caches to one batch, aligned to the right on time."""
        return {spec.name: _stack([row.state.caches[spec.name] for row in rows], spec) for spec in self.specs}

    def _cond(self, rows: Sequence[Row], tokens: Sequence[Tensor]) -> Tensor:
        """[B, 80, F] what is left of the prompts' mel, then zeros."""
        is_any_last = any(row.is_last for row in rows)
        longest = max(len(ids) for ids in tokens) - (0 if is_any_last else self.lookahead)
        frames = longest * self.stride
        conds = [row.state.cond[:, :frames] for row in rows]
        return torch.stack([functional.pad(cond, (0, frames - cond.shape[1])) for cond in conds])

    def _noise(self, rows: Sequence[Row], count: int) -> Tensor:
        """[B, 80, count] from each row's first frame: by the voice's seed in the prompt, by the stream's behind it."""
        firsts = [row.state.first_token * self.stride for row in rows]
        if self.policy.noise is NoiseSource.UPSTREAM and self.noise_buffer is not None:
            padded = functional.pad(self.noise_buffer, (0, count))
            return torch.stack([padded[:, first : first + count] for first in firsts]).to(self.device)
        start = torch.tensor(firsts, dtype=torch.int64, device=self.device)
        prompts = torch.tensor([row.state.prompt_tokens * self.stride for row in rows], device=self.device)
        seeds = torch.tensor([row.seed for row in rows], dtype=torch.int64, device=self.device)
        width = self.flow.output_size
        own, shared = (
            counter_normal(seed, start, count, width, NoiseDomain.FLOW)
            for seed in (seeds, torch.full_like(seeds, PROMPT_SEED))
        )
        in_prompt = start[:, None] + torch.arange(count, device=self.device) < prompts[:, None]
        return torch.where(in_prompt[:, :, None], shared, own).transpose(1, 2)


def _held_tokens(state: BlockState, specs: Sequence[CacheSpec]) -> int:
    for spec in specs:
        if spec.time_axis is not None:
            return state.caches[spec.name].shape[spec.time_axis] // spec.columns_per_token
    return 0


def _without_middle(cache: Tensor, spec: CacheSpec, first: int, last: int) -> Tensor:
    """Return the columns of the first and the last tokens of a growing cache."""
    assert spec.time_axis is not None
    size, rate = cache.shape[spec.time_axis], spec.columns_per_token
    begin = cache.narrow(spec.time_axis, 0, first * rate)
    return torch.cat([begin, cache.narrow(spec.time_axis, size - last * rate, last * rate)], spec.time_axis)


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
