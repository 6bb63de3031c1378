"""The LLM learns from what a reader hears in the answers that it draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from lab.train.data import CorpusError
from lab.train.models.llm import TrainableLLM
from lab.train.models.llm_data import END_ROW, TokenUtterance, UtteranceBank, train_text_tokenizer
from lab.train.models.llm_heard import Drawer, HeardLLMStage, blame
from lab.train.models.token_reader import ReaderStage, Sounds, TokenReader, misread_at, sounds
from lab.train.sizes import TINY
from lab.train.teachers.flite import PHONES
from llm_service.vocab import SPEECH_TOKEN_COUNT

CPU = torch.device("cpu")
TEXTS = ["The boat sailed at dawn.", "A gull cried.", "Was it late?"]
SOUNDS = 3
QUESTIONS = [((5, 6, 7), (100, 200), 6), ((5,), (), 4), ((9, 8), (300, 301, 302), 6)]
"""Text, prompt and room."""


def utterances(count: int, seed: int) -> list[TokenUtterance]:
    """Utterances in which a token's sound is its lowest digit."""
    draw = np.random.default_rng(seed)
    found = []
    for number in range(count):
        heard = np.repeat(draw.integers(1, 1 + SOUNDS, int(draw.integers(2, 5))), 3)
        ids = (draw.integers(0, SPEECH_TOKEN_COUNT // 3, len(heard)) * 3 + heard - 1).astype(np.uint16)
        text = TEXTS[number % len(TEXTS)]
        found.append(TokenUtterance(number % 2, text, ids, np.repeat(heard, 2).astype(np.uint8)))
    return found


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_text_tokenizer(TEXTS, TINY.llm.text_tokens)


@pytest.fixture(scope="module")
def reader() -> TokenReader:
    torch.manual_seed(0)
    stage = ReaderStage(utterances(300, 1), CPU, 32, 0)
    for _ in range(220):
        losses = stage.step(0.0)
    assert losses["loss"].item() < 0.4
    assert stage.validate()["loss"] < 0.6
    return stage.averaged()["model"].eval().requires_grad_(False)  # type: ignore[return-value]


def test_a_run_of_frames_is_one_sound_and_a_pause_is_none() -> None:
    frames = np.array([0, 0, 4, 4, 4, 0, 4, 7, 7, 0], np.uint8)
    assert sounds(frames).tolist() == [4, 4, 7]
    assert sounds(np.zeros(4, np.uint8)).tolist() == []


def test_a_sound_that_is_left_out_said_twice_or_another_is_misread(reader: TokenReader) -> None:
    wanted = np.array([1, 2, 3], np.uint8)
    said = {"right": [1, 2, 3], "less": [1, 3], "more": [1, 2, 3, 2], "other": [1, 3, 2]}
    rows = [torch.tensor([30 * n + sound - 1 for sound in row for n in range(3)]) for row in said.values()]
    sizes = torch.tensor([len(row) for row in rows])
    log_phones = reader(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), sizes)
    assert log_phones.shape == (4, 2 * 12, len(PHONES))
    nats, places = misread_at(log_phones, sizes, Sounds.of([wanted] * 4, CPU))
    right, *wrong = nats.tolist()
    assert min(wrong) > right + 2
    assert places[0].max() < 1 < places[1, :4].max()
    assert int(places[2].argmax()) >= 8
    assert not places[1, 6:].any()


def test_a_token_is_to_blame_for_what_is_misread_soon_behind_it() -> None:
    places = torch.zeros(1, 20)
    places[0, 10], places[0, 19] = 2.0, 5.0
    expected = torch.zeros(1, 21)
    expected[0, 4:12] = 2.0
    expected[0, 13:] += 5.0
    torch.testing.assert_close(blame(places), expected)


def test_what_stands_behind_a_row_changes_nothing(reader: TokenReader) -> None:
    ids = torch.randint(0, SPEECH_TOKEN_COUNT, (1, 12))
    short = reader(ids[:, :7], torch.tensor([7]))
    torch.testing.assert_close(reader(ids, torch.tensor([7]))[:, :14], short)


def test_a_reader_without_phones_says_so() -> None:
    ids = np.zeros(5, np.uint16)
    with pytest.raises(CorpusError, match="got 0 utterances with phones"):
        ReaderStage([TokenUtterance(0, TEXTS[0], ids)] * 100, CPU, 4, 0)


def test_answers_are_what_the_model_itself_finds_likeliest() -> None:
    torch.manual_seed(1)
    model = TrainableLLM(TINY.llm).eval()
    drawer = Drawer(model, CPU, len(QUESTIONS), prompt=10, answer=7, temperature=1e-6)

    answers = drawer.draw(QUESTIONS)

    assert answers.first.tolist() == [3, 7, 3]
    for row, (_, _, room) in enumerate(QUESTIONS):
        size = int(answers.sizes[row])
        assert size == room or answers.has_ended[row]
        kinds, rows = (part[row : row + 1, answers.first[row] :] for part in (answers.kinds, answers.rows))
        hidden = model.decoder(
            inputs_embeds=torch.nn.functional.embedding(model.table_rows(kinds, rows), model.input_table())
        ).last_hidden_state
        begin = 10 - int(answers.first[row]) - 1
        best = model.head(hidden)[0, begin : begin + size].argmax(-1)
        assert best.tolist() == answers.token_ids[row, :size].tolist()
        assert not answers.token_ids[row, size:].any()


def test_an_answer_ends_where_an_end_is_drawn() -> None:
    model = TrainableLLM(TINY.llm).eval()
    with torch.no_grad():
        model.head.bias[END_ROW] = 100.0
    answers = Drawer(model, CPU, 3, prompt=10, answer=7, temperature=1.0).draw(QUESTIONS)
    assert answers.has_ended.all()
    assert answers.sizes.tolist() == [0, 0, 0]


def test_answers_come_to_be_heard_better(tokenizer: Tokenizer, reader: TokenReader) -> None:
    torch.manual_seed(2)
    bank = UtteranceBank(utterances(200, 3), tokenizer, seed=0)
    stage = HeardLLMStage(TINY.llm, bank, CPU, 16, reader, rate=3e-3, longest=64)
    losses = [{name: value.item() for name, value in stage.step(0.0).items()} for _ in range(150)]
    assert losses[0].keys() >= {"loss", "usual", "nats", "slips", "unended", "norm"}
    first, last = (np.mean([each["nats"] for each in part]) for part in (losses[:10], losses[-10:]))
    assert last < first
    assert all(np.isfinite(list(each.values())).all() for each in losses)
