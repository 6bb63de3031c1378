"""The form of a graph's description: tensors, axes, precision, and how large the axes may be. No torch, no model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal, get_args

import yaml
from pydantic import Field, TypeAdapter

from token2wav_service.errors import ExportError

VOCODER_OVERLAP_FRAMES = 8
"""Most mel frames of earlier chunks, and of padding, that a vocoder call has beside its chunk's."""


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


@dataclass(frozen=True)
class Profile:
    """Ranges of all axes of a graph that are meant to be used together."""

    name: str
    ranges: Mapping[str, AxisRange]

    def __getitem__(self, axis: str) -> AxisRange:
        return self.ranges[axis]


@dataclass(frozen=True)
class ShapeSettings:
    """Sizes the graphs are made for; frames are mel frames (50 Hz)."""

    name: str = "default"
    streams: AxisRange = AxisRange(1, 16, 64)
    """Streams in one batch."""
    chunk_frames: AxisRange = AxisRange(2, 50, 256)
    """Frames that a chunk computes; a block-masked flow computes the last incomplete blocks again."""
    prompt_frames: AxisRange = AxisRange(1, 300, 900)
    """Frames that the prompts of a batch are padded to; the longest prompt has 18 s."""
    window_frames: AxisRange = AxisRange(1, 100, 100)
    """Earlier frames of the stream itself that the estimator sees."""

    def chunk_profile(self) -> Profile:
        """Return the ranges of the estimator's axes."""
        rows = self.streams.times(2)
        ranges = {
            "rows": rows,
            "prompt_rows": rows,
            "chunk_frames": self.chunk_frames,
            "prompt_frames": self.prompt_frames,
            "window_frames": self.window_frames,
        }
        return Profile(self.name, ranges)

    def vocoder_profile(self, spectrum_columns: int, ahead: int) -> Profile:
        """Return the ranges of the vocoder's axes.

        Args:
            spectrum_columns: STFT frames per mel frame.
            ahead: mel frames behind those to decode.
        """
        most = (n + VOCODER_OVERLAP_FRAMES for n in (self.chunk_frames.opt, self.chunk_frames.max))
        frames = AxisRange(1, *most)
        ranges = {
            "streams": self.streams,
            "mel_frames": frames,
            "mel_columns": frames.times(1, ahead),
            "spectrum_frames": frames.times(spectrum_columns, 1),
        }
        return Profile(self.name, ranges)


_AxisName = Literal["streams", "chunk_frames", "prompt_frames", "window_frames"]
_FILE = TypeAdapter(Annotated[dict[str, dict[_AxisName, tuple[int, int, int]]], Field(min_length=1)])


def read_shapes(path: Path) -> tuple[ShapeSettings, ...]:
    """Return the profiles of a YAML file; axes that a profile does not name keep their defaults.

    default:
      streams: [1, 16, 64]
      chunk_frames: [2, 50, 256]

    Raises:
        ExportError: unreadable, an unknown axis, or three numbers that are no range.
    """
    try:
        profiles = _FILE.validate_python(yaml.safe_load(path.read_text("utf-8")), strict=False)
        ranges = {name: {axis: AxisRange(*sizes) for axis, sizes in axes.items()} for name, axes in profiles.items()}
    except (OSError, yaml.YAMLError, ValueError) as err:
        raise ExportError(
            f"{path}: {err}; expected profile names, each with axes such as `streams: [min, opt, max]` with "
            f"0 < min <= opt <= max; axes are {', '.join(get_args(_AxisName))}"
        ) from err
    return tuple(ShapeSettings(name=name, **axes) for name, axes in ranges.items())


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
