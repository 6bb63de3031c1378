"""A thousand malformed requests: each is refused or cut off, and the next good one is served."""

from __future__ import annotations

import random

import pytest

from gateway.access.access import Access
from gateway.access.caller import CallerLimits
from gateway.access.http_middleware import HttpRules, guarded
from gateway.access.keys import KeyBook
from servicekit.clock import SystemClock
from tests.gateway.access.door import KEY, Wire, keys

pytestmark = pytest.mark.slow

NAMES = (b"authorization", b"xi-api-key", b"origin", b"host", b"content-length", b"x-request-id", b"upgrade", b"a b")
FRAGMENTS = (
    b"Bearer ",
    b"bearer",
    b"Basic ",
    KEY.encode()[:-1],
    b"http://",
    b"https://[",
    b":99999",
    b"%00",
    b",",
    b"-1",
)


def junk(rng: random.Random) -> bytes:
    """Bytes that look a little like what belongs there."""
    parts = [rng.choice((rng.choice(FRAGMENTS), rng.randbytes(rng.randrange(12)))) for _ in range(rng.randrange(6))]
    return b"".join(parts) * rng.choice((1, 1, 1, 300))


async def nobody(scope: object, receive: object, send: object) -> None:
    raise AssertionError("nobody may come in")


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_thousand_malformed_headers_let_nobody_in_and_break_nothing(kind: str) -> None:
    rng = random.Random(5)
    access = Access(KeyBook(keys(), None, CallerLimits(), SystemClock()), CallerLimits(), SystemClock())
    app = guarded(nobody, access, HttpRules(("https://app.example",)))
    for _ in range(1000):
        headers = [(rng.choice(NAMES), junk(rng)) for _ in range(rng.randrange(6))]
        scope = {
            "type": kind,
            "path": rng.choice(("/v1/audio/speech", "/v1/voices")),
            "headers": headers,
            "client": None,
        }
        if kind == "http":
            scope["method"] = rng.choice(("GET", "POST", "OPTIONS"))
        wire = Wire()
        await app(scope, wire.receive, wire.send)
        if kind == "http":
            assert wire.status in (400, 401, 403)
        else:
            assert [message["type"] for message in wire.sent] == ["websocket.close"]
