"""A service that ended comes back; the stack ends only when a kind of service can't be brought back."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from cosydit.stack.process import ServiceSpec, answers
from cosydit.stack.supervisor import LONGEST_DELAY_S, MAX_FAILED_STARTS, SETTLED_S, Supervisor
from tests.virtual_time import ManualClock

pytestmark = pytest.mark.slow

PATIENCE_S = 30.0
READY_TIMEOUT_S = 10.0
LOST_S = 200.0
"""Seconds in which a service that never comes back counts as lost: all pauses, and the time to get ready."""


class FakeService:
    """Runs from the start on; `end` ends it, and `can_start` says whether it runs again when started."""

    def __init__(self, name: str) -> None:
        self.lives = True
        self.spec = ServiceSpec(name, [name], f"ready of {name}", Path(f"{name}.log"), lives=lambda: self.lives)
        self.pid = 1
        self.returncode: int | None = None
        self.can_start = True
        self.starts = 0
        self.kills = 0

    def end(self) -> None:
        self.returncode = -9

    def start(self) -> None:
        self.starts += 1
        self.returncode = None if self.can_start else 3

    def kill(self) -> None:
        self.kills += 1


class Watching:
    """A supervisor over fakes, looked at every half second of its clock; every service that runs is ready."""

    def __init__(self, **kinds: int) -> None:
        self.kinds = {
            kind: [FakeService(f"{kind}{number}") for number in range(count)] for kind, count in kinds.items()
        }
        self.unready: set[str] = set()
        self._clock = ManualClock()
        self._supervisor = Supervisor(self.kinds, READY_TIMEOUT_S, self._clock, lambda url: url not in self.unready)

    def __getitem__(self, kind: str) -> list[FakeService]:
        return self.kinds[kind]

    def go_on(self, seconds: float) -> str | None:
        for _ in range(int(seconds * 2)):
            if (lost := self._supervisor.look()) is not None:
                return lost
            self._clock.seconds += 0.5
        return self._supervisor.look()


def test_a_service_that_answers_no_question_is_killed_and_started_again() -> None:
    watching = Watching(llm=1, gateway=1)
    hung, other = watching["llm"][0], watching["gateway"][0]
    hung.lives = False
    ends_s = time.monotonic() + PATIENCE_S
    while not hung.starts and time.monotonic() < ends_s:
        assert watching.go_on(0.5) is None
        time.sleep(0.001)
        hung.lives = bool(hung.kills)
    assert (hung.kills, hung.starts) == (1, 1)
    assert watching.go_on(100) is None
    assert (hung.starts, other.kills) == (1, 0)


@pytest.mark.parametrize(("answer", "lives"), [(b"HTTP/1.1 503 Busy\r\n\r\n", True), (b"", True), (None, False)])
def test_a_gateway_lives_that_gives_any_answer_or_hangs_up(answer: bytes | None, lives: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer or b"")

        if answer is not None:
            threading.Thread(target=serve, daemon=True).start()
        asked = answers(f"http://127.0.0.1:{server.getsockname()[1]}/healthz", 0.5 if answer is None else PATIENCE_S)
    assert asked is lives


def test_a_service_that_ended_is_started_again_after_a_pause() -> None:
    watching = Watching(llm=1, token2wav=2)
    service = watching["token2wav"][1]
    service.end()
    assert watching.go_on(0.5) is None and service.starts == 0
    assert service.kills == 1, "what is left of its process group must go first"
    assert watching.go_on(1) is None and service.starts == 1
    assert watching["llm"][0].starts == watching["token2wav"][0].starts == 0


def test_a_service_that_ends_again_and_again_waits_longer_each_time_and_is_forgiven_when_it_has_settled() -> None:
    watching = Watching(llm=1)
    (service,) = watching["llm"]
    for pause_s in (1, 2, 4, 8, 16, LONGEST_DELAY_S, LONGEST_DELAY_S):
        service.end()
        starts = service.starts
        assert watching.go_on(pause_s - 0.5) is None and service.starts == starts
        assert watching.go_on(1.5) is None and service.starts == starts + 1
    watching.go_on(SETTLED_S + 1)
    service.end()
    watching.go_on(1.5)
    assert service.starts == 8


def test_the_only_service_of_its_kind_that_can_not_start_ends_the_stack() -> None:
    watching = Watching(llm=1, token2wav=1)
    (service,) = watching["llm"]
    service.can_start = False
    service.end()
    assert watching.go_on(LOST_S) == "llm"
    assert service.starts == MAX_FAILED_STARTS


def test_a_service_that_never_gets_ready_ends_the_stack() -> None:
    watching = Watching(llm=1)
    (service,) = watching["llm"]
    watching.unready.add(service.spec.ready_url)
    service.end()
    assert watching.go_on(LOST_S) == "llm"


def test_a_lost_service_is_still_tried_while_another_of_its_kind_runs() -> None:
    watching = Watching(token2wav=2)
    service = watching["token2wav"][0]
    service.can_start = False
    service.end()
    assert watching.go_on(LOST_S) is None and service.starts > MAX_FAILED_STARTS
    service.can_start = True
    watching.go_on(LONGEST_DELAY_S + 1)
    watching["token2wav"][1].end()
    assert watching.go_on(30) is None


def test_a_program_that_is_gone_counts_as_a_failed_start(caplog: pytest.LogCaptureFixture) -> None:
    watching = Watching(llm=1)
    (service,) = watching["llm"]

    def start() -> None:
        raise FileNotFoundError("no such program")

    service.start = start  # type: ignore[method-assign]
    service.end()
    assert watching.go_on(LOST_S) == "llm"
    assert "llm0 could not be started: no such program" in caplog.text
