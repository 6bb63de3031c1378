"""Keeps Ctrl-C from crossing a library that calls back into Python. Knows nothing of TensorRT."""

from __future__ import annotations

from collections.abc import Callable


class Interrupts:
    """Remembers that the user wants to stop, until it can be acted upon."""

    def __init__(self) -> None:
        self._is_interrupted = False

    def keep(self, report: Callable[..., None], *arguments: object) -> bool:
        """Call something; returns False if the user wants to stop."""
        try:
            report(*arguments)
        except KeyboardInterrupt:
            self._is_interrupted = True
        return not self._is_interrupted

    def raise_if_any(self) -> None:
        """Go on with what was kept.

        Raises:
            KeyboardInterrupt: the user wanted to stop.
        """
        if self._is_interrupted:
            raise KeyboardInterrupt
