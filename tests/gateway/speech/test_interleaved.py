"""Segments of a text that is still being written, as one answer of the LLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest

from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.speech.guard import GuardMode, GuardSettings
from gateway.speech.interleaved import LONG_LETTERS
from gateway.speech.request import GuardOutcome, SpeechRequest, SpeechResult
from gateway.speech.session import SpeechSession
from gateway.speech.speaker import PipelineSettings
from gateway.text import INTERLEAVED_TEXT, TextOptions, plain_front_end
from gateway.voices.registry import NamedVoice
from tests.gateway.fakes import FakeToken2Wav, make_pipeline
from tests.gateway.routing.fakes import until
from tests.virtual_time import ManualClock, run_virtually

TOKENS_A_PIECE = 10
TEXT = "Once upon a time there was a king who had three sons. He loved them."


class TakingLLM:
    """Speaks ten tokens for each piece of text, as soon as it has it."""

    running = 0

    def __init__(self) -> None:
        self.answers: list[list[str]] = []
        self.utterances: list[Utterance] = []

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        self.utterances.append(utterance)
        self.answers.append([])
        coming = utterance.coming_text
        for taken in (utterance.text, *(() if coming is None else tuple(coming.pieces))):
            self.answers[-1].append(taken)
            yield SpeechTokenDelta(tuple(range(TOKENS_A_PIECE)))
        piece: str | None = ""
        while piece is not None:
            if piece:
                self.answers[-1].append(piece)
                yield SpeechTokenDelta(tuple(range(TOKENS_A_PIECE)))
            piece = None if coming is None else await coming.next_piece()
        yield SpeechTokenDelta((), "stop")

    async def is_ready(self) -> bool:
        return True


def session(
    llm: TakingLLM, voices: list[NamedVoice], settings: PipelineSettings | None = None, **options: object
) -> SpeechSession:
    pipeline = make_pipeline(llm, FakeToken2Wav(), voices, settings)  # type: ignore[arg-type]
    request = SpeechRequest("", text_options=TextOptions(**options), is_interleaved=True)  # type: ignore[arg-type]
    return SpeechSession(pipeline, request, pause_s=60.0)


async def test_a_text_is_one_answer_that_takes_it_a_few_words_at_a_time(voices: list[NamedVoice]) -> None:
    llm = TakingLLM()
    speech = session(llm, voices)
    for word in TEXT.split(" "):
        speech.write(f"{word} ")
    speech.end()
    audio = [each async for each in speech.audio()]
    (pieces,) = llm.answers
    assert len(pieces) >= 6 and "".join(pieces).strip() == TEXT
    assert pieces[0] == "Once upon "
    (result,) = speech.results
    (span,) = result.spans
    assert span.segment.source.text.strip() == TEXT and span.tokens == TOKENS_A_PIECE * len(pieces)
    assert sum(len(each.samples) for each in audio) == span.tokens * 960
    heard = "".join(time.character for each in audio for time in each.characters)
    assert heard.strip() == TEXT
    ends = [time.end_s for each in audio for time in each.characters]
    assert ends == sorted(ends)


async def test_speech_begins_with_the_first_words(voices: list[NamedVoice]) -> None:
    llm = TakingLLM()
    speech = session(llm, voices)
    speech.write("Once upon a time there was a k")
    audio = speech.audio()
    first = asyncio.ensure_future(anext(audio))
    await until(lambda: bool(llm.answers and llm.answers[0][1:]), "the words that are whole")
    for _ in range(2000):
        await asyncio.sleep(0)
    assert llm.answers == [["Once upon ", "a time there "]], "the last words may go on"
    first.cancel()
    await asyncio.wait([first])
    await audio.aclose()


@pytest.mark.parametrize(("silence_s", "answers"), [(0.4, 1), (0.6, 2)])
def test_a_slow_writer_is_waited_for_and_a_silent_one_ends_the_answer(
    voices: list[NamedVoice], silence_s: float, answers: int
) -> None:
    llm = TakingLLM()

    async def speak(clock: ManualClock) -> list[SpeechResult]:
        speech = session(llm, voices)
        speech._pause_s = 0.5

        async def write() -> None:
            for index, word in enumerate(TEXT.split(" ")):
                await asyncio.sleep(0.4 if index != 7 else silence_s)  # two words are a piece of text
                speech.write(f"{word} ")
            speech.end()

        writing = asyncio.ensure_future(write())
        async for _ in speech.audio():
            pass
        await writing
        return speech.results

    results = run_virtually(speak)
    assert len(results) == answers == len(llm.answers)
    assert "".join(span.segment.source.text for each in results for span in each.spans).strip() == TEXT


async def test_a_pause_ends_an_answer_and_so_does_a_long_text(voices: list[NamedVoice]) -> None:
    llm = TakingLLM()
    speech = session(llm, voices)
    speech.write('One two three. <break time="300ms"/> Four five six. ')
    speech.write("This goes on for a while. " * 40)
    speech.end()
    audio = [each async for each in speech.audio()]
    texts = ["".join(pieces) for pieces in llm.answers]
    assert texts[0].strip() == "One two three." and texts[1].lstrip().startswith("Four")
    assert len(texts) == 4 and all(len(text) < LONG_LETTERS + 40 for text in texts)
    (result,) = speech.results
    assert len(result.spans) == len(texts) and result.silence_samples == 7200
    spoken = sum(span.tokens for span in result.spans) * 960
    assert sum(len(each.samples) for each in audio) == spoken + 7200


class LoopingLLM(TakingLLM):
    """Says the same again and again in its first answers, behind 18 good tokens a piece of text; then all is well."""

    def __init__(self, bad_answers: int) -> None:
        super().__init__()
        self.bad_answers = bad_answers

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        is_bad = len(self.utterances) < self.bad_answers
        async with aclosing(super().generate(replace(utterance), sampling, seed)) as deltas:
            self.said = len(utterance.spoken_tokens)
            async for delta in deltas:
                for _ in delta.token_ids:
                    self.said += 1
                    yield SpeechTokenDelta((self.said % 3 if is_bad and self.said > 40 else self.said,))
                if delta.finish_reason is not None:
                    yield delta


@pytest.mark.parametrize("pieces", [1, 40])
async def test_an_answer_that_is_cut_short_leaves_the_next_sentences_to_another(
    voices: list[NamedVoice], pieces: int
) -> None:
    llm = LoopingLLM(bad_answers=4)
    settings = PipelineSettings(guard=GuardSettings(GuardMode.MEND))
    speech = session(llm, voices, settings)
    sentences = "The king had three sons and a dog. They lived in a house by the sea. It was cold there. "
    text = sentences + 'And so it went on. <break time="300ms"/> The end came soon enough.'
    for at in range(0, len(text), -(-len(text) // pieces)):
        speech.write(text[at : at + -(-len(text) // pieces)])
    speech.end()
    heard = [each async for each in speech.audio()]
    (result,) = speech.results
    assert [(note.trouble, note.outcome) for note in result.guard_notes] == [("loop", GuardOutcome.CUT)]
    said = [span.segment.text.strip() for span in result.spans]
    assert said[0] + " " + said[1] == text.split(" <")[0] and said[2] == "The end came soon enough."
    assert said[0].endswith(".") and len(said[0]) < len(sentences), "the next sentence is another answer's"
    spoken = sum(span.tokens for span in result.spans) * 960
    assert sum(len(each.samples) for each in heard) == spoken + 7200, "the pause stands there once"
    read = "".join(time.character for each in heard for time in each.characters)
    assert read.strip() == text


async def test_the_next_answer_goes_on_from_what_was_spoken(voices: list[NamedVoice]) -> None:
    llm = TakingLLM()
    speech = session(llm, voices)
    speech.write('One two three. <break time="300ms"/> Four five six. ')
    speech.end()
    async for _ in speech.audio():
        pass
    first, second = llm.utterances
    assert "One two three." in second.reference_text
    assert len(second.reference_tokens) > len(first.reference_tokens)


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        pytest.param(
            "alpha beta gamma delta epsilon zeta", ["alpha beta ", "gamma delta ", "epsilon ", "zeta"], id="words"
        ),
        pytest.param(
            "They paid about $3.50 million for it all",
            ["They paid ", "about $3.50 million ", "for it all"],
            id="number",
        ),
        pytest.param(
            "We met on June 4 at Dr. Smith of course", ["We met on ", "June 4 at Dr. Smith ", "of course"], id="date"
        ),
    ],
)
def test_words_are_cut_where_no_number_is_torn(text: str, segments: list[str]) -> None:
    stream = plain_front_end().open(TextOptions(), INTERLEAVED_TEXT)
    assert [segment.text for segment in [*stream.push(text), *stream.flush()]] == segments
