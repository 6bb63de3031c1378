"""Characters by the aligner: the way of the tokens through the letters, on an aligner that hears letters as such."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.speech.letter_times import LetterTimes
from gateway.speech.request import SpeechRequest, SpeechResult, SpokenSpan
from gateway.speech.session import SpeechSession
from gateway.speech.speaker import PipelineSettings, Speaker
from gateway.speech.text_clock import CharacterTime, TextClock, WordGatherer
from gateway.text import Segment, SpokenSegment
from gateway.text.alignment import Alignment, SpokenStretch, align, unchanged
from gateway.voices.registry import NamedVoice
from llm_service.aligner import PAUSES, Aligner, FloatArray, LetterModel, spell
from tests.gateway.fakes import FakeToken2Wav, make_pipeline
from tests.gateway.speech.test_interleaved import TakingLLM

SURE = 20.0


class PlainAligner(Aligner):
    """A speech token is the number of the letter that it says."""

    def __init__(self) -> None:
        """Needs no weights."""

    @property
    def context_tokens(self) -> int:
        return 0

    def letters(self, states: npt.NDArray[np.int64]) -> LetterModel:
        is_pause = states < len(PAUSES)
        zeros = np.zeros(len(states), np.float32)
        said = np.where(is_pause, 0, states)
        return LetterModel(said[None].astype(np.float32), zeros, np.where(is_pause, zeros, zeros - 4))

    def scores(self, token_ids: Sequence[int], since: int, until: int, letters: LetterModel) -> FloatArray:
        said = np.repeat(np.array(token_ids[since:until]), 2)
        return np.where(said[:, None] == letters.phones, 0, -SURE).astype(np.float32)


def tokens_of(said: str) -> list[int]:
    """Return tokens that say these letters, `_` a pause."""
    return [0 if letter == "_" else int(spell(letter).states[1]) for letter in said]


def times_of(text: str, said: str) -> list[tuple[float, float]]:
    letters = LetterTimes(PlainAligner(), text)
    letters.add(tokens_of(said), is_last=True)
    times = letters.read(len(said))
    assert times is not None
    return list(zip(times.starts.tolist(), times.ends.tolist(), strict=True))


def heard_span(text: str, said: str, source: str | None = None) -> SpokenSpan:
    source = text if source is None else source
    segment = SpokenSegment(Segment(source, 0), text, align(source, text), "en", True)
    span = SpokenSpan(segment, 0, len(said), is_complete=True, letter_times=LetterTimes(PlainAligner(), text))
    assert span.letter_times is not None
    span.letter_times.add(tokens_of(said), is_last=True)
    return span


def test_letters_last_as_long_as_they_are_said_and_silence_belongs_to_no_word() -> None:
    assert times_of("no", "__nnno__") == [(2, 5), (5, 6)]


def test_a_pause_is_the_blank_s_and_marks_are_with_their_words() -> None:
    assert times_of("a, \u201cb\u201d.", "_aa___b_") == [(1, 3), (3, 3), (3, 6), (6, 6), (6, 7), (7, 7), (7, 7)]


def test_a_letter_that_is_not_said_takes_no_time() -> None:
    assert times_of("know", "_nnoo_") == [(1, 1), (1, 3), (3, 5), (5, 5)]


def test_without_tokens_or_with_too_few_for_the_text_nothing_is_known() -> None:
    letters = LetterTimes(PlainAligner(), "no")
    letters.add([], is_last=True)
    assert letters.read(0) is None
    letters = LetterTimes(PlainAligner(), "no" * 50)
    letters.add(tokens_of("n"), is_last=True)
    assert letters.read(1) is None


def test_under_way_only_what_is_settled_has_a_time() -> None:
    letters = LetterTimes(PlainAligner(), "no way")
    letters.add(tokens_of("nnoo_www"), is_last=False)

    times = letters.read(8)

    assert times is not None
    assert times.ends[:2].tolist() == [2, 4]
    assert np.isinf(times.ends[3:]).all()


def test_a_text_that_grows_keeps_what_was_spoken() -> None:
    letters = LetterTimes(PlainAligner(), "no ")
    letters.add(tokens_of("nnoo__"), is_last=False)
    letters.read(6)
    letters.set_text("no way.")
    letters.add(tokens_of("wway_"), is_last=True)

    times = letters.read(11)

    assert times is not None
    assert times.starts.tolist() == [0, 2, 4, 6, 8, 9, 10]


def test_a_digit_is_told_by_its_words() -> None:
    alignment = Alignment((SpokenStretch(2, 2), SpokenStretch(1, 5), SpokenStretch(2, 2)))
    span = heard_span("a three b", "a_thhhreee_b", "a 3 b")
    span.segment = SpokenSegment(span.segment.source, "a three b", alignment, "en", True)

    words = [*WordGatherer().push(TextClock([span]).read(0.48, is_over=True))]

    assert [word.word for word in words] == ["a", "3"]
    assert [time for word in words for time in (word.start_s, word.end_s)] == pytest.approx([0.0, 0.04, 0.08, 0.40])


def test_a_break_behind_a_segment_begins_when_its_speech_has_ended() -> None:
    span = heard_span("no", "nnoo___", "no<break/>")
    source = Segment("no<break/>", 0, pause=0.5, pause_from=2)
    span.segment = SpokenSegment(source, "no", Alignment((SpokenStretch(2, 2), SpokenStretch(8, 0))), "en", True)
    span.pause_samples = 12_000

    read = TextClock([span]).read(0.78, is_over=True)

    assert [(each.character, each.end_s) for each in read[:2]] == [("n", 0.08), ("o", 0.16)]
    assert [read[2].start_s, read[-1].end_s] == pytest.approx([0.28, 0.78])
    assert all(each.is_pause for each in read[2:])


def test_a_speech_that_left_its_text_is_told_by_the_letters() -> None:
    span = heard_span("ab" * 40, "ab")

    read = TextClock([span]).read(0.08, is_over=True)

    assert read[39].end_s == pytest.approx(0.04)


@given(st.text("ab ,.7\u4f60", min_size=1, max_size=30), st.text("ab_", max_size=60), st.integers(1, 9))
def test_times_never_go_back_and_all_are_told_by_the_end(text: str, said: str, piece: int) -> None:
    segment = SpokenSegment(Segment(text, 0), text, unchanged(text).alignment, "en", True)
    letters = LetterTimes(PlainAligner(), text)
    span = SpokenSpan(segment, 0, letter_times=letters)
    clock, read = TextClock([span]), list[CharacterTime]()
    tokens = tokens_of(said)
    for at in range(0, len(tokens), piece):
        letters.add(tokens[at : at + piece], is_last=at + piece >= len(tokens))
        span.tokens, span.is_complete = min(at + piece, len(tokens)), at + piece >= len(tokens)
        read += clock.read(max(at - 2, 0) / 25)
    if span.is_complete:
        read += clock.read(len(tokens) / 25)
        assert len(read) == len(text)
    read += clock.read(len(tokens) / 25, is_over=True)

    assert "".join(each.character for each in read) == text
    bounds = [time for each in read for time in (each.start_s, each.end_s)]
    assert bounds == sorted(bounds)
    assert bounds[-1] <= len(tokens) / 25 + 1e-9


class SpellingLLM(TakingLLM):
    """Says each letter of its text for two tokens."""

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        """See `SpeechLM.generate`."""
        piece: str | None = utterance.text
        while piece is not None:
            said = "".join(letter if letter.isalpha() else "_" for letter in piece for _ in range(2))
            yield SpeechTokenDelta(tuple(tokens_of(said)))
            piece = None if utterance.coming_text is None else await utterance.coming_text.next_piece()
        yield SpeechTokenDelta((), "stop")


def spelling_pipeline(voices: list[NamedVoice]) -> Speaker:
    settings = PipelineSettings(aligner=PlainAligner())
    return make_pipeline(SpellingLLM(), FakeToken2Wav(), voices, settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_interleaved", [False, True])
async def test_a_session_tells_the_times_of_what_was_said(voices: list[NamedVoice], is_interleaved: bool) -> None:
    text = "Once upon a time there was a king who had three sons."
    pipeline = spelling_pipeline(voices)
    request = SpeechRequest("", is_interleaved=is_interleaved, wants_times=True)
    session = SpeechSession(pipeline, request, pause_s=60.0)
    for word in text.split(" "):
        session.write(f"{word} ")
    session.end()

    read = [each async for audio in session.audio() for each in audio.characters]

    words = [*(gatherer := WordGatherer()).push(read), *gatherer.finish()]
    written = list(re.finditer(r"\S+", text))
    assert [word.word for word in words] == [each.group() for each in written]
    for word, each in zip(words, written, strict=True):
        bounds = (2 * each.start() / 25, 2 * (each.start() + len(word.word.strip("."))) / 25)
        assert (word.start_s, word.end_s) == pytest.approx(bounds, abs=0.041)


async def test_only_requests_for_times_pay_for_them(voices: list[NamedVoice]) -> None:
    pipeline = spelling_pipeline(voices)
    result = SpeechResult()

    async for _ in pipeline.synthesize(SpeechRequest("One two."), result):
        pass

    assert [span.letter_times for span in result.spans] == [None]
