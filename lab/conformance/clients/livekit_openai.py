"""LiveKit's openai plugin outside a room; runs in its own environment and imports nothing of ours.

python livekit_openai.py URL DIRECTORY      writes audio and facts.json into DIRECTORY
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from livekit.agents import APIConnectOptions, APIError, tokenize, tts
from livekit.plugins import openai

TEXT = "Hello there."
LONG_TEXT = "Leave early."
BREAKING_TEXT = "Break here."
FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
ONCE = APIConnectOptions(max_retry=0, timeout=10)


async def main(url: str, directory: Path) -> None:
    facts: dict[str, Any] = {"ids": [], "broken": None}

    def engine(**options: Any) -> openai.TTS:
        return openai.TTS(base_url=f"{url}/v1", api_key="any", **options)

    async with engine() as default:
        default.prewarm()
        (directory / "default.raw").write_bytes(await _heard(default, facts))
    for name in FORMATS:
        async with engine(response_format=name, voice="default", instructions="Be kind.") as one:
            (directory / f"{name}.raw").write_bytes(await _heard(one, facts))
    async with engine(response_format="pcm") as plain:
        (directory / "sentences.raw").write_bytes(await _sentences(plain))
        facts["broken"] = await _broken(plain)
        await _leave_early(plain)
    (directory / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


async def _heard(engine: openai.TTS, facts: dict[str, Any]) -> bytes:
    async with engine.synthesize(TEXT) as stream:
        events = [event async for event in stream]
    facts["ids"].append(events[0].request_id)
    return b"".join(bytes(event.frame.data) for event in events)


async def _sentences(engine: openai.TTS) -> bytes:
    """Speak as an agent does: text comes word by word and is sent sentence by sentence."""
    adapter = tts.StreamAdapter(tts=engine, sentence_tokenizer=tokenize.basic.SentenceTokenizer(min_sentence_len=5))
    async with adapter.stream() as stream:
        for word in "Hello there. Hello again. ".split(" "):
            stream.push_text(f"{word} ")
        stream.end_input()
        return b"".join([bytes(event.frame.data) async for event in stream])


async def _broken(engine: openai.TTS) -> str | None:
    try:
        async with engine.synthesize(BREAKING_TEXT, conn_options=ONCE) as stream:
            async for _ in stream:
                pass
    except APIError as error:
        return type(error).__name__
    return None


async def _leave_early(engine: openai.TTS) -> None:
    stream = engine.synthesize(LONG_TEXT)
    await anext(stream)
    await stream.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
