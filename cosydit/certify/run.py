"""Runs checks in a process of their own, one after the other, and keeps the certificate up to date behind each.

A check that raises has failed; one whose process dies or hangs has failed too, and the rest goes on in a new process.

`find_faults` is the second half of `cosydit certify --self-test`: every planted fault must be found by name.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import logging
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

from cosydit.certify.check import Check, Findings, NotRunError, Outcome, Plan, Result, all_checks
from cosydit.certify.context import CheckContext
from cosydit.certify.faults import FAULTS, Fault, planted
from servicekit.clock import Clock, SystemClock
from servicekit.extras import missing_extra

logger = logging.getLogger(__name__)

LOG_FILE = "certify.log"
TAIL_BYTES = 3000
TAIL_LINES = 20
STOP_TIMEOUT_S = 60.0
"""Seconds in which the process of the checks must stop its services."""

PATH_WIDTH = 30
FAULTS_FOLDER = "faults"
_SHOWN_FIGURES = 3

OnOutcome = Callable[[Outcome], None]
OnBegin = Callable[[str], None]


@dataclass(frozen=True)
class _Service:
    """A process group that a check has started."""

    pid: int


def run_checks(plan: Plan, checks: Sequence[Check], on_begin: OnBegin, on_outcome: OnOutcome) -> None:
    """Run checks in their order; `on_outcome` gets each one's outcome once, whatever happens to the process.

    Args:
        plan: what is certified.
        checks: those of `all_checks(plan)` that are wanted.
        on_begin: told of the check that runs now.
        on_outcome: told what became of it.
    """
    plan.out_dir.mkdir(parents=True, exist_ok=True)
    left = list(checks)
    while left:
        batch = _first_group(left) if plan.is_gpu else list(left)
        with _Worker(plan, batch) as worker:
            for check in batch:
                outcome = worker.next_outcome(check, on_begin)
                left.remove(check)
                on_outcome(outcome)
                if not worker.is_alive:
                    break


def _first_group(checks: Sequence[Check]) -> list[Check]:
    """Return the checks that share what they open with the first: each group finds the GPU's memory free."""
    return list(itertools.takewhile(lambda check: check.group == checks[0].group, checks))


class _Worker:
    """The process that runs the checks, seen from outside."""

    def __init__(self, plan: Plan, checks: Sequence[Check]) -> None:
        context = multiprocessing.get_context("spawn")
        self._log = plan.out_dir / LOG_FILE
        self._clock: Clock = SystemClock()
        self._connection, theirs = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_work, args=(plan, [(check.path, check.fault) for check in checks], theirs)
        )
        self._theirs = theirs
        self._services: list[int] = []
        self._left = len(checks)
        self.is_alive = True

    def __enter__(self) -> _Worker:
        self._process.start()
        self._theirs.close()
        return self

    def __exit__(self, *details: object) -> None:
        self._stop()

    def next_outcome(self, check: Check, on_begin: OnBegin) -> Outcome:
        """Wait for one check."""
        began_s = self._clock.now()
        start = _size(self._log)
        on_begin(check.path)
        try:
            while self._connection.poll(max(0.0, check.timeout_s - (self._clock.now() - began_s))):
                message = self._connection.recv()
                if isinstance(message, Outcome):
                    self._left -= 1
                    return message
                if isinstance(message, _Service):
                    self._services.append(message.pid)
            reason = f"took longer than {check.timeout_s:.0f} s, and was ended"
        except (EOFError, OSError):
            self._process.join(STOP_TIMEOUT_S)
            reason = f"its process ended with status {self._process.exitcode}"
        self._stop()
        seconds = self._clock.now() - began_s
        return Outcome(
            check.path, Result.FAIL, seconds, reason, check.page, log_tail=_redacted(_tail(self._log, start))
        )

    def _stop(self) -> None:
        """End the process, and whatever it has left running."""
        if not self.is_alive:
            return
        self.is_alive = False
        if self._left:
            self._process.terminate()
        self._process.join(STOP_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._connection.close()
        for pid in self._services if self._process.exitcode else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)


def run_here(context: CheckContext, check: Check) -> Outcome:
    """Run one check in this process; an error of it is its outcome."""
    found = Findings()
    began_s = context.clock.now()
    result, reason = Result.PASS, ""
    try:
        with planted(context, check):
            check.run(context, found)
        if outside := found.outside:
            result, reason = Result.FAIL, "; ".join(figure.describe() for figure in outside)
    except NotRunError as error:
        result, reason = Result.NOT_RUN, str(error)
    except ModuleNotFoundError as error:
        hint = missing_extra(error)
        result, reason = (Result.NOT_RUN, hint) if hint else (Result.FAIL, _told(error))
    except Exception as error:
        logger.exception("%s", check.path)
        result, reason = Result.FAIL, _told(error)
    seconds = context.clock.now() - began_s
    return Outcome(
        check.path,
        result,
        seconds,
        reason,
        check.page,
        tuple(found.figures),
        tuple(found.notes),
        tuple(found.audio),
        found.series,
    )


