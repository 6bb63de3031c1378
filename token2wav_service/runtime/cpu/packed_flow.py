"""The DiT family on CPU cores: its flow, by `StreamFlow`'s rules with `PackedSolver`'s arithmetic, and its vocoder.

A stream's keys and values lie in its own memory and are changed in place. A state can be run again, after a failure,
until its successor has been run. The vocoder's convolutions run with the channels of a column side by side in memory:
the CPU's convolutions of few channels over many columns take half of the time in that layout.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from token2wav_service.config import HistoryPolicy, SynthesisPolicy
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.flow.flow_state import (
    FlowState,
    HistoryRules,
    Labels,
    advance_encoder,
    collate_encoder,
    rules_for,
    sorted_recent,
)
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.streaming import FlowInput
from token2wav_service.models.vocoder.hift import FINAL_LEAKY_SLOPE, HiFT, Snake
from token2wav_service.models.vocoder.source import cleared
from token2wav_service.runtime.cpu.column_store import ColumnStore
from token2wav_service.runtime.cpu.packed_solver import PackedSolver


@dataclass(frozen=True)
class PackedState:
    """What the flow remembers of one stream."""

    flow: FlowState
    """The conformer's part, and the frames so far; its solver's part stays the voice's."""
    labels: Labels
    """Frames whose solver columns the next chunk sees, in the order of the history's policy."""
    tails: Tensor
    """[n, L, 2 convolutions, 2 branches, 2, C] of the solver."""
    store: ColumnStore

    @property
    def num_bytes(self) -> int:
        """Memory it holds beyond what it shares with its voice."""
        flow = self.flow
        tensors = (flow.token_kv, flow.frame_kv, flow.lookahead_tail, flow.upsample_tail, self.tails)
        return self.store.num_bytes + sum(t.numel() * t.element_size() for t in tensors)


class PackedFlow:
    """Runs the flow in chunks; holds the model and the policy, no stream's state."""

    def __init__(self, flow: Flow, policy: SynthesisPolicy) -> None:
        """Hold a model in eval mode, in float32 on the CPU."""
        self._plain = StreamFlow(flow, policy)
        self._solver = PackedSolver(flow.decoder, policy.ode_steps)
        self._policy = policy
        self.flow = flow
        self.device = self._plain.device
        self.stride, self.lookahead = self._plain.stride, self._plain.lookahead
        self.hop_multiple = self._plain.hop_multiple
        self.vocab_size = self._plain.vocab_size

    def prepare_voice(self, tokens: Tensor, mel: Tensor, speaker: Tensor) -> FlowState:
        """Run the prompt once; see `StreamFlow.prepare_voice`."""
        return self._plain.prepare_voice(tokens, mel, speaker)

    def begin(self, prompt: FlowState, hop: int) -> PackedState:
        """Return what a stream starts from: a copy of the voice's columns."""
        steps, layers, branches = prompt.solver_tail.shape[:3]
        tails = prompt.solver_tail.view(steps, layers, branches, 2, self._solver.width, -1).permute(0, 1, 3, 2, 5, 4)
        store = ColumnStore.of_prompt(prompt.solver_kv, self._policy.estimator_recent_frames + hop * self.stride)
        return PackedState(prompt, prompt.solver_labels, tails, store)

    def forward(self, rows: Sequence[FlowInput[PackedState]]) -> tuple[list[Tensor], list[PackedState]]:
        """Run one chunk of every row.

        Returns:
            Mel [80, F] float32 per row, and the new states.

        Raises:
            ValueError: a state whose successor has been run already.
        """
        made = [self._plain.new_frames(len(row.token_ids), row.is_last) for row in rows]
        rules = [rules_for(self._policy, row.state.flow.frames + n) for row, n in zip(rows, made, strict=True)]
        states = [_before_chunk(row.state, rule) for row, rule in zip(rows, rules, strict=True)]
        flows = [state.flow for state in states]
        for state, count in zip(states, made, strict=True):
            state.store.hold(state.labels, _prompt_kv(state.flow), count)
        mu, speakers, _, encoded = self.flow.condition(
            torch.nn.utils.rnn.pad_sequence([row.token_ids for row in rows], batch_first=True).clamp(min=0),
            torch.tensor([len(row.token_ids) for row in rows]),
            torch.tensor([row.is_last for row in rows]),
            torch.stack([row.speaker for row in rows]),
            collate_encoder(flows),
        )
        noise = self._plain.noise(
            [row.seed for row in rows], [flow.frames for flow in flows], [0] * len(rows), max(made)
        )
        mel, tails = self._solver.solve(
            _joined(noise, made),
            _joined(mu, made),
            speakers,
            made,
            [state.store for state in states],
            torch.stack([state.tails for state in states], 4),
        )
        mels = [part.t().contiguous() for part in torch.split(mel, made)]
        advanced = [
            self._advanced(
                state, advance_encoder(state.flow, encoded, row, made[row], rules[row]), tails, row, rules[row]
            )
            for row, state in enumerate(states)
        ]
        return mels, advanced

    def _advanced(
        self, state: PackedState, flow: FlowState, tails: Tensor, row: int, rules: HistoryRules
    ) -> PackedState:
        """Return the state after a chunk whose conformer's part is `flow`."""
        own = np.arange(state.flow.frames, flow.frames)
        kept = rules.merge_order(len(state.labels), len(own), flow.prompt_frames)
        state.store.note(own)
        return PackedState(flow, np.concatenate([state.labels, own])[kept], tails[:, :, :, :, row].clone(), state.store)


