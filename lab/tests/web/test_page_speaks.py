"""The page in a real browser before a real gateway: it plays while audio is made, and every way a take can end."""

from __future__ import annotations

import asyncio
import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.errors import LLMInterruptedError
from lab.tests.web.conftest import visited
from tests.gateway.fakes import FakeLLM, speech_deltas

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

TOKENS = 30
FIRST_CHUNK_TOKENS = 15 + 3
"""With its lookahead."""
SAMPLES = TOKENS * 960
INK = """() => {
  const canvas = document.querySelector("#trace");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const count = { waveform: 0, chunks: 0, underruns: 0 };
  for (let at = 0; at < data.length; at += 4) {
    const isBelow = at > data.length * 0.5 && at < data.length * 0.88;
    const [red, green, blue] = data.subarray(at, at + 3);
    if (red > green + 40) count.underruns += 1;
    else if (red === 0x12 && green === 0x59 && blue === 0x4d) count.waveform += 1;
    else if (red === 0x55 && green === 0x63 && blue === 0x5e && isBelow) count.chunks += 1;
  }
  return count;
}"""
"""Pixels of the trace in the colours of the light scheme: accent, muted (between waveform and axis), red pen."""


def held_llm() -> FakeLLM:
    """Makes one chunk and then waits for its gate; the warm-up, which comes first, goes through."""
    return FakeLLM(speech_deltas(TOKENS), ungated=FIRST_CHUNK_TOKENS)


async def test_audio_plays_while_it_is_made_and_is_saved_sample_by_sample(browser: Any, tmp_path: Path) -> None:
    llm = held_llm()
    async with visited(browser, tmp_path, llm) as visit:
        llm.gate = asyncio.Event()
        await visit.page.fill("#text", "Hello there.")
        await visit.page.click("#play")
        await visit.shows("#first-audio", " ms")
        await visit.shows("#status", "Playing")
        assert llm.running == 1
        llm.gate.set()
        await visit.shows("#status", "Played 1.2 s")
        async with visit.page.expect_download() as download:
            await visit.page.click("#save")
        saved = Path(await (await download.value).path()).read_bytes()
    assert llm.utterances[-1].text == "Hello there."
    with wave.open(io.BytesIO(saved)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24000)
        assert np.frombuffer(file.readframes(SAMPLES + 1), "<i2").tolist() == [16383] * SAMPLES


async def test_a_gap_is_counted_as_one_underrun_and_told_to_those_who_see_no_picture(
    browser: Any, tmp_path: Path
) -> None:
    llm = held_llm()
    async with visited(browser, tmp_path, llm) as visit:
        llm.gate = asyncio.Event()
        await visit.page.click("#play")
        await visit.shows("#audio-length", "0.6 s")
        await visit.page.wait_for_timeout(1200)
        llm.gate.set()
        await visit.shows("#status", "1 underrun.")
        await visit.shows("#underruns", "1 (")
        label = await visit.page.get_attribute("#trace", "aria-label")
    assert "1.2 s of audio in " in label  # a busy machine reads a chunk in two parts


async def test_the_waveform_the_chunks_and_an_underrun_are_drawn(browser: Any, tmp_path: Path) -> None:
    llm = held_llm()
    async with visited(browser, tmp_path, llm, color_scheme="light") as visit:
        empty = await visit.page.evaluate(INK)
        llm.gate = asyncio.Event()
        await visit.page.click("#play")
        await visit.shows("#audio-length", "0.6 s")
        smooth = await visit.page.evaluate(INK)
        await visit.page.wait_for_timeout(1000)
        llm.gate.set()
        await visit.shows("#status", "1 underrun.")
        broken = await visit.page.evaluate(INK)
    assert empty == {"waveform": 0, "chunks": 0, "underruns": 0}
    assert smooth["chunks"] > 0
    assert broken["waveform"] > 500 and broken["chunks"] > smooth["chunks"] and broken["underruns"] > 100


@pytest.mark.parametrize("way", ["click", "Escape"])
async def test_stopping_frees_the_server_at_once(browser: Any, tmp_path: Path, way: str) -> None:
    llm = held_llm()
    async with visited(browser, tmp_path, llm) as visit:
        llm.gate = asyncio.Event()
        await visit.page.click("#play")
        await visit.shows("#status", "Playing")
        await (visit.page.click("#stop") if way == "click" else visit.page.keyboard.press(way))
        await visit.door.until_idle()
        await visit.shows("#status", "Stopped after")
        assert await visit.focused() == "play"
        assert await visit.page.is_enabled("#save")


async def test_playing_again_ends_the_take_before(browser: Any, tmp_path: Path) -> None:
    llm = held_llm()
    async with visited(browser, tmp_path, llm) as visit:
        llm.gate = asyncio.Event()
        for _ in range(2):
            await visit.page.press("#text", "Control+Enter")
            await visit.shows("#status", "Playing")
        assert llm.running == 1
        assert await visit.focused() == "text"
        llm.gate.set()
        await visit.shows("#status", "Played 1.2 s")


async def test_a_refusal_is_shown_as_the_server_words_it(browser: Any, tmp_path: Path) -> None:
    llm = FakeLLM(speech_deltas(TOKENS))
    async with visited(browser, tmp_path, llm) as visit:
        llm.deltas, llm.error = [], LLMInterruptedError("the LLM went away; try again")
        await visit.page.click("#play")
        await visit.shows("#error[role=alert]", "The speech LLM was interrupted; try again.")
        await visit.shows("#status", "Nothing was played.")
        assert await visit.page.is_enabled("#play")


async def test_audio_that_breaks_off_is_said_to_and_can_be_saved(browser: Any, tmp_path: Path) -> None:
    llm = held_llm()
    async with visited(browser, tmp_path, llm) as visit:
        llm.gate, llm.error = asyncio.Event(), LLMInterruptedError("gone")
        await visit.page.click("#play")
        await visit.shows("#status", "Playing")
        llm.gate.set()
        await visit.shows("#error", "The audio broke off before its end.")
        await visit.shows("#status", "of audio, which can be saved.")
        assert await visit.page.is_enabled("#save")


async def test_a_server_that_is_gone_is_named_with_what_to_do(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, FakeLLM(speech_deltas(TOKENS))) as visit:
        await visit.page.context.set_offline(True)
        await visit.page.click("#play")
        await visit.shows("#error", "The server can't be reached. Check that the gateway runs")
        await visit.page.context.set_offline(False)


async def test_a_key_is_asked_for_on_401_and_sent_from_then_on(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, FakeLLM(speech_deltas(5))) as visit:
        await visit.page.route("**/v1/**", _guard)
        await visit.page.reload()
        await visit.shows("#error", "No API key came. Enter the key above.")
        assert await visit.focused() == "key"
        await visit.page.keyboard.type("secret")
        await visit.page.keyboard.press("Enter")
        await visit.page.locator("#voice option").first.wait_for(state="attached")
        await visit.page.click("#play")
        await visit.shows("#status", "Played")
        assert not await visit.page.is_visible("#key-form")


async def _guard(route: Any) -> None:
    if route.request.headers.get("authorization") == "Bearer secret":
        await route.continue_()
    else:
        await route.fulfill(status=401, json={"error": {"message": "no API key came", "code": "unauthenticated"}})
