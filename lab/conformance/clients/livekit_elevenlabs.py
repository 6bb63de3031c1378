"""LiveKit's elevenlabs plugin outside a room; runs in its own environment and imports nothing of ours.

python livekit_elevenlabs.py URL DIRECTORY      writes audio and facts.json into DIRECTORY
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
from livekit.agents import APIConnectOptions, APIError
from livekit.plugins import elevenlabs

ONE, TWO = "This is the first sentence of it.", "And here comes the second one, longer."
BREAKING_TEXT, LONG_TEXT = "Break here, please, now.", "Leave early, please, now."
PCM = {"encoding": "pcm_24000"}
ONCE = APIConnectOptions(max_retry=0, timeout=10)


async def main(url: str, directory: Path) -> None:
    async with aiohttp.ClientSession() as session:

        def engine(**options: Any) -> elevenlabs.TTS:
            base = f"{url}/v1"
            return elevenlabs.TTS(base_url=base, api_key="any", http_session=session, voice_id="anna", **options)

        facts: dict[str, Any] = {"voices": [voice.id for voice in await engine().list_voices()]}
        facts["sentences"] = await _turn(engine(**PCM), directory / "sentences.pcm")
        words = engine(**PCM, auto_mode=False, chunk_length_schedule=[50, 100])
        facts["words"] = await _turn(words, directory / "words.pcm")
        facts["mp3"] = await _turn(engine(), directory / "mp3.pcm")
        facts["opus"] = await _turn(engine(encoding="opus_48000_32"), directory / "opus.pcm")
        (directory / "whole.pcm").write_bytes(await _whole(engine(**PCM)))
        facts["interrupted"] = await _interrupted(engine(**PCM), directory)
        facts["broken"] = await _broken(engine(**PCM))
        facts["unknown_voice"] = await _refused(
            elevenlabs.TTS(base_url=f"{url}/v1", api_key="any", http_session=session, voice_id="nobody", **PCM)
        )
    (directory / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


async def _turn(engine: elevenlabs.TTS, path: Path) -> dict[str, Any]:
    """Speak as an agent does, while the text is being written."""
    async with engine, engine.stream() as stream:
        for word in f"{ONE} {TWO}".split():
            stream.push_text(f"{word} ")
        stream.end_input()
        audio, words = b"", []
        async for event in stream:
            audio += bytes(event.frame.data)
            timed = event.frame.userdata.get("lk.timed_transcripts", [])
            words += [(str(word), word.start_time, word.end_time) for word in timed]
    path.write_bytes(audio)
    return {"words": words, "rate_hz": engine.sample_rate}


async def _whole(engine: elevenlabs.TTS) -> bytes:
    async with engine, engine.synthesize(ONE) as stream:
        return b"".join([bytes(event.frame.data) async for event in stream])


async def _interrupted(engine: elevenlabs.TTS, directory: Path) -> list[int]:
    """Break in before the end of the input, and after it, and speak on through the same socket."""
    sockets = []
    async with engine:
        for has_ended in (False, True):
            stream = engine.stream()
            stream.push_text(f"{LONG_TEXT} Then")
            if has_ended:
                stream.end_input()
            await anext(stream)
            await stream.aclose()
            await asyncio.sleep(0.3)
            async with engine.stream() as next_stream:
                next_stream.push_text(ONE)
                next_stream.end_input()
                audio = b"".join([bytes(event.frame.data) async for event in next_stream])
            (directory / f"after_interruption_{int(has_ended)}.pcm").write_bytes(audio)
            connection, _, _ = await engine._current_connection()
            sockets.append(id(connection))
    return sockets


async def _broken(engine: elevenlabs.TTS) -> list[str]:
    async with engine:
        first = await _failure(engine, BREAKING_TEXT)
        return [first, await _failure(engine, ONE)]


async def _refused(engine: elevenlabs.TTS) -> str:
    async with engine:
        return await _failure(engine, ONE)


async def _failure(engine: elevenlabs.TTS, text: str) -> str:
    try:
        async with engine.stream(conn_options=ONCE) as stream:
            stream.push_text(text)
            stream.end_input()
            async for _ in stream:
                pass
    except APIError as error:
        return f"{type(error).__name__} {getattr(error, 'status_code', '')} retryable={error.retryable}"
    return ""


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
