"""Words out of the times of characters."""

from __future__ import annotations

import pytest

from gateway.speech.text_clock import CharacterTime, WordGatherer, WordTime


def times_of(text: str) -> list[CharacterTime]:
    return [CharacterTime(character, at, at / 10, (at + 1) / 10) for at, character in enumerate(text)]


def words_of(text: str, piece: int) -> list[WordTime]:
    gatherer, times = WordGatherer(), times_of(text)
    words = [word for at in range(0, len(times), piece) for word in gatherer.push(times[at : at + piece])]
    return words + gatherer.finish()


@pytest.mark.parametrize("piece", [1, 2, 100])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("Hello, my  world! ", ["Hello,", "my", "world!"], id="blanks and punctuation"),
        pytest.param("你好，世界。GPU很快", ["你", "好，", "世", "界。", "GPU", "很", "快"], id="Chinese"),
        pytest.param("한국어 문장", ["한국어", "문장"], id="Korean has blanks"),
        pytest.param("  ", [], id="blank"),
    ],
)
def test_words_are_those_of_the_script_however_the_characters_come(text: str, words: list[str], piece: int) -> None:
    assert [word.word for word in words_of(text, piece)] == words


def test_a_word_lasts_from_its_first_character_to_its_last() -> None:
    assert words_of("ab cd", 5) == [WordTime("ab", 0.0, 0.2), WordTime("cd", 0.3, 0.5)]
