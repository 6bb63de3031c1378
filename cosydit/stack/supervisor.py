"""Keeps a machine's services running: starts a service again that has ended or hangs, and says so.

    running ──ends, or is killed: no answer──► waiting (backoff) ──► starting ──ready──► running
                                                  ▲                    │ ends, or is not ready in time
                                                  └────────────────────┘

The stack ends only when no service of a kind can be brought back: each has failed to become ready several times.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from cosydit.stack.process import ServiceProcess, answers_ok
from servicekit.clock import Clock

logger = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.5
ASK_INTERVAL_S = 5.0
FAILURES_TO_END = 3
"""Number of questions in a row that a service does not answer, after which it hangs."""
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 30.0
"""Seconds before the first new start, doubled at each further one, until the service has settled; and at most."""
MAX_FAILED_STARTS = 5
"""Failed starts in a row after which a service counts as lost, though it is still tried."""
SETTLED_S = 60.0
"""Seconds without an end after which a service's earlier ends are forgotten."""


class _State(Enum):
    RUNNING = "running"
    WAITING = "waiting"
    STARTING = "starting"


class Supervisor:
    """Watches services that have become ready once."""

    def __init__(
        self,
        kinds: Mapping[str, Sequence[ServiceProcess]],
        ready_timeout_s: float,
        clock: Clock,
        is_ready: Callable[[str], bool] = answers_ok,
    ) -> None:
        """Take over services that are ready; those of one kind can stand in for each other.

        A service that is started must become ready in `ready_timeout_s`. `is_ready` asks a URL once whether its service
        can work.
        """
        parts = (ready_timeout_s, clock, is_ready)
        self._kinds = {kind: [_Watched(service, *parts) for service in services] for kind, services in kinds.items()}

    def watch(self) -> int:
        """Keep the services running; return 1 when a kind of service can't be brought back."""
        while (lost := self.look()) is None:
            time.sleep(POLL_INTERVAL_S)
        logger.error("%s can't be brought back; stopping", lost)
        return 1

    def look(self) -> str | None:
        """Look at every service once and start what is due; return a kind of which every service is lost, or None."""
        for kind, services in self._kinds.items():
            for service in services:
                service.look()
            if all(service.is_lost for service in services):
                return kind
        return None


class _Watched:
    """One service and where it is between an end and its next readiness."""

    def __init__(
        self, service: ServiceProcess, ready_timeout_s: float, clock: Clock, is_ready: Callable[[str], bool]
    ) -> None:
        self._service = service
        self._ready_timeout_s = ready_timeout_s
        self._clock = clock
        self._is_ready = is_ready
        self._state = _State.RUNNING
        self._since_s = clock.now()
        self._restarts = 0
        self._failed_starts = 0
        self._life = _Life(service.spec.lives, clock)

    @property
    def is_lost(self) -> bool:
        return self._failed_starts >= MAX_FAILED_STARTS

    @property
    def _delay_s(self) -> float:
        return min(FIRST_DELAY_S * 2.0**self._restarts, LONGEST_DELAY_S)

    def look(self) -> None:
        if self._state is _State.RUNNING:
            self._look_at_running()
        elif self._state is _State.WAITING:
            if self._waited_s() >= self._delay_s:
                self._start()
        elif self._state is _State.STARTING:
            self._look_at_starting()

    def _look_at_running(self) -> None:
        if self._service.returncode is not None:
            self._note_end()
            self._wait()
        elif self._life.is_over():
            spec = self._service.spec
            logger.error("%s (pid %d) does not answer; killing it; see %s", spec.name, self._service.pid, spec.log_path)
            self._wait()
        elif self._waited_s() >= SETTLED_S:
            self._restarts = 0

    def _look_at_starting(self) -> None:
        spec = self._service.spec
        if self._service.returncode is not None:
            self._note_end()
            self._fail()
        elif self._is_ready(spec.ready_url):
            logger.info("%s is ready again (pid %d)", spec.name, self._service.pid)
            self._failed_starts = 0
            self._life = _Life(spec.lives, self._clock)
            self._enter(_State.RUNNING)
        elif self._waited_s() >= self._ready_timeout_s:
            logger.error("%s is not ready after %.0f s; see %s", spec.name, self._waited_s(), spec.log_path)
            self._fail()

    def _start(self) -> None:
        self._restarts += 1
        try:
            self._service.start()
        except OSError as error:
            logger.error("%s could not be started: %s", self._service.spec.name, error)
            self._fail()
        else:
            self._enter(_State.STARTING)

    def _fail(self) -> None:
        self._failed_starts += 1
        self._wait()

    def _wait(self) -> None:
        # What is left of the old process group would hold the ports and the memory that the new one needs.
        self._service.kill()
        logger.warning("starting %s again in %.0f s", self._service.spec.name, self._delay_s)
        self._enter(_State.WAITING)

    def _note_end(self) -> None:
        spec = self._service.spec
        logger.error("%s ended with status %s; see %s", spec.name, self._service.returncode, spec.log_path)

    def _enter(self, state: _State) -> None:
        self._state = state
        self._since_s = self._clock.now()

    def _waited_s(self) -> float:
        return self._clock.now() - self._since_s


class _Life:
    """Asks a service again and again whether it still works, in threads: a question takes seconds if it hangs."""

    def __init__(self, lives: Callable[[], bool] | None, clock: Clock) -> None:
        self._lives = lives
        self._clock = clock
        self._asked_s = clock.now()
        self._failures = 0
        self._asking: threading.Thread | None = None

    def is_over(self) -> bool:
        """Ask if it is time and no question is open; tell whether too many had no answer."""
        is_open = self._asking is not None and self._asking.is_alive()
        if self._lives is not None and not is_open and self._clock.now() - self._asked_s >= ASK_INTERVAL_S:
            self._asked_s = self._clock.now()
            self._asking = threading.Thread(target=self._ask, args=(self._lives,), name="lives", daemon=True)
            self._asking.start()
        return self._failures >= FAILURES_TO_END

    def _ask(self, lives: Callable[[], bool]) -> None:
        self._failures = 0 if lives() else self._failures + 1
