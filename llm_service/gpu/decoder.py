"""One forward pass and its draws, as launches on static buffers, which a CUDA graph records.

Knows nothing of requests, graphs or scheduling.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from llm_service.embedded.steps import PAGE_TOKENS
from llm_service.gpu import ops
from llm_service.gpu.ops import MAX_PARTS, BeginInputs, CacheView, RotaryTables
from llm_service.gpu.slot_state import SlotState
from llm_service.gpu.weights import LayerWeights, Weights


@dataclass(frozen=True)
class DecodeInputs:
    """The slots that a decode step advances."""

    slots: Tensor  # [R] int32


@dataclass(frozen=True)
class PromptInputs:
    """The tokens of prompts that a step runs, and the answers whose first token it draws."""

    tokens: Tensor  # [R] int32 LLM ids
    slots: Tensor  # [R] int32
    positions: Tensor  # [R] int32
    drawn_slots: Tensor  # [P] int32 slots whose prompt ends here
    drawn_rows: Tensor  # [P] int32 rows of their last tokens
    begin: BeginInputs


class SlotDecoder:
    """Weights, cache, slots' state and the buffers between the kernels."""

    def __init__(self, weights: Weights, state: SlotState, max_rows: int, max_draws: int) -> None:
        """Allocate everything.

        Args:
            weights: on the device.
            state: on the same device.
            max_rows: rows of the largest launch.
            max_draws: most rows of a launch for which a token is drawn.
        """
        shape, device, dtype = weights.shape, weights.embedding.device, weights.embedding.dtype
        self.weights, self.state = weights, state
        self._rotary = RotaryTables.make(shape, state.sizes.positions + 1, device)
        pages, groups, size = state.sizes.pages + 1, shape.key_value_heads, shape.head_size
        self.cache = torch.zeros(shape.layers, pages, 2, groups, PAGE_TOKENS, size, device=device, dtype=dtype)
        qkv = (shape.heads + 2 * groups) * size

        def room(*sizes: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(*sizes, device=device, dtype=dtype)

        self._hidden = room(max_rows, shape.hidden, dtype=torch.float32)
        self._normed = room(max_rows, shape.hidden)
        self._qkv = room(MAX_PARTS * max_rows * qkv, dtype=torch.float32)
        self._branch = room(MAX_PARTS * max_rows * shape.hidden, dtype=torch.float32)
        self._mixed = room(max_rows, shape.heads * size)
        self._inner = room(max_rows, shape.feed_forward)
        self._picked = room(max_draws, shape.hidden)
        self.logits = room(max_draws, weights.vocabulary.head_rows, dtype=torch.float32)
        self._positions = room(max_rows, dtype=torch.int32)

    def decode(self, inputs: DecodeInputs, out: Tensor) -> None:
        """Advance slots by a token each.

        Args:
            inputs: slots [R].
            out: [R] int32 head rows drawn.
        """
        rows = inputs.slots.shape[0]
        positions = self._positions[:rows]
        branch = self._layers(inputs.slots, None, positions)
        self._draw(inputs.slots, None, positions, branch, out)

    def prompt(self, inputs: PromptInputs, out: Tensor) -> None:
        """Run tokens of prompts into their slots and draw the first token of those that end.

        Args:
            inputs: rows of one slot in the order of their positions.
            out: [P] int32 head rows drawn.
        """
        ops.begin_answers(inputs.begin, self.state)
        branch = self._layers(inputs.slots, inputs.tokens, inputs.positions)
        self._draw(inputs.drawn_slots, inputs.drawn_rows, inputs.positions, branch, out)

    def _layers(self, slots: Tensor, tokens: Tensor | None, positions: Tensor) -> ops.Parts:
        """Run all layers; return the last branch, which `_draw` adds."""
        hidden = self._hidden[: slots.shape[0]]
        state = self.state
        ops.embed(slots, tokens, positions, state.last_token, state.next_position, self.weights.embedding, hidden)
        branch: ops.Parts | None = None
        for index, layer in enumerate(self.weights.layers):
            branch = self._layer(index, layer, branch, slots, positions, is_prompt=tokens is not None)
        assert branch is not None
        return branch

    def _layer(
        self,
        index: int,
        layer: LayerWeights,
        branch: ops.Parts | None,
        slots: Tensor,
        positions: Tensor,
        is_prompt: bool,
    ) -> ops.Parts:
        rows = slots.shape[0]
        hidden, normed, mixed, inner = (
            buffer[:rows] for buffer in (self._hidden, self._normed, self._mixed, self._inner)
        )
        shape = self.weights.shape
        cache = CacheView(self.cache[index], self.state.pages)
        ops.add_norm(hidden, branch, layer.first_norm, shape.norm_epsilon, normed)
        qkv = ops.product_parts(normed, layer.qkv, self._qkv)
        if is_prompt:
            ops.write_cache(qkv, layer.qkv_bias, self._rotary, cache, slots, positions, shape.heads)
        shared = (qkv, layer.qkv_bias, self._rotary, cache, slots, positions, mixed, shape.heads)
        ops.attention(*shared, writes=not is_prompt)
        attended = ops.product_parts(mixed, layer.output, self._branch)
        ops.add_norm(hidden, attended, layer.second_norm, shape.norm_epsilon, normed)
        ops.silu_product(normed, layer.gate_up, inner)
        return ops.product_parts(inner, layer.down, self._branch)

    def _draw(self, slots: Tensor, rows_of: Tensor | None, positions: Tensor, branch: ops.Parts, out: Tensor) -> None:
        weights, draws = self.weights, slots.shape[0]
        hidden, picked, scores = self._hidden[: positions.shape[0]], self._picked[:draws], self.logits[:draws]
        ops.add_norm(hidden, branch, weights.norm, weights.shape.norm_epsilon, picked, rows_of)
        ops.logits(picked, weights.head, weights.head_bias, scores)
        ops.sample(scores, slots, rows_of, positions, out, self.state, weights.vocabulary.first_id)
