"""The form of a graph's description: tensors, axes, shapes, precision. No torch, no model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from token2wav_service.graphs.shapes import Profile


class DType(str, Enum):
    """Element types, named as numpy and torch name them."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT64 = "int64"
    BOOL = "bool"


class Precision(str, Enum):
    """What a graph multiplies in. Norms, softmax, time embedding and residual sums are float32 in both."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"

    @property
    def dtype(self) -> DType:
        """The element type of products and caches."""
        return DType(self.value)


Dim = int | str
"""Size of a dimension: a fixed number, or the name of an axis."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output."""

    name: str
    dtype: DType
    dims: tuple[Dim, ...]
    meaning: str

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape at given sizes of the named axes."""
        return tuple(dim if isinstance(dim, int) else sizes[dim] for dim in self.dims)


@dataclass(frozen=True)
class ShapeRange:
    """The shapes one input may have under one profile."""

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
    profiles: tuple[Profile, ...]
    """Ranges of sizes, at least one; sizes outside all of them are not promised to work."""
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

    def shape_ranges(self, profile: Profile) -> dict[str, ShapeRange]:
        """Return every input's smallest, expected and largest shape under a profile, by name."""
        sizes = [{axis: getattr(profile[axis], end) for axis in self.axes} for end in ("min", "opt", "max")]
        return {tensor.name: ShapeRange(*(tensor.shape(at) for at in sizes)) for tensor in self.inputs}

    def complete(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return sizes of the independent axes with those of the derived ones."""
        return {**sizes, **{name: derived.size(sizes) for name, derived in self.derived.items()}}

    def least(self, axis: str) -> int:
        """Return the smallest size of an axis over all profiles."""
        return min(profile[axis].min for profile in self.profiles)

    def limit(self, axis: str) -> int:
        """Return the largest size of an axis over all profiles."""
        return max(profile[axis].max for profile in self.profiles)
