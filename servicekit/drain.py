"""`python -m servicekit.drain`: wait until a service has nothing under way, so that it can be stopped without loss.

For the hook that an orchestrator runs before it stops a container. It reads the service's Prometheus metrics and
nothing else; stopping is the orchestrator's work. It always ends with status 0: a service where nobody listens has
nothing left to wait for, and one that is too busy to answer is asked until the time is up.
"""

from __future__ import annotations

import argparse
import http.client
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence

from prometheus_client.parser import text_string_to_metric_families

from servicekit.clock import Clock, SystemClock

_POLL_INTERVAL_S = 0.5
_READ_TIMEOUT_S = 3.0
_MAX_FAILURES = 3
"""Unusable answers in a row, such as 404, after which no metrics are expected there. Silence does not count."""


def main(argv: Sequence[str] | None = None) -> int:
    """Wait as the command line says; return the exit status."""
    args = _parser().parse_args(argv)
    limits = {"settle_s": args.settle_s, "timeout_s": args.timeout_s}
    reason = wait_until_idle(lambda: _read(args.url), args.metric, **limits, clock=SystemClock(), sleep=time.sleep)
    sys.stderr.write(f"drain: {reason}\n")
    return 0


def wait_until_idle(
    read_metrics: Callable[[], str],
    names: Sequence[str],
    *,
    settle_s: float,
    timeout_s: float,
    clock: Clock,
    sleep: Callable[[float], None],
) -> str:
    """Return when the named gauges are 0, with why.

    Args:
        read_metrics: gives the service's metrics in Prometheus' text format; raises OSError where it can't be asked,
            TimeoutError where it did not answer in time, ConnectionRefusedError where nobody listens.
        names: gauges of what is under way; one that the service does not have counts as 0.
        settle_s: waited first, while those who choose a replica learn that this one is leaving.
        timeout_s: waited at most, `settle_s` included.
    """
    deadline = clock.now() + timeout_s
    sleep(min(settle_s, timeout_s))
    failures = 0
    while True:
        state = "an unknown number is"
        try:
            under_way = sum_of(read_metrics(), names)
            failures = 0
            if under_way == 0:
                return "nothing is under way"
            state = f"{under_way:g}"
        except TimeoutError:
            pass  # busy: unknown is not nothing
        except (OSError, ValueError) as error:  # ValueError: it is no page of metrics
            failures += 1
            if isinstance(error, ConnectionRefusedError) or failures >= _MAX_FAILURES:
                return f"the metrics can't be read ({error}); not waiting"
        if clock.now() >= deadline:
            return f"{state} still under way after {timeout_s:g} s"
        sleep(min(_POLL_INTERVAL_S, max(0.0, deadline - clock.now())))


def sum_of(metrics: str, names: Sequence[str]) -> float:
    """Add up every sample of the named metrics, whatever its labels."""
    samples = (sample for family in text_string_to_metric_families(metrics) for sample in family.samples)
    return sum(sample.value for sample in samples if sample.name in names)


def _read(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=_READ_TIMEOUT_S) as answer:
            text: str = answer.read().decode()
            return text
    except http.client.HTTPException as error:
        raise urllib.error.URLError(str(error)) from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError | ConnectionRefusedError):
            raise error.reason from error
        raise


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m servicekit.drain", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--url", required=True, help="URL of the metrics, such as http://127.0.0.1:8002/metrics")
    gauge = "gauge that counts work under way, such as cosydit_token2wav_open_streams; repeatable: all must be 0"
    add("--metric", action="append", required=True, help=gauge)
    settle = "seconds to wait first, while callers learn that this replica is leaving (default %(default)s)"
    add("--settle-s", type=float, default=5.0, help=settle)
    add("--timeout-s", type=float, default=60.0, help="most seconds to wait (default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
