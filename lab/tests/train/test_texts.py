"""Texts: what is kept, what is generated, who says what, and that the held-out sentences are what they were."""

from __future__ import annotations

import hashlib
import random
import re
import struct
import zlib
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from benchmarks.lib.word_errors import HELDOUT, heldout_sentences
from lab.train.teachers.choices import TEACHERS, Teachers
from lab.train.text.generated import generated_sentence, varied_sentence
from lab.train.text.make_heldout import (
    FRAGMENTS,
    LONG,
    LONG_LETTERS,
    MIN_USES,
    PARAGRAPH_WORDS,
    PARAGRAPHS,
    choose,
    choose_fragments,
    heldout_fragments,
    heldout_long,
    heldout_paragraphs,
    read_novels,
)
from lab.train.text.mix import TextSources, planned
from lab.train.text.wordnet import DATA_FILES, MAX_CHARACTERS, as_sentence, read_glosses, read_names

HELDOUT_SHA256 = "3782154c65a039e58e15ec5b263f5e07258a321fc405bf7b9263eb0ce2ec80ab"
FRAGMENTS_SHA256 = "610f11a9a16e57b4cffa33df8a6aa0831c8324c06887c7973389f9468892c85e"
LONG_SHA256 = "10659292860b9a66a6757e8d9bd9d2bf7d6c84951d0a897badb85f64422b7241"
PARAGRAPHS_SHA256 = "e42f0a3e3a0ab4662b2acd8aefc0afaf6d5d1ea4f24abd866cf81a5b92420824"


def test_the_heldout_sentences_are_those_that_were_chosen_before_training() -> None:
    assert hashlib.sha256(HELDOUT.read_bytes()).hexdigest() == HELDOUT_SHA256
    assert len(heldout_sentences()) == len(set(heldout_sentences())) == 100


def test_the_heldout_fragments_have_no_stop_and_are_in_no_heldout_sentence() -> None:
    assert hashlib.sha256(FRAGMENTS.read_bytes()).hexdigest() == FRAGMENTS_SHA256
    fragments, spoken = heldout_fragments(), " ".join(heldout_sentences()).lower()
    assert len(fragments) == len(set(fragments)) == 50
    assert all(each.replace(" ", "").replace("'", "").isalpha() and each not in spoken for each in fragments)


def test_the_long_heldout_texts_are_those_that_were_chosen() -> None:
    texts = {LONG: heldout_long(), PARAGRAPHS: heldout_paragraphs()}
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in texts] == [LONG_SHA256, PARAGRAPHS_SHA256]
    assert all(len(text) in LONG_LETTERS for text in texts[LONG]) and len(set(texts[LONG])) == 100
    assert (
        all(len(re.findall("[A-Za-z']+", text)) in PARAGRAPH_WORDS for text in texts[PARAGRAPHS])
        and len(set(texts[PARAGRAPHS])) == 20
    )


def test_no_heldout_sentence_can_be_generated() -> None:
    draw = random.Random(0)
    generated = {generated_sentence(draw) for _ in range(2000)}

    assert len(generated) > 1500
    assert not generated & set(heldout_sentences())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("he ran -- fast", "He ran, fast.", id="dash"),
        pytest.param("a boat (or ship) at sea", "A boat at sea.", id="parenthesis"),
        pytest.param("who is it?", "Who is it?", id="keeps its own end"),
        pytest.param("naïve", None, id="a letter we don't train on"),
        pytest.param("; - ", None, id="no word"),
        pytest.param("x" * (MAX_CHARACTERS + 1), None, id="too long"),
    ],
)
def test_a_text_becomes_a_sentence_or_is_left_out(text: str, expected: str | None) -> None:
    assert as_sentence(text) == expected


def test_wordnet_gives_definitions_and_examples_but_no_licence(tmp_path: Path) -> None:
    line = '00001740 03 n 01 boat 0 000 | a small vessel; "she rowed the boat"; "the boat sank"  \n'
    for name in DATA_FILES:
        (tmp_path / name).write_text("  1 This software is provided as it is.\n" + line, encoding="utf-8")

    glosses = read_glosses(tmp_path)

    assert glosses.examples == ["She rowed the boat.", "The boat sank."]
    assert glosses.definitions == ["A small vessel."]


def test_wordnet_gives_the_names_of_people_and_places_as_often_as_it_has_them(tmp_path: Path) -> None:
    lines = (
        "1 18 n 03 Grant 0 Ulysses_Grant 0 President_Grant 0 002 @i 2 n 0000 @i 3 n 0000 | a general  ",
        "2 18 n 01 general 0 001 @ 4 n 0000 | an officer  ",
        "3 15 n 02 New_York 0 Big_Apple_of_the_East 0 001 @i 5 n 0000 | a city  ",
        "4 05 n 01 Lassie 0 001 @i 6 n 0000 | a dog  ",
    )
    text = "".join(f"{line}\n" for line in ("  1 Free of charge. @i", *lines))
    (tmp_path / "data.noun").write_text(text, encoding="utf-8")

    names = read_names(tmp_path)

    assert names.people == ["Grant", "Ulysses", "Grant", "Grant"]
    assert names.places == ["New York"]


SHARES = (0.5, 0.5)


def small_sources(examples: list[str]) -> TextSources:
    return TextSources(examples, ["A thing."], ["word", "other", "here", "Anna"], ["Bertha"], ["New York"])


