"""Where replicas are found: lists and names, and how they and their handling are given on the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gateway.config import GatewayConfig, parse_args
from gateway.errors import ConfigError
from gateway.routing import discovery
from gateway.routing.discovery import DnsName, Places, follow, places_of, resolve
from gateway.routing.fleet import LLM, TOKEN2WAV, Fleet
from gateway.routing.replica import LoadReport, RoutingSettings
from gateway.routing.router import Router
from servicekit.clock import SystemClock
from servicekit.tasks import stop
from tests.gateway.routing.fakes import QUICK, until


def test_a_list_is_read_by_commas() -> None:
    assert places_of(TOKEN2WAV, "127.0.0.1:8001, host:8011") == Places(("127.0.0.1:8001", "host:8011"))
    assert places_of(LLM, "http://a:1/,grpc://b:8100") == Places(("http://a:1", "grpc://b:8100"))


async def test_the_forms_may_be_mixed() -> None:
    places = places_of(LLM, "http://a:1,dns:grpc://localhost:8100,dns:b:2")
    assert places == Places(("http://a:1",), (DnsName("localhost", 8100, "grpc://"), DnsName("b", 2, "http://")))


@pytest.mark.parametrize(
    "text",
    [
        *("", " , ", "nowhere", "http://a:1", "dns:host", "dns::1", "dns:grpc://host:1", "kubernetes:a/b:1"),
        "a:1,b",
    ],
)
def test_what_is_no_address_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        places_of(TOKEN2WAV, text)


@pytest.mark.parametrize("text", ["grpc://llm", "ftp://llm"])
def test_what_is_no_url_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match="grpc://"):
        places_of(LLM, text)


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
    places = Places(("http://a:1",), (DnsName("tts", 8000, "http://"),))
    task = asyncio.create_task(follow(places, lambda now: found.append(list(now)), 0.001))
    await until(lambda: len(found) == 2, "the second answer")
    await stop(task)
    first = ["http://a:1", "http://10.0.0.1:8000"]
    assert found == [first, [*first, "http://[fd00::2]:8000"]]


async def test_the_system_s_resolver_finds_this_host() -> None:
    assert {"127.0.0.1", "::1"} & set(await resolve("localhost", 8001))


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
    router = Router(fleet, Places((), (DnsName("tts", 1, ""),)), make, SystemClock())
    router.start()
    await until(lambda: fleet.addresses == ["10.0.0.1:1"] and fleet.is_ready, "the first")
    await until(lambda: fleet.addresses == ["10.0.0.2:1"] and fleet.is_ready, "the second")
    await until(lambda: clients["10.0.0.1:1"].is_closed, "its end")
    await router.close()
    assert all(client.is_closed for client in clients.values())


REQUIRED = ["--tokenizer-dir", "t", "--voices-dir", "v"]


def _parsed(*options: str) -> GatewayConfig:
    return parse_args([*REQUIRED, *options])


def test_one_replica_of_each_is_the_default() -> None:
    config = _parsed()
    assert (config.llm_url, config.token2wav_url) == ("http://127.0.0.1:8000", "127.0.0.1:8001")
    assert config.routing == RoutingSettings()


def test_replicas_come_by_commas_and_by_repeating_the_option() -> None:
    config = _parsed("--token2wav-url", "a:1,b:2", "--token2wav-url", "c:3", "--llm-url", "http://l:1")
    assert places_of(TOKEN2WAV, config.token2wav_url).listed == ("a:1", "b:2", "c:3")
    assert places_of(LLM, config.llm_url).listed == ("http://l:1",)


def test_how_long_a_request_waits_can_be_set() -> None:
    config = _parsed("--admission-wait-s", "0", "--drain-delay-s", "3")
    assert (config.routing.admission_wait_s, config.drain_delay_s) == (0.0, 3.0)


@pytest.mark.parametrize(
    "options",
    [
        ["--llm-url", "http://a:1,127.0.0.1:2"],
        ["--token2wav-url", "a:1,dns:b"],
        ["--admission-wait-s", "-1"],
        ["--admission-wait-s", "nan"],
    ],
)
def test_what_can_t_work_is_a_config_error(options: list[str]) -> None:
    with pytest.raises(ConfigError):
        _parsed(*options)
