"""Runs voices' prompts on the fused kernels: one program for each padded length, captured as a CUDA graph.

What `StreamFlow.prepare_voice` computes: a prompt is the first chunk of a stream that has no history, conditioned on
the prompt's mel. The plain modules launch some 10,000 kernels for it, one after the other; a graph launches them at
once. Programs run on a stream of their own, beside the steps of streams.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gpukit.graphs import capture, graph_memory, own_stream, warm_up
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.flow.flow_state import FlowState, FlowVoice
from token2wav_service.models.flow.flow_stream import PROMPT_SEED, StreamFlow
from token2wav_service.models.noise import NoiseDomain
from token2wav_service.runtime.kernels import ops
from token2wav_service.runtime.kernels.attention_ops import KeyPlaces
from token2wav_service.runtime.slots.bucket_program import naming_failures
from token2wav_service.runtime.slots.dit_solver import DiTSolver
from token2wav_service.runtime.slots.fused_encoder import EncoderTails, FusedEncoder
from token2wav_service.runtime.slots.slot_flow import embed_tokens, project

SHORTEST_TOKENS = 64
GROWTH = 1.3
"""Ratio of a padded length to the one before: a prompt is padded by less than this."""
ALIGNMENT_TOKENS = 8


def prompt_buckets(longest_tokens: int) -> tuple[int, ...]:
    """Return the tokens that prompts are padded to, ascending; the last is the longest prompt's."""
    sizes = []
    size = SHORTEST_TOKENS
    while size < longest_tokens:
        sizes.append(size)
        size = int(-(-size * GROWTH // ALIGNMENT_TOKENS)) * ALIGNMENT_TOKENS
    return (*sizes, longest_tokens)


class PromptFlow:
    """Prepares voices; holds packed weights and the buffers of one prompt. Thread-safe: one prompt runs at a time."""

    def __init__(self, plain: StreamFlow, solver: DiTSolver, max_prompt_frames: int) -> None:
        """Pack the encoder's weights and allocate the buffers.

        Args:
            plain: runs a flow in eval mode, on its device, in the dtype to compute in.
            solver: runs the estimator; shared with the streams' programs.
            max_prompt_frames: longest prompt, an even number.
        """
        flow = plain.flow
        assert isinstance(flow, Flow)
        self.flow, self.solver, self._plain = flow, solver, plain
        self.device, self.dtype = flow.device, flow.dtype
        c, d = flow.config.encoder, flow.config.estimator
        self.stride, self.lookahead = flow.stride, flow.lookahead
        longest = max_prompt_frames // self.stride
        self.buckets = prompt_buckets(longest)
        self.encoder = FusedEncoder(flow.encoder, 0, self.buckets)
        self._token_window = self._zeros(1, c.num_blocks, c.attention_heads, longest, 2 * c.head_dim)
        self._frame_window = self._zeros(1, c.num_up_blocks, c.attention_heads, max_prompt_frames, 2 * c.head_dim)
        self._tails = EncoderTails(
            self._zeros(1, c.output_size, 2), self._zeros(1, c.output_size, self.flow.encoder.UPSAMPLE_CONTEXT)
        )
        self._kv_shape = (1, solver.steps, d.depth, 2, d.num_heads)
        self._kv = self._zeros(int(np.prod(self._kv_shape)) * max_prompt_frames * 2 * d.head_dim)
        self._history = solver.allocate(1, 1)
        """History of a stream that has none: no columns, silent tails. Read only."""
        # A stream of its own for capturing, too: cuBLAS has its working memory by stream, and steps run meanwhile.
        self._stream = own_stream(self.device)
        self._graph_memory = graph_memory(self.device)
        self._programs = {tokens: _PromptProgram(self, tokens) for tokens in self.buckets}
        self._lock = threading.Lock()

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run the program of every length once, so that everything is compiled and loaded."""
        assert self._stream is not None
        for program in self._programs.values():
            warm_up(program.run, self._stream)

    @torch.inference_mode()
    def capture(self) -> None:
        """Have every length's program replay a CUDA graph; `warm_up` comes before.

        Raises:
            ProgramCaptureError: a program does something that a graph can't.
        """
        with self._on_stream():
            for program in self._programs.values():
                program.capture(self._stream, self._graph_memory)

    @torch.inference_mode()
    def prepare_voice(self, tokens: Tensor, mel: Tensor, speaker: Tensor) -> FlowVoice:
        """Run a prompt, no longer than the longest, once; see `StreamFlow.prepare_voice`."""
        count = min(mel.shape[0] // self.stride, tokens.shape[0])
        window = torch.cat([tokens[:count], tokens[: self.lookahead]])
        size = next(bucket for bucket in self.buckets if bucket >= count)
        with self._lock, self._on_stream():
            program = self._programs[size]
            program.tokens[0, : len(window)] = window.to(self.device)
            program.cond[0, : count * self.stride] = mel[: count * self.stride].to(self.device, self.dtype)
            program.lengths.fill_(count)
            normalised = functional.normalize(speaker.to(self.device, self.dtype), dim=0)
            program.speaker[0] = self.flow.spk_embed_affine_layer(normalised)
            program.run()
            return self._plain.voice(tokens, mel, speaker, {0: self._state(program, count)})

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield
            self._stream.synchronize()

    def compute(self, program: _PromptProgram) -> Tensor:
        """Run a program's inputs; keys and values go to the buffers. Returns the solver's tails."""
        nothing = torch.zeros_like(program.lengths)
        frames = program.lengths * self.stride
        for tail in (self._tails.lookahead, self._tails.upsample):
            tail.zero_()
        at_tokens = KeyPlaces(nothing, nothing, nothing, nothing, program.lengths)
        at_frames = KeyPlaces(nothing, nothing, nothing, nothing, frames)
        counts = program.lengths + self.lookahead
        hidden = self.encoder.encode(
            embed_tokens(self.flow, program.tokens, counts), counts, program.lengths,
            (at_tokens, at_frames), (self._token_window, self._frame_window), self._tails,
        )  # fmt: skip
        mu = project(self.flow, hidden)
        noise = ops.counter_noise(
            nothing + PROMPT_SEED, nothing, mu.shape[1], self.flow.output_size, int(NoiseDomain.FLOW)
        )
        own = self._own_kv(mu.shape[1])
        _, _, tails = self.solver.compute(noise, mu, program.speaker, program.cond, at_frames, self._history, own)
        return tails

    def _own_kv(self, frames: int) -> Tensor:
        """Return the buffer of keys and values as [1, n, L, 2, H, frames, 2D]."""
        width = self._history.window.shape[-1]
        return self._kv[: int(np.prod(self._kv_shape)) * frames * width].view(*self._kv_shape, frames, width)

    def _state(self, program: _PromptProgram, count: int) -> FlowState:
        frames = count * self.stride
        assert program.tails is not None
        kv = self._own_kv(program.size * self.stride)[0, ..., :frames, :].contiguous()
        tails = self.solver.plain_tails(program.tails[0])
        caches = {
            "token_kv": self._token_window[0, :, :, :count].contiguous(),
            "frame_kv": self._frame_window[0, :, :, :frames].contiguous(),
            "lookahead_tail": self._tails.lookahead[0].clone(),
            "upsample_tail": self._tails.upsample[0].clone(),
            "solver_kv": kv,
            "solver_tail": tails,
        }
        pending, cond = program.tokens.new_empty(0), kv.new_empty(self.flow.output_size, 0)
        return FlowState(count, count, count, pending, cond, caches, np.arange(frames), kv)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)


class _PromptProgram:
    """The flow for prompts of one padded length: static inputs, and a CUDA graph where there is CUDA."""

    def __init__(self, owner: PromptFlow, size: int) -> None:
        self.size = size
        """Tokens of the padded prompt."""
        mel = owner.flow.output_size
        self.tokens = torch.zeros(1, size + owner.lookahead, dtype=torch.int64, device=owner.device)
        self.cond = torch.zeros(1, size * owner.stride, mel, dtype=owner.dtype, device=owner.device)
        self.speaker = torch.zeros(1, mel, dtype=owner.dtype, device=owner.device)
        self.lengths = torch.ones(1, dtype=torch.int64, device=owner.device)
        self.tails: Tensor | None = None
        """[1, n, L, 2, 2, 2, C] tails of the latest run."""
        self._owner = owner
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self) -> None:
        """Run what the inputs hold."""
        if self._graph is None:
            self.tails = self._owner.compute(self)
        else:
            self._graph.replay()

    def capture(self, stream: Any, memory: Any) -> None:
        """Have runs replay a CUDA graph.

        Raises:
            ProgramCaptureError: the program does something that a graph can't.
        """
        with naming_failures(f"prompts of {self.size} tokens"):
            self._graph = capture(self.run, memory, stream, error_mode="thread_local")
