"""A text that is still being written, in virtual time: both ways say all of it, and each waits for what it needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.simulate import __main__ as simulate
from lab.simulate.written import CLAUSES, INTERLEAVED, MODES, PROMPT, TOKENS_A_LETTER, Speeds, hear

TEXT = "The weather was fine, and the old man walked slowly down to the river."
QUICK = Speeds(prompt_s=0.0, token_s=0.001, chunk_s=0.001, chunk_token_s=0.0)


@pytest.mark.parametrize("transcript", ["", PROMPT], ids=["no prompt", "prompt"])
def test_both_ways_say_the_whole_text(transcript: str) -> None:
    for mode in MODES:
        heard = hear(TEXT, 4.0, mode, transcript, QUICK)
        assert heard.audio_s == pytest.approx(TOKENS_A_LETTER * len(TEXT) / 25, abs=0.2)
        assert heard.text_s <= heard.first_s <= heard.total_s


def test_each_way_begins_when_its_text_is_there() -> None:
    clauses = hear(TEXT, 4.0, CLAUSES, "", QUICK)
    assert clauses.text_s == pytest.approx(13 / 4), "its first clause is too short to be spoken alone"
    interleaved = hear(TEXT, 4.0, INTERLEAVED, "", QUICK)
    assert interleaved.text_s == pytest.approx(4 / 4), "five text tokens: four words and a mark"
    longer = f"{TEXT} {TEXT} {TEXT}"
    assert hear(longer, 4.0, INTERLEAVED, PROMPT, QUICK).text_s > 13 / 4, "five for each 15 of the prompt's speech"


def test_the_command_writes_both_and_their_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "written.json"
    assert simulate.main(["written", "--words-per-s", "40", "--texts", "1", "--out", str(out)]) == 0
    cell = json.loads(out.read_text())["seconds"]["no_prompt"]["40"]
    one, other = (cell[mode]["first_audio_p50"] for mode in MODES)
    assert cell["ratio"]["first_audio_p50"] == pytest.approx(other / one, abs=0.02)
    assert "first_audio_p50 ratio" in capsys.readouterr().out
