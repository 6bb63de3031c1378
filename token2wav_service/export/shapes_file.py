"""Reads the sizes to export for from a YAML file: profile names, each with `[min, opt, max]` of some axes.

default:
  streams: [1, 16, 64]
  chunk_frames: [2, 50, 200]
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import yaml

from token2wav_service.errors import ExportError
from token2wav_service.graphs.shapes import AxisRange, ShapeSettings

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
