"""How long a checkpoint's LLM speaks well: the file beside its tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_service.errors import CheckpointError
from llm_service.speech_bounds import BOUNDS_FILE, SpeechBounds, load_speech_bounds, write_speech_bounds


def test_bounds_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert load_speech_bounds(tmp_path) == SpeechBounds()
    write_speech_bounds(tmp_path, SpeechBounds(segment_letters=90, carry_tokens=0))
    assert load_speech_bounds(tmp_path) == SpeechBounds(90, 0)
    write_speech_bounds(tmp_path, SpeechBounds(silent_tokens=(0, 6560)))
    assert load_speech_bounds(tmp_path) == SpeechBounds(silent_tokens=(0, 6560))


def test_what_is_asked_for_replaces_what_the_checkpoint_says() -> None:
    learnt = SpeechBounds(90, 100)
    assert learnt.overridden_by(SpeechBounds()) == learnt
    assert learnt.overridden_by(SpeechBounds(carry_tokens=0)) == SpeechBounds(90, 0)


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "3", '{"letters": 3}', '{"segment_letters": 0}', '{"carry_tokens": -1}', '{"carry_tokens": true}'),
        *('{"follows_text": 1.5}', '{"silent_tokens": 3}', '{"silent_tokens": [6561]}', '{"silent_tokens": ["1"]}'),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / BOUNDS_FILE).write_text(content)
    with pytest.raises(CheckpointError, match=r"speech_bounds.json can't be read .*segment_letters, carry_tokens"):
        load_speech_bounds(tmp_path)
