"""One forward pass and its draws, as launches on static buffers, which a CUDA graph records.

Knows nothing of requests, graphs or scheduling.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from llm_service.embedded.steps import PAGE_TOKENS
from llm_service.gpu import ops
from llm_service.gpu.ops import MAX_PARTS, SPLIT_ROWS, BeginInputs, CacheView, RotaryTables
from llm_service.gpu.slot_state import SlotState
from llm_service.gpu.weights import LayerWeights, Weights


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
        blocks = 1 - (-PAGE_TOKENS * state.sizes.pages_per_slot // ops.KEY_BLOCK)
        self._blocks = room(SPLIT_ROWS, blocks, 3, shape.heads * size, dtype=torch.float32)
        self._arrived = room(SPLIT_ROWS * groups, dtype=torch.int32)
        self._positions = room(max_rows, dtype=torch.int32)

    def decode(self, slots: Tensor, out: Tensor) -> None:
        """Advance slots by a token each.

        Args:
            slots: [R] int32.
            out: [R] int32 head rows drawn.
        """
        positions = self._positions[: slots.shape[0]]
        normed = self._layers(slots, None, positions)
        self._draw(normed, slots, None, positions, out)

    def prompt(self, inputs: PromptInputs, out: Tensor) -> None:
        """Run tokens of prompts into their slots and draw the first token of those that end.

        Args:
            inputs: rows of one slot in the order of their positions.
            out: [P] int32 head rows drawn.
        """
        ops.begin_answers(inputs.begin, self.state)
        normed = self._layers(inputs.slots, inputs.tokens, inputs.positions)
        picked = self._picked[: inputs.drawn_rows.shape[0]]
        torch.index_select(normed, 0, inputs.drawn_rows, out=picked)
        self._draw(picked, inputs.drawn_slots, inputs.drawn_rows, inputs.positions, out)

    def _layers(self, slots: Tensor, tokens: Tensor | None, positions: Tensor) -> Tensor:
        """Run all layers; return their normed rows."""
        rows, weights, state = slots.shape[0], self.weights, self.state
        hidden, normed, inner = (buffer[:rows] for buffer in (self._hidden, self._normed, self._inner))
        epsilon = weights.shape.norm_epsilon
        ops.embed(slots, tokens, positions, state.last_token, state.next_position, weights.embedding, hidden)
        branch: ops.Parts | None = None
        for index, layer in enumerate(weights.layers):
            ops.add_norm(hidden, branch, layer.first_norm, epsilon, normed)
            mixed = self._attend(index, layer, normed, slots, positions, is_prompt=tokens is not None)
            branch = ops.product_parts(mixed, layer.output, self._branch)
            ops.add_norm(hidden, branch, layer.second_norm, epsilon, normed)
            ops.silu_product(normed, layer.gate_up, inner)
            branch = ops.product_parts(inner, layer.down, self._branch)
        ops.add_norm(hidden, branch, weights.norm, epsilon, normed)
        return normed

    def _attend(
        self, index: int, layer: LayerWeights, normed: Tensor, slots: Tensor, positions: Tensor, is_prompt: bool
    ) -> Tensor:
        mixed = self._mixed[: slots.shape[0]]
        cache = CacheView(self.cache[index], self.state.pages, self._blocks, self._arrived)
        qkv = ops.product_parts(normed, layer.qkv, self._qkv, layer.qkv_bias)
        if is_prompt:
            ops.write_cache(qkv, self._rotary, cache, slots, positions, self.weights.shape.heads)
        ops.attention(qkv, self._rotary, cache, slots, positions, mixed, writes=not is_prompt)
        return mixed

    def _draw(self, normed: Tensor, slots: Tensor, rows_of: Tensor | None, positions: Tensor, out: Tensor) -> None:
        weights, scores = self.weights, self.logits[: slots.shape[0]]
        ops.logits(normed, weights.head, weights.head_bias, scores)
        ops.sample(scores, slots, rows_of, positions, out, self.state, weights.vocabulary.first_id)
