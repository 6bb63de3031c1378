"""The DiT family on CPU cores: its flow, by `StreamFlow`'s rules with `PackedSolver`'s arithmetic, and its vocoder.

A stream's keys and values lie in its own memory and are changed in place. A state can be run again, after a failure,
until its successor has been run. The vocoder's convolutions run with the channels of a column side by side in memory:
the CPU's convolutions of few channels over many columns take half of the time in that layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from token2wav_service.config import SynthesisPolicy
from token2wav_service.models.causal import FlowInput
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.flow.flow_state import (
    SOLVER_KV,
    FlowState,
    FlowVoice,
    advance,
    before_chunk,
    collate,
    rules_for,
    tensor_bytes,
)
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.vocoder.hift import FINAL_LEAKY_SLOPE, HiFT, Snake
from token2wav_service.models.vocoder.source import cleared
from token2wav_service.runtime.cpu.column_store import ColumnStore
from token2wav_service.runtime.cpu.packed_solver import PackedSolver, product_type

_ONE = torch.ones(1, 1, 1)


@dataclass(frozen=True)
class PackedState:
    """What the flow remembers of one stream."""

    flow: FlowState
    """Everything but the solver's keys, values and tails; its labels say which columns the next chunk sees."""
    tails: Tensor
    """[n, L, 2 convolutions, 2 branches, 2, C] of the solver."""
    store: ColumnStore

    @property
    def num_bytes(self) -> int:
        """Memory it holds beyond what it shares with its voice."""
        return self.flow.num_bytes + self.store.num_bytes + tensor_bytes((self.tails,))

    @property
    def prompt_kv(self) -> Tensor:
        """The voice's solver columns."""
        assert self.flow.prompt_kv is not None
        return self.flow.prompt_kv


class PackedFlow:
    """Runs the flow in chunks; holds the model and the policy, no stream's state."""

    def __init__(self, flow: Flow, policy: SynthesisPolicy, dtype: torch.dtype | None = None) -> None:
        """Hold a model in eval mode, in float32 on the CPU; `dtype`: of the solver's products, None by the cores."""
        dtype = dtype or product_type()
        self._plain = StreamFlow(flow, policy, kv_dtype=dtype)
        self._solver = PackedSolver(flow.decoder, flow.steps(policy.ode_steps), dtype)
        self._policy = policy
        self.flow = flow
        self.device = self._plain.device
        self.stride, self.lookahead = self._plain.stride, self._plain.lookahead
        self.hop_multiple = self._plain.hop_multiple
        self.vocab_size, self.prepare_voice = self._plain.vocab_size, self._plain.prepare_voice

    def begin(self, prompt: FlowVoice, hop: int) -> PackedState:
        """Return what a stream starts from: a copy of the voice's columns."""
        start = self._plain.begin(prompt, hop)
        caches = dict(start.caches)
        kv, tail = caches.pop(SOLVER_KV), caches.pop("solver_tail")
        places = tail.to(self._solver.dtype).view(*tail.shape[:3], 2, self._solver.width, -1)
        tails = places.permute(0, 1, 3, 2, 5, 4)
        store = ColumnStore.of_prompt(kv, self._policy.estimator_recent_frames + hop * self.stride)
        return PackedState(replace(start, caches=caches), tails, store)

    def forward(self, rows: Sequence[FlowInput[PackedState]]) -> tuple[list[Tensor], list[PackedState]]:
        """Run one chunk of every row.

        Returns:
            Mel [80, F] float32 per row, and the new states.

        Raises:
            ValueError: a state whose successor has been run already.
        """
        policy, specs, works = self._policy, self._plain.specs, [row.state for row in rows]
        spans = [self._plain.span(row.state.flow, len(row.token_ids), row.is_last) for row in rows]
        rules = [rules_for(policy, self.flow, work.flow.prompt_tokens, span.end)
                 for work, span in zip(works, spans, strict=True)]  # fmt: skip
        states = [before_chunk(work.flow, rule, specs) for work, rule in zip(works, rules, strict=True)]
        made = [self.stride * (span.end - span.first) for span in spans]
        for work, state, count in zip(works, states, made, strict=True):
            work.store.hold(state.labels, work.prompt_kv, count)
        tokens = [row.token_ids for row in rows]
        mu, speakers, encoded = self.flow.condition(
            torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True),
            torch.tensor([len(ids) for ids in tokens]),
            torch.tensor([row.is_last for row in rows]),
            torch.stack([row.speaker for row in rows]),
            torch.tensor([span.end - span.first for span in spans]),
            collate(states, specs),
        )
        noise = self._plain.noise(states, [row.seed for row in rows], max(made))
        mel, tails = self._solver.solve(
            _joined(noise, made),
            _joined(mu, made),
            speakers,
            made,
            [work.store for work in works],
            torch.stack([work.tails for work in works], 4),
        )
        advanced = []
        for row, (work, state, span) in enumerate(zip(works, states, spans, strict=True)):
            flow = advance(state, span, tokens[row], encoded, row, specs, rules[row])
            work.store.note(np.arange(span.first * self.stride, span.end * self.stride))
            advanced.append(PackedState(flow, tails[:, :, :, :, row].clone(), work.store))
        return [part.t().contiguous() for part in torch.split(mel, made)], advanced


