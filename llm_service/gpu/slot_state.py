"""What the device remembers of every slot between steps: place in the cache, sampling settings, random numbers' state.

Row `slots` is the spare slot of padding rows: it owns page 0 and never changes. Knows no kernels and no requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from llm_service.embedded.steps import PAGE_TOKENS, AnswerStart, pages_for

FIXED_WORDS = 16
"""Integers before the recent tokens in the data that begin an answer; see `start_words`."""
NUMBERS = 4
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
        return pages_for(self.positions)

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


def start_words(start: AnswerStart, recent: int) -> npt.NDArray[np.int32]:
    """Return the integers that begin an answer, as the kernel reads them."""
    seed = np.array([start.seed & (1 << 64) - 1], np.uint64).view(np.int32)
    words = np.zeros(FIXED_WORDS + recent, np.int32)
    words[:9] = (
        *(start.slot, seed[0], seed[1], start.prompt_tokens, start.drawn, start.min_tokens, start.window),
        *(start.repeat_limit, start.top_k),
    )
    words[FIXED_WORDS:] = NOBODY
    # A ring: the token drawn as number n is at n modulo the window.
    for back, row in enumerate(reversed(start.recent_rows[-start.window :] if start.window else ()), 1):
        words[FIXED_WORDS + (start.drawn - back) % start.window] = row
    return words


def page_bytes(layers: int, groups: int, head_size: int, dtype: torch.dtype) -> int:
    """Return what one page takes in all layers, in bytes."""
    return 2 * layers * groups * PAGE_TOKENS * head_size * dtype.itemsize