def _work(plan: Plan, wanted: Sequence[tuple[str, str]], connection: Connection[Any, Any]) -> None:
    """Run checks, by their paths and faults, and send what becomes of them; the whole of the other process."""
    log = plan.out_dir / LOG_FILE
    _log_to(log)
    if not plan.is_gpu:
        # Half of the cores, as a service has: with all of them its threads would wait for each other.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // 2)))
    faulthandler.enable()
    signal.signal(signal.SIGTERM, _interrupt)
    context = CheckContext(plan, on_service=lambda pid: connection.send(_Service(pid)))
    try:
        checks = _looked_up(plan, wanted)
        for check, after in zip(checks, [*checks[1:], None], strict=True):
            start = _size(log)
            logger.info("%s %s", check.path, check.fault)
            outcome = run_here(context, check)
            if after is None or after.group != check.group:
                context.end_group()
            sys.stderr.flush()
            connection.send(_finished(outcome, _tail(log, start)))
    except KeyboardInterrupt:
        logger.info("interrupted")
    finally:
        context.end_group()
        connection.close()


def _looked_up(plan: Plan, wanted: Sequence[tuple[str, str]]) -> list[Check]:
    known = {check.path: check for check in all_checks(plan, [path for path, _ in wanted])}
    return [replace(known[path], fault=fault) for path, fault in wanted]


def _finished(outcome: Outcome, log_tail: str) -> Outcome:
    """Return an outcome as it may be published, with the end of the log."""
    notes = tuple(map(_redacted, outcome.notes))
    return replace(outcome, reason=_redacted(outcome.reason), notes=notes, log_tail=_redacted(log_tail))


def _told(error: BaseException) -> str:
    """Return an error's kind, message and place."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    said = str(error)
    return f"{type(error).__name__}: {said}{place}" if said else f"{type(error).__name__}{place}"


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _log_to(path: Path) -> None:
    """Send what this process and its children print to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr, force=True
    )
    for name in ("httpx", "httpcore", "matplotlib"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _tail(path: Path, start: int) -> str:
    """Return the last lines that were written to a log since it had so many bytes."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(start, _size(path) - TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return "\n".join(lines[-TAIL_LINES:])


def _redacted(text: str) -> str:
    """Leave the user's folder out of what may be published."""
    home = str(Path.home())
    return text.replace(home, "~") if home not in ("", "/") else text


def selected(checks: Sequence[Check], only: Sequence[str]) -> Iterator[Check]:
    """Yield the checks that `--only` means; all of them without it.

    Raises:
        ValueError: a value that means none.
    """
    for prefix in only:
        if not any(check.is_under(prefix) for check in checks):
            areas = sorted({check.area for check in checks})
            raise ValueError(f"got --only {prefix}, expected AREA or AREA/NAME with AREA one of {', '.join(areas)}")
    yield from (check for check in checks if not only or any(check.is_under(prefix) for prefix in only))


def describe(outcome: Outcome) -> str:
    """Return one line for one check."""
    told = outcome.reason or ", ".join(figure.describe() for figure in outcome.figures[:_SHOWN_FIGURES])
    first_line = told.partition("\n")[0]
    return f"{outcome.result.value:8} {outcome.path:{PATH_WIDTH}} {outcome.seconds:6.1f} s  {first_line}"


@dataclass(frozen=True)
class FaultReport:
    """Whether one planted fault was found."""

    fault: Fault
    outcome: Outcome

    @property
    def is_found(self) -> bool:
        """Tell whether its check failed, and said why."""
        return self.outcome.result is Result.FAIL and self.fault.said in self.outcome.reason


def wanted_faults(checks: Sequence[Check], only: Sequence[str]) -> Iterator[Fault]:
    """Yield the faults whose checks are wanted."""
    paths = {check.path for check in selected(checks, only)}
    yield from (fault for fault in FAULTS if fault.check in paths)


def find_faults(plan: Plan, faults: Sequence[Fault], on_report: Callable[[FaultReport], None]) -> None:
    """Plant each fault, run the check that must find it, and tell."""
    by_path = {check.path: check for check in all_checks(plan)}
    checks = [replace(by_path[fault.check], fault=fault.name) for fault in faults]
    waiting = list(faults)
    run_checks(
        replace(plan, out_dir=plan.out_dir / FAULTS_FOLDER),
        checks,
        lambda path: None,
        lambda outcome: on_report(FaultReport(waiting.pop(0), outcome)),
    )
