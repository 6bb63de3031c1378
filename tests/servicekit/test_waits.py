"""Every task has an owner and every wait an end; time limits count while the event loop runs."""

from __future__ import annotations

import ast
import asyncio
import re
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from servicekit.timeouts import MAX_EXTENSIONS, TICK_S, LoopLag, Patience, patient_timeout
from tests.virtual_time import ManualClock, run_virtually

ROOT = Path(__file__).parents[2]
PACKAGES = ("servicekit", "gpukit", "llm_service", "token2wav_service", "gateway", "cosydit")
MENTIONS = re.compile(r"create_task|ensure_future|gather|wait|join|acquire|communicate")
MAKERS = ("create_task", "ensure_future")
STOPPERS = {"stop", "cancel"}
OWNED_OTHERWISE = {
    "gateway/voices/registry.py": "a registration goes on for the next request; token2wav's deadline ends it",
    "gateway/lifecycle/shutdown.py": "the drain ends with its time, and the process with it",
    "cosydit/bench/load.py": "every call is gathered and has a deadline",
}
UNBOUNDED = {
    "servicekit/tasks.py": "until_first waits for its works, whose owner stops it",
    "llm_service/embedded/generation.py": "ends with the request or its client, whom uvicorn watches",
    "token2wav_service/serving/process/server.py": "the process was killed",
    "gateway/speech/session.py": "no lock: the session notes that it holds a place",
    "gateway/dialects/grpc/tts_grpc.py": "ends with the speech or its caller",
    "gateway/dialects/elevenlabs/context.py": "the caller gives the time",
    "gateway/dialects/cosyvoice2_dit/drop_in.py": "Triton's own thread waits for room: its queue orders what comes",
    "gateway/token2wav/replica.py": "a fetch has token2wav's deadline",
    "cosydit/certify/run.py": "the process was killed",
    "cosydit/stack/process.py": "the process was killed",
}


@cache
def modules() -> list[tuple[str, ast.Module]]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    return [(name, ast.parse(text)) for name, text in texts.items() if MENTIONS.search(text)]


def calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str, str]]:
    """Yield the calls of methods: the call, what it is called on, and the method's name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and MENTIONS.search(node.func.attr):
            yield node, ast.unparse(node.func.value), node.func.attr


def imports_a_stopper(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == "servicekit.tasks"
        and STOPPERS & {alias.name for alias in node.names}
        for node in ast.walk(tree)
    )


def unowned(name: str, tree: ast.Module) -> Iterator[str]:
    dropped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    is_owner = name == "servicekit/tasks.py" or name in OWNED_OTHERWISE or imports_a_stopper(tree)
    for call, _, method in calls(tree):
        if method in MAKERS and (id(call) in dropped or not is_owner):
            yield f"{name}:{call.lineno}: {method} without an owner that stops it; see servicekit.tasks"


def lossy(name: str, tree: ast.Module) -> Iterator[str]:
    for call, on, method in calls(tree):
        if (on, method) == ("asyncio", "wait_for"):
            yield f"{name}:{call.lineno}: asyncio.wait_for loses cancellations; use servicekit.timeouts.timeout"
        if method == "gather" and any(each.arg == "return_exceptions" for each in call.keywords):
            yield f"{name}:{call.lineno}: gather hides what is lost; use servicekit.tasks.stop"


def unbounded(name: str, tree: ast.Module) -> Iterator[str]:
    awaited = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Await)}
    for call, on, method in calls(tree):
        bounded = bool(call.args[on == "asyncio" :]) or any(each.arg == "timeout" for each in call.keywords)
        # A task that waits ends when it is stopped; a thread does not, nor does who waits for tasks.
        is_blocking = id(call) not in awaited and method in ("join", "wait", "acquire", "communicate")
        if name not in UNBOUNDED and not bounded and (is_blocking or (on, method) == ("asyncio", "wait")):
            yield f"{name}:{call.lineno}: {ast.unparse(call)} may wait for ever"


@pytest.mark.parametrize("fault", [unowned, lossy, unbounded])
def test_every_task_has_an_owner_and_every_wait_an_end(fault: object) -> None:
    found = [told for name, tree in modules() for told in fault(name, tree)]  # type: ignore[operator]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("fault", "excused"), [(unowned, OWNED_OTHERWISE), (unbounded, UNBOUNDED)])
def test_no_exception_is_without_need(fault: object, excused: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = dict(excused)
    monkeypatch.setattr(f"{__name__}.{'OWNED_OTHERWISE' if fault is unowned else 'UNBOUNDED'}", {})
    needed = {name for name, tree in modules() if next(fault(name, tree), None)}  # type: ignore[operator]
    assert set(reasons) - needed - {"servicekit/tasks.py"} == set()


LIMIT_S = 10.0
needs_movable_limits = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="before Python 3.11 a limit can't be moved"
)


async def _waited_s(patience: Patience, clock: ManualClock) -> float:
    """Wait for what never comes; return how long."""
    began_s = clock.now()
    with pytest.raises(asyncio.TimeoutError):
        async with patient_timeout(LIMIT_S, patience.begin(LIMIT_S)):
            await asyncio.Event().wait()
    return clock.now() - began_s


async def _progress(patience: Patience, times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(1.0)
        patience.progressed()


def test_a_wait_ends_with_its_limit_where_nobody_is_served() -> None:
    assert run_virtually(lambda clock: _waited_s(Patience(), clock)) == pytest.approx(LIMIT_S)


@needs_movable_limits
def test_a_wait_goes_on_while_others_are_served_but_not_for_ever() -> None:
    async def wait(clock: ManualClock, times: int) -> float:
        patience = Patience()
        progress = asyncio.create_task(_progress(patience, times))
        waited_s = await _waited_s(patience, clock)
        progress.cancel()
        return waited_s

    assert run_virtually(lambda clock: wait(clock, 5)) == pytest.approx(5.0 + LIMIT_S)
    assert run_virtually(lambda clock: wait(clock, 1000)) == pytest.approx(LIMIT_S * (1 + MAX_EXTENSIONS))


def test_progress_of_before_the_wait_is_none() -> None:
    async def wait(clock: ManualClock) -> float:
        patience = Patience()
        patience.progressed()
        await asyncio.sleep(1.0)
        return await _waited_s(patience, clock)

    assert run_virtually(wait) == pytest.approx(LIMIT_S)


@needs_movable_limits
def test_what_the_loop_stood_still_is_added_once() -> None:
    async def wait(clock: ManualClock) -> float:
        lag = LoopLag()
        asyncio.get_running_loop().call_later(5.0, lag.note, 3.0, 5.0)
        return await _waited_s(Patience(lag), clock)

    assert run_virtually(wait) == pytest.approx(LIMIT_S + 3.0)


async def test_the_lag_of_a_loop_is_what_it_stood_still() -> None:
    lag = LoopLag()
    lag.start()
    try:
        await asyncio.sleep(2 * TICK_S)
        before_s = lag.total_s
        time.sleep(5 * TICK_S)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert lag.total_s - before_s > 3 * TICK_S
        assert lag.is_recent(60.0)
    finally:
        lag.stop()
    assert not LoopLag().is_recent(60.0)


async def test_what_comes_in_time_is_given_and_an_error_inside_is_raised() -> None:
    async with patient_timeout(60.0, lambda: 0.0):
        await asyncio.sleep(0)
    with pytest.raises(ValueError, match="inside"):
        async with patient_timeout(60.0, lambda: 0.0):
            raise ValueError("inside")
