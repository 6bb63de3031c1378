"""The form of a graph's description: tensors, axes, precision, and how large the axes may be. No torch, no model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal


@dataclass(frozen=True)
class AxisRange:
    """Sizes of one axis: what must work, and the one to be fastest at."""

    min: int
    opt: int
    max: int

    def __post_init__(self) -> None:
        if not 0 < self.min <= self.opt <= self.max:
            raise ValueError(f"got {self}, expected 0 < min <= opt <= max")

    def times(self, factor: int, offset: int = 0) -> AxisRange:
        """Return the range of `factor` times this axis plus `offset`."""
        return AxisRange(*(size * factor + offset for size in (self.min, self.opt, self.max)))


FLOAT32, INT64, BOOL = "float32", "int64", "bool"
"""Element types beside a graph's `Precision`, as numpy and torch name them."""


class Precision(str, Enum):
    """Type of a graph's products and caches. Norms, softmax, time embedding and residual sums are float32 in both."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"


Dim = int | str
"""Size of a dimension: a fixed number, or the name of an axis."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]
    meaning: str

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape at given sizes of the named axes."""
        return tuple(dim if isinstance(dim, int) else sizes[dim] for dim in self.dims)


@dataclass(frozen=True)
class ShapeRange:
    """The shapes one input may have."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


@dataclass(frozen=True)
class DerivedAxis:
    """An axis whose size follows from an input's axis."""

    axis: str
    factor: int
    offset: int

    def size(self, sizes: Mapping[str, int]) -> int:
        """Return factor times the other axis plus offset."""
        return self.factor * sizes[self.axis] + self.offset


@dataclass(frozen=True)
class GraphSpec:
    """One exported graph."""

    name: str
    precision: Precision
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    ranges: Mapping[str, AxisRange]
    """Sizes of the inputs' axes; others are not promised to work."""
    derived: Mapping[str, DerivedAxis] = field(default_factory=dict)
    """Axes whose sizes follow from the others'."""

    @property
    def file_name(self) -> str:
        """Name of the ONNX file."""
        return f"{self.name}.{self.precision.value}.onnx"

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the dynamic axes of the inputs, in order of first use."""
        return tuple(dict.fromkeys(dim for tensor in self.inputs for dim in tensor.dims if isinstance(dim, str)))

    def shape_ranges(self) -> dict[str, ShapeRange]:
        """Return every input's smallest, expected and largest shape, by name."""
        sizes = [self.sizes(end) for end in ("min", "opt", "max")]
        return {tensor.name: ShapeRange(*(tensor.shape(at) for at in sizes)) for tensor in self.inputs}

    def sizes(self, end: Literal["min", "opt", "max"]) -> dict[str, int]:
        """Return the smallest, expected or largest size of every axis."""
        return self.complete({axis: getattr(self.ranges[axis], end) for axis in self.axes})

    def complete(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return sizes of the independent axes with those of the derived ones."""
        return {**sizes, **{name: derived.size(sizes) for name, derived in self.derived.items()}}
