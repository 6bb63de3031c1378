"""The table of attacks, and the process that makes them."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import grpc
import httpx
from websockets.exceptions import WebSocketException

from lab.attack import inputs, payloads
from lab.attack.target import Ports
from servicekit.timeouts import timeout
from tests.gateway.doors.raw_http2 import HEALTH, STREAMING, SYNTHESIZE

NICE = 10
"""The attackers' process goes behind the gateway's: attackers have machines of their own."""
_AT_ONCE = 8
_DEAR = 40
_LEFT = (OSError, asyncio.TimeoutError, grpc.aio.AioRpcError, httpx.HTTPError, WebSocketException)
"""What an attacker sees of a gateway that defends itself."""
_RIVA = "/nvidia.riva.tts.RivaSpeechSynthesis"


@dataclass(frozen=True)
class Kind:
    """One kind of input."""

    door: str
    harm: str
    make: Callable[[Ports, random.Random], Awaitable[None]]
    """Makes an input; an AssertionError says what the gateway did wrong."""
    most: int | None = None
    """Most inputs of a run, where one takes long; None: as many as the door's others leave."""
    at_once: int = _AT_ONCE
    """Attackers at once."""
    is_heard: bool = True
    """Whether the honest caller speaks meanwhile, and not only afterwards."""
    most_s: float = inputs.MOST_S
    """Seconds after which an attacker leaves, whatever it waits for."""


KINDS: tuple[Kind, ...] = (
    Kind(
        "gRPC",
        "a message above the limit, no key",
        partial(inputs.unfinished, path=HEALTH, headers=(), declared=63 * payloads.MIB),
    ),
    Kind(
        "gRPC",
        "a large message without end, no key",
        partial(inputs.unfinished, path=HEALTH, headers=(), declared=payloads.LARGEST),
    ),
    Kind(
        "gRPC",
        "a large message without end",
        partial(inputs.unfinished, path=STREAMING, headers=inputs.WITH_KEY, declared=payloads.LARGEST),
    ),
    Kind("gRPC", "a compressed bomb", inputs.bomb, _DEAR),
    Kind("gRPC", "calls without a message, no key", partial(inputs.silent_calls, path=HEALTH, headers=())),
    Kind("gRPC", "calls without a message", partial(inputs.silent_calls, path=SYNTHESIZE)),
    Kind(
        "gRPC",
        "many pronunciations",
        partial(inputs.grpc_call, path=SYNTHESIZE, request=partial(payloads.config, 200_000)),
    ),
    Kind("gRPC", "silent sockets", partial(inputs.silent, door="grpc")),
    Kind("gRPC", "garbage", partial(inputs.raw, door="grpc", data=payloads.garbage)),
    Kind("gRPC", "tiny frames", partial(inputs.raw, door="grpc", data=payloads.frames)),
    Kind("gRPC", "tiny frames of data", partial(inputs.raw, door="grpc", data=payloads.data_frames)),
    Kind("gRPC", "rapid reset", inputs.reset, _DEAR),
    Kind(
        "Riva",
        "a large dictionary",
        partial(inputs.grpc_call, path=f"{_RIVA}/Synthesize", request=partial(payloads.dictionary, 3.5)),
    ),
    Kind(
        "Riva",
        "a small dictionary",
        partial(inputs.grpc_call, path=f"{_RIVA}/Synthesize", request=partial(payloads.dictionary, 0.1)),
    ),
    Kind("Riva", "calls without a message", partial(inputs.silent_calls, path=f"{_RIVA}/SynthesizeOnline")),
    Kind(
        "HTTP",
        "many pronunciations",
        partial(inputs.post, path=payloads.SPEECH, body=partial(payloads.speech, "pronunciations")),
    ),
    Kind(
        "HTTP", "many lexicons", partial(inputs.post, path=payloads.SPEECH, body=partial(payloads.speech, "lexicons"))
    ),
    Kind("HTTP", "nothing but escapes", partial(inputs.post, path=payloads.SPEECH, body=payloads.escapes)),
    Kind("HTTP", "a recording whose header lies", inputs.record, _DEAR),
    Kind("HTTP", "long texts, read slowly", inputs.read_slowly, _DEAR),
    Kind("HTTP", "a tiny temperature", partial(inputs.post, path=payloads.SPEECH, body=payloads.tiny_temperature)),
    Kind("HTTP", "half a head", partial(inputs.raw, door="http", data=payloads.head)),
    Kind("HTTP", "a head of many lines", partial(inputs.raw, door="http", data=payloads.headers)),
    Kind("HTTP", "requests all at once", partial(inputs.raw, door="http", data=payloads.pipelined)),
    Kind("HTTP", "a body without an end", partial(inputs.raw, door="http", data=payloads.body)),
    Kind("HTTP", "a body of tiny chunks", partial(inputs.raw, door="http", data=payloads.chunks)),
    Kind("HTTP", "a body that drips after its answer", inputs.drip),
    Kind("HTTP", "a form of tiny headers", partial(inputs.raw, door="http", data=payloads.form)),
    Kind("HTTP", "a form of empty parts", partial(inputs.raw, door="http", data=payloads.parts)),
    Kind("HTTP", "silent sockets", partial(inputs.silent, door="http")),
    Kind("HTTP", "as many voices as there is room for", inputs.fill_voices, 1, at_once=1, most_s=60.0),
    Kind("WebSocket", "a message without an end", partial(inputs.fragments, size=payloads.MIB, count=4)),
    Kind("WebSocket", "small fragments", partial(inputs.fragments, size=1, count=6000), _DEAR),
    Kind("WebSocket", "many small messages", inputs.messages),
    Kind("WebSocket", "many pronunciations", partial(inputs.message, text=payloads.settings)),
    Kind("WebSocket", "deep JSON", partial(inputs.message, text=lambda: "[" * 100_000)),
    Kind("Wyoming", "silent sockets", partial(inputs.silent, door="wyoming")),
    Kind("Wyoming", "an event without an end", partial(inputs.raw, door="wyoming", data=payloads.event)),
    Kind("Wyoming", "many small events", partial(inputs.raw, door="wyoming", data=payloads.events)),
    Kind("Wyoming", "garbage", partial(inputs.raw, door="wyoming", data=payloads.garbage)),
    Kind("metrics", "silent sockets", partial(inputs.silent, door="metrics")),
    Kind("metrics", "half a head", partial(inputs.raw, door="metrics", data=payloads.head)),
    Kind("metrics", "garbage", partial(inputs.raw, door="metrics", data=payloads.garbage)),
)
"""What is sent to a gateway whose services have room for all."""
FULL_KINDS: tuple[Kind, ...] = (
    Kind("full services", "12 long texts, read in real time", inputs.read_in_real_time, 1, at_once=1, most_s=15.0),
    Kind("processes", "one stands still", inputs.silence_process, 1, 1, is_heard=False, most_s=2 * inputs.REPLACED_S),
    Kind("telemetry", "a library that reports to its maker", inputs.report_home, 1, 1, most_s=60.0),
)
"""What is done to a gateway of two processes whose services have few places."""

