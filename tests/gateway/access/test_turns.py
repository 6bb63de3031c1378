"""However little it takes to make a parser busy, the event loop has turns for others between a few pieces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

import pytest

from gateway.access.connections import Connections
from gateway.access.turns import PIECE_BYTES, Backlog, Turns
from servicekit.timeouts import timeout

PARTS = 40
SLOW_S = 0.002


class Transport(asyncio.Transport):
    """Notes whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read, self.is_closed = True, False

    def is_closing(self) -> bool:
        return self.is_closed

    def abort(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


def backlog(turns: Turns, parse: Callable[[bytes], None]) -> tuple[Backlog, Transport]:
    transport = Transport()
    return Backlog(turns, transport, parse, transport.resume_reading), transport


@pytest.mark.parametrize("connections", [1, 8])
async def test_all_connections_together_parse_few_pieces_in_a_turn(connections: int) -> None:
    turns, parsed, most = Turns(), list[tuple[int, int]](), 0

    def parse(connection: int, data: bytes) -> None:
        time.sleep(SLOW_S)
        parsed.append((connection, data[0]))

    backlogs = [backlog(turns, partial(parse, number)) for number in range(connections)]
    for each, transport in backlogs:
        each.add(b"".join(bytes([number]) * PIECE_BYTES for number in range(PARTS // connections)))
        assert not transport.is_read
    while any(len(each) for each, _ in backlogs):
        before = len(parsed)
        await asyncio.sleep(0)
        most = max(most, len(parsed) - before)
    assert 1 <= most <= 4
    assert sorted(parsed, key=lambda part: part[0]) == [
        (connection, number) for connection in range(connections) for number in range(PARTS // connections)
    ]
    assert all(transport.is_read for _, transport in backlogs)


async def test_what_begins_is_read_before_what_others_left_and_most_turns_are_free_of_both() -> None:
    turns, parsed, free = Turns(), list[str](), 0

    def parse(connection: str, data: bytes) -> None:
        time.sleep(SLOW_S)
        parsed.append(connection)

    left = [backlog(turns, partial(parse, "left"))[0] for _ in range(8)]
    for each in left:
        each.add(bytes(PARTS // 8 * PIECE_BYTES))
    while len(parsed) < 2 * len(left):  # each has begun, and goes on in turn with another's first piece
        await asyncio.sleep(0)
    new, _ = backlog(turns, partial(parse, "new"))
    before = len(parsed)
    new.add(b"new")
    async with timeout(10.0):
        while any(map(len, left)):
            count = len(parsed)
            await asyncio.sleep(0)
            free += count == len(parsed)
            if count < len(parsed):  # others begin all the time, and what is left is read all the same
                backlog(turns, partial(parse, "new"))[0].add(b"new")
    assert parsed[before] == "new"
    assert free > PARTS, "turns of the event loop between those of parsing"


async def test_what_a_parser_begins_waits_for_it_and_its_failure_ends_one_connection_only() -> None:
    turns, seen = Turns(), list[str]()
    inner, _ = backlog(turns, lambda data: seen.append("inner"))

    def outer(data: bytes) -> None:
        inner.add(b"x")
        seen.append("outer")
        raise ValueError("not what was expected")

    failing, transport = backlog(turns, outer)
    failing.add(bytes(2 * PIECE_BYTES))
    while len(inner):
        await asyncio.sleep(0)
    assert seen == ["outer", "inner"]
    assert transport.is_closed
    assert len(failing) == 0


async def test_a_closed_connection_is_not_parsed_any_more() -> None:
    turns, seen = Connections().turns, list[bytes]()
    closed, transport = backlog(turns, seen.append)
    closed.add(bytes(PIECE_BYTES))
    transport.abort()
    closed.add(b"late")
    assert seen == [bytes(PIECE_BYTES)]
    assert len(closed) == 0
