"""Voices on the page: chosen, uploaded, recorded by the microphone, deleted; and where none can be made."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.tests.web.conftest import Visit, visited
from tests.gateway.fakes import FakeLLM, speech_deltas

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

FINGER_PX = 44
RECORDING = {"name": "eva.flac", "mimeType": "audio/flac", "buffer": b"fLaC-eva"}
REMEMBER_STREAMS = """
  const open = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
  window.streams = [];
  navigator.mediaDevices.getUserMedia = async (wanted) => {
    const stream = await open(wanted);
    window.streams.push(stream);
    return stream;
  };
"""
TRACK_STATES = "window.streams.flatMap((stream) => stream.getTracks()).map((track) => track.readyState)"


def speaking() -> FakeLLM:
    return FakeLLM(speech_deltas(5))


async def describe(visit: Visit) -> None:
    await visit.page.fill("#voice-name", "Eva")
    await visit.page.fill("#consent", "It is my own voice.")


async def test_an_uploaded_voice_is_chosen_at_once_and_speaks(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, speaking()) as visit:
        await visit.page.click("#new-voice")
        await visit.page.set_input_files("#recording-file", RECORDING)
        await visit.page.fill("#transcript", "I am Eva.")
        await describe(visit)
        await visit.page.click("#create-voice")
        await visit.shows("#status", "Created the voice “Eva”")
        assert (await visit.focused(), await visit.page.input_value("#voice")) == ("voice", "Eva")
        await visit.page.click("#play")
        await visit.shows("#status", "Played")
        created = (await visit.door.http.get("/v1/audio/voices")).json()["uploaded_voices"]
    assert visit.maker.registrations[-1] == RECORDING["buffer"]
    expected = {"name": "Eva", "ref_text": "I am Eva.", "consent": "It is my own voice.", "mime_type": "audio/flac"}
    assert created[0].items() >= expected.items()


async def test_the_microphone_is_sent_as_a_wav_file(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, speaking()) as visit:
        await visit.page.click("#new-voice")
        await visit.page.click("#record")
        await visit.shows("#record", "Stop recording (1.")
        await visit.page.click("#record")
        await visit.shows("#record-note", "seconds or more work better")
        await describe(visit)
        await visit.page.click("#create-voice")
        await visit.shows("#status", "Created the voice “Eva”")
    sent = visit.maker.registrations[-1]
    assert isinstance(sent, bytes)
    with wave.open(io.BytesIO(sent)) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        assert len(samples) >= file.getframerate()
    assert np.abs(samples).max() > 1000  # the fake microphone beeps


async def test_closing_the_dialog_closes_the_microphone(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, speaking()) as visit:
        await visit.page.add_init_script(REMEMBER_STREAMS)
        await visit.page.reload()
        await visit.page.click("#new-voice")
        await visit.page.click("#record")
        await visit.shows("#record", "Stop recording (")
        assert await visit.page.evaluate(TRACK_STATES) == ["live"]
        await visit.page.keyboard.press("Escape")
        await visit.page.click("#new-voice")
        await visit.page.get_by_role("button", name="Record", exact=True).wait_for()
        assert await visit.page.evaluate(TRACK_STATES) == ["ended"]


async def test_what_is_missing_is_said_and_gets_the_focus(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, speaking()) as visit:
        await visit.page.click("#new-voice")
        await visit.page.click("#create-voice")
        await visit.shows("#voice-error[role=alert]", "There is no recording yet.")
        await visit.page.set_input_files("#recording-file", RECORDING)
        await visit.page.click("#create-voice")
        await visit.shows("#voice-error", "Give the voice a name.")
        assert await visit.focused() == "voice-name"
    assert RECORDING["buffer"] not in visit.maker.registrations


async def test_what_the_server_refuses_is_shown_and_the_form_stays(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, speaking()) as visit:
        await visit.page.click("#new-voice")
        await visit.page.set_input_files("#recording-file", {**RECORDING, "buffer": b"not audio"})
        await describe(visit)
        await visit.page.click("#create-voice")
        await visit.shows("#voice-error", "The prompt audio can't be read.")
        assert await visit.page.input_value("#voice-name") == "Eva"
        await visit.page.set_input_files("#recording-file", {**RECORDING, "buffer": b"x" * 1_000_001})
        await visit.shows("#voice-error", "the most this server takes")


async def test_a_created_voice_can_be_deleted_and_the_servers_own_cannot(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, speaking()) as visit:
        form = {"name": "eva", "consent": "yes"}
        await visit.door.http.post("/v1/audio/voices", data=form, files={"file": ("eva.wav", b"RIFF")})
        await visit.page.reload()
        await visit.page.locator("#voice option", has_text="eva").wait_for(state="attached")
        assert not await visit.page.is_visible("#delete-voice")
        visit.page.on("dialog", lambda dialog: dialog.accept())
        await visit.page.select_option("#voice", "eva")
        await visit.page.click("#delete-voice")
        await visit.shows("#status", "Deleted the voice “eva”.")
        assert await visit.page.input_value("#voice") == "default"
        assert (await visit.door.http.get("/v1/audio/voices")).json()["uploaded_voices"] == []


async def test_where_no_voices_can_be_created_the_page_says_so_and_goes_on(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, speaking(), can_create=False) as visit:
        await visit.shows("#voice-note", "--created-voices-dir")
        assert not await visit.page.is_visible("#new-voice")
        await visit.page.click("#play")
        await visit.shows("#status", "Played")


async def test_nothing_reaches_over_the_edge_at_360_px(browser: Any, tmp_path: Path) -> None:
    window: dict[str, Any] = {
        "viewport": {"width": 360, "height": 640},
        "color_scheme": "dark",
        "reduced_motion": "reduce",
    }
    async with visited(browser, tmp_path, speaking(), **window) as visit:
        await visit.page.click("#play")
        await visit.shows("#status", "Played")
        await visit.page.click("#new-voice")
        for box in await _boxes(visit.page):
            assert box["x"] >= 0 and box["x"] + box["width"] <= 360, box


async def _boxes(page: Any) -> list[dict[str, float]]:
    parts = await page.locator("button:visible, input:visible, textarea:visible, canvas, dl div, dialog").all()
    assert len(parts) > 15
    return [await part.bounding_box() for part in parts]


async def test_the_tab_key_walks_from_the_text_to_the_voice_to_playing(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, speaking()) as visit:
        seen = []
        await visit.page.focus("#page-language")
        for _ in range(11):
            await visit.page.keyboard.press("Tab")
            seen.append(await visit.focused())
    voice = ["voice", "preview-voice", "new-voice"]
    assert seen == ["text", "insert-pause", *voice, "language", "speed", "seed", "words", "play", "format"]


async def test_a_complaint_goes_when_what_was_missing_is_there(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, speaking()) as visit:
        await visit.page.click("#new-voice")
        await visit.page.set_input_files("#recording-file", RECORDING)
        await visit.page.click("#create-voice")
        await visit.shows("#voice-error", "Give the voice a name.")
        await visit.page.keyboard.type("E")
        await visit.page.locator("#voice-error:empty").wait_for(state="attached")
        await visit.page.click("#create-voice")
        await visit.shows("#voice-error", "Say who allowed")
        await visit.page.fill("#transcript", "Something else.")
        await visit.shows("#voice-error", "Say who allowed")


async def test_every_button_is_large_enough_for_a_finger(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, speaking(), viewport={"width": 360, "height": 640}, has_touch=True) as visit:
        await visit.page.click("#play")
        await visit.shows("#status", "Played")
        buttons = await visit.page.locator("button:visible, select:visible, input:visible").all()
        boxes = {await button.get_attribute("id"): await button.bounding_box() for button in buttons}
    assert "new-voice" in boxes and len(boxes) > 12
    assert {name: box for name, box in boxes.items() if box["height"] < FINGER_PX or box["width"] < FINGER_PX} == {}
