"""Pictures of the page, for the eye and the documentation: on a desktop, in the dark, and on a telephone in Chinese.

    COSYDIT_SCREENSHOTS=docs/images pytest -c lab/pyproject.toml -n 0 lab/tests/web/test_page_screenshots.py

writes those of the documentation. Behind the page stand fakes that play a recording of the demo voice somewhat faster
than real time, so that the pictures are alike on every machine. Their figures are none of the services'.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr

from gateway.core import AudioChunk, FloatArray, Sampling, SpeechTokenDelta, Utterance
from lab.tests.web.conftest import visited
from tests import ROOT
from tests.gateway.fakes import FakeLLM, FakeStream, speech_deltas
from tests.gateway.voices.fakes import FakeVoiceMaker
from token2wav_service.contract import SAMPLE_RATE_HZ

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

RECORDING = ROOT / "demo_voice" / "voices" / "default.wav"
IMAGES = ROOT / "docs" / "images"
WRITE_TO = "COSYDIT_SCREENSHOTS"
MAX_BYTES = 400_000
"""Of all of them."""
QUALITY = 82
TOKENS, TOKEN_S = 120, 0.01
"""Of each part that the text is spoken in; 25 tokens are a second of audio."""
TEXT = (
    "The old library closes at six on Fridays. How many boxes can we carry down the stairs in one go? "
    "Please leave the blue folder on my desk before you go home."
)
HEARD = re.compile(r"^[6-9]\.")
DESKTOP = {"viewport": {"width": 1120, "height": 960}}
VIEWS: dict[str, dict[str, Any]] = {
    "page-desktop": {**DESKTOP, "color_scheme": "light"},
    "page-dark": {**DESKTOP, "color_scheme": "dark"},
    "page-mobile": {"viewport": {"width": 390, "height": 1420}, "color_scheme": "light", "locale": "zh-CN"},
}


@dataclass
class PacedLLM(FakeLLM):
    """Takes its time for each token once `is_paced`; the warm-up is over sooner."""

    is_paced: bool = False

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        async for delta in super().generate(utterance, sampling, seed):
            await asyncio.sleep(TOKEN_S if self.is_paced else 0)
            yield delta


@dataclass
class PlayingMaker(FakeVoiceMaker):
    """Its streams play a recording, over and over."""

    recording: FloatArray = field(default_factory=lambda: np.zeros(0, np.float32))

    @asynccontextmanager
    async def open_stream(self, voice_id: str, seed: int, priority: int = 10) -> AsyncIterator[FakeStream]:
        async with super().open_stream(voice_id, seed, priority) as stream:
            begun = 0
            push = stream.push

            def play(chunk: Any) -> asyncio.Future[AudioChunk]:
                nonlocal begun
                made = push(chunk).result()
                at = np.arange(begun, begun + len(made.samples)) % len(self.recording)
                begun += len(made.samples)
                played: asyncio.Future[AudioChunk] = asyncio.get_running_loop().create_future()
                played.set_result(AudioChunk(made.index, self.recording[at], made.is_last))
                return played

            stream.push = play  # type: ignore[method-assign]
            yield stream


@pytest.fixture(scope="module")
def recording() -> FloatArray:
    samples, rate_hz = soundfile.read(RECORDING, dtype="float32")
    played: FloatArray = soxr.resample(samples, rate_hz, SAMPLE_RATE_HZ).astype(np.float32)
    return played


@pytest.mark.parametrize("name", VIEWS)
async def test_the_page_looks_well_while_it_plays(
    browser: Any, tmp_path: Path, recording: FloatArray, name: str
) -> None:
    from playwright.async_api import expect

    llm = PacedLLM(speech_deltas(TOKENS))
    async with visited(browser, tmp_path, llm, maker=PlayingMaker(recording=recording), **VIEWS[name]) as visit:
        llm.is_paced = True
        voice = {"name": "default", "ref_text": RECORDING.with_suffix(".txt").read_text("utf-8").strip()}
        await visit.page.route("**/v1/audio/voices/default", lambda route: route.fulfill(json=voice))
        await visit.page.reload()
        await visit.shows("#voice-about", voice["ref_text"][:20])
        await visit.page.fill("#text", TEXT)
        await visit.page.fill("#seed", "7")
        await visit.page.click("#play")
        await expect(visit.page.locator("#audio-length")).to_have_text(HEARD)
        picture = await taken(visit.page)
        overflow = await visit.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert picture.startswith(b"RIFF") and len(picture) > 10_000
    assert overflow <= 0, "nothing reaches over the edge"
    if WRITE_TO in os.environ:
        (ROOT / os.environ[WRITE_TO] / f"{name}.webp").write_bytes(picture)


async def taken(page: Any) -> bytes:
    """Take a picture as WebP, which Playwright's own method can't."""
    session = await page.context.new_cdp_session(page)
    answer = await session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    return base64.b64decode(answer["data"])


async def test_the_documentations_pictures_are_small_and_of_these_views() -> None:
    pictures = {path.stem: path.stat().st_size for path in IMAGES.glob("page-*.webp")}
    assert set(pictures) == set(VIEWS)
    assert sum(pictures.values()) < MAX_BYTES
