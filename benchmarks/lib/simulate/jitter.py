"""Steps that do not all take the same time, drawn so that the same simulation comes out the same every time."""

from __future__ import annotations

import math
from random import Random


class Jitter:
    """Factors around 1, their logarithms normally distributed; their mean is 1."""

    def __init__(self, spread: float, draw: Random) -> None:
        """Keep the parts.

        Args:
            spread: standard deviation of the logarithm; 0 is none.
            draw: where the factors come from.
        """
        self._spread = spread
        self._draw = draw

    def factor(self) -> float:
        """Draw the next one."""
        if not self._spread:
            return 1.0
        return math.exp(self._spread * self._draw.gauss(0.0, 1.0) - self._spread**2 / 2)
