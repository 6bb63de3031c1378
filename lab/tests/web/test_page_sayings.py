"""How the page has words said: pauses, ways of speaking, pronunciations and the server's dictionaries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.lexicons import load_lexicons
from lab.tests.web.conftest import visited
from lab.tests.web.test_page_options import bodies, played
from servicekit.checkpoint_file import CheckpointDeclaration
from tests.gateway.fakes import FakeLLM, speech_deltas

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

TAKES, TAKES_NONE = CheckpointDeclaration(instruct="endofprompt"), CheckpointDeclaration()


async def test_a_pause_goes_where_the_caret_is(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, FakeLLM(speech_deltas(15)), declaration=TAKES_NONE) as visit:
        await visit.page.fill("#text", "One. Two.")
        await visit.page.locator("#text").evaluate("field => field.setSelectionRange(4, 5)")
        await visit.page.click("#insert-pause")
        assert await visit.page.input_value("#text") == 'One.<break time="500ms"/>Two.'
        assert await visit.focused() == "text"
        await visit.page.keyboard.type("Then ")
        await played(visit)
        texts = [each.text for each in visit.door.llm.utterances[-2:]]
    assert texts == ["One.", "Then Two."]


async def test_a_style_can_be_asked_for_where_the_checkpoint_takes_one(browser: Any, tmp_path: Path) -> None:
    llm = FakeLLM(speech_deltas(15))
    async with visited(browser, tmp_path, llm, declaration=TAKES) as visit:
        sent = bodies(visit)
        assert await visit.page.locator("#styles option[value=whisper]").count() == 1
        await visit.page.fill("#style", "happy")
        await played(visit)
        await visit.shows("#curl", '"style":"happy"')
        await visit.page.reload()
        await visit.page.locator("#style").wait_for()
        assert await visit.page.input_value("#style") == "happy", "kept over a reload"
    assert sent[0]["style"] == "happy"
    assert llm.utterances[-1].instruction == "Please say a sentence very happily."


async def test_without_styles_and_dictionaries_there_are_no_fields_for_them(browser: Any, tmp_path: Path) -> None:
    async with visited(browser, tmp_path, FakeLLM(speech_deltas(15)), declaration=TAKES_NONE) as visit:
        sent = bodies(visit)
        for field in ("#style", "#lexicon"):
            assert not await visit.page.is_visible(field)
        await visit.page.click("#words-section summary")
        await visit.page.fill("#pronunciations", "Xiaomi = show me\nno line of that form\n SQL=sequel ")
        await visit.page.fill("#text", "Xiaomi and SQL.")
        await played(visit)
        assert visit.door.llm.utterances[-1].text == "show me and sequel."
    assert sent[0]["pronunciations"] == {"Xiaomi": "show me", "SQL": "sequel"} and "style" not in sent[0]


async def test_a_dictionary_of_the_server_can_be_chosen(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "house.json").write_text('{"rules": {"GNU": "guh noo"}}')
    llm = FakeLLM(speech_deltas(15))
    async with visited(browser, tmp_path, llm, declaration=TAKES_NONE, lexicons=load_lexicons(tmp_path)) as visit:
        assert await visit.page.locator("#lexicon option").all_text_contents() == ["None", "house"]
        await visit.page.select_option("#lexicon", "house")
        await visit.page.fill("#text", "GNU.")
        await played(visit)
    assert llm.utterances[-1].text == "guh noo."


async def test_words_light_up_while_they_are_heard(browser: Any, tmp_path: Path) -> None:
    llm = FakeLLM(speech_deltas(40))
    async with visited(browser, tmp_path, llm, declaration=TAKES_NONE) as visit:
        await visit.page.fill("#text", "One two three four. 五六。")
        await visit.page.click("#play")
        read = "() => [...document.querySelectorAll('#spoken-words .is-now')].map(word => word.innerText).join(' ')"
        lit = await (await visit.page.wait_for_function(read)).json_value()
        assert lit in ("One", "two", "three", "four.", "五", "六。")
        await visit.shows("#status", "Played")
        words = await visit.page.locator("#spoken-words span.is-heard").all_inner_texts()
        assert words == ["One", "two", "three", "four.", "五", "六。"]
        assert await visit.page.locator("#spoken-words").inner_text() == "One two three four.五六。"
        await visit.page.get_by_role("button", name="Play again").click()
        await visit.shows("#status", "again")
        assert not await visit.page.is_visible("#spoken-words"), "what is played from memory has no times"


async def test_what_the_server_warns_of_is_shown_until_the_next_take(browser: Any, tmp_path: Path) -> None:
    english = CheckpointDeclaration(languages=("en",), tags=())
    async with visited(browser, tmp_path, FakeLLM(speech_deltas(15)), declaration=english) as visit:
        await visit.page.fill("#text", "今天天气很好。")
        await played(visit)
        await visit.shows("#warning", "The text is in zh, which the checkpoint does not declare")
        await visit.page.fill("#text", "The weather is fine today.")
        await played(visit)
        assert await visit.page.text_content("#warning") == ""
