"""What the signals that end a command mean to the services that it has started."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stopped_by_signals(kill: Callable[[], None]) -> Iterator[None]:
    """Have the first of `STOP_SIGNALS` raise KeyboardInterrupt, and each one after it call `kill`.

    A signal that the command was started to ignore, as by nohup, stays ignored. For the main thread only.

    Args:
        kill: called between any two instructions; it must not wait.
    """
    is_stopping = False

    def answer(number: int, frame: FrameType | None) -> None:
        nonlocal is_stopping
        if is_stopping:
            kill()
            return
        is_stopping = True
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    answered = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in answered:
        signal.signal(number, answer)
    try:
        yield
    finally:
        for number in answered:
            signal.signal(number, before[number])
