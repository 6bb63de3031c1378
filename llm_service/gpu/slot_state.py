"""What the device remembers of every slot between steps: place in the cache, sampling settings, random numbers' state.

Row `slots` is the spare slot of padding rows: it owns page 0 and never changes. Knows no kernels and no requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

PAGE_TOKENS = 64
"""Tokens of a page of keys and values."""
FIXED_WORDS = 16
"""Integers before the recent tokens in the data that begin an answer; see `AnswerStart.words`."""
NUMBERS = 4
SEEN, BANNED, CLOSING = 1, 2, 4
"""Bits of each head row in a slot's flags: spoken or heard before; impossible; impossible before min_tokens."""
NOBODY = -1
"""Mark of an empty place in a slot's list of recent tokens."""


@dataclass(frozen=True)
class StateSizes:
    """How much there is of everything."""

    slots: int  # answers that run together
    pages: int  # beside page 0
    positions: int  # longest prompt plus answer, in tokens
    rows: int  # of the speech head
    recent: int  # recent tokens kept for each slot, a power of two

    @property
    def pages_per_slot(self) -> int:
        """Most pages that one slot may hold."""
        return -(-self.positions // PAGE_TOKENS)

    @property
    def words(self) -> int:
        """Integers of one beginning answer."""
        return FIXED_WORDS + self.recent


class SlotState:
    """The tensors, all on one device."""

    def __init__(self, sizes: StateSizes, device: torch.device) -> None:
        self.sizes = sizes
        count = sizes.slots + 1

        def integers(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.seed = integers(count, dtype=torch.int64)
        self.next_position = integers(count)
        self.drawn = integers(count)
        self.min_tokens = integers(count)
        self.window = integers(count)
        self.repeat_limit = integers(count)
        self.recent = integers(count, sizes.recent)
        self.last_token = integers(count)
        self.temperature = torch.ones(count, device=device)
        self.top_p = torch.ones(count, device=device)
        self.min_p = torch.zeros(count, device=device)
        self.penalty = torch.ones(count, device=device)
        self.top_k = integers(count)
        self.flags = integers(count, sizes.rows, dtype=torch.int8)
        self.pages = integers(count, sizes.pages_per_slot)

    def sampling(self) -> tuple[Tensor, ...]:
        """Return the tensors in the order in which the kernels take them."""
        return (
            *(self.seed, self.next_position, self.drawn, self.min_tokens, self.window, self.repeat_limit),
            *(self.recent, self.last_token, self.temperature, self.top_p, self.min_p, self.penalty, self.top_k),
            self.flags,
        )


@dataclass(frozen=True)
class AnswerStart:
    """All that the device must know of an answer before its first token."""

    slot: int
    seed: int  # 64 bits
    prompt_tokens: int
    drawn: int  # tokens of this answer that stand in the prompt already, drawn by a server that was lost
    min_tokens: int
    window: int  # of repetition-aware sampling; 0 is off
    repeat_limit: int  # occurrences in the window from which a token is drawn again
    top_k: int
    temperature: float
    top_p: float
    min_p: float
    penalty: float
    recent_rows: tuple[int, ...]  # head rows drawn last, the latest at the end
    pages: tuple[int, ...]
    flags: npt.NDArray[np.int8]  # [rows]

    def words(self, recent: int) -> npt.NDArray[np.int32]:
        """Return the integers as the kernel reads them."""
        seed = np.array([self.seed & (1 << 64) - 1], np.uint64).view(np.int32)
        words = np.zeros(FIXED_WORDS + recent, np.int32)
        words[:9] = (
            *(self.slot, seed[0], seed[1], self.prompt_tokens, self.drawn, self.min_tokens, self.window),
            *(self.repeat_limit, self.top_k),
        )
        words[FIXED_WORDS:] = NOBODY
        # A ring: the token drawn as number n is at n modulo the window.
        for back, row in enumerate(reversed(self.recent_rows[-self.window :] if self.window else ()), 1):
            words[FIXED_WORDS + (self.drawn - back) % self.window] = row
        return words

    def numbers(self) -> tuple[float, float, float, float]:
        """Return the fractions as the kernel reads them."""
        return self.temperature, self.top_p, self.min_p, self.penalty


class PagePool:
    """Hands out pages of the cache; page 0 belongs to the spare slot."""

    def __init__(self, pages: int) -> None:
        self._free = list(range(pages, 0, -1))
        self._pages = pages

    @property
    def free_count(self) -> int:
        """Free pages."""
        return len(self._free)

    @property
    def count(self) -> int:
        """All pages."""
        return self._pages

    def allocate(self, count: int) -> tuple[int, ...]:
        """Take so many pages; the caller has looked at `free_count`."""
        assert count <= len(self._free)
        return tuple(self._free.pop() for _ in range(count))

    def free(self, pages: tuple[int, ...]) -> None:
        """Give pages back."""
        self._free.extend(reversed(pages))


def page_bytes(layers: int, groups: int, head_size: int, dtype: torch.dtype) -> int:
    """Return what one page takes in all layers, in bytes."""
    return 2 * layers * groups * PAGE_TOKENS * head_size * dtype.itemsize


def pages_for(tokens: int) -> int:
    """Return how many pages so many tokens fill."""
    return -(-tokens // PAGE_TOKENS)
