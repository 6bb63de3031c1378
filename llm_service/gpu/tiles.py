"""How the matrix products are cut into programs: tile sizes by number of rows, measured on one H200.

None of these choices changes a result: an element's sum runs over K in the same order, in the same parts, whatever the
tile. `parts_of` alone says how many parts a sum has, and depends on the weight's shape only.
"""

from __future__ import annotations

from dataclasses import dataclass

PART_CHANNELS = 448
"""Least length of one part of a sum: two parts of 896 keep all multiprocessors busy where a weight has few rows."""
MAX_PARTS = 4
STEP_CHANNELS = 64
WIDE_COLUMNS = 4096
DEEP_CHANNELS = 2048


@dataclass(frozen=True)
class Tile:
    """One program's share of a product."""

    rows: int
    columns: int
    channels: int  # of one step along K
    warps: int
    stages: int


# Up to so many rows: for a plain weight, one of many columns, one of many channels.
_TILES = (
    (16, Tile(16, 32, 64, 4, 5), Tile(16, 16, 128, 2, 5), Tile(64, 16, 128, 4, 4)),
    (64, Tile(64, 32, 64, 4, 5), Tile(64, 32, 64, 4, 5), Tile(64, 16, 128, 4, 4)),
    (256, Tile(64, 64, 64, 4, 5), Tile(64, 128, 64, 4, 3), Tile(64, 64, 64, 4, 5)),
    (512, Tile(64, 64, 64, 4, 4), Tile(64, 128, 64, 4, 3), Tile(128, 64, 64, 4, 4)),
    (1 << 31, Tile(128, 128, 64, 8, 3), Tile(128, 128, 64, 8, 3), Tile(128, 256, 64, 8, 3)),
)
INTERPRETED = Tile(16, 512, 256, 4, 1)
"""For the interpreter, which pays for every program and every operation, not for their sizes."""


def parts_of(channels: int) -> int:
    """Return into how many parts the sum over K is cut."""
    parts = MAX_PARTS
    while parts > 1 and (channels % (parts * STEP_CHANNELS) or channels // parts < PART_CHANNELS):
        parts //= 2
    return parts


def tile_for(rows: int, columns: int, channels: int) -> Tile:
    """Choose the tile for a product of so many rows with a weight [columns, channels]."""
    plain, wide, deep = next(tiles for most, *tiles in _TILES if rows <= most)
    if columns > WIDE_COLUMNS:
        return wide
    return deep if channels > DEEP_CHANNELS else plain
