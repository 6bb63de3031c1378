"""An embedded server on a real socket, in this process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from llm_service.config import LLMBackend, parse_server_config
from llm_service.embedded.serve import build_app
from servicekit.clock import SystemClock

WAIT_S = 60.0


@contextmanager
def embedded_server(model_dir: Path) -> Iterator[str]:
    """Yield the URL of a server of `model_dir`."""
    settings = {"model_dir": str(model_dir), "max_batch_size": 2, "max_seq_len": 1024, "num_threads": 1}
    config = parse_server_config(LLMBackend.EMBEDDED, settings)
    with running(build_app(config, SystemClock())) as url:
        yield url


@contextmanager
def running(app: Any) -> Iterator[str]:
    """Yield the URL at which an ASGI application answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        deadline = time.monotonic() + WAIT_S
        try:
            while not server.started:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
