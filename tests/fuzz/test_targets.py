"""Every parser of bytes from outside raises what it promises and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import Target, targets
from tests.workers import is_whole

FOUND = Path(__file__).parent / "found"
EXAMPLES = 5000 if is_whole() else 150


@st.composite
def damaged(draw: st.DrawFn, target: Target) -> bytes:
    """An example with pieces changed, doubled, moved or cut off."""
    data = bytearray(draw(st.sampled_from(target.seeds)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        piece = draw(st.binary(max_size=3) | st.sampled_from(_NASTY) | st.just(bytes(data[at : at + 40])))
        data[at : at + draw(st.integers(0, 8))] = piece
    return bytes(data)


_NASTY = (
    b"[" * 3000,
    b"<a>" * 500,
    b"\xff",
    b"\0",
    b"-1",
    b"1e999",
    b"NaN",
    b"null",
    b"{}",
    b'"',
    b"\xed\xa0\x80",
    b"9" * 400,
)


@pytest.mark.parametrize("name", targets())
def test_no_bytes_make_a_parser_raise_what_it_does_not_promise(name: str) -> None:
    target = targets()[name]

    @settings(max_examples=EXAMPLES)
    @given(damaged(target) | st.binary(max_size=200))
    def try_on(data: bytes) -> None:
        target.try_on(data)

    try_on()


@pytest.mark.parametrize("name", targets())
def test_the_examples_make_sense(name: str) -> None:
    for seed in targets()[name].seeds:
        targets()[name].run(seed)


@pytest.mark.parametrize("path", sorted(FOUND.glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_once_broke_a_parser_does_so_no_more(path: Path) -> None:
    targets()[path.parent.name].try_on(path.read_bytes())
