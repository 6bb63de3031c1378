"""Types of command-line arguments that several benchmarks take."""

from __future__ import annotations

import argparse


def count(text: str) -> int:
    """Read an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"got {value}, expected at least 1")
    return value


def zero_or_more(text: str) -> int:
    """Read an integer of at least 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"got {value}, expected 0 or more")
    return value
