"""What callers put into a URL does not get into the log, and what they do wrong is no error of ours there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn
import websockets
from starlette.applications import Starlette
from uvicorn.server import ServerState

from gateway.access.connections import Connections
from gateway.access.http_connection import BoundedProtocol
from gateway.access.http_middleware import guarded
from gateway.access.keys import MAX_WORD_CHARACTERS, new_key, redact
from gateway.access.settings import AccessSettings, http_rules, open_access, uvicorn_options
from gateway.processes.ports import open_port
from tests.gateway.access.door import KEY, keys
from tests.virtual_time import ManualClock


class Log(logging.Handler):
    """Keeps what is logged, as the gateway's handlers do."""

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(redact)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def text(self) -> str:
        return "\n".join(record.getMessage() for record in self.records)


@pytest.fixture
def log() -> Iterator[Log]:
    root, handler = logging.getLogger(), Log()
    loggers = [root, *map(logging.getLogger, ("uvicorn", "uvicorn.error", "uvicorn.access"))]
    before = [(each.level, each.propagate) for each in loggers]
    root.addHandler(handler)
    for each in loggers:
        each.setLevel(logging.INFO)
        each.propagate = True  # other servers of this process may have given them handlers of their own
    yield handler
    root.removeHandler(handler)
    for each, (level, propagates) in zip(loggers, before, strict=True):
        each.setLevel(level)
        each.propagate = propagates


async def ask_everything() -> None:
    """Send a key in the queries of a request and of a WebSocket, and a long path, to a real server."""
    settings = AccessSettings(fixed_keys=keys())
    access = open_access(settings, ManualClock())
    door = guarded(Starlette(), access, http_rules(settings, "127.0.0.1"))
    server = uvicorn.Server(uvicorn.Config(door, log_config=None, **uvicorn_options(settings, access.connections)))
    bound = access.connections.listen(open_port("127.0.0.1", 0, "--port"), "HTTP")
    serving = asyncio.create_task(server.serve([*bound]))
    while not server.started:
        await asyncio.sleep(0.005)
    host = f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            for path in (f"v1/models?api_key={KEY}", "a" * 5000):
                assert (await client.get(f"http://{host}/{path}")).status_code == 401
        with pytest.raises(websockets.InvalidStatus):
            await websockets.connect(f"ws://{host}/v1/audio/speech/stream?xi-api-key={KEY}", proxy=None)
    finally:
        server.should_exit = True
        await serving


async def test_no_key_of_a_query_is_logged_and_no_refusal_is_an_error(log: Log) -> None:
    await ask_everything()
    ours = [record for record in log.records if record.name.startswith("uvicorn")]
    text = "\n".join(record.getMessage() for record in ours)
    assert text.count("401") >= 3 and "/v1/models?..." in text and "/v1/audio/speech/stream?..." in text
    assert KEY not in text and "a" * (MAX_WORD_CHARACTERS + 1) not in text
    assert [record.getMessage() for record in ours if record.levelno >= logging.WARNING] == []


async def test_an_answer_is_sent_before_it_is_logged(log: Log) -> None:
    door = _door({})
    door.access_logger.info("200 for %s", "somebody")
    assert log.text == ""
    await asyncio.sleep(0)
    assert log.text == "200 for somebody"


async def test_an_answer_that_has_a_record_of_its_own_is_logged_once(log: Log) -> None:
    _door({"request_id": "r1"}).access_logger.info("200 for %s", "somebody")
    await asyncio.sleep(0)
    assert log.text == ""


def _door(scope: dict[str, Any]) -> BoundedProtocol:
    parts = {"config": uvicorn.Config(Starlette(), log_config=None), "server_state": ServerState(), "app_state": {}}
    door = BoundedProtocol(Connections(), **parts)
    door.scope = scope  # type: ignore[assignment]
    return door


def test_a_key_of_ours_is_logged_by_nobody(log: Log) -> None:
    key = new_key()
    logging.getLogger("gateway.somewhere").info("got %s", key)
    assert log.text == "got sk-cosydit-..."


def test_other_messages_stay_as_they_are(log: Log) -> None:
    logging.getLogger("gateway.somewhere").info("is it %d? %s", 3, "b" * 500)
    assert log.text == f"is it 3? {'b' * 500}"
