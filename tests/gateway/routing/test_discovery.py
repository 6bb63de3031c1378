"""Where replicas are found: lists, names, Kubernetes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.errors import ConfigError
from gateway.routing import discovery
from gateway.routing.discovery import DnsReplicas, Found, ReplicaSource, StaticReplicas, merged
from gateway.routing.fleet import LLM, TOKEN2WAV, Fleet
from gateway.routing.kubernetes import KubernetesApi, KubernetesReplicas
from gateway.routing.options import sources_of
from gateway.routing.replica import LoadReport
from gateway.routing.router import Router
from servicekit.clock import SystemClock
from servicekit.tasks import stop
from tests.gateway.llm.server import served
from tests.gateway.routing.fakes import QUICK, until


def _known(sources: list[ReplicaSource]) -> list[str]:
    return [address for source in sources for address in source.known]


def test_a_list_is_read_by_commas() -> None:
    assert _known(sources_of(TOKEN2WAV, "127.0.0.1:8001, host:8011", QUICK)) == ["127.0.0.1:8001", "host:8011"]
    assert _known(sources_of(LLM, "http://a:1/,https://b", QUICK)) == ["http://a:1", "https://b"]


def test_the_forms_may_be_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    sources = sources_of(TOKEN2WAV, "a:1,dns:tts:8001,kubernetes:prod/token2wav:grpc", QUICK)
    assert [type(source).__name__ for source in sources] == ["StaticReplicas", "DnsReplicas", "KubernetesReplicas"]
    assert KubernetesApi.of_this_pod().url == "https://[fd00::1]:443"


async def test_replicas_of_the_llms_token_stream_are_found_by_dns_and_by_kubernetes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    by_dns, by_kubernetes = sources_of(LLM, "dns:grpc://localhost:8100,kubernetes:grpc://prod/llm:grpc", QUICK)
    assert isinstance(by_kubernetes, KubernetesReplicas) and by_kubernetes.scheme == "grpc://"
    (found,) = await _first(by_dns, 1)
    assert found and all(re.fullmatch(r"grpc://(127\.0\.0\.1|\[::1\]):8100", address) for address in found)


@pytest.mark.parametrize(
    "text",
    [
        *("", " , ", "nowhere", "http://a:1", "dns:host", "dns::1", "kubernetes:service:1", "kubernetes:a/b", "a:1,b"),
        *("dns:grpc://host:1", "kubernetes:grpc://a/b:1"),
    ],
)
def test_what_is_no_address_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        sources_of(TOKEN2WAV, text, QUICK)


async def _first(source: ReplicaSource, count: int) -> list[Found]:
    found: list[Found] = []
    async with aclosing(source.watch()) as changes:
        async for now in changes:
            found.append(dict(now))
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

    found: list[Found] = []
    monkeypatch.setattr(discovery, "resolve", resolve)
    source = DnsReplicas("tts", 8000, "http://", 0.001)
    task = asyncio.create_task(merged([source], lambda now: found.append(dict(now)), 0.001))
    await until(lambda: len(found) == 2, "the second answer")
    await stop(task)
    assert found == [{"http://10.0.0.1:8000": True}, {"http://10.0.0.1:8000": True, "http://[fd00::2]:8000": True}]


async def test_the_system_s_resolver_finds_this_host() -> None:
    (found,) = await _first(DnsReplicas("localhost", 8001, "", 1.0), 1)
    assert {"127.0.0.1:8001", "[::1]:8001"} & set(found)


async def test_sources_are_told_together() -> None:
    told: list[Found] = []
    sources: list[ReplicaSource] = [StaticReplicas(["a"]), StaticReplicas(["b"])]
    await merged(sources, told.append, 1.0)
    assert told[-1] == {"a": True, "b": True}


@dataclass
class FakeApi:
    """The part of a Kubernetes API that serves EndpointSlices."""

    slices: dict[str, Any] = field(default_factory=dict)
    version: int = 1
    events: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    tokens: list[str] = field(default_factory=list)
    lists: int = 0
    status: int = 200

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.path == "/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices"
        assert request.query["labelSelector"] == "kubernetes.io/service-name=token2wav"
        self.tokens.append(request.headers["Authorization"])
        if self.status != 200:
            return web.Response(status=self.status)
        if "watch" not in request.query:
            self.lists += 1
            items = list(self.slices.values())
            return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": items})
        assert request.query["resourceVersion"] == str(self.version)
        response = web.StreamResponse()
        await response.prepare(request)
        while (event := await self.events.get()) is not None:
            await response.write(json.dumps(event).encode() + b"\n")
        return response


def _slice(name: str, *endpoints: tuple[str, dict[str, bool]], port: int = 8001) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "ports": [{"name": "metrics", "port": 8002}, {"name": "grpc", "port": port}],
        "endpoints": [{"addresses": [address], "conditions": conditions} for address, conditions in endpoints],
    }


@asynccontextmanager
async def _watching(api: FakeApi, tmp_path: Path, port: str = "grpc") -> AsyncIterator[list[Found]]:
    (tmp_path / "token").write_text("secret-1\n")
    found: list[Found] = []
    async with served(api.answer) as url:
        source = KubernetesReplicas(KubernetesApi(url, tmp_path / "token", None), "prod", "token2wav", port, "")
        task = asyncio.create_task(merged([source], lambda now: found.append(dict(now)), 0.1))
        try:
            yield found
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            api.events.put_nowait(None)


READY = {"ready": True, "serving": True, "terminating": False}
DRAINING = {"ready": False, "serving": True, "terminating": True}


@pytest.mark.parametrize("port", ["grpc", "8001"])
async def test_endpoints_are_listed_and_watched(tmp_path: Path, port: str) -> None:
    api = FakeApi({"s1": _slice("s1", ("10.0.0.1", READY), ("10.0.0.2", {"ready": False}), ("10.0.0.3", {}))})
    async with _watching(api, tmp_path, port) as found:
        await until(lambda: found, "the list")
        assert found[-1] == {"10.0.0.1:8001": True, "10.0.0.3:8001": True}
        api.events.put_nowait({"type": "ADDED", "object": _slice("s2", ("fd00::4", READY))})
        await until(lambda: len(found) == 2, "an addition")
        assert found[-1]["[fd00::4]:8001"]
        api.events.put_nowait({"type": "MODIFIED", "object": _slice("s1", ("10.0.0.1", DRAINING))})
        await until(lambda: len(found) == 3, "a change")
        assert found[-1] == {"10.0.0.1:8001": False, "[fd00::4]:8001": True}
        api.events.put_nowait({"type": "DELETED", "object": _slice("s1")})
        await until(lambda: len(found) == 4, "a removal")
        assert found[-1] == {"[fd00::4]:8001": True}


async def test_an_outdated_watch_lists_again_with_the_token_of_the_day(tmp_path: Path) -> None:
    api = FakeApi({"s1": _slice("s1", ("10.0.0.1", READY))})
    async with _watching(api, tmp_path) as found:
        await until(lambda: found, "the list")
        (tmp_path / "token").write_text("secret-2")
        api.slices = {"s1": _slice("s1", ("10.0.0.9", READY))}
        api.version = 7
        api.events.put_nowait({"type": "ERROR", "object": {"code": 410}})
        await until(lambda: {"10.0.0.9:8001": True} in found, "the second list")
        assert api.tokens[0] == "Bearer secret-1" and api.tokens[-1] == "Bearer secret-2"


async def test_an_api_that_refuses_is_asked_again_and_takes_no_replica_away(tmp_path: Path) -> None:
    api = FakeApi({"s1": _slice("s1", ("10.0.0.1", READY))}, status=403)
    async with _watching(api, tmp_path) as found:
        await until(lambda: len(api.tokens) >= 1, "a refusal")
        assert not found
        api.status = 200
        await until(lambda: found, "the list")
        api.status = 500
        api.events.put_nowait(None)
        await until(lambda: len(api.tokens) >= 4, "another failure")
        assert found[-1] == {"10.0.0.1:8001": True}


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
