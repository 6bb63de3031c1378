"""What the TensorRT parts hand to each other, and what keeps Ctrl-C from crossing a library that calls Python.

Neither TensorRT nor torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from token2wav_service.graphs.spec import ShapeRange

Shape = tuple[int, ...]


class BuildProgress(Protocol):
    """Is told how far a build is; from any thread."""

    def start(self, phase: str, parent: str | None, steps: int) -> None:
        """A phase begins, within its parent if it has one."""
        ...

    def step(self, phase: str, index: int) -> None:
        """Step `index` of a phase is done."""
        ...

    def finish(self, phase: str) -> None:
        """A phase ends."""
        ...


@dataclass(frozen=True)
class BuiltPlan:
    """What a build gave."""

    plan: bytes
    """The serialized engine."""
    profiles: tuple[Mapping[str, ShapeRange], ...]
    """Every input's shapes, as the builder held them."""
    timings: bytes
    """Times of kernels for the next build; empty from a library that keeps none."""


@dataclass(frozen=True)
class EngineTensor:
    """An input or output of an engine."""

    name: str
    dtype: str
    """Element type by its name in numpy and torch."""
    is_input: bool


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
