"""Chunk policies against the original's recorded schedules, and their own rules."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.chunking.chunker import Chunker, TokenChunk
from gateway.chunking.policies import (
    ChunkPolicy,
    ChunkProgress,
    ChunkSettings,
    ExponentialChunks,
    FixedChunks,
    TimeBasedChunks,
)
from gateway.errors import ConfigError
from tests import ASSETS

TABLES = json.loads((ASSETS / "schedules.json").read_text())["tables"]
UPSTREAM: dict[str, ChunkPolicy] = {"equal": FixedChunks(), "exponential": ExponentialChunks(max_hop_tokens=None)}


def cut(policy: ChunkPolicy, count: int, per_push: int = 1) -> list[TokenChunk]:
    chunker = Chunker(policy)
    chunks = []
    for at in range(0, count, per_push):
        chunks += chunker.push(list(range(at, min(count, at + per_push))))
    return [*chunks, chunker.flush()]


@pytest.mark.parametrize("table", sorted(TABLES))
@pytest.mark.parametrize("per_push", [1, 7, 1000])
def test_recorded_schedules_are_reproduced_however_tokens_arrive(table: str, per_push: int) -> None:
    strategy, _, count = table.partition(":")
    chunks = cut(UPSTREAM[strategy], int(count), per_push)
    assert [[w.start, w.end, w.is_last] for w in chunks] == TABLES[table]
    assert [w.index for w in chunks] == list(range(len(chunks)))


def test_all_recorded_tables_were_found() -> None:
    assert len(TABLES) == 26


@given(st.integers(1, 600), st.integers(1, 50), st.sampled_from(["equal", "exponential", "time_based"]))
def test_windows_speak_every_token_once_and_carry_the_look_ahead(count: int, per_push: int, strategy: str) -> None:
    chunks = cut(ChunkSettings(strategy).policy(), count, per_push)
    spoken = [token for w in chunks[:-1] for token in w.token_ids[:-3]] + list(chunks[-1].token_ids)
    assert spoken == list(range(count))
    for chunk, following in pairwise(chunks):
        assert chunk.token_ids[-3:] == following.token_ids[:3]
        assert not chunk.is_last
    assert chunks[-1].is_last


def test_the_maximum_bounds_exponential_hops() -> None:
    hops = [len(w.token_ids) - 3 for w in cut(ExponentialChunks(max_hop_tokens=60), 400)[:-1]]
    assert hops == [15, 25, 50, 60, 60, 60, 60, 60]


def test_the_first_hop_and_the_others_are_settings() -> None:
    policy = ChunkSettings("equal", token_hop_len=20, token_hop_len_first=10).policy()
    assert [len(w.token_ids) - 3 for w in cut(policy, 60)[:-1]] == [10, 20, 20]
    assert [len(chunk.token_ids) for chunk in cut(FixedChunks(), 40, per_push=40)] == [18, 18, 10]


@pytest.mark.parametrize(
    ("sent", "elapsed_s", "pending", "hop"),
    [
        pytest.param(30, 1.0, 40, 15, id="behind: one unit"),
        pytest.param(75, 1.0, 40, 30, id="ahead by 4: what is pending, rounded down"),
        pytest.param(75, 0.6, 40, 45, id="far ahead: what is pending, rounded up"),
        pytest.param(75, 0.6, 3, 15, id="far ahead, nothing pending: one unit"),
    ],
)
def test_time_based_hops_follow_the_lead_over_playback(sent: int, elapsed_s: float, pending: int, hop: int) -> None:
    progress = ChunkProgress(chunks_sent=2, tokens_sent=sent, tokens_pending=pending, elapsed_s=elapsed_s)
    assert TimeBasedChunks().next_hop(progress) == hop


def test_time_based_decides_when_tokens_come_not_when_the_last_window_went() -> None:
    chunker = Chunker(TimeBasedChunks())
    assert [len(w.token_ids) for w in chunker.push(list(range(33)), elapsed_s=0.01)] == [18, 18]
    assert chunker.push(list(range(45)), elapsed_s=0.01) == [], "48 pending: the next hop is 60"
    assert [len(w.token_ids) for w in chunker.push(list(range(15)), elapsed_s=9.0)] == [63]


@pytest.mark.parametrize(
    "values", [{"dynamic_chunk_strategy": "none"}, {"token_hop_len": 3}, {"token_hop_len_first": 0}]
)
def test_settings_that_cannot_work_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ChunkSettings(**values)  # type: ignore[arg-type]


def test_hops_behind_the_first_are_multiples_where_the_flow_wants_it() -> None:
    chunker = Chunker(ExponentialChunks(first_hop_tokens=7, max_hop_tokens=90), hop_multiple=20)
    chunks = [*chunker.push(list(range(400))), chunker.flush()]
    hops = [after.start - before.start for before, after in pairwise(chunks)]
    assert hops == [7, 20, 40, 80, 80, 80, 80]


def test_a_hop_below_the_multiple_is_the_multiple() -> None:
    chunker = Chunker(FixedChunks(10, 5), hop_multiple=25)
    assert [chunk.start for chunk in chunker.push(list(range(90)))] == [0, 5, 30, 55]
