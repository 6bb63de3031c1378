"""`python -m gateway`: serve the HTTP door and the gRPC door until stopped."""

from __future__ import annotations

from servicekit.process import quiet_interrupts, run_and_leave

quiet_interrupts()

import os

# Before NumPy is imported: the event loop multiplies small matrices, and would wait until a second thread has a core.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# The thread that waits for gRPC's messages also reads and writes them; four more would take a tenth of all the time.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client")

import logging
import sys

from gateway.access.caller import note_caller
from gateway.access.keys import redact
from gateway.config import parse_args
from gateway.errors import ConfigError
from gateway.processes.parent import run_parent, worker_of
from gateway.serving import serve
from gateway.telemetry.call import note_trace
from servicekit.logs import TEXT_FORMAT, LogFormat, configure_logging

PARENT = 0
"""The parent's number in logs; its workers count from 1."""


def main() -> int:
    """Read the settings and serve; return the exit status."""
    try:
        worker = worker_of(os.environ)
        config = parse_args()
        number = None if config.processes == 1 else PARENT if worker is None else worker.number
        _log(config.telemetry.log_format, number)
        if config.processes > 1 and worker is None:
            return run_parent(config, sys.argv[1:])
        return serve(config, worker)
    except ConfigError as error:
        sys.stderr.write(f"gateway: {error}\n")
        return 2


def _log(log_format: LogFormat, process: int | None) -> None:
    shown = "" if process is None else " process=%(process_number)s"
    configure_logging(log_format, f"{TEXT_FORMAT} caller=%(caller)s{shown}")

    def note_process(record: logging.LogRecord) -> bool:
        record.process_number = process
        return True

    for handler in logging.getLogger().handlers:
        for each in (note_process, note_caller, note_trace, redact):
            handler.addFilter(each)


if __name__ == "__main__":
    run_and_leave(main)
