"""Lets a server's streams end before it is stopped: raises its drain flag and watches its own count of open streams.

Needed because tritonserver itself lets none end: from its SIGTERM on it refuses every request, also a stream's next
chunk; `--exit-timeout-secs` only waits for the chunks under way (seen with 2.51).
"""

from __future__ import annotations

import http.client
import re
import threading

from servicekit.clock import Clock, SystemClock
from token2wav_service.serving.process.server import TritonProcess

POLL_INTERVAL_S = 0.2
SETTLE_S = 0.6
"""Seconds until the count includes a stream opened just before the flag; it is published four times a second."""
_PROBE_TIMEOUT_S = 2.0
_NO_STREAMS = 0
_OPEN_STREAMS = re.compile(r"^cosydit_token2wav_open_streams(?:\{.*\})? (\S+)$", re.MULTILINE)


def drain(process: TritonProcess, timeout_s: float, hurry: threading.Event, clock: Clock | None = None) -> bool:
    """Refuse new streams and wait for the open ones.

    Args:
        process: a running server.
        timeout_s: how long at most.
        hurry: set to wait no longer.
        clock: the system's by default.

    Returns:
        Whether none is left; True as well for a server that has no such model or has exited. A server that is too
        busy to say is asked again.
    """
    clock = clock or SystemClock()
    process.raise_drain_flag()
    began_s = clock.now()
    hurry.wait(min(SETTLE_S, timeout_s))
    while process.returncode is None and open_streams(process) != _NO_STREAMS:
        if hurry.is_set() or clock.now() - began_s >= timeout_s:
            return False
        hurry.wait(POLL_INTERVAL_S)
    return True


def open_streams(process: TritonProcess) -> int | None:
    """Return how many streams the server says are open; 0 if it says nothing of them or nobody listens.

    None if it did not answer in time or not in full: it may have any number.
    """
    options = process.options
    connection = http.client.HTTPConnection(options.host, options.metrics_port, timeout=_PROBE_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except ConnectionRefusedError:
        return _NO_STREAMS
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    if answer.status != http.client.OK:
        return None
    found = _OPEN_STREAMS.search(text)
    return int(float(found[1])) if found else _NO_STREAMS
