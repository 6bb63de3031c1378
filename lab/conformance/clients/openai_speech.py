"""What a user of the openai package does, once each; runs in that package's environment and imports nothing of ours.

python openai_speech.py URL DIRECTORY      writes audio and facts.json into DIRECTORY
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import openai

TEXT = "Hello there."
BREAKING_TEXT = "Break here."
LONG_TEXT = "Leave early."
FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
BARE: dict[str, Any] = {"model": "gpt-4o-mini-tts", "voice": "alloy", "input": TEXT}


def main() -> None:
    url, directory = sys.argv[1], Path(sys.argv[2])
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="any")
    facts = {"version": openai.__version__}
    for name in FORMATS:
        client.audio.speech.create(**BARE, response_format=name).write_to_file(directory / f"whole.{name}")
        with client.audio.speech.with_streaming_response.create(**BARE, response_format=name) as answer:
            answer.stream_to_file(directory / f"streamed.{name}")
        (directory / f"events.{name}").write_bytes(_events(client, facts, name))
    client.audio.speech.create(**BARE).write_to_file(directory / "default.mp3")
    client.audio.speech.create(**{**BARE, "voice": {"id": "anna"}}, response_format="pcm").write_to_file(
        directory / "by_id.pcm"
    )
    fast = client.audio.speech.create(**BARE, response_format="pcm", speed=2.0)
    facts["fast_bytes"] = len(fast.content)
    facts["ignored"] = _ignored(client)
    facts["models"] = [model.id for model in client.models.list()]
    facts["model"] = client.models.retrieve("cosydit").id
    facts["voice_error"] = _error_of(lambda: client.audio.speech.create(**{**BARE, "voice": "nobody"}))
    facts["text_error"] = _error_of(lambda: client.audio.speech.create(**{**BARE, "input": ""}))
    facts["model_error"] = _error_of(lambda: client.models.retrieve("gpt-99"))
    facts["broken_stream"] = _broken_stream(client)
    facts["broken_whole"] = _error_of(lambda: client.audio.speech.create(**{**BARE, "input": BREAKING_TEXT}))
    asyncio.run(_speak_async(url, directory))
    _leave_early(client)
    (directory / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def _events(client: openai.OpenAI, facts: dict[str, Any], name: str) -> bytes:
    audio = b""
    with client.audio.speech.with_streaming_response.create(
        **BARE, response_format=name, stream_format="sse"
    ) as answer:
        for line in answer.iter_lines():
            if not line:
                continue
            event = json.loads(line.removeprefix("data: "))
            audio += base64.b64decode(event.get("audio", ""))
    facts["last_event"] = event
    return audio


def _ignored(client: openai.OpenAI) -> list[str | None]:
    answer = client.audio.speech.with_raw_response.create(
        **BARE,
        response_format="pcm",
        instructions="Speak in a cheerful tone.",
        extra_body={"x_unknown": 1, "seed": 7},
        extra_headers={"x-request-id": "mine-1"},
    )
    return [answer.headers.get(name) for name in ("x-ignored-fields", "x-seed", "x-request-id")]


def _error_of(call: Callable[[], object]) -> dict[str, Any]:
    try:
        call()
    except openai.APIError as error:
        return {"kind": type(error).__name__, "code": error.code, "param": error.param, "type": error.type}
    return {"kind": None}


def _broken_stream(client: openai.OpenAI) -> dict[str, Any]:
    received = 0
    body = {**BARE, "input": BREAKING_TEXT, "response_format": "pcm"}
    try:
        with client.audio.speech.with_streaming_response.create(**body) as answer:
            for part in answer.iter_bytes():
                received += len(part)
    except httpx2.RemoteProtocolError as error:
        return {"kind": type(error).__name__, "bytes": received}
    return {"kind": None, "bytes": received}


async def _speak_async(url: str, directory: Path) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
        whole = await client.audio.speech.create(**BARE, response_format="pcm")
        whole.write_to_file(directory / "async_whole.pcm")
        async with client.audio.speech.with_streaming_response.create(**BARE, response_format="pcm") as answer:
            parts = [part async for part in answer.iter_bytes()]
        (directory / "async_streamed.pcm").write_bytes(b"".join(parts))


def _leave_early(client: openai.OpenAI) -> None:
    body = {**BARE, "input": LONG_TEXT, "response_format": "pcm"}
    with client.audio.speech.with_streaming_response.create(**body) as answer:
        next(answer.iter_bytes())


if __name__ == "__main__":
    main()
