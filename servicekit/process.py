"""Manages a server's own process: turns of its threads, errors at its start, its end, and its memory.

A full garbage collection looks at every object there is, and everything else in the process waits for it. Nearly all
objects of our servers are there from the start and stay (modules, grammars of the text front end, models): without
them a collection has only what requests have left behind.

Measured on the gateway: 93 000 objects, 44 ms for a full collection, every ten seconds or so under load; exempted,
under 1 ms.

glibc keeps most of what is freed, in a heap for each thread. Measured on token2wav's engine on a CPU: 796 MB after 16
streams at once had ended, of which 311 MB were in use.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

SWITCH_INTERVAL_S = 0.0002
"""How long a thread may keep the interpreter while another one wants it; Python's own 5 ms are longer than a step."""
_LIBC = ctypes.CDLL(None)
_BIND_AND_BECOME = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); "  # PR_SET_PDEATHSIG, SIGTERM
    "os.getppid() == int(sys.argv[1]) or sys.exit('the parent is gone'); os.execvp(sys.argv[2], sys.argv[2:])"
)
_LIFESPAN, _FAILED, _SHUTDOWN = "lifespan", "lifespan.startup.failed", "lifespan.shutdown"
_INTERRUPTED = 128 + signal.SIGINT
_END_S = 10.0
"""Seconds after which a server that could not start, or that should have ended by now, is ended."""


def take_turns_often(interval_s: float = SWITCH_INTERVAL_S) -> None:
    """Have this process's threads take turns at the interpreter so often that none waits for long.

    A thread that waited for the GPU or a socket must have the interpreter back before it goes on: with Python's default
    it waits 5 ms each time while another thread works, some ten times in a step.
    """
    sys.setswitchinterval(interval_s)


def raise_open_files() -> int:
    """Let this process open as many files and sockets as it is allowed to ask for; return how many that are.

    Many systems give 1,024 unless asked, and a server that has no more stops to accept anything.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def end_soon(after_s: float = 0.0) -> None:
    """End this process some seconds after it should have ended by itself; say where its threads stood.

    For a server that could not start or is asked to stop. A later call counts instead of an earlier one. The thread
    that ends the process is not Python's, so that it works whoever holds the interpreter.

    Args:
        after_s: seconds that its own end may take; then it is given `_END_S` more.
    """
    faulthandler.dump_traceback_later(after_s + _END_S, exit=True)


def ended_with_parent(command: Sequence[str]) -> list[str]:
    """Return a command that becomes another one, to which Linux sends SIGTERM when the thread that starts it is gone.

    `preexec_fn` could do the same, but a fork under gRPC's threads may crash.
    """
    return [sys.executable, "-I", "-S", "-c", _BIND_AND_BECOME, str(os.getpid()), *command]


def quiet_interrupts() -> None:
    """Have an interrupt end this process without a traceback; to be called before imports that take seconds."""

    def tell(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, traceback)

    sys.excepthook = tell


def run_and_leave(main: Callable[[], int]) -> NoReturn:
    """Call a server's `main` and end this process with the status it returns or exits with, log and output written.

    Python's own way to end stops all threads but this one; gRPC's, waiting for the interpreter then, have kept a
    process from ending at all, rarely. What `main` opened must be closed when it returns: nothing at exit is called.
    """
    try:
        status = main()
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
        if isinstance(exit_.code, str):
            sys.stderr.write(f"{exit_.code}\n")
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader has gone
            stream.flush()
    os._exit(status)


def failing_plainly(app: App, *kinds: type[Exception], is_serving: Callable[[], bool]) -> App:
    """Wrap an ASGI application, so that errors of these kinds at its start are logged by their message alone.

    A server that could not start, or could not open its own door, is ended soon, whatever hangs in it.

    Args:
        is_serving: whether that door was opened.
    """

    async def plain(scope: Any, receive: Receive, send: Send) -> None:
        async def hear() -> Message:
            message = await receive()
            if message["type"] == _SHUTDOWN and not is_serving():
                end_soon()
            return message

        async def tell(message: Message) -> None:
            if message["type"] == _FAILED:
                end_soon()
                if isinstance(error := sys.exc_info()[1], kinds):  # the framework sends the whole trace
                    message = {**message, "message": str(error)}
            await send(message)

        await (app(scope, hear, tell) if scope["type"] == _LIFESPAN else app(scope, receive, send))

    return plain


YOUNG_OBJECTS = 10_000
"""New objects between two collections; Python's own 700 cost a gateway 2 % of its time."""


def exempt_startup_objects() -> None:
    """Keep every object that is alive now out of all later collections, and collect more rarely.

    For a process that has started completely.

    What dies later is freed as ever by its reference count. Cycles among these objects are not found any more, so this
    is for objects that live as long as the process.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


def resident_bytes() -> int:
    """Return the memory that this process holds; 0 where the system does not tell it as Linux does."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            pages = int(file.read().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def return_freed_memory() -> None:
    """Give the kernel what was freed and the C library has kept; tens of milliseconds for a gigabyte.

    Other threads that allocate wait meanwhile. Does nothing where the C library has no such function.
    """
    trim = getattr(_LIBC, "malloc_trim", None)
    if trim is not None:
        trim(0)
