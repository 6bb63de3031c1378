"""Ends the tritonserver that a model's process belongs to, when the model is past saving, so that it is restarted."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable

logger = logging.getLogger(__name__)


def server_ender() -> Callable[[Exception], None]:
    """Return what stops this process's server; call it while the model loads, when the server is sure to be there.

    The server ends as at any stop: requests under way are answered first. `python -m token2wav_service.serving` sees
    that nobody asked for it, and ends with a status other than 0.
    """
    server_pid = os.getppid()

    def end_server(error: Exception) -> None:
        if os.getppid() != server_pid:  # gone already; its process id may be another's
            return
        logger.critical("stopping the server (process %d): %s", server_pid, error)
        os.kill(server_pid, signal.SIGTERM)

    return end_server
