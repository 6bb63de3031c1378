"""The aligner's file and its arithmetic, on small random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from llm_service.aligner import (
    ALIGNER_FILE,
    PAUSE_PHONE,
    STATE_COUNT,
    UNKNOWN,
    Aligner,
    load_aligner,
    spell,
    write_aligner,
)
from llm_service.errors import CheckpointError
from servicekit.file_sums import write_sums

PHONES, CHANNELS, LETTER, READ = 5, 6, 3, 4
SHAPES = {
    "log_prior": (PHONES,),
    "text.embedding.weight": (STATE_COUNT, LETTER),
    "text.convolution.weight": (READ, LETTER, 7),
    "text.head.weight": (PHONES + 2, READ),
    "tokens.first.weight": (CHANNELS, 24, 5),
    "tokens.second.weight": (CHANNELS, CHANNELS, 3),
    "tokens.head.weight": (2 * PHONES, CHANNELS),
}
LAYERS = ("text.convolution", "text.head", "tokens.first", "tokens.second", "tokens.head")


def weights() -> dict[str, npt.NDArray[np.float32]]:
    draw = np.random.default_rng(3)
    shapes = {**SHAPES, **{f"{name}.bias": SHAPES[f"{name}.weight"][:1] for name in LAYERS}}
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def test_a_text_is_spelled_letter_by_letter_with_one_pause_between_words() -> None:
    spelling = spell("Hé, yo\u0301u!")

    letters = [spell(letter).states[1] for letter in "heyou"]
    assert spelling.states.tolist() == [0, *letters[:2], 1, *letters[2:], 2]
    assert spelling.state_at == (1, 2, 3, 3, 4, 5, 5, 6, 7)


@pytest.mark.parametrize("text", ["", " ", "...", "7", "\u4f60", "\u0301"])
def test_every_text_has_a_spelling(text: str) -> None:
    spelling = spell(text)

    assert len(spelling.state_at) == len(text)
    assert all(0 <= position < len(spelling.states) for position in spelling.state_at)


def test_digits_and_foreign_letters_sound_like_anything() -> None:
    assert spell("7\u4f60").states.tolist() == [0, UNKNOWN, UNKNOWN, 0]
    letters = Aligner(weights()).letters(spell("7").states)
    assert (letters.phones[:, 1] == 1).all()


def test_a_pause_is_the_pause_s_phone_and_a_letter_never_is() -> None:
    prior = np.exp(weights()["log_prior"])
    phones = Aligner(weights()).letters(spell("a b").states).phones.T * prior

    assert phones[2, PAUSE_PHONE] == pytest.approx(1)
    assert phones[1, PAUSE_PHONE] == pytest.approx(0, abs=1e-6)
    assert phones[1].sum() == pytest.approx(1, abs=1e-5)


def test_scores_do_not_depend_on_the_pieces_in_which_tokens_come() -> None:
    aligner, ids = Aligner(weights()), np.random.default_rng(1).integers(0, 6561, 30).tolist()
    letters = aligner.letters(spell("one two").states)

    whole = aligner.scores(ids, 0, 30, letters)

    assert whole.shape == (60, 9)
    pieces = [aligner.scores(ids[: until + aligner.context_tokens], since, until, letters) for since, until in
              ((0, 7), (7, 8), (8, 30))]  # fmt: skip
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=1e-4)


def test_a_written_aligner_is_read_back_and_none_is_none(tmp_path: Path) -> None:
    assert load_aligner(tmp_path) is None

    write_aligner(tmp_path, weights())

    found = load_aligner(tmp_path)
    assert found is not None and found.context_tokens == 3


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 and no archive"])
def test_garbage_in_the_file_is_refused_with_what_to_do(content: bytes, tmp_path: Path) -> None:
    (tmp_path / ALIGNER_FILE).write_bytes(content)

    with pytest.raises(CheckpointError, match=r"aligner\.npz can't be read .*get it again, or remove it"):
        load_aligner(tmp_path)


def test_an_exchanged_file_is_refused(tmp_path: Path) -> None:
    write_aligner(tmp_path, weights())
    write_sums(tmp_path)
    write_aligner(tmp_path, {**weights(), "log_prior": np.zeros(PHONES, np.float32)})

    with pytest.raises(CheckpointError, match=r"expected .* of .*SHA256SUMS"):
        load_aligner(tmp_path)


@pytest.mark.parametrize("name", sorted(weights()))
def test_weights_that_do_not_fit_are_named(name: str) -> None:
    wrong = {**weights(), name: np.zeros((2, 2, 2), np.float32)}

    with pytest.raises(CheckpointError, match=r"got .*expected"):
        Aligner(wrong)


def test_weights_that_lack_or_are_not_finite_are_refused() -> None:
    lacking = weights()
    del lacking["log_prior"]
    with pytest.raises(CheckpointError, match="got tensors"):
        Aligner(lacking)
    with pytest.raises(CheckpointError, match="not finite"):
        Aligner({**weights(), "log_prior": np.full(PHONES, np.nan, np.float32)})