def _before_chunk(state: PackedState, rules: HistoryRules) -> PackedState:
    """Return the state a chunk under `rules` starts from; see `flow_state.before_chunk`."""
    is_ordered = bool(np.all(np.diff(state.labels) > 0))
    if rules.policy is not HistoryPolicy.PROMPT_AND_RECENT or is_ordered:
        return state
    recent = sorted_recent(state.labels, state.flow.prompt_frames)
    recent = recent[max(0, len(recent) - rules.estimator_recent) :]
    labels = np.concatenate([np.arange(state.flow.prompt_frames), state.labels[recent]])
    return dataclasses.replace(state, flow=state.flow.with_compacted_encoder(rules), labels=labels)


def _prompt_kv(flow: FlowState) -> Tensor:
    """Return the voice's solver columns."""
    return flow.solver_kv if flow.prompt_solver_kv is None else flow.prompt_solver_kv


def _joined(values: Tensor, frames: Sequence[int]) -> Tensor:
    """Lay the first frames of each row of [B, C, at least T] behind each other: [N, C]."""
    return torch.cat([row[:, :count].t() for row, count in zip(values, frames, strict=True)])


class ColumnHiFT(HiFT):
    """A HiFT whose `spectra` computes on [B, C, 1, T] with C innermost."""

    def __init__(self, hift: HiFT) -> None:
        """Take over a vocoder whose weight norms are folded; its modules are shared."""
        nn.Module.__init__(self)
        self.__dict__.update(hift.__dict__)
        convolutions = [layer for layer in hift.modules() if isinstance(layer, (nn.Conv1d, nn.ConvTranspose1d))]
        self._kernels = {id(layer): _columns(layer.weight.detach()) for layer in convolutions}

    def spectra(self, mel: Tensor, spectrum: Tensor, lengths: Tensor | None = None) -> Tensor:
        """See `HiFT.spectra`."""
        masks = [None if mask is None else mask[:, :, None] for mask in self._masks(lengths, mel)]
        spectrum = _columns(spectrum)
        x = _masked(self._convolved(self.conv_pre, cleared(_columns(mel), masks[0])), masks[0])
        per_stage = len(self.config.resblock_kernel_sizes)
        for stage, (up, mask) in enumerate(zip(self.ups, masks[1:], strict=True)):
            x = self._raised(up, functional.leaky_relu(x, self.config.lrelu_slope))
            if stage == len(self.ups) - 1:
                x = torch.cat([x[..., 1:2], x], 3)
            excitation = _masked(self._convolved(self.source_downs[stage], spectrum), mask)
            x = _masked(x + self._block(self.source_resblocks[stage], excitation, mask), mask)
            blocks = list(self.resblocks[stage * per_stage : (stage + 1) * per_stage])
            total = self._block(blocks[0], x, mask)
            for block in blocks[1:]:
                total = total.add_(self._block(block, x, mask))
            x = total.div_(len(blocks))
        return self._convolved(self.conv_post, functional.leaky_relu(x, FINAL_LEAKY_SLOPE))[:, :, 0]

    def _block(self, block: Any, x: Tensor, mask: Tensor | None) -> Tensor:
        """See `ResBlock.forward`."""
        layers = zip(block.convs1, block.convs2, block.activations1, block.activations2, strict=True)
        for conv1, conv2, snake1, snake2 in layers:
            inner = _masked(self._convolved(conv1, _snaked(snake1, x)), mask)
            x = x + _masked(self._convolved(conv2, _snaked(snake2, inner)), mask)
        return x

    def _convolved(self, conv: Any, x: Tensor) -> Tensor:
        kernel, (stride,), (padding,), (dilation,) = self._kernels[id(conv)], conv.stride, conv.padding, conv.dilation
        if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            # NOTE: conv2d gives small inputs to slower kernels.
            made: Tensor = torch.mkldnn_convolution(x, kernel, conv.bias, (0, padding), (1, stride), (1, dilation), 1)
            return made
        return functional.conv2d(x, kernel, conv.bias, (1, stride), (0, padding), (1, dilation))

    def _raised(self, conv: Any, x: Tensor) -> Tensor:
        kernel, (stride,), (padding,) = self._kernels[id(conv)], conv.stride, conv.padding
        return functional.conv_transpose2d(x, kernel, conv.bias, (1, stride), (0, padding))


def _columns(x: Tensor) -> Tensor:
    """Return [A, B, T] as [A, B, 1, T] with B innermost."""
    return x[:, :, None].contiguous(memory_format=torch.channels_last)


def _masked(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x.mul_(mask)


def _snaked(snake: Snake, x: Tensor) -> Tensor:
    """See `Snake.forward`."""
    alpha = snake.alpha[None, :, None, None]
    wave = (x * alpha).sin_()
    return torch.addcdiv(x, wave.mul_(wave), alpha + Snake.EPSILON)