def _joined(values: Tensor, frames: Sequence[int]) -> Tensor:
    """Lay the first frames of each row of [B, C, at least T] behind each other: [N, C]."""
    return torch.cat([row[:, :count].t() for row, count in zip(values, frames, strict=True)])


class _Convolution:
    """A convolution of columns [B, C, 1, T], in its weights' type."""

    def __init__(self, conv: Any, dtype: torch.dtype, reads: Tensor = _ONE, makes: Tensor = _ONE) -> None:
        """Take over weights, for inputs that were multiplied by `reads`, and outputs to be by `makes`: [C, 1, 1]."""
        self._kernel = _columns(conv.weight.detach() * makes / reads.squeeze(2)).to(dtype)
        self._bias = (conv.bias.detach() * makes.flatten()).to(dtype)
        self._places = (0, conv.padding[0]), (1, conv.stride[0]), (1, conv.dilation[0])

    def __call__(self, x: Tensor) -> Tensor:
        """Return float32."""
        x, (padding, stride, dilation) = x.to(self._kernel.dtype), self._places
        if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            # NOTE: conv2d gives small inputs to slower kernels.
            return torch.mkldnn_convolution(x, self._kernel, self._bias, padding, stride, dilation, 1).float()
        return functional.conv2d(x, self._kernel, self._bias, stride, padding, dilation).float()


class ColumnHiFT(HiFT):
    """A HiFT whose `spectra` computes on [B, C, 1, T] with C innermost; the convolutions know the snakes' alphas."""

    def __init__(self, hift: HiFT, dtype: torch.dtype | None = None) -> None:
        """Take over a vocoder whose weight norms are folded; its modules are shared; `dtype`: as in `PackedFlow`."""
        nn.Module.__init__(self)
        self.__dict__.update(hift.__dict__)
        dtype = dtype or product_type()
        self._kernels = {id(up): _columns(torch.as_tensor(up.weight).detach()) for up in hift.ups}
        convolutions = [hift.conv_pre, hift.conv_post, *hift.source_downs]
        self._convolved = {id(layer): _Convolution(layer, torch.float32) for layer in convolutions}
        blocks: list[Any] = [*hift.source_resblocks, *hift.resblocks]
        self._layers = {id(block): [_packed(dtype, *layer) for layer in block.layers()] for block in blocks}

    def spectra(self, mel: Tensor, spectrum: Tensor, lengths: Tensor | None = None) -> Tensor:
        """See `HiFT.spectra`."""
        masks = [None if mask is None else mask[:, :, None] for mask in self._masks(lengths, mel)]
        spectrum = _columns(spectrum)
        x = _masked(self._convolved[id(self.conv_pre)](cleared(_columns(mel), masks[0])), masks[0])
        per_stage = len(self.config.resblock_kernel_sizes)
        for stage, (up, mask) in enumerate(zip(self.ups, masks[1:], strict=True)):
            x = self._raised(up, functional.leaky_relu(x, self.config.lrelu_slope))
            if stage == len(self.ups) - 1:
                x = torch.cat([x[..., 1:2], x], 3)
            excitation = _masked(self._convolved[id(self.source_downs[stage])](spectrum), mask)
            x = _masked(x + self._block(self.source_resblocks[stage], excitation, mask), mask)
            blocks = list(self.resblocks[stage * per_stage : (stage + 1) * per_stage])
            total = self._block(blocks[0], x, mask)
            for block in blocks[1:]:
                total = total.add_(self._block(block, x, mask))
            x = total.div_(len(blocks))
        return self._convolved[id(self.conv_post)](functional.leaky_relu(x, FINAL_LEAKY_SLOPE))[:, :, 0]

    def _block(self, block: Any, x: Tensor, mask: Tensor | None) -> Tensor:
        """See `ResBlock.forward`."""
        for alpha, conv1, conv2 in self._layers[id(block)]:
            inner = _masked(conv1(_snaked(x * alpha)), mask)
            x = x + _masked(conv2(_snaked(inner)), mask)
        return x

    def _raised(self, conv: Any, x: Tensor) -> Tensor:
        kernel, (stride,), (padding,) = self._kernels[id(conv)], conv.stride, conv.padding
        return functional.conv_transpose2d(x, kernel, conv.bias, (1, stride), (0, padding))


def _columns(x: Tensor) -> Tensor:
    """Return [A, B, T] as [A, B, 1, T] with B innermost."""
    return x[:, :, None].contiguous(memory_format=torch.channels_last)


def _masked(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x.mul_(mask)


def _packed(dtype: torch.dtype, *layer: Any) -> tuple[Tensor, _Convolution, _Convolution]:
    """Return the alpha to multiply a block's layer's input by, and its convolutions."""
    conv1, conv2, *snakes = layer
    first, between = (snake.alpha.detach()[:, None, None] + Snake.EPSILON for snake in snakes)
    return first, _Convolution(conv1, dtype, first, between), _Convolution(conv2, dtype, between)


def _snaked(x: Tensor) -> Tensor:
    """Return `Snake.forward` times alpha, of its input times alpha."""
    wave = x.sin()
    return torch.addcmul(x, wave, wave)
