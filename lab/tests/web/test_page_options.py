"""How the page has a text spoken, what it keeps, and what it gives away: options, files, commands, what was spoken."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import wave
from pathlib import Path
from typing import Any

import pytest

from lab.tests.web.conftest import Visit, visited
from tests.gateway.fakes import FakeLLM, speech_deltas

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

TOKENS = 15
SAMPLES = TOKENS * 960
BEGINNINGS = {
    "wav": (b"RIFF",),
    "mp3": (b"\xff\xf3", b"\xff\xfb", b"ID3"),
    "opus": (b"OggS",),
    "aac": (b"\xff\xf1", b"\xff\xf9"),
    "flac": (b"fLaC",),
    "pcm": (b"\xff\x3f",),
    "mulaw": (b"",),
    "alaw": (b"",),
}
"""How files begin; of PCM the loudness that the stand-in makes, of telephone audio anything."""


def speaking() -> FakeLLM:
    return FakeLLM(speech_deltas(TOKENS))


def bodies(visit: Visit) -> list[dict[str, Any]]:
    """The requests for speech from now on."""
    sent: list[dict[str, Any]] = []
    visit.page.on("request", lambda each: sent.append(json.loads(each.post_data)) if each.method == "POST" else None)
    return sent


async def set_speed(visit: Visit, speed: str) -> None:
    move = "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', { bubbles: true })); }"
    await visit.page.locator("#speed").evaluate(move, speed)


async def played(visit: Visit) -> None:
    await visit.page.click("#play")
    await visit.shows("#status", "Played")


async def test_speed_language_and_seed_are_asked_for(browser: Any, tmp_path: Path) -> None:
    pytest.importorskip("av")
    llm = speaking()
    async with visited(browser, tmp_path, llm) as visit:
        sent = bodies(visit)
        await visit.page.fill("#text", "Hello.")
        await played(visit)
        await set_speed(visit, "1.5")
        await visit.page.select_option("#language", "en")
        await visit.page.fill("#seed", "9007199254740993")  # more than JavaScript counts exactly
        await visit.shows("#speed-value", "1.5×")
        await played(visit)
        await visit.shows("#audio-length", "0.4 s")
    plain: dict[str, Any] = {"model": "cosydit", "input": "Hello.", "voice": "default", "response_format": "pcm"}
    plain |= {"stream_format": "sse", "word_timestamps": True}
    assert sent[0] == plain
    assert sent[1] == {**plain, "language": "en", "speed": 1.5, "seed": 9007199254740993}
    assert llm.seeds[-1] == 9007199254740993


async def test_a_seed_that_is_none_is_not_sent(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, speaking()) as visit:
        sent = bodies(visit)
        await visit.page.fill("#seed", "seven")
        await visit.page.click("#play")
        assert not await visit.page.locator("#seed").evaluate("field => field.validity.valid")
    assert sent == []


async def test_what_was_spoken_can_be_downloaded_in_every_format(browser: Any, tmp_path: Path) -> None:
    pytest.importorskip("av")
    llm = speaking()
    async with visited(browser, tmp_path, llm) as visit:
        options = await visit.page.locator("#format option").all()
        assert [await option.get_attribute("value") for option in options] == list(BEGINNINGS)
        await played(visit)
        for name, beginnings in BEGINNINGS.items():
            await visit.page.select_option("#format", name)
            async with visit.page.expect_download() as download:
                await visit.page.click("#save")
            file = await download.value
            assert file.suggested_filename == f"speech.{name}"
            saved = Path(await file.path()).read_bytes()
            assert len(saved) > 300 and saved.startswith(beginnings), name
            await visit.shows("#status", f"Saved as speech.{name}.")
    assert len(set(llm.seeds[1:])) == 1, "the same seed, so the same speech"


async def test_without_the_codecs_there_is_neither_their_format_nor_speed(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, speaking()) as visit:
        answer: dict[str, Any] = {"voice_creation": False, "max_recording_bytes": 0, "formats": ["wav", "pcm"]}
        answer |= {"max_text_characters": 9, "lexicons": [], "styles": []}
        await visit.page.route("**/web/settings.json", lambda route: route.fulfill(json=answer))
        await visit.page.reload()
        await visit.shows("#speed-note", "lacks the extra “audio”")
        assert await visit.page.is_disabled("#speed")
        assert await visit.page.locator("#format option").all_inner_texts() == ["WAV", "PCM"]


async def test_the_command_does_the_same_again(browser: Any, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl on the PATH")
    llm = speaking()
    async with visited(browser, tmp_path, llm) as visit:
        assert not await visit.page.is_visible("#curl")
        await visit.page.fill("#text", "It's “quoted” \\ here,\nand here.")
        await played(visit)
        command = await visit.page.inner_text("#curl")
        shell = await asyncio.create_subprocess_exec(
            "bash", "-c", command.replace("curl ", "curl -s ", 1), cwd=tmp_path
        )
        assert await shell.wait() == 0
    assert llm.utterances[-1].text == llm.utterances[-2].text and llm.seeds[-1] == llm.seeds[-2]
    with wave.open(io.BytesIO((tmp_path / "speech.wav").read_bytes())) as file:
        assert len(file.readframes(SAMPLES + 1)) == SAMPLES * 2


async def test_the_command_names_a_key_without_showing_it_and_follows_the_format(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, speaking()) as visit:
        await visit.page.evaluate("sessionStorage.setItem('cosydit-api-key', 'secret')")
        await played(visit)
        await visit.page.select_option("#format", "pcm")
        await visit.shows("#curl", "-o speech.pcm")
        command = await visit.page.inner_text("#curl")
    assert '-H "Authorization: Bearer $COSYDIT_API_KEY"' in command and "secret" not in command


async def test_the_command_can_be_copied(browser: Any, tmp_path: Path) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    async with visited(browser, tmp_path, speaking(), permissions=permissions) as visit:
        await played(visit)
        await visit.page.click("#copy-curl")
        await visit.shows("#copy-curl", "Copied.")
        copied = await visit.page.evaluate("navigator.clipboard.readText()")
        assert copied == await visit.page.inner_text("#curl")


async def test_the_form_is_kept_over_a_reload(browser: Any, tmp_path: Path) -> None:
    pytest.importorskip("av")
    async with visited(browser, tmp_path, speaking()) as visit:
        await visit.page.fill("#text", "Half a thought")
        await visit.page.fill("#seed", "12")
        await visit.page.select_option("#language", "ja")
        await visit.page.select_option("#format", "flac")
        await set_speed(visit, "0.75")
        await visit.page.reload()
        await visit.page.locator("#voice-note:not(:empty)").wait_for()
        ids = ("text", "seed", "language", "format", "speed")
        found = [await visit.page.input_value(f"#{each}") for each in ids]
    assert found == ["Half a thought", "12", "ja", "flac", "0.75"]


async def test_characters_are_counted_as_the_server_counts_them(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, speaking()) as visit:
        await visit.page.fill("#text", "a😀é")
        await visit.shows("#text-count", "3 characters")
        await visit.page.fill("#text", "x" * 100_001)
        await visit.shows("#text-count", "100,001 of 100,000 characters, which is too long")


async def test_the_wait_is_told_in_words(browser: Any, tmp_path: Path) -> None:
    llm = FakeLLM(speech_deltas(TOKENS), ungated=100)
    async with visited(browser, tmp_path, llm) as visit:
        llm.gate, llm.ungated = asyncio.Event(), 0
        await visit.page.click("#play")
        await visit.shows("#status", "Waiting for the first audio…")
        await visit.shows("#elapsed", "seconds so far")
        words = await visit.page.evaluate(WORDS)
        llm.gate.set()
        await visit.shows("#status", "Played")
        assert await visit.page.inner_text("#elapsed") == ""
    assert words == ["one second", "59 seconds", "one minute one second"]


WORDS = "import('./web/words.js').then(({ timeInWords }) => [1, 59, 61].map(timeInWords))"
LABEL = """async () => {
  const { Trace } = await import("./web/trace.js");
  const canvas = document.querySelector("#trace");
  const trace = new Trace(canvas);
  const written = [];
  const write = trace.pen.fillText.bind(trace.pen);
  trace.pen.fillText = (text, x, y) => {
    const { width } = trace.pen.measureText(text);
    if (text.startsWith("first")) written.push(trace.pen.textAlign === "right" ? [x - width, x] : [x, x + width]);
    write(text, x, y);
  };
  const take = { startS: 0, endS: 3, rateHz: 24000, lastReadS: 2.9, samples: 10, firstAudioMs: 0, peaks: [],
    chunks: [{ atS: 0, first: 0, count: 10 }], loudest: () => 0 };
  for (const ms of [10, 1500, 2950]) {
    Object.assign(take, { firstAudioMs: ms });
    take.chunks[0].atS = ms / 1000;
    trace.draw(take, null, 3);
  }
  return { written, width: canvas.getBoundingClientRect().width };
}"""


async def test_the_first_audio_label_stays_inside_the_picture(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, speaking(), viewport={"width": 360, "height": 640}) as visit:
        found = await visit.page.evaluate(LABEL)
    assert len(found["written"]) == 3
    assert all(0 <= begin < end <= found["width"] for begin, end in found["written"]), found


async def test_what_was_spoken_is_played_again_without_the_server(browser: Any, tmp_path: Path) -> None:
    llm = speaking()
    async with visited(browser, tmp_path, llm) as visit:
        for text in ("The first one.", "The second one."):
            await visit.page.fill("#text", text)
            await played(visit)
        assert await visit.page.locator("#history .spoken").all_inner_texts() == ["The second one.", "The first one."]
        asked = len(llm.utterances)
        await visit.page.get_by_role("button", name="Play again").nth(1).click()
        await visit.shows("#status", "Played 0.6 s again.")
        assert len(llm.utterances) == asked
        await visit.shows("#curl", "The first one.")


async def test_after_a_reload_it_is_spoken_again_by_its_seed(browser: Any, tmp_path: Path) -> None:
    llm = speaking()
    async with visited(browser, tmp_path, llm) as visit:
        await visit.page.fill("#text", "Once more.")
        await played(visit)
        await visit.page.reload()
        await visit.page.locator("#voice-note:not(:empty)").wait_for()
        await visit.page.get_by_role("button", name="Play again").click()
        await visit.shows("#status", "Played 0.6 s")
        assert await visit.page.locator("#history li").count() == 1
    assert llm.seeds[-1] == llm.seeds[-2] and llm.utterances[-1].text == "Once more."


async def test_an_entry_goes_back_into_the_form_or_away(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, speaking()) as visit:
        for text in ("One.", "Two."):
            await visit.page.fill("#text", text)
            await played(visit)
        await visit.page.get_by_role("button", name="Back to the form").nth(1).click()
        assert (await visit.page.input_value("#text"), await visit.focused()) == ("One.", "text")
        assert (await visit.page.input_value("#seed")).isdigit()
        await visit.page.get_by_role("button", name="Remove").nth(0).click()
        assert await visit.page.locator("#history .spoken").all_inner_texts() == ["One."]
        await visit.page.click("#clear-history")
        assert not await visit.page.is_visible("#history-section")


async def test_the_seed_that_was_drawn_can_be_kept(browser: Any, tmp_path: Path) -> None:
    llm = speaking()
    async with visited(browser, tmp_path, llm) as visit:
        assert await visit.page.is_disabled("#keep-seed")
        await played(visit)
        await visit.page.click("#keep-seed")
        assert await visit.page.input_value("#seed") == str(llm.seeds[-1])


async def test_a_voice_says_a_sample_that_is_not_kept(browser: Any, tmp_path: Path) -> None:
    llm = speaking()
    async with visited(browser, tmp_path, llm) as visit:
        await visit.shows("#voice-about", "Its recording says: “I am default.”")
        await visit.page.click("#preview-voice")
        await visit.shows("#status", "Played")
        assert not await visit.page.is_visible("#history-section")
    assert "This is how I sound" in "".join(utterance.text for utterance in llm.utterances)


async def test_a_voices_description_is_shown(browser: Any, tmp_path: Path) -> None:
    llm = speaking()
    async with visited(browser, tmp_path, llm) as visit:
        voice = {"name": "default", "ref_text": "你好", "description": "A woman, a little hoarse.", "gender": "female"}
        await visit.page.route("**/v1/audio/voices/default", lambda route: route.fulfill(json=voice))
        await visit.page.reload()
        await visit.shows("#voice-about", "A woman, a little hoarse.")
        voice["description"] = ""
        await visit.page.reload()
        await visit.shows("#voice-about", "female · Its recording says: “你好”")
        await visit.page.click("#preview-voice")
        await visit.shows("#status", "Played")
    assert "这就是我朗读时的声音" in "".join(utterance.text for utterance in llm.utterances), "in the voice's language"


async def test_the_page_speaks_chinese_to_who_does_and_remembers_another_choice(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, speaking(), locale="zh-CN") as visit:
        assert await visit.page.get_attribute("html", "lang") == "zh-CN"
        await visit.shows("#play", "播放")
        await visit.page.click("#play")
        await visit.shows("#status", "已播放 0.6 s 音频，没有断流。")
        await visit.page.click("#page-language")
        await visit.shows("#status", "Played 0.6 s of audio, no underruns.")
        await visit.page.reload()
        await visit.shows("#play", "Play")
        assert await visit.page.title() == "cosydit – hear a text while it is made"
