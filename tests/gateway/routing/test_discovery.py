"""Where replicas are found: lists and names."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from gateway.errors import ConfigError
from gateway.routing import discovery
from gateway.routing.discovery import DnsReplicas, ReplicaSource, StaticReplicas, merged, sources_of
from gateway.routing.fleet import LLM, TOKEN2WAV, Fleet
from gateway.routing.replica import LoadReport
from gateway.routing.router import Router
from servicekit.clock import SystemClock
from servicekit.tasks import stop
from tests.gateway.routing.fakes import QUICK, until


def _known(sources: list[ReplicaSource]) -> list[str]:
    return [address for source in sources for address in source.known]


def test_a_list_is_read_by_commas() -> None:
    assert _known(sources_of(TOKEN2WAV, "127.0.0.1:8001, host:8011", QUICK)) == ["127.0.0.1:8001", "host:8011"]
    assert _known(sources_of(LLM, "http://a:1/,grpc://b:8100", QUICK)) == ["http://a:1", "grpc://b:8100"]


async def test_the_forms_may_be_mixed() -> None:
    listed, named = sources_of(LLM, "http://a:1,dns:grpc://localhost:8100", QUICK)
    (found,) = await _first(named, 1)
    assert list(listed.known) == ["http://a:1"]
    assert found and all(re.fullmatch(r"grpc://(127\.0\.0\.1|\[::1\]):8100", address) for address in found)


@pytest.mark.parametrize(
    "text",
    [
        *("", " , ", "nowhere", "http://a:1", "dns:host", "dns::1", "dns:grpc://host:1", "kubernetes:a/b:1"),
        "a:1,b",
    ],
)
def test_what_is_no_address_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        sources_of(TOKEN2WAV, text, QUICK)


@pytest.mark.parametrize("text", ["grpc://llm", "ftp://llm"])
def test_what_is_no_url_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match="grpc://"):
        sources_of(LLM, text, QUICK)


async def _first(source: ReplicaSource, count: int) -> list[list[str]]:
    found: list[list[str]] = []
    async with aclosing(source.watch()) as changes:
        async for now in changes:
            found.append(list(now))
            if len(found) == count:
                break
    return found


async def test_a_name_is_looked_up_again_and_again_and_keeps_its_replicas_when_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[Sequence[str] | OSError] = [["10.0.0.1"], OSError("no DNS"), [], ["10.0.0.1", "fd00::2"]]

    async def resolve(host: str, port: int) -> Sequence[str]:
        assert (host, port) == ("tts", 8000)
        answer = answers.pop(0) if answers else OSError("no more")
        if isinstance(answer, OSError):
            raise answer
        return answer

    found: list[list[str]] = []
    monkeypatch.setattr(discovery, "resolve", resolve)
    source = DnsReplicas("tts", 8000, "http://", 0.001)
    task = asyncio.create_task(merged([source], lambda now: found.append(list(now)), 0.001))
    await until(lambda: len(found) == 2, "the second answer")
    await stop(task)
    assert found == [["http://10.0.0.1:8000"], ["http://10.0.0.1:8000", "http://[fd00::2]:8000"]]


async def test_the_system_s_resolver_finds_this_host() -> None:
    (found,) = await _first(DnsReplicas("localhost", 8001, "", 1.0), 1)
    assert {"127.0.0.1:8001", "[::1]:8001"} & set(found)


async def test_sources_are_told_together() -> None:
    told: list[list[str]] = []
    sources: list[ReplicaSource] = [StaticReplicas(["a"]), StaticReplicas(["b"])]
    await merged(sources, lambda now: told.append(list(now)), 1.0)
    assert told[-1] == ["a", "b"]


class _Client:
    def __init__(self, address: str) -> None:
        self.address = address
        self.is_closed = False

    async def probe(self) -> LoadReport:
        return LoadReport()

    async def close(self) -> None:
        self.is_closed = True


async def test_replicas_that_come_are_probed_and_clients_of_those_that_go_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [["10.0.0.1"], ["10.0.0.2"]]

    async def resolve(host: str, port: int) -> Sequence[str]:
        return answers[0] if len(answers) == 1 else answers.pop(0)

    clients: dict[str, _Client] = {}

    def make(address: str) -> _Client:
        return clients.setdefault(address, _Client(address))

    fleet = Fleet("token2wav", QUICK, SystemClock())
    monkeypatch.setattr(discovery, "resolve", resolve)
    router = Router(fleet, [DnsReplicas("tts", 1, "", 0.1)], make, SystemClock())
    router.start()
    await until(lambda: fleet.addresses == ["10.0.0.1:1"] and fleet.is_ready, "the first")
    await until(lambda: fleet.addresses == ["10.0.0.2:1"] and fleet.is_ready, "the second")
    await until(lambda: clients["10.0.0.1:1"].is_closed, "its end")
    await router.close()
    assert all(client.is_closed for client in clients.values())
