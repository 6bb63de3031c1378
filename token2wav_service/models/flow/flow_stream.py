"""Chunked running of any flow: prepares voices, computes `[A, E)` of every stream, keeps what the next chunk needs.

Under a block mask, A is a stream's last complete block and E the end of its chunk: a chunk that ends inside a block is
computed again with the next one, at most one block less a token. Without one, a chunk begins where the last one ended.
Long streams keep the prompt's columns and the newest ones (see `SynthesisPolicy`): a chunk's cost does not grow.

Source: specification sections 7 and 9, specification of the flows, sections 6 and 7; differs in the default history and
noise (see `SynthesisPolicy`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from token2wav_service.config import SynthesisPolicy
from token2wav_service.contract import CHUNK_SIZES_TOKENS
from token2wav_service.models.causal import FlowInput
from token2wav_service.models.flow.any_flow import AnyFlow
from token2wav_service.models.flow.flow_state import (
    SOLVER_KV,
    ChunkSpan,
    FlowState,
    FlowVoice,
    advance,
    before_chunk,
    collate,
    rules_for,
    shared_tokens,
    tensor_bytes,
)
from token2wav_service.models.noise import NoiseDomain, counter_normal, frozen_normal

PROMPT_SEED = 0
"""Seed of a prompt's noise, the same for every stream, so that what it leaves can be shared."""
MAX_STARTS = 2
"""Most states of a voice for streams of a block-masked flow to start from: they differ by the first chunk's length
modulo a block."""

Row = FlowInput[FlowState]


