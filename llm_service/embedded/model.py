"""The speech-token LLM behind the engine: a Qwen2 decoder with a head of speech and end tokens only.

Head rows 0..6560 are speech tokens, those behind them end an answer: nothing else can come out. The head's bias, which
stock Qwen2 has no room for, is kept whichever way the checkpoint stores it (see `llm_service.speech_head`). Knows
nothing of requests or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from llm_service.embedded.decoder import Decoder, Linear, SlotCache, load_decoder
from llm_service.qwen2 import read_shape
from llm_service.speech_head import TensorFiles, read_speech_head, read_vocabulary
from llm_service.vocab import COSYVOICE2, SpeechVocabulary


@dataclass(frozen=True)
class DecodeRow:
    """One row of a decode forward."""

    slot: int
    token_id: int  # LLM id, the latest token
    position: int  # where it goes


class SpeechLanguageModel:
    """Weights of the LLM and its slot cache. Not thread-safe."""

    def __init__(
        self,
        decoder: Decoder,
        head_weight: torch.Tensor,
        head_bias: torch.Tensor,
        vocabulary: SpeechVocabulary = COSYVOICE2,
    ) -> None:
        """Take a Qwen2 decoder without head, and the head: weight [rows, hidden], bias [rows]; use `load`."""
        self.vocabulary = vocabulary
        self._decoder = decoder
        self._head = Linear(head_weight, head_bias)
        self._device, self._dtype = head_weight.device, head_weight.dtype
        self._cache: SlotCache | None = None
        self._rows_per_forward = 1
        self._least_rows = 1

    @classmethod
    def load(cls, model_dir: Path, device: str, dtype: str) -> SpeechLanguageModel:
        """Load a checkpoint directory.

        Raises:
            CheckpointError: the directory is incomplete, damaged, of another shape, or holds NaN.
        """
        torch_device, torch_dtype = torch.device(device), getattr(torch, dtype)
        shape = read_shape(model_dir / "config.json")
        decoder = load_decoder(shape, TensorFiles(model_dir), model_dir, torch_device, torch_dtype)
        head = read_speech_head(model_dir)
        return cls(
            decoder,
            head.weight.to(torch_device, torch_dtype),
            head.bias.to(torch_device, torch_dtype),
            read_vocabulary(model_dir),
        )

    @property
    def max_positions(self) -> int:
        """Longest sequence the positions of the model allow, in tokens."""
        return self._decoder.shape.max_positions

    def slot_bytes(self, positions: int) -> int:
        """Return what the keys and values of a slot for sequences of so many tokens take, in bytes."""
        shape = self._decoder.shape
        return 2 * shape.layers * shape.key_value_size * positions * self._dtype.itemsize

    def allocate_cache(self, slots: int, positions: int, rows_per_forward: int) -> None:
        """Allocate the cache.

        Args:
            slots: of it.
            positions: of each, in tokens.
            rows_per_forward: slots that a decode forward covers (or all, if they are fewer).
        """
        self._cache = SlotCache(self._decoder.shape, slots, positions, self._device, self._dtype)
        self._rows_per_forward = self._least_rows = min(rows_per_forward, slots)
        self._least_rows = self._rows_with_equal_bits()

    def clear_slot(self, slot: int) -> None:
        """Zero a slot's keys and values after a failure."""
        self._allocated().clear(slot)

    @torch.inference_mode()
    def prefill(self, slot: int, token_ids: Sequence[int], start: int = 0) -> npt.NDArray[np.float32]:
        """Run a prompt, or what comes behind `start` tokens, into a slot; return the logits after it, [rows]."""
        device = self._device
        length = start + len(token_ids)
        positions = torch.arange(start, length, device=device).unsqueeze(0)
        ids = torch.tensor([list(token_ids)], device=device)
        self._allocated().view(slice(slot, slot + 1), [length])
        logits = self._logits(self._forward(ids, positions, [length])[:, -1])
        last: npt.NDArray[np.float32] = logits[0]
        return last

    @torch.inference_mode()
    def decode(self, rows: Sequence[DecodeRow]) -> list[npt.NDArray[np.float32]]:
        """Advance requests by a token each; return logits [rows] float32 in the order of `rows`.

        NOTE: every forward covers a fixed run of slots. Those behind the last used one are left out only where this was
        seen to change no bit, so that a request's logits don't depend on who else runs; attention is computed row by
        row for the same reason.
        """
        logits: dict[int, npt.NDArray[np.float32]] = {}
        starts = sorted({self._first_slot(row.slot) for row in rows})
        for start in starts:
            tile = [row for row in rows if self._first_slot(row.slot) == start]
            logits |= self._decode_tile(start, tile)
        return [logits[row.slot] for row in rows]

    def _first_slot(self, slot: int) -> int:
        """Return the first slot of the forward that covers `slot`; the last forward is moved back to be full."""
        start = slot // self._rows_per_forward * self._rows_per_forward
        return min(start, self._allocated().slots - self._rows_per_forward)

    def _decode_tile(self, start: int, rows: Sequence[DecodeRow]) -> dict[int, npt.NDArray[np.float32]]:
        size = max(self._least_rows, *(row.slot - start + 1 for row in rows))
        # Rows of slots that don't take part are computed and thrown away; they write nothing.
        ids, positions, lengths = [[0]] * size, [[0]] * size, [0] * size
        for row in rows:
            index = row.slot - start
            ids[index], positions[index], lengths[index] = [row.token_id], [row.position], row.position + 1
        logits = self._decoded(start, ids, positions, lengths)
        return {row.slot: logits[row.slot - start] for row in rows}

    def _decoded(
        self, start: int, ids: list[list[int]], positions: list[list[int]], lengths: list[int]
    ) -> npt.NDArray[np.float32]:
        """Run a token for each of the slots from `start` on; return logits [B, rows]."""
        device = self._device
        self._allocated().view(slice(start, start + len(ids)), lengths)
        hidden = self._forward(torch.tensor(ids, device=device), torch.tensor(positions, device=device), lengths)
        return self._logits(hidden[:, -1])

    @torch.inference_mode()
    def _rows_with_equal_bits(self) -> int:
        """Return the fewest rows from which on a forward gives each row the bits that it gets among all.

        Libraries multiply few rows by another routine than many; from which number on depends on them and on the CPU.
        """
        rows = self._rows_per_forward
        if self._device.type != "cpu":
            return rows
        ids = np.random.default_rng(0).integers(0, self.vocabulary.first_id, (rows, 1)).tolist()
        positions, lengths = [[0]] * rows, [1] * rows
        whole = self._decoded(0, ids, positions, lengths)
        least = rows
        while least > 1:
            fewer = least - 1
            if not np.array_equal(self._decoded(0, ids[:fewer], positions[:fewer], lengths[:fewer]), whole[:fewer]):
                break
            least = fewer
        for slot in range(rows):
            self.clear_slot(slot)
        return least

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        """Run ids [B, T] and return hidden states [B, T, hidden]; row b attends to `lengths[b]` places, causally."""
        return self._decoder.forward(ids, positions, lengths, self._allocated())

    def _logits(self, hidden: torch.Tensor) -> npt.NDArray[np.float32]:
        array: npt.NDArray[np.float32] = self._head(hidden).float().cpu().numpy()
        return array

    def _allocated(self) -> SlotCache:
        if self._cache is None:
            raise RuntimeError("allocate_cache must be called before the model runs")
        return self._cache
