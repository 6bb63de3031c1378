"""The page of the interface in a real browser: every address is there, with a command that works."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from gateway.dialects.endpoints import shown_of
from gateway.doors.http import build_app
from lab.tests.web.conftest import visited
from tests.gateway.fakes import FakeLLM, speech_deltas

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


async def test_every_address_is_shown_with_its_fields(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, FakeLLM(speech_deltas(20))) as visit:
        await visit.page.goto(f"{visit.door.url}/docs")
        await visit.page.locator("details").first.wait_for()
        shown = shown_of(build_app(None).routes)  # type: ignore[arg-type]
        assert await visit.page.locator("details").count() == len(shown)
        await visit.page.click("#post_v1_audio_speech summary")
        await visit.shows("#post_v1_audio_speech", "sample_rate")
        await visit.shows("#post_v1_audio_speech", "audio/mpeg")
        await visit.shows("#get_v1_voices_voice", "required")
        assert await visit.page.locator("[role=alert]").is_hidden()


async def test_a_command_of_the_page_speaks(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, FakeLLM(speech_deltas(20))) as visit:
        await visit.page.goto(f"{visit.door.url}/docs")
        await visit.page.locator("details").first.wait_for()
        for name, prefix in (("post_v1_audio_speech", b"RIFF"), ("post_v1_text_to_speech_voice", b"\xff")):
            command = shlex.split(await visit.page.locator(f"#{name} pre").text_content())
            assert command[:3] == ["curl", "-X", "POST"]
            curl = await asyncio.create_subprocess_exec(*command[:-2], "-s", stdout=asyncio.subprocess.PIPE)
            audio, _ = await asyncio.wait_for(curl.communicate(), 20)
            assert audio.startswith(prefix), audio[:200]


async def test_a_document_that_cant_be_had_is_said(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, FakeLLM(speech_deltas(20))) as visit:
        await visit.page.route("**/openapi.json", lambda route: route.fulfill(status=503, body=json.dumps({})))
        await visit.page.goto(f"{visit.door.url}/docs")
        await visit.shows("[role=alert]", "the server answered 503")
