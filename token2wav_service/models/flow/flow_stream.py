"""Chunked flow: prepares voices and runs the flow over a batch of streams' token chunks.

Source: specification sections 7 and 9; differs in the default history and noise (see `SynthesisPolicy`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from token2wav_service.config import NoiseSource, SynthesisPolicy
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.flow.flow_state import FlowState, advance, before_chunk, collate, prompt_state, rules_for
from token2wav_service.models.noise import NoiseDomain, counter_normal, frozen_normal
from token2wav_service.models.streaming import FlowInput

PROMPT_SEED = 0
"""Seed of a prompt's noise, the same for every stream, so that its state can be shared."""
UPSTREAM_NOISE_FRAMES = 30_000


class StreamFlow:
    """Runs the flow in chunks; holds the model and the policy, no stream's state."""

    def __init__(self, flow: Flow, policy: SynthesisPolicy, noise_buffer: Tensor | None = None) -> None:
        """Hold the model.

        Args:
            flow: in eval mode, on its device.
            policy: history, noise and solver steps.
            noise_buffer: [80, frames] for `NoiseSource.UPSTREAM`; None draws a fixed one.
        """
        self.flow = flow
        self.policy = policy
        self.device = flow.device
        self.stride, self.lookahead = flow.stride, flow.lookahead
        self.hop_multiple = 1
        self.noise_buffer = noise_buffer
        if policy.noise is NoiseSource.UPSTREAM and noise_buffer is None:
            self.noise_buffer = frozen_normal(flow.config.output_size, UPSTREAM_NOISE_FRAMES)

    @property
    def vocab_size(self) -> int:
        """Speech tokens are 0 to one less."""
        return self.flow.config.vocab_size

    def begin(self, prompt: FlowState, hop: int) -> FlowState:
        """Return the state that a stream starts with, for any first chunk."""
        return prompt

    def waiting_tokens(self, prompt: FlowState, hop: int) -> int:
        """See `BlockStreamFlow.waiting_tokens`; every stream shares the whole prompt."""
        return 0

    def prepare_voice(self, tokens: Tensor, mel: Tensor, speaker: Tensor) -> FlowState:
        """Run the prompt once.

        Args:
            tokens: [T] int64 prompt speech tokens, at least 3.
            mel: [F, 80] prompt log-mel; tokens and mel are cut to the shorter of the two.
            speaker: [192] raw speaker embedding.

        Returns:
            The state from which every stream of the voice starts.
        """
        count = min(mel.shape[0] // self.stride, tokens.shape[0])
        frames = count * self.stride
        window = torch.cat([tokens[:count], tokens[: self.lookahead]])[None].to(self.device)
        noise = self.noise([PROMPT_SEED], [0], [0], frames)
        _, update = self.flow(
            window,
            torch.tensor([window.shape[1]], device=self.device),
            torch.tensor([False], device=self.device),
            speaker[None].to(self.device),
            noise,
            self.policy.ode_steps,
            cond=mel[None, :frames].transpose(1, 2).to(self.device),
        )
        return prompt_state(update, 0, frames)

    def new_frames(self, tokens: int, is_last: bool) -> int:
        """Return the mel frames that a chunk of `tokens` tokens makes."""
        return self.stride * (tokens if is_last else tokens - self.lookahead)

    def forward(self, rows: Sequence[FlowInput[FlowState]]) -> tuple[list[Tensor], list[FlowState]]:
        """Run one chunk of every row.

        Returns:
            Mel [80, F] float32 per row, and the new states; the input states are unchanged.

        Raises:
            ValueError: a row would pass the limit of history policy `upstream`.
        """
        made = [self.new_frames(len(row.token_ids), row.is_last) for row in rows]
        rules = [rules_for(self.policy, row.state.frames + n) for row, n in zip(rows, made, strict=True)]
        states = [before_chunk(row.state, rule) for row, rule in zip(rows, rules, strict=True)]
        lengths = torch.tensor([len(row.token_ids) for row in rows], device=self.device)
        is_last = torch.tensor([row.is_last for row in rows], device=self.device)
        tokens = torch.nn.utils.rnn.pad_sequence([row.token_ids for row in rows], batch_first=True).to(self.device)
        noise = self.noise(
            [row.seed for row in rows],
            [state.frames for state in states],
            [state.solver_length for state in states],
            tokens.shape[1] * self.stride,
        )
        speaker = torch.stack([row.speaker for row in rows]).to(self.device)
        mel, update = self.flow(
            tokens, lengths, is_last, speaker, noise, self.policy.ode_steps, history=collate(states)
        )
        advanced = [advance(state, update, index, made[index], rules[index]) for index, state in enumerate(states)]
        return [mel[index, :, :n].float() for index, n in enumerate(made)], advanced

    def noise(self, seeds: Sequence[int], frames: Sequence[int], cached: Sequence[int], count: int) -> Tensor:
        """[B, 80, count] from each row's absolute frame, or from the frozen buffer at its cache length."""
        if self.noise_buffer is not None and self.policy.noise is NoiseSource.UPSTREAM:
            padded = torch.nn.functional.pad(self.noise_buffer, (0, count))
            return torch.stack([padded[:, start : start + count] for start in cached]).to(self.device)
        seed = torch.tensor(seeds, dtype=torch.int64, device=self.device)
        start = torch.tensor(frames, dtype=torch.int64, device=self.device)
        width = self.flow.config.output_size
        return counter_normal(seed, start, count, width, NoiseDomain.FLOW).transpose(1, 2)