class StreamFlow:
    """Runs a flow in chunks; holds the model and the policy, no stream's state."""

    def __init__(
        self,
        flow: AnyFlow,
        policy: SynthesisPolicy,
        noise_buffer: Tensor | None = None,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        """Hold the model.

        Args:
            flow: in eval mode, on its device.
            policy: history, noise and solver steps.
            noise_buffer: [80, frames] for the reference; None draws the original's.
            kv_dtype: of the solver's keys and values that a prompt leaves; None: the flow's.
        """
        self.flow, self.policy, self._kv_dtype = flow, policy, kv_dtype
        self.device = flow.device
        self.stride, self.lookahead, self.vocab_size = flow.stride, flow.lookahead, flow.vocab_size
        self.hop_multiple = flow.block_tokens or 1
        self.specs = flow.state_specs(flow.steps(policy.ode_steps))
        if policy.is_reference and noise_buffer is None:
            noise_buffer = frozen_normal(flow.output_size, flow.noise_frames)
        self.noise_buffer = noise_buffer if policy.is_reference else None

    def prepare_voice(self, tokens: Tensor, mel: Tensor, speaker: Tensor) -> FlowVoice:
        """Run the prompt for streams whose first chunk has the usual size.

        Args:
            tokens: [T] int64 prompt speech tokens, at least 3.
            mel: [F, 80] prompt log-mel; tokens and mel are cut to the shorter of the two.
            speaker: [192] raw speaker embedding.
        """
        count = min(mel.shape[0] // self.stride, tokens.shape[0])
        trimmed = self.trimmed(count, CHUNK_SIZES_TOKENS[0])
        return self.voice(tokens, mel, speaker, {trimmed: self.run_prompt(tokens, mel, speaker, trimmed)})

    def voice(self, tokens: Tensor, mel: Tensor, speaker: Tensor, starts: dict[int, FlowState]) -> FlowVoice:
        """Return the voice of a prompt, as `prepare_voice` takes it, that was run already."""
        count = min(mel.shape[0] // self.stride, tokens.shape[0])
        tokens, mel = tokens[:count], mel[: count * self.stride]
        most = MAX_STARTS if self.flow.block_tokens else 1
        (start,) = starts.values()
        num_bytes = most * start.num_bytes + tensor_bytes((tokens, mel, speaker))
        return FlowVoice(tokens, mel, speaker, num_bytes, starts)

    def begin(self, prompt: FlowVoice, hop: int) -> FlowState:
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
        block = self.flow.block_tokens
        return (count + (hop or CHUNK_SIZES_TOKENS[0])) % block if 0 < block < count else 0

    def waiting_tokens(self, prompt: FlowVoice, hop: int) -> int:
        """Return the prompt's tokens that a stream computes with its first chunk, which speaks `hop` tokens."""
        count = len(prompt.tokens) - self.trimmed(len(prompt.tokens), hop)
        return count - shared_tokens(self.flow, count)

    def run_prompt(self, tokens: Tensor, mel: Tensor, speaker: Tensor, trimmed: int = 0) -> FlowState:
        """Run the complete blocks of a prompt, or all of it.

        Args:
            tokens, mel, speaker: as `prepare_voice` takes them.
            trimmed: tokens to leave away at the prompt's start, so that a stream's first chunk can end a block.

        Returns:
            The state from which a stream of the voice starts.
        """
        count = min(mel.shape[0] // self.stride, tokens.shape[0])
        ids = tokens[trimmed:count].to(self.device)
        cond = mel[trimmed * self.stride : count * self.stride].T.to(self.device)
        dtype = self.flow.dtype
        caches = {spec.name: torch.zeros(spec.shape, dtype=dtype, device=self.device) for spec in self.specs}
        state = FlowState(len(ids), 0, 0, ids[:0], cond, caches, np.arange(0))
        whole = shared_tokens(self.flow, len(ids))
        if whole:
            # Without blocks, the prompt's first tokens stand for those that follow it, as in the original.
            heard = torch.cat([ids, ids[: self.lookahead]])[: whole + self.lookahead]
            _, (state,) = self.forward([FlowInput(state, heard, speaker, PROMPT_SEED, is_last=False)])
        kv, pending = state.caches[SOLVER_KV].to(self._kv_dtype or dtype), ids[state.first_token :]
        caches, prompt_kv = {**state.caches, SOLVER_KV: kv}, None if self.flow.block_tokens else kv
        return replace(state, end_token=len(ids), pending=pending, caches=caches, prompt_kv=prompt_kv)

    def span(self, state: FlowState, tokens: int, is_last: bool) -> ChunkSpan:
        """Return what a row computes that gets so many tokens."""
        spoken = tokens - (0 if is_last else self.lookahead)
        return ChunkSpan.of(state.first_token, state.end_token, spoken, self.hop_multiple)

    def forward(self, rows: Sequence[Row]) -> tuple[list[Tensor], list[FlowState]]:
        """Run one chunk of every row.

        Returns:
            Mel [80, F] float32 per row, and the new states; the input states are unchanged.

        Raises:
            ValueError: a row would pass the end of the original's noise.
        """
        spans = [self.span(row.state, len(row.token_ids), row.is_last) for row in rows]
        self._check_noise(spans)
        rules = [rules_for(self.policy, self.flow, row.state.prompt_tokens, span.end)
                 for row, span in zip(rows, spans, strict=True)]  # fmt: skip
        states = [before_chunk(row.state, rule, self.specs) for row, rule in zip(rows, rules, strict=True)]
        tokens = [torch.cat([row.state.pending, row.token_ids.to(self.device)]) for row in rows]
        longest = max(len(ids) for ids in tokens)
        frames = self.stride * (longest - (0 if any(row.is_last for row in rows) else self.lookahead))
        mel, added = self.flow(
            torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True),
            torch.tensor([len(ids) for ids in tokens], device=self.device),
            torch.tensor([row.is_last for row in rows], device=self.device),
            torch.stack([row.speaker for row in rows]).to(self.device),
            self.noise(states, [row.seed for row in rows], longest * self.stride),
            self.flow.steps(self.policy.ode_steps),
            cond=torch.stack([functional.pad(state.cond, (0, frames))[:, :frames] for state in states]),
            past=collate(states, self.specs),
            committed=torch.tensor([span.committed - span.first for span in spans], device=self.device),
        )
        mels, new = [], []
        for index, (state, span, ids) in enumerate(zip(states, spans, tokens, strict=True)):
            first, last = ((at - span.first) * self.stride for at in (span.start, span.end))
            mels.append(mel[index, :, first:last].float())
            new.append(advance(state, span, ids, added, index, self.specs, rules[index]))
        return mels, new

    def _check_noise(self, spans: Sequence[ChunkSpan]) -> None:
        """Refuse to read a block-masked flow's noise behind its buffer's end; other streams are silent there."""
        if self.noise_buffer is None or not self.flow.block_tokens:
            return
        frames, limit = max(span.end for span in spans) * self.stride, self.noise_buffer.shape[1]
        if frames > limit:
            raise ValueError(
                f"prompt and audio would reach {frames / 50:.2f} s, the original's noise ends at "
                f"{limit / 50:.0f} s; leave is_reference for longer streams"
            )

    def noise(self, states: Sequence[FlowState], seeds: Sequence[int], count: int) -> Tensor:
        """[B, 80, count] from each row's first frame: by the voice's seed in the prompt, by the stream's behind it.

        The original's buffer is read from that frame on, or without a block mask from the number of held columns on.
        """
        firsts = [state.first_token * self.stride for state in states]
        if self.noise_buffer is not None:
            padded = functional.pad(self.noise_buffer, (0, count))
            places = firsts if self.flow.block_tokens else [len(state.labels) for state in states]
            return torch.stack([padded[:, place : place + count] for place in places]).to(self.device)
        start, own_seeds = (torch.tensor(each, dtype=torch.int64, device=self.device) for each in (firsts, seeds))
        width = self.flow.output_size
        own = counter_normal(own_seeds, start, count, width, NoiseDomain.FLOW)
        waiting = [self.stride * (state.prompt_tokens - state.first_token) for state in states]
        if max(waiting) > 0:
            shared = counter_normal(torch.full_like(own_seeds, PROMPT_SEED), start, count, width, NoiseDomain.FLOW)
            in_prompt = torch.arange(count) < torch.tensor(waiting)[:, None]
            own = torch.where(in_prompt[:, :, None].to(self.device), shared, own)
        return own.transpose(1, 2)
