"""Keys and values of one stream's solver, in place: a chunk appends its own, and those that are dropped make room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from token2wav_service.models.flow.flow_state import Labels

_GROWTH = 64
"""Columns by which the room grows at least."""


class Columns(NamedTuple):
    """One layer's part of a store at one step, as views [2, h, columns, d]."""

    new_keys: Tensor
    """Behind those in use, to be written."""
    new_values: Tensor
    keys: Tensor
    """Those in use, and the new ones behind them."""
    values: Tensor


@dataclass
class ColumnStore:
    """Columns in any order: attention without positions doesn't depend on it.

    Shapes: L layers, 2 branches, h heads, room for C columns, d head_dim.
    """

    keys: list[Tensor]
    """[L, 2, h, C, d] of every solver step."""
    values: list[Tensor]
    labels: Labels
    """The absolute frame at each column in use."""

    @classmethod
    def of_prompt(cls, kv: Tensor, more: int) -> ColumnStore:
        """Copy a voice's columns [n, L, 2, h, P, 2d] and leave room for `more`."""
        size, depth = kv.shape[4], kv.shape[5] // 2
        shape = (*kv.shape[1:4], _rounded(size + more), depth)
        store = cls([kv.new_empty(shape) for _ in kv], [kv.new_empty(shape) for _ in kv], np.arange(size))
        for step, both in enumerate(kv):
            store.keys[step][:, :, :, :size] = both[..., :depth]
            store.values[step][:, :, :, :size] = both[..., depth:]
        return store

    @property
    def num_bytes(self) -> int:
        """Memory it holds."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))

    def layers(self, step: int, count: int) -> list[Columns]:
        """Return where each layer finds its columns at one step, and where it puts those of `count` new frames."""
        held, both = len(self.labels), (self.keys[step], self.values[step])
        new = [each.narrow(3, held, count).unbind() for each in both]
        seen = [each.narrow(3, 0, held + count).unbind() for each in both]
        return [Columns(*layer) for layer in zip(*new, *seen, strict=True)]

    def note(self, labels: Labels) -> None:
        """Count columns that were written behind those in use."""
        self.labels = np.concatenate([self.labels, labels])

    def hold(self, labels: Labels, prompt_kv: Tensor, more: int) -> None:
        """Have exactly these columns, and room for `more`; nothing happens to those that are held already.

        Args:
            labels: frames to hold, in any order.
            prompt_kv: [n, L, 2, h, P, 2d] the voice's columns, to copy those from that are missing.
            more: columns that the next chunk appends.

        Raises:
            ValueError: a column is wanted that was dropped: the state it belongs to was followed by another.
        """
        missing = np.setdiff1d(labels, self.labels)
        if len(missing) and missing[-1] >= prompt_kv.shape[4]:
            raise ValueError(f"frame {missing[-1]} was dropped: a later chunk of the stream has run")
        is_kept = np.isin(self.labels, labels)
        kept = int(is_kept.sum())
        self._fill(np.flatnonzero(~is_kept[:kept]), kept + np.flatnonzero(is_kept[kept:]))
        self.labels = self.labels[:kept]
        self._reserve(kept + len(missing) + more)
        self._append(missing, prompt_kv)

    def _fill(self, holes: Labels, movers: Labels) -> None:
        """Move columns into holes."""
        if not len(holes):
            return
        into, which = torch.from_numpy(holes), torch.from_numpy(movers)
        for tensor in (*self.keys, *self.values):
            tensor.index_copy_(3, into, tensor.index_select(3, which))
        self.labels[holes] = self.labels[movers]

    def _reserve(self, columns: int) -> None:
        """Have room for so many columns, and not for many more."""
        room, wanted = self.keys[0].shape[3], _rounded(columns)
        if wanted <= room <= 2 * wanted:
            return
        for tensors in (self.keys, self.values):
            for step, tensor in enumerate(tensors):
                grown = tensor.new_empty((*tensor.shape[:3], wanted, tensor.shape[4]))
                grown[:, :, :, : len(self.labels)] = tensor[:, :, :, : len(self.labels)]
                tensors[step] = grown

    def _append(self, missing: Labels, prompt_kv: Tensor) -> None:
        if not len(missing):
            return
        at = slice(len(self.labels), len(self.labels) + len(missing))
        depth = prompt_kv.shape[5] // 2
        for step, both in enumerate(prompt_kv):
            columns = both.index_select(3, torch.from_numpy(missing))
            self.keys[step][:, :, :, at] = columns[..., :depth]
            self.values[step][:, :, :, at] = columns[..., depth:]
        self.note(missing)


def _rounded(columns: int) -> int:
    return -(-columns // _GROWTH) * _GROWTH
