"""How large the exported graphs' axes may be: settings in frames and streams, and the profiles they make. No torch.

A YAML file may set them: profile names, each with `[min, opt, max]` of some axes.

default:
  streams: [1, 16, 64]
  chunk_frames: [2, 50, 200]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from token2wav_service.errors import ExportError

VOCODER_OVERLAP_FRAMES = 8
"""Mel frames of the previous call that every vocoder call of a stream begins with."""
FBANK_FRAMES_PER_MEL_FRAME = 2
"""Prompt models' frames (100 Hz) for each mel frame (50 Hz)."""
SHORTEST_FBANK_FRAMES = 10
"""Frames of the shortest prompt that is accepted, 120 ms."""
MEL_FRAMES_PER_TOKEN = 2


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

    def over(self, divisor: int) -> AxisRange:
        """Return the range of this axis counted in groups of `divisor`, rounded up."""
        return AxisRange(*(-(-size // divisor) for size in (self.min, self.opt, self.max)))

    def holds(self, size: int) -> bool:
        """True when a size lies in the range."""
        return self.min <= size <= self.max


ONE = AxisRange(1, 1, 1)
"""An axis that is always of size 1."""


@dataclass(frozen=True)
class Profile:
    """Ranges of all axes of a graph that are meant to be used together."""

    name: str
    ranges: Mapping[str, AxisRange]

    def __getitem__(self, axis: str) -> AxisRange:
        return self.ranges[axis]

    def with_axis(self, axis: str, sizes: AxisRange) -> Profile:
        """Return the profile with another range of an axis."""
        return Profile(self.name, {**self.ranges, axis: sizes})


@dataclass(frozen=True)
class ShapeSettings:
    """Sizes the graphs are made for; frames are mel frames (50 Hz)."""

    name: str = "default"
    streams: AxisRange = AxisRange(1, 16, 64)
    """Streams in one batch."""
    chunk_frames: AxisRange = AxisRange(2, 50, 206)
    """Frames a chunk makes; even numbers."""
    voices: AxisRange = AxisRange(1, 4, 64)
    """Voices whose prompts one batch reads."""
    prompt_frames: AxisRange = AxisRange(1, 250, 900)
    """Frames of a voice's prompt; a batch of shorter ones is padded to the longest. 18 s is the longest prompt."""
    window_frames: AxisRange = AxisRange(1, 100, 100)
    """Earlier frames of the stream itself that the estimator sees; with the prompt's, 1000 at most."""
    conformer_window_frames: AxisRange = AxisRange(1, 250, 250)
    """Earlier frames of the stream itself that the encoder sees, beside the frames of the prompt."""
    whole_streams: AxisRange = AxisRange(1, 4, 16)
    """Whole utterances in one batch."""
    whole_frames: AxisRange = AxisRange(2, 750, 2000)
    """Frames of a whole utterance, prompt included; even numbers."""

    def chunk_profiles(self, stride: int = MEL_FRAMES_PER_TOKEN, lookahead_tokens: int = 0) -> tuple[Profile, Profile]:
        """Return the chunk forms' ranges for streams, and for the one chunk that is a voice's prompt.

        `chunk_tokens` includes the look-ahead. A voice's prompt has no history: one column of each kind, ruled out.
        """
        longest = self.prompt_frames.max + self.conformer_window_frames.max
        history = AxisRange(1, self.prompt_frames.opt + self.conformer_window_frames.opt, longest)
        streams = {
            "streams": self.streams,
            "rows": self.streams.times(2),
            "chunk_frames": self.chunk_frames,
            "prompt_rows": self.voices.times(2),
            "prompt_frames": self.prompt_frames,
            "window_frames": self.window_frames,
            "history_frames": history,
        }
        shortest = AxisRange(stride, *(max(stride, n) for n in (self.prompt_frames.opt, self.prompt_frames.max)))
        nothing = dict.fromkeys(("streams", "prompt_frames", "window_frames", "history_frames"), ONE)
        voice = {**nothing, "rows": ONE.times(2), "prompt_rows": ONE.times(2), "chunk_frames": shortest}
        return (
            Profile(f"{self.name}_streams", _with_tokens(streams, stride, lookahead_tokens)),
            Profile(f"{self.name}_voice", _with_tokens(voice, stride, lookahead_tokens)),
        )

    def whole_profile(self, stride: int = MEL_FRAMES_PER_TOKEN) -> Profile:
        """Return the ranges of the whole-utterance forms' axes."""
        ranges = {
            "streams": self.whole_streams,
            "rows": self.whole_streams.times(2),
            "whole_frames": self.whole_frames,
            "whole_tokens": self.whole_frames.over(stride),
        }
        return Profile(self.name, ranges)

    def vocoder_profiles(self, spectrum_columns: int) -> tuple[Profile, Profile]:
        """Return the vocoder's ranges for chunks and for whole utterances.

        Args:
            spectrum_columns: STFT frames per mel frame.
        """
        chunk = AxisRange(1, *(n + VOCODER_OVERLAP_FRAMES for n in (self.chunk_frames.opt, self.chunk_frames.max)))
        return (
            _vocoder_profile(f"{self.name}_chunk", self.streams, chunk, spectrum_columns),
            _vocoder_profile(f"{self.name}_whole", self.whole_streams, self.whole_frames, spectrum_columns),
        )

    def prompt_profile(self) -> Profile:
        """Return the ranges of the two prompt models' axes."""
        ends = self.prompt_frames.times(FBANK_FRAMES_PER_MEL_FRAME)
        frames = AxisRange(*(max(SHORTEST_FBANK_FRAMES, size) for size in (ends.min, ends.opt, ends.max)))
        return Profile(self.name, {"voices": ONE, "fbank_frames": frames, "log_mel_frames": frames})


def _with_tokens(ranges: Mapping[str, AxisRange], stride: int, lookahead_tokens: int) -> dict[str, AxisRange]:
    spoken = ranges["chunk_frames"].over(stride)
    return {
        **ranges,
        "spoken_tokens": spoken,
        "chunk_tokens": spoken.times(1, lookahead_tokens),
        "history_tokens": ranges["history_frames"].over(stride),
    }


def _vocoder_profile(name: str, streams: AxisRange, frames: AxisRange, columns: int) -> Profile:
    ranges = {"streams": streams, "mel_frames": frames, "spectrum_frames": frames.times(columns, 1)}
    return Profile(name, ranges)


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
