"""LiveKit's nvidia plugin outside a room; runs in its own environment and imports nothing of ours.

python livekit_nvidia.py ADDRESS DIRECTORY      writes audio and facts.json into DIRECTORY
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from livekit.plugins import nvidia

# Its tokenizer joins shorter sentences.
TEXT = "Hello there, this is the first sentence of two. "
AGAIN = "Hello again, and this is the second sentence of two. "


async def main(address: str, directory: Path) -> None:
    facts: dict[str, Any] = {}
    engine = nvidia.TTS(server=address, use_ssl=False, voice="default")
    facts["voices"] = await asyncio.to_thread(engine.list_voices)
    async with engine.stream() as stream:
        for word in (TEXT + AGAIN).split(" "):
            stream.push_text(f"{word} ")
        stream.end_input()
        audio = b"".join([bytes(event.frame.data) async for event in stream])
    (directory / "sentences.raw").write_bytes(audio)
    await _leave_early(engine)
    (directory / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


async def _leave_early(engine: nvidia.TTS) -> None:
    stream = engine.stream()
    stream.push_text(TEXT + AGAIN)
    stream.end_input()
    await anext(stream)
    await stream.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
