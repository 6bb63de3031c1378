"""Tokens to audio to tokens: how much of what was asked for comes back. Pure.

A tokenizer never returns every token of synthesised audio, so the source engine's own audio, coded twice with a small
shift, is the yardstick.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LEVELS = 3
DIGITS = 8
"""A token is a number of 8 ternary digits, one per quantised value."""


def token_agreement(asked: Sequence[int], heard: Sequence[int]) -> float:
    """Return the share of positions with the same token, over the shorter length.

    Raises:
        ValueError: one of them is empty.
    """
    count = _common(asked, heard)
    return float((np.asarray(asked[:count]) == np.asarray(heard[:count])).mean())


def digit_agreement(asked: Sequence[int], heard: Sequence[int]) -> float:
    """Return the share of equal digits: a token that is off by one value counts 7/8.

    Raises:
        ValueError: one of them is empty.
    """
    count = _common(asked, heard)
    places = LEVELS ** np.arange(DIGITS)
    digits = [np.asarray(tokens[:count])[:, None] // places % LEVELS for tokens in (asked, heard)]
    return float((digits[0] == digits[1]).mean())


def _common(asked: Sequence[int], heard: Sequence[int]) -> int:
    count = min(len(asked), len(heard))
    if not count:
        raise ValueError(f"got {len(asked)} tokens asked for and {len(heard)} heard, expected at least one of each")
    return count