def test_generated_sentences_are_filled_and_end_once() -> None:
    draw = random.Random(1)
    for sentence in (generated_sentence(draw) for _ in range(500)):
        assert not re.search(r"[{}]|\.\.", sentence)
        assert sentence[-1] in ".?!"


@pytest.mark.parametrize("is_varied", [False, True])
def test_an_utterance_depends_on_the_seed_and_its_number_alone(is_varied: bool) -> None:
    sources = small_sources([f"Example {n} is here." for n in range(50)])

    whole = list(islice(planned(sources, 3, 0, SHARES, is_varied), 20))

    assert list(islice(planned(sources, 3, 12, SHARES, is_varied), 8)) == whole[12:]
    assert [u.text for u in islice(planned(sources, 4, 0, SHARES, is_varied), 20)] != [u.text for u in whole]


def test_varied_texts_have_fragments_and_stay_short_enough_to_learn() -> None:
    draw = random.Random(1)
    sources = small_sources([f"Example {n} is here." for n in range(50)])

    texts = [utterance.text for utterance in islice(planned(sources, 3, 0, SHARES, True), 500)]
    lines = [varied_sentence(draw) for _ in range(300)]

    assert 0.1 < sum(text[-1] not in '.?!"' for text in texts) / len(texts) < 0.35
    assert max(map(len, texts)) <= 230
    assert any(text.count("Example") + text.count("example") > 2 for text in texts)
    assert not any(re.search(r"[{}]|\.\.", line) for line in [*lines, *texts])
    assert all(sum(name in text for text in texts) > 25 for name in ("Anna", "Bertha", "New York"))
    assert any("here here here" in text.lower() for text in texts)
    assert sum(text.rstrip(".!?") in ("Is here", "Is", "Here", "Example") for text in texts) > 10


def test_long_texts_are_sentences_of_100_to_200_letters() -> None:
    sources = small_sources([f"Example {n} is here." for n in range(50)])

    texts = [utterance.text for utterance in islice(planned(sources, 3, 0, SHARES, True, is_long=True), 500)]

    assert all(100 <= len(text) <= 200 and text[-1] in ".!?" and ".." not in text for text in texts)
    assert np.ptp([len(text) for text in texts]) > 60
    assert len(set(texts)) == 500


def test_a_word_said_again_keeps_a_long_sentence_short_enough() -> None:
    long = "incomprehensibilities " * 10
    sources = small_sources([f"{long.capitalize()}.", "It is here."])

    texts = [utterance.text for utterance in islice(planned(sources, 3, 0, SHARES, True), 500)]

    assert max(map(len, texts)) <= 230


@pytest.mark.parametrize("teachers", TEACHERS.values(), ids=list(TEACHERS))
def test_teachers_shares_cover_their_speakers_and_sum_to_one(teachers: Teachers) -> None:
    assert len(teachers.shares) == len(teachers.speakers) == len(set(teachers.speakers))
    assert len(teachers.long_shares) == len(teachers.speakers)
    assert sum(teachers.shares) == pytest.approx(1.0)
    assert sum(teachers.long_shares) == pytest.approx(1.0)
    assert min(teachers.shares) >= 0


def test_heldout_sentences_are_chosen_by_their_words_alone() -> None:
    colours = [f"{letter}ish" for letter in "abcdefghijklmnopqrstuvwxyz"]
    plain = [
        f"{start} saw the {word} boat in the bay." for word in colours for start in ("We", "You", "They", "Nobody")
    ]
    novel = "\n\n".join(
        [*plain * MIN_USES, "We saw the strange boat in the bay.", "We saw Emma and her boat in the bay."]
    )
    known = {"we", "you", "they", "nobody", "saw", "the", "boat", "in", "bay", "strange", "and", "her", *colours}

    chosen = choose([novel], known)

    assert len(chosen) == len(set(chosen)) == 100
    assert set(chosen) <= set(plain)
    assert choose([novel], known) == chosen


def test_fragments_stand_between_commas_and_have_known_words_only() -> None:
    pairs = [(first, second) for first in ("red", "blue", "old", "new", "far") for second in "abcdefghijklmn"]
    plain = [f"{first} and {second}" for first, second in pairs]
    known = {"and", *(word for pair in pairs for word in pair)}
    others = ["red and Emma", "red and strange", "red", "and and and and and and and"]
    spoken = [f"We said, {text}, then." for text in plain] * MIN_USES
    novel = "\n\n".join([*spoken, *(f"So, {text}, it was." for text in others)])

    chosen = choose_fragments([novel], known, ["We saw red and a."])

    assert len(chosen) == len(set(chosen)) == 50
    assert set(chosen) <= set(plain) - {"red and a"}


def test_novels_are_read_out_of_an_r_database(tmp_path: Path) -> None:
    path = tmp_path / "Rdata.rdb"
    path.write_bytes(_serialized(["One line", "", "another"]) + _serialized(["Second"]))

    assert read_novels(path) == ["One line\n\nanother", "Second"]


def _serialized(lines: list[str]) -> bytes:
    """A compressed character vector as R writes it."""
    integer = struct.Struct(">i")
    body = b"X\n" + 3 * integer.pack(3) + integer.pack(5) + b"UTF-8" + integer.pack(16) + integer.pack(len(lines))
    for line in lines:
        body += integer.pack(0x00040009) + integer.pack(len(line)) + line.encode()
    return integer.pack(len(body)) + zlib.compress(body)
