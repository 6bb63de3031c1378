"""A headless Chromium, where one is installed, before a real gateway whose services are faked."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.lexicons import LexiconBook
from gateway.voices.registry import NamedVoice
from gateway.voices.store import VoiceLimits
from servicekit.checkpoint_file import CheckpointDeclaration
from tests.gateway.doors.http_door import Door, opened_door
from tests.gateway.fakes import FakeLLM
from tests.gateway.voices.fakes import FakeVoiceMaker, make_store

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
CHROMIUM_ARGS = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
CHROMIUM_ARGS += ["--disable-gpu", "--in-process-gpu"]
CHROMIUM_ARGS += ["--process-per-site", "--renderer-process-limit=1"]  # to start one takes longer than most tests
LIMITS = VoiceLimits(max_audio_bytes=1_000_000)
PATIENCE_MS = 10_000


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Any]:
    """One browser for all tests, with a context and a blank page in it; they skip where it can't be had."""
    playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if path is None:
        pytest.skip(f"no Chromium: none of {', '.join(CHROMIUM_NAMES)} is on the PATH")
    playwright.expect.set_options(timeout=PATIENCE_MS)
    async with playwright.async_playwright() as driver:
        chromium = await driver.chromium.launch(executable_path=path, args=CHROMIUM_ARGS)
        await (await chromium.new_context()).new_page()
        yield chromium
        await chromium.close()


@dataclass
class Visit:
    """The open page, and the gateway behind it."""

    page: Any
    door: Door
    maker: FakeVoiceMaker

    async def shows(self, selector: str, text: str) -> None:
        """Wait until an element's text contains `text`."""
        from playwright.async_api import expect

        await expect(self.page.locator(selector)).to_contain_text(text)

    async def focused(self) -> str:
        return str(await self.page.locator(":focus").get_attribute("id"))


@asynccontextmanager
async def _opened_page(browser: Any, options: dict[str, Any]) -> AsyncIterator[Any]:
    """Open a page: in the browser's own context, whose process runs already, or in a new one that has options."""
    if options:
        async with await browser.new_context(**options) as context:
            yield await context.new_page()
        return
    page = await browser.contexts[0].new_page()
    yield page
    await page.evaluate("localStorage.clear()")
    await page.close()


@asynccontextmanager
async def visited(
    browser: Any,
    folder: Path,
    llm: FakeLLM,
    *,
    can_create: bool = True,
    maker: FakeVoiceMaker | None = None,
    declaration: CheckpointDeclaration | None = None,
    lexicons: LexiconBook | None = None,
    **context: Any,
) -> AsyncIterator[Visit]:
    """Open the page before its own gateway; what its policy refused or its scripts threw fails the test."""
    maker, problems = maker or FakeVoiceMaker(), []
    (folder / "default.wav").write_bytes(b"RIFF")
    named = [NamedVoice("default", folder / "default.wav", "I am default.")]
    store = make_store(folder / "created", maker, LIMITS) if can_create else None
    door_opened = opened_door(llm, maker, named, store=store, declaration=declaration, lexicons=lexicons)
    async with door_opened as door, _opened_page(browser, context) as page:
        await door.until_ready()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda line: problems.append(line.text) if "Content Security" in line.text else None)
        await page.goto(door.url)
        await page.locator("#voice-note:not(:empty)").wait_for()
        yield Visit(page, door, maker)
    assert problems == []
