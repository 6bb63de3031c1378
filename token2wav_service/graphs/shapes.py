"""How large the exported graphs' axes may be: settings in frames and streams, and the profiles they make. No torch.

A YAML file may set them: profile names, each with `[min, opt, max]` of some axes.

default:
  streams: [1, 16, 64]
  chunk_frames: [2, 50, 256]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

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


AXES = tuple(field.name for field in dataclasses.fields(ShapeSettings) if field.name != "name")
_ENDS = 3


def read_shapes(path: Path) -> tuple[ShapeSettings, ...]:
    """Return the file's profiles; axes that a profile does not name keep their defaults.

    Raises:
        ExportError: unreadable, an unknown axis, or three numbers that are no range.
    """
    try:
        profiles = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, yaml.YAMLError) as err:
        raise ExportError(f"{path} can't be read as YAML: {err}") from err
    if not isinstance(profiles, dict) or not profiles:
        raise ExportError(f"{path}: expected profile names, each with axes such as `streams: [1, 16, 64]`")
    return tuple(_profile(path, str(name), axes) for name, axes in profiles.items())


def _profile(path: Path, name: str, axes: object) -> ShapeSettings:
    if not isinstance(axes, dict):
        raise ExportError(f"{path}: profile {name} has {axes!r}, expected axes such as `streams: [1, 16, 64]`")
    unknown = sorted(str(axis) for axis in axes if axis not in AXES)
    if unknown:
        raise ExportError(f"{path}: profile {name} has the unknown axes {unknown}; known are {sorted(AXES)}")
    ranges = {axis: _range(path, f"{name}.{axis}", sizes) for axis, sizes in axes.items()}
    return ShapeSettings(name=name, **ranges)


def _range(path: Path, label: str, sizes: object) -> AxisRange:
    try:
        if not isinstance(sizes, list) or len(sizes) != _ENDS or not all(type(size) is int for size in sizes):
            raise ValueError("three whole numbers are needed")
        return AxisRange(*sizes)
    except ValueError as err:
        raise ExportError(f"{path}: {label} is {sizes!r}, expected [min, opt, max] with 0 < min <= opt <= max") from err