DOORS = tuple(dict.fromkeys(kind.door for kind in (*KINDS, *FULL_KINDS)))


def counts(kinds: Sequence[Kind], door: str, total: int) -> dict[Kind, int]:
    """Deal out a door's inputs to its kinds, those that take long first; kinds without any are left out."""
    chosen = sorted((kind for kind in kinds if kind.door == door), key=lambda kind: kind.most or total)
    dealt, left = {}, total
    for number, kind in enumerate(chosen):
        share = -(-left // (len(chosen) - number))
        dealt[kind] = share if kind.most is None else min(kind.most, share)
        left -= dealt[kind]
    return {kind: count for kind, count in dealt.items() if count}


async def _attack(ports: Ports, kind: Kind, count: int, seed: int) -> None:
    turns = asyncio.Semaphore(kind.at_once)

    async def one(number: int) -> None:
        async with turns:
            with suppress(*_LEFT):
                async with timeout(kind.most_s):
                    await kind.make(ports, random.Random(f"{seed} {kind.door} {kind.harm} {number}"))

    await asyncio.gather(*(one(number) for number in range(count)))


def run(ports: Ports, number: int, count: int, seed: int) -> None:
    """Make so many inputs of a kind, in the attackers' process; the kind's number, as its functions can't be sent."""
    asyncio.run(_attack(ports, (*KINDS, *FULL_KINDS)[number], count, seed))


def go_behind() -> None:
    """Lower this process's priority."""
    os.nice(NICE)
