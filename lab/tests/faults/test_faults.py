"""The fault campaign: its proxy does what it says, plan and journal can be gone on with, and a short one is clean."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from lab.faults import __main__ as faults
from lab.faults import run, starts, world
from lab.faults.clients import BAD_CLIENTS
from lab.faults.plan import KILL, WIRE_FAULTS, Boundary, Fault, Setting, draw
from lab.faults.proxy import HOST, Direction, FaultyProxy
from lab.faults.run import CALLERS, FaultReport, Journal, figures
from lab.faults.stand_ins import LACKS, LLM_MISBEHAVIOURS, NO_FORKS, TOKEN2WAV_MISBEHAVIOURS, samples_of
from tests.workers import free_ports, is_whole, random_checkpoint

PATIENCE_S = 10.0
WELL = FaultReport(0, "one", "llm", "cut", 0.1, 0.5, False, 4, 0, 0, 0, 2.0, 0.25, 0.5, 1, ())
FEW = [
    Fault(0, Setting.THREE, Boundary.TOKEN2WAV, KILL, 0, at_s=0.6, seconds=0.3),
    Fault(1, Setting.THREE, Boundary.LLM, "half a piece down", 1, at_s=0.5, seconds=0.5),
    Fault(2, Setting.ONE, Boundary.LLM, "half an event", 0, at_s=0.3, seconds=0.3),
    Fault(3, Setting.ONE, Boundary.DOORS, "cancelled gRPC calls", 0, at_s=0.3, seconds=0.3),
    Fault(4, Setting.ONE, Boundary.GATEWAY, NO_FORKS, 0, at_s=0.3, seconds=0.3),
]
"""Of each kind one: a killed process, a broken wire, an answer that makes no sense, a caller who does harm, a lack."""
PLAN = {"faults": 3, "real": 0, "seed": 1}


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[FaultyProxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection through a proxy to a server that says everything twice."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data + data)
        writer.close()

    port, proxy_port = free_ports(2)
    server = await asyncio.start_server(echo, HOST, port)
    proxy = FaultyProxy(port, random.Random(1))
    await proxy.start(proxy_port)
    reader, writer = await asyncio.open_connection(HOST, proxy_port)
    try:
        yield proxy, reader, writer
    finally:
        writer.close()
        await proxy.close()
        server.close()


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes, count: int) -> bytes:
    writer.write(data)
    return await asyncio.wait_for(reader.readexactly(count), PATIENCE_S)


async def test_a_proxy_passes_bytes_and_ends_on() -> None:
    async with proxied() as (_, reader, writer):
        assert await asked(reader, writer, b"abc", 6) == b"abcabc"
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""


async def test_a_cut_connection_is_reset() -> None:
    async with proxied() as (proxy, reader, writer):
        await asked(reader, writer, b"abc", 6)
        proxy.cut()
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(reader.read(), PATIENCE_S)


async def test_half_a_piece_comes_and_garbage_goes_before() -> None:
    async with proxied() as (proxy, reader, writer):
        proxy.garble(Direction.DOWN)
        assert (await asked(reader, writer, b"abc", 206))[-6:] == b"abcabc"
        proxy.halve(Direction.DOWN)
        assert await asked(reader, writer, b"abc", 3) == b"abc"
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(reader.read(), PATIENCE_S)


async def test_a_frozen_and_a_crawling_connection_lose_nothing() -> None:
    async with proxied() as (proxy, reader, writer):
        freezing = asyncio.create_task(proxy.freeze(0.1))
        await asyncio.sleep(0)
        assert await asked(reader, writer, b"abc", 6) == b"abcabc"
        await freezing
        crawling = asyncio.create_task(proxy.crawl(20_000, 0.2))
        await asyncio.sleep(0)
        assert await asked(reader, writer, b"x" * 500, 1000) == b"x" * 1000
        await crawling


async def test_a_refusing_proxy_lets_nobody_in() -> None:
    async with proxied() as (proxy, reader, _):
        refusing = asyncio.create_task(proxy.refuse(0.1))
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(reader.read(), PATIENCE_S)
        await refusing


def test_a_campaign_has_every_fault_and_enough_of_processes() -> None:
    drawn = draw(faults.FAULTS, 1, faults.REAL_FAULTS)
    assert [fault.number for fault in drawn] == list(range(faults.FAULTS))
    assert sum(fault.is_process for fault in drawn) >= 100
    for setting in (Setting.ONE, Setting.THREE):
        kinds = {fault.kind for fault in drawn if fault.setting is setting}
        assert kinds >= {
            *WIRE_FAULTS,
            *LLM_MISBEHAVIOURS,
            *TOKEN2WAV_MISBEHAVIOURS,
            *BAD_CLIENTS,
            *LACKS,
            "kill",
            "full disk",
        }
    assert Counter(fault.setting for fault in drawn)[Setting.REAL] == faults.REAL_FAULTS
    again, other = (draw(faults.FAULTS, seed, faults.REAL_FAULTS) for seed in (1, 2))
    assert drawn == again != other


def test_audio_of_a_stand_in_is_the_same_from_wherever_it_goes_on() -> None:
    tokens = np.arange(40, dtype=np.int64)
    whole = samples_of(3, tokens, 0)
    assert np.array_equal(whole, np.concatenate([samples_of(3, tokens[:7], 0), samples_of(3, tokens[7:], 7)]))
    assert not np.array_equal(whole, samples_of(4, tokens, 0))


def test_figures_count_what_is_wrong() -> None:
    reports = [
        WELL,
        dataclasses.replace(WELL, lost=1, is_process=True, free_s=12.5),
        dataclasses.replace(WELL, crossed=2, free_s=None),
    ]
    found = figures(reports)
    assert (found["faults"], found["process_faults"], found["requests"]) == (3, 1, 12)
    assert (found["lost"], found["crossed"], found["stuck"], found["worst_free_s"]) == (1, 2, 2, 30.0)
    assert [report.is_well for report in reports] == [True, False, False]


def test_a_journal_is_gone_on_with_and_another_plans_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path, PLAN, is_resumed=False).add(WELL)
    with path.open("a") as file:
        file.write('{"number": 1, "sett')  # as when the campaign was killed
    again = Journal(path, PLAN, is_resumed=True)
    assert [dataclasses.replace(report, errors=()) for report in again.reports] == [WELL]
    again.add(dataclasses.replace(WELL, number=1))
    assert [report.number for report in Journal(path, PLAN, is_resumed=True).reports] == [0, 1]
    with pytest.raises(ValueError, match="another campaign"):
        Journal(path, {**PLAN, "seed": 2}, is_resumed=True)
    assert Journal(path, PLAN, is_resumed=False).reports == []


@pytest.mark.slow
@pytest.mark.servers
def test_a_short_campaign_loses_nothing(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(world, "free_ports", free_ports)
    for limit in ("FREE_WITHIN_S", "_FREE_LIMIT_S"):
        monkeypatch.setattr(run, limit, 120.0)  # a busy machine may take its time
    count = 24
    if not is_whole():
        count = len(FEW)
        monkeypatch.setattr(faults, "draw", lambda *_: FEW)
    paths = ["--journal", str(tmp_path / "journal.jsonl"), "--out", str(tmp_path / "out.json")]
    checkpoint = str(random_checkpoint(tmp_path_factory))
    options = ["--faults", str(count), "--real", "0", "--checkpoint", checkpoint, *paths]
    assert faults.main(options) == 0, capsys.readouterr().out
    document = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert [dict(zip(document["columns"], row, strict=True))["number"] for row in document["faults"]] == list(
        range(count)
    )
    found = document["figures"]
    assert (found["faults"], found["requests"]) == (count, CALLERS * count)
    assert (found["lost"], found["stuck"], found["crossed"]) == (0, 0, 0)
    assert faults.main([*options, "--resume"]) == 0
    told = capsys.readouterr().out
    assert told.count(f"{count}/{count} ") == 1, "nothing is left to do"
    assert Boundary.LLM.value in told


@pytest.mark.slow
def test_starts_with_a_taken_port_all_end_and_are_gone_on_with(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--journal", str(tmp_path / "starts.jsonl"), "--checkpoint", str(random_checkpoint(tmp_path_factory))]
    for name in starts.PARTS.keys() - {"refused_ports"}:
        options += [f"--{name.replace('_', '-')}", "0"]
    for count in (len(starts.OPTIONS) - 1, len(starts.OPTIONS)):
        assert starts.main([*options, "--refused-ports", str(count), "--resume"]) == 0
        assert f"refused_port_starts {count}, refused_port_hangs 0," in capsys.readouterr().out
