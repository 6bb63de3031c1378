"""A table with a row for each of the 6561 speech tokens, computed from their 8 digits by a small network.

Tokens that differ in one digit sound alike, and most are rare: so rows share what is learnt. Once trained, the table
is written out as an ordinary embedding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from demo_voice.train.tokenizer.model import CODE_SIZE, LEVELS, code_digits


class CodeTable(nn.Module):
    """Digits, one-hot, through one hidden layer."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        one_hot = functional.one_hot(code_digits(torch.device("cpu")), LEVELS).flatten(1).float()
        self.register_buffer("digits", one_hot, persistent=False)
        self.digits: Tensor
        self.inner = nn.Linear(CODE_SIZE * LEVELS, hidden)
        self.outer = nn.Linear(hidden, width)

    def forward(self) -> Tensor:
        """Return [6561, width]."""
        return torch.as_tensor(self.outer(functional.gelu(self.inner(self.digits))))
