"""A gateway of two processes over real sockets: what is shared holds whichever of them answers."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from cosydit.stack.process import ServiceProcess, ServiceSpec
from tests.gateway.processes.services import HELD_TEXT, HOST, SLOTS, Services, running_services
from tests.workers import demo_checkpoint, free_ports, wait_until

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
NAMES = ("anna", "bob", "carl", "dora", "eve")
KEYS = "".join(f"{name} sk-{name}-0123456789abcdef {'streams=1' * (name == 'bob')}\n" for name in NAMES)
ANNA, BOB, CARL, DORA, EVE = ({"authorization": f"Bearer sk-{name}-0123456789abcdef"} for name in NAMES)
MANY = [ANNA, CARL, DORA] * 2
"""Callers of all slots; no one of them has so many that the last ones are kept for others."""

FAILING_FORKS = """
import asyncio, errno, itertools
from gateway.__main__ import main

calls, start = itertools.count(1), asyncio.create_subprocess_exec

async def start_or_fail(*command, **options):
    if next(calls) in (3, 4):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    return await start(*command, **options)

asyncio.create_subprocess_exec = start_or_fail
raise SystemExit(main())
"""
"""Program of a gateway whose third and fourth fork fail: the first ones after its start."""


class Gateway:
    """The gateway's parent and its doors."""

    def __init__(self, url: str, metrics_url: str, process: ServiceProcess, services: Services) -> None:
        self.url = url
        self.metrics_url = metrics_url
        self.process = process
        self.services = services

    def workers(self) -> set[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return {int(pid) for pid in children.split()}

    @contextmanager
    def doors(self, each: int = 1) -> Iterator[dict[int, list[httpx.Client]]]:
        """Yield so many clients for each worker; the only connection of each leads there."""
        with ExitStack() as stack:
            found: dict[int, list[httpx.Client]] = {pid: [] for pid in self.workers()}
            for _ in range(60 + 4 * each):
                client = stack.enter_context(one_connection(self.url))
                if (pid := worker_of(client, set(found))) is not None:
                    found[pid].append(client)
                if len(found) == 2 and all(len(clients) >= each for clients in found.values()):
                    yield found
                    return
            raise AssertionError(f"few connections led to some worker: {found}")

    def metric(self, name: str, **labels: str) -> float:
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        lines = httpx.get(f"{self.metrics_url}/metrics").text.splitlines()
        found = [line for line in lines if line.startswith(name) and all(each in line for each in wanted)]
        return sum(float(line.rpartition(" ")[2]) for line in found)


def one_connection(url: str) -> httpx.Client:
    transport = httpx.HTTPTransport(verify=False, limits=httpx.Limits(max_connections=1))
    return httpx.Client(base_url=url, timeout=PATIENCE_S, transport=transport, headers=ANNA)


def worker_of(client: httpx.Client, workers: set[int]) -> int | None:
    """Return the process at the other end of a client's connection; None if the kernel's list misses it just now."""
    response = client.get("/healthz")
    local = response.extensions["network_stream"].get_extra_info("client_addr")[1]
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    inodes = {f"socket:[{line.split()[9]}]" for line in lines if line.split()[2].endswith(f":{local:04X}")}
    return next((pid for pid in workers if inodes & sockets_of(pid)), None)


def sockets_of(pid: int) -> set[str]:
    return {os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd") if os.path.lexists(entry.path)}


def are_ready(doors: dict[int, list[httpx.Client]]) -> bool:
    return all(clients[0].get("/readyz").status_code == 200 for clients in doors.values())


def body(text: str, voice: str = "default") -> dict[str, object]:
    return {"model": "cosydit", "input": text, "voice": voice, "response_format": "pcm"}


@contextmanager
def held_stream(door: httpx.Client, key: dict[str, str] = ANNA) -> Iterator[httpx.Response]:
    """Begin to speak at a worker's door; the speech goes on until the services let go."""
    with door.stream("POST", "/v1/audio/speech", json=body(HELD_TEXT), headers=key) as response:
        yield response


def is_begun(stack: ExitStack, door: httpx.Client, key: dict[str, str]) -> bool:
    """Begin a held stream; whoever was refused before may be let in first, then this one must try again."""
    response = stack.enter_context(held_stream(door, key))
    if response.status_code != 200:
        response.close()
    return response.status_code == 200


def speak(door: httpx.Client, text: str = "Hello there.", voice: str = "default", key: dict[str, str] = ANNA) -> int:
    return door.post("/v1/audio/speech", json=body(text, voice), headers=key).status_code


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder, checkpoint = tmp_path_factory.mktemp("gateway"), demo_checkpoint(tmp_path_factory)
    (folder / "keys.txt").write_text(KEYS)
    port, grpc_port, metrics_port, llm, token2wav = free_ports(5)
    options = ["--port", port, "--grpc-port", grpc_port, "--metrics-port", metrics_port, "--processes", 2]
    options += ["--llm-url", f"http://{HOST}:{llm}", "--llm-backend", "vllm", "--llm-sampling-probe", "off"]
    options += ["--token2wav-url", f"{HOST}:{token2wav}", "--keys-file", folder / "keys.txt"]
    options += ["--created-voices-dir", folder / "voices", "--voices-dir", checkpoint / "voices"]
    options += ["--tokenizer-dir", checkpoint / "llm", "--admission-wait-s", 0.2]
    options += ["--speech-guard", "off"]
    url = f"http://{HOST}:{port}"
    command = [sys.executable, "-c", FAILING_FORKS, *map(str, options)]
    spec = ServiceSpec("gateway", command, f"{url}/readyz", folder / "gateway.log")
    with running_services(llm, token2wav) as services, ServiceProcess(spec) as process:
        process.wait_ready(4 * PATIENCE_S)
        wait_until(lambda: process.spec.log_path.read_text().count("is open (pid") == 2, "both processes")
        yield Gateway(url, f"http://{HOST}:{metrics_port}", process, services)


@pytest.fixture
def doors(gateway: Gateway) -> Iterator[list[list[httpx.Client]]]:
    """Connections to each of the two workers."""
    gateway.services.hold()
    with gateway.doors(SLOTS) as doors:
        yield [doors[pid] for pid in sorted(doors)]
    gateway.services.let_go()
    if gateway.process.returncode is None:
        wait_until(lambda: gateway.metric("cosydit_gateway_streams") == 0, "the end of all streams")


def test_one_scrape_counts_what_all_processes_did(gateway: Gateway, doors: list[list[httpx.Client]]) -> None:
    counted = ("cosydit_gateway_requests_total", "cosydit_gateway_time_to_first_audio_seconds_count")
    before = [gateway.metric(name) for name in counted]
    assert [speak(door) for door in (doors[0][0], doors[1][0], doors[0][1])] == [200] * 3
    wait_until(lambda: [gateway.metric(name) for name in counted] == [count + 3 for count in before], "the count")
    assert gateway.metric("cosydit_gateway_replicas", service="token2wav", state="ready") == 1
    assert httpx.get(f"{gateway.metrics_url}/livez").status_code == 200


def test_all_slots_are_shared_and_the_next_stream_is_refused_at_either_door(
    gateway: Gateway, doors: list[list[httpx.Client]]
) -> None:
    with ExitStack() as stack:
        for number, key in enumerate(MANY):
            assert is_begun(stack, doors[number % 2][number // 2], key)
        for door in (doors[0][-1], doors[1][-1]):
            refused = door.post("/v1/audio/speech", json=body("One more."), headers=EVE)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
            assert int(refused.headers["retry-after"]) >= 1
        gateway.services.let_go()
        wait_until(lambda: speak(doors[0][-1]) == 200, "room")


def test_the_streams_of_a_key_are_counted_over_both_doors(gateway: Gateway, doors: list[list[httpx.Client]]) -> None:
    first, second = doors
    with held_stream(first[0], BOB) as begun:
        assert begun.status_code == 200
        refused = second[0].post("/v1/audio/speech", json=body("And me."), headers=BOB)
        assert (refused.status_code, "limit is 1" in refused.text) == (429, True)
        assert speak(second[0], key=ANNA) == 200
    wait_until(lambda: speak(second[0], key=BOB) == 200, "the end of the stream")


def test_a_killed_process_is_replaced_though_forks_fail_and_takes_nothing_but_its_own_streams(
    gateway: Gateway, doors: list[list[httpx.Client]]
) -> None:
    before = gateway.metric("cosydit_gateway_requests_total")
    killed = min(gateway.workers())
    lost, kept = doors
    with ExitStack() as stack:
        heard = stack.enter_context(held_stream(kept[0])).iter_bytes()
        next(heard)
        for door, key in zip(lost[1:SLOTS], MANY[1:], strict=True):
            wait_until(lambda door=door, key=key: is_begun(stack, door, key), "a place")  # type: ignore[misc]
        assert speak(kept[1], key=EVE) == 429
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: speak(kept[1], key=EVE) == 200, "room at the other one")
        wait_until(lambda: gateway.process.spec.log_path.read_text().count("is open (pid") == 3, "a new process")
        assert gateway.process.spec.log_path.read_text().count("can't be forked") == 2
        with gateway.doors() as alive:
            assert killed not in alive
            wait_until(lambda: are_ready(alive), "readiness")
        gateway.services.let_go()
        assert sum(map(len, heard)) > 0
    assert gateway.metric("cosydit_gateway_requests_total") >= before


def test_a_process_that_hangs_is_replaced(gateway: Gateway) -> None:
    def opened() -> int:
        return gateway.process.spec.log_path.read_text().count("is open (pid")

    before, hung = opened(), max(gateway.workers())
    os.kill(hung, signal.SIGSTOP)
    wait_until(lambda: opened() == before + 1, "a new process")
    with gateway.doors() as alive:
        assert hung not in alive
        wait_until(lambda: are_ready(alive), "readiness")


def test_all_processes_drain_together_and_end_when_the_last_stream_has(
    gateway: Gateway, doors: list[list[httpx.Client]]
) -> None:
    with ExitStack() as stack:
        streams = [stack.enter_context(held_stream(of_worker[0])).iter_bytes() for of_worker in doors]
        for stream in streams:
            next(stream)
        os.kill(gateway.process.pid, signal.SIGTERM)
        for of_worker in doors:
            wait_until(lambda door=of_worker[1]: door.get("/readyz").status_code == 503, "the withdrawal")  # type: ignore[misc]
        assert gateway.process.returncode is None
        gateway.services.let_go()
        assert all(sum(map(len, stream)) > 0 for stream in streams)
    wait_until(lambda: gateway.process.returncode is not None, "the end")
    assert gateway.process.returncode == 0
    log = gateway.process.spec.log_path.read_text()
    assert set(re.findall(r"process=(\d)", log)) == {"0", "1", "2"}
    assert "Traceback" not in log
