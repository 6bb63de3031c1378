"""Numbering of speech tokens, a checkpoint's bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_service import vocab
from llm_service.errors import CheckpointError, VocabularyError
from llm_service.speech_bounds import BOUNDS_FILE, SpeechBounds, load_speech_bounds, write_speech_bounds


def test_the_numbering_is_the_official_one() -> None:
    assert vocab.llm_id_from_speech_id(0) == 151663
    assert vocab.llm_id_from_speech_id(6560) == 158223
    assert vocab.END_IDS == (158224, 158225, 158226)
    assert (vocab.SOS_ID, vocab.TASK_ID) == (158227, 158228)
    assert vocab.PADDED_VOCABULARY_SIZE == 158336


@pytest.mark.parametrize("speech_id", [-1, 6561])
def test_a_speech_id_out_of_range_is_refused(speech_id: int) -> None:
    with pytest.raises(VocabularyError, match=r"expected 0\.\.6560"):
        vocab.llm_id_from_speech_id(speech_id)


@pytest.mark.parametrize("llm_id", [0, 151662, 158224, 158228])
def test_other_llm_ids_are_no_speech_tokens(llm_id: int) -> None:
    assert not vocab.is_speech_llm_id(llm_id)
    with pytest.raises(VocabularyError):
        vocab.speech_id_from_llm_id(llm_id)


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
