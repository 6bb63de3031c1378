"""The guard sees when speech leaves its text, holds back what may still be mended, and has it spoken again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.chunking.policies import DeadlineChunks, ExponentialChunks, FixedChunks, first_chunk_tokens
from gateway.core import ComingText, Sampling, SpeechTokenDelta, Utterance
from gateway.llm.length import SpeechLength, longest_speech, usual_speech
from gateway.speech.guard import (
    MOST_HELD_TOKENS,
    SILENCE_TOKENS,
    AnswerGuard,
    GuardMode,
    GuardSettings,
    SegmentAsk,
    Trouble,
    TroubleFound,
    free_tokens,
    guarded,
    redraw_seed,
    repeats_in,
)
from gateway.speech.request import GuardNote, GuardOutcome, SpeechRequest, SpeechResult
from gateway.speech.speaker import PipelineSettings, Speaker
from gateway.voices.registry import NamedVoice, VoiceRegistry
from llm_service.aligner import FloatArray, LetterModel
from llm_service.checkpoint import make_random_llm
from llm_service.speech_bounds import SpeechBounds, load_speech_bounds
from tests.gateway.fakes import FakeToken2Wav
from tests.gateway.speech.test_letter_times import PlainAligner, tokens_of
from tests.virtual_time import ManualClock, run_virtually

TEXT = "Please bring the blue folder to the office before nine."
LENGTH = SpeechLength(shortest=20, usual=90, longest=150)
SILENT = frozenset({1, 2, 3})
SETTINGS = GuardSettings(GuardMode.MEND, SILENT)
REFERENCE = "The quick brown fox jumps over the lazy dog."
USUAL = Utterance(TEXT, REFERENCE, (0,) * int(1.6 * len(REFERENCE)))
FREE = first_chunk_tokens(ExponentialChunks())
GOOD = tuple(range(100, 190))
LOOPING = (*range(100, 130), *((200, 201, 202, 203, 204, 205, 206) * 20))


def verdict_of(tokens: tuple[int, ...], text: str = TEXT, finish_reason: str = "stop") -> Trouble | None:
    verdict = first_verdict(AnswerGuard(text, LENGTH, SETTINGS), tokens, finish_reason)
    return None if verdict is None else verdict.trouble


def first_verdict(guard: AnswerGuard, tokens: tuple[int, ...], finish_reason: str) -> TroubleFound | None:
    verdicts = [*map(guard.push, tokens), guard.end(finish_reason)]
    return next((each for each in verdicts if each is not None), None)


@pytest.mark.parametrize(
    ("tokens", "finish_reason", "trouble"),
    [
        pytest.param(GOOD, "stop", None, id="good"),
        pytest.param(LOOPING, "stop", Trouble.LOOP, id="loop"),
        pytest.param((*GOOD, *(1, 2, 3) * 20), "stop", Trouble.SILENCE, id="silence"),
        pytest.param((*GOOD[:40], *(1, 2, 3) * 10, *GOOD[40:]), "stop", None, id="a pause"),
        pytest.param(GOOD[:19], "stop", Trouble.SHORT, id="short"),
        pytest.param(GOOD, "length", Trouble.LONG, id="ended by the bound"),
        pytest.param(tuple(range(151)), "stop", Trouble.LONG, id="long"),
    ],
)
def test_each_trouble_is_seen_and_good_speech_is_not(
    tokens: tuple[int, ...], finish_reason: str, trouble: Trouble | None
) -> None:
    assert verdict_of(tokens, finish_reason=finish_reason) is trouble


def test_a_text_that_repeats_itself_may_sound_so() -> None:
    word = (200, 201, 202, 203, 204, 205, 206)
    assert verdict_of((*GOOD[:20], *word * 6), "No, no, no, no, no, no.") is None
    assert verdict_of((*GOOD[:20], *word * 60), "No, no, no, no, no, no.") is Trouble.LOOP


@pytest.mark.parametrize(
    ("text", "repeats"), [("No, no, NO!", 3), ("One two three.", 1), ("哈哈哈哈", 4), ("...", 0), ("我很好", 1)]
)
def test_repeats_are_counted_in_any_script(text: str, repeats: int) -> None:
    assert repeats_in(text) == repeats


def test_without_known_silent_tokens_silence_is_not_looked_for() -> None:
    deaf = GuardSettings(GuardMode.MEND)
    assert any(map(AnswerGuard(TEXT, LENGTH, deaf).push, (1, 2, 3) * SILENCE_TOKENS)), "three tokens in turn are a loop"
    assert not any(map(AnswerGuard(TEXT, LENGTH, deaf).push, range(SILENCE_TOKENS * 3)))


@given(st.integers(0, 400), st.integers(1, 300), st.integers(1, 60))
def test_what_may_be_spoken_grows_with_the_stream_and_is_never_late_for_the_first_chunk(
    stream_tokens: int, usual: int, first_chunk: int
) -> None:
    ask = SegmentAsk(Utterance(TEXT, "", ()), 5, stream_tokens, first_chunk)
    length = SpeechLength(0, usual, 400)
    free = [ask.free_of(count, length) for count in range(400)]
    assert all(0 <= after - before <= 1 for before, after in pairwise(free))
    for count, may in enumerate(free):
        position = stream_tokens + count
        assert may <= count and stream_tokens + may >= min(first_chunk, position)
        assert count - may >= min(count, position - free_tokens(position, first_chunk))


@given(st.integers(0, 10_000), st.integers(1, 100))
def test_held_tokens_grow_slower_than_the_stream(position: int, first_chunk: int) -> None:
    position += first_chunk
    held = position - free_tokens(position, first_chunk)
    assert 0 <= held <= min(MOST_HELD_TOKENS, position - first_chunk)
    assert free_tokens(position + 1, first_chunk) - free_tokens(position, first_chunk) in (0, 1)


@pytest.mark.parametrize(
    ("policy", "tokens"),
    [
        pytest.param(ExponentialChunks(), 18, id="exponential"),
        pytest.param(FixedChunks(25, 30), 33, id="longer first chunk"),
        pytest.param(DeadlineChunks(), 18, id="deadline"),
    ],
)
def test_the_first_chunk_is_never_held_back(policy: ExponentialChunks, tokens: int) -> None:
    assert first_chunk_tokens(policy) == tokens


def test_usual_and_shortest_speech_follow_the_voices_pace() -> None:
    reference = "The quick brown fox jumps over the lazy dog and runs into the wood."
    slow, fast = (usual_speech(TEXT, reference, [0] * int(pace * len(reference))) for pace in (2.0, 1.5))
    assert slow.shortest > fast.shortest > 0
    assert slow.longest > slow.usual > fast.usual > fast.shortest
    assert slow.longest < longest_speech(TEXT, reference, [0] * int(2.0 * len(reference)))
    assert usual_speech("[breath] <strong>!</strong> ...", reference, [0] * 100).shortest == 0


def test_the_least_that_sounds_follows_the_prompt_and_is_asked_for_where_silence_is_known() -> None:
    reference = "The quick brown fox jumps."
    prompt = (1, 2, 3) * 20 + tuple(range(100, 126))
    assert usual_speech(TEXT, reference, prompt).least_sounding == 0
    assert usual_speech(TEXT, reference, prompt).slowest is None
    assert usual_speech(TEXT, "", prompt, SILENT).least_sounding == 0
    least = usual_speech("<strong>Bring the blue folder.</strong>", reference, prompt, SILENT).least_sounding
    assert least == int(0.55 * 26 / 21 * 18), "of 21 and 18 letters"
    assert usual_speech("a" * 100, "Hi.", prompt, SILENT).least_sounding == 100, "the transcript lacks something"


def test_an_answer_that_is_mostly_silence_is_short() -> None:
    length = SpeechLength(shortest=20, usual=90, longest=150, least_sounding=40)
    for sounding, trouble in ((39, Trouble.SHORT), (40, None)):
        tokens = (*(1, 2, 3) * 4, *GOOD[:sounding], *(1, 2, 3) * 5)
        verdict = first_verdict(AnswerGuard(TEXT, length, SETTINGS), tokens, "stop")
        assert (None if verdict is None else verdict.trouble) is trouble


async def test_speech_that_ends_after_some_words_goes_on_with_the_others() -> None:
    """The prompt has as many silent tokens as others, so the bound of all tokens would let this pass."""
    utterance = Utterance(TEXT, REFERENCE, (1, 100) * 40)
    early = (*(1, 2, 3) * 3, *GOOD[:26], *(1, 2, 3) * 4)
    llm = ScriptedLLM([(early, "stop"), ((*early[:26], *GOOD), "stop")])
    heard = await spoken(llm, utterance=utterance)
    (kept, _) = llm.asked[1]
    assert FREE <= len(kept) < len(early) and kept == early[: len(kept)]
    assert heard.tokens[-len(GOOD) + 20 :] == list(GOOD[20:]) and heard.notes == [
        GuardNote("short", GuardOutcome.MENDED)
    ]


@dataclass
class ScriptedLLM:
    """Gives its answers in turn, the last one for ever; an answer goes on behind what was spoken."""

    answers: list[tuple[tuple[int, ...], str]]
    asked: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    running: int = 0
    message_tokens: int = 1
    head_starts: list[int] = field(default_factory=list)

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        tokens, finish_reason = self.answers[min(len(self.asked), len(self.answers) - 1)]
        self.asked.append((utterance.spoken_tokens, seed))
        self.head_starts.append(utterance.head_start_tokens)
        self.running += 1
        try:
            left = tokens[len(utterance.spoken_tokens) :]
            for begin in range(0, len(left), self.message_tokens):
                yield SpeechTokenDelta(left[begin : begin + self.message_tokens])
            yield SpeechTokenDelta((), finish_reason)
        finally:
            self.running -= 1

    async def is_ready(self) -> bool:
        return True


@dataclass
class Spoken:
    tokens: list[int]
    finish_reason: str | None
    notes: list[GuardNote]


async def spoken(
    llm: ScriptedLLM,
    mode: GuardMode = GuardMode.MEND,
    redraws: int = 3,
    utterance: Utterance = USUAL,
    aligner: PlainAligner | None = None,
) -> Spoken:
    ask = SegmentAsk(utterance, 5, stream_tokens=0, free_tokens=FREE)
    settings = GuardSettings(mode, SILENT if aligner is None else frozenset(), redraws, aligner)
    heard = Spoken([], None, [])
    async for delta in guarded(llm, ask, settings, heard.notes.append):
        assert heard.finish_reason is None, "the last delta, and only it, has a finish_reason"
        heard.tokens += delta.token_ids
        heard.finish_reason = delta.finish_reason
    assert llm.running == 0
    return heard


async def test_good_speech_is_asked_for_once_and_unchanged() -> None:
    for mode in GuardMode:
        llm = ScriptedLLM([(GOOD, "stop")])
        assert await spoken(llm, mode) == Spoken(list(GOOD), "stop", [])
        assert llm.asked == [((), 5)]


async def test_a_loop_is_spoken_again_behind_what_was_given_out() -> None:
    llm = ScriptedLLM([(LOOPING, "stop"), (GOOD, "stop")])
    heard = await spoken(llm)
    (_, first_seed), (kept, second_seed) = llm.asked
    assert (first_seed, second_seed) == (5, redraw_seed(5, 1)) and second_seed != 5
    assert LOOPING[: len(kept)] == kept and FREE <= len(kept) < len(LOOPING) // 2
    assert heard.tokens == [*kept, *GOOD[len(kept) :]]
    assert (heard.finish_reason, heard.notes) == ("stop", [GuardNote("loop", GuardOutcome.MENDED)])


class SureAligner(PlainAligner):
    """Says of a right letter that it is likelier than others."""

    def scores(self, token_ids: Sequence[int], since: int, until: int, letters: LetterModel) -> FloatArray:
        scores = super().scores(token_ids, since, until, letters) + np.float32(1)
        return np.where(letters.phones == 0, np.maximum(scores, -1), scores)  # a sound is rather no pause than a letter


@pytest.mark.parametrize(
    ("text", "whole", "early", "kept"), [(TEXT, GOOD, 12, 12), ("Bring the folder now.", GOOD[:40], 2, 0)]
)
async def test_speech_that_ends_too_early_is_spoken_again(
    text: str, whole: tuple[int, ...], early: int, kept: int
) -> None:
    """Whole where its text may end in the first chunk, else behind what was given out at once."""
    llm = ScriptedLLM([(whole[:early], "stop"), (whole, "stop")])
    heard = await spoken(llm, utterance=replace(USUAL, text=text))
    assert llm.asked[1][0] == whole[:kept]
    assert heard == Spoken(list(whole), "stop", [GuardNote("short", GuardOutcome.MENDED)])


@pytest.mark.parametrize(
    ("text", "aligner", "first_tokens"),
    [
        pytest.param(TEXT, None, 1, id="a text that can't end in it"),
        pytest.param("Bring the folder now.", None, FREE, id="a text that may end in it"),
        pytest.param(TEXT, SureAligner(), FREE, id="its words are heard"),
    ],
)
async def test_a_first_chunk_is_held_back_only_where_it_may_show_a_trouble(
    text: str, aligner: PlainAligner | None, first_tokens: int
) -> None:
    llm, utterance = ScriptedLLM([(GOOD[:40], "stop")]), replace(USUAL, text=text, head_start_tokens=8)
    settings = GuardSettings(GuardMode.MEND, redraws=0, aligner=aligner)
    deltas = guarded(llm, SegmentAsk(utterance, 5, 0, FREE), settings, lambda note: None)
    assert len((await anext(deltas)).token_ids) == first_tokens
    assert llm.head_starts == [max(8, first_tokens)], "the LLM makes at once what is waited for"
    await deltas.aclose()


async def test_speech_that_no_answer_mends_ends_at_the_last_good_place() -> None:
    llm = ScriptedLLM([(LOOPING, "stop")])
    heard = await spoken(llm, redraws=2)
    assert len(llm.asked) == 3 and len({seed for _, seed in llm.asked}) == 3
    assert heard.finish_reason == "length" and heard.notes == [GuardNote("loop", GuardOutcome.CUT)]
    assert len(llm.asked[-1][0]) <= len(heard.tokens) < 30 + 3 * len(set(LOOPING[30:]))


async def test_speech_that_goes_on_ends_where_its_text_must_have_been_said() -> None:
    endless = tuple(range(100, 500))
    assert len((await spoken(ScriptedLLM([(endless, "stop")]), GuardMode.OFF)).tokens) == len(endless)
    heard = await spoken(ScriptedLLM([(endless, "stop")]))
    assert heard.finish_reason == "length" and heard.notes == [GuardNote("long", GuardOutcome.CUT)]
    assert heard.tokens == list(endless[: len(TEXT) * 2])[: len(heard.tokens)] and len(heard.tokens) >= len(TEXT)
    mended = await spoken(ScriptedLLM([(endless, "stop"), (GOOD, "stop")]))
    assert mended.notes == [GuardNote("long", GuardOutcome.MENDED)] and mended.finish_reason == "stop"


async def test_speech_that_ends_later_than_its_voice_speaks_is_spoken_again_and_never_cut() -> None:
    once, twice = tuple(range(100, 212)), tuple(range(100, 230))
    assert await spoken(ScriptedLLM([(once, "stop")])) == Spoken(list(once), "stop", [])
    mended = await spoken(ScriptedLLM([(twice, "stop"), (once, "stop")]))
    assert mended == Spoken(list(once), "stop", [GuardNote("long", GuardOutcome.MENDED)])
    stayed = await spoken(ScriptedLLM([(twice, "stop")]))
    assert stayed == Spoken(list(twice), "stop", [GuardNote("long", GuardOutcome.HEARD)])


async def test_silence_that_goes_on_is_cut_short() -> None:
    heard = await spoken(ScriptedLLM([((*GOOD[:60], *(1, 2, 3) * 50), "length")]))
    assert heard.finish_reason == "length" and heard.notes == [GuardNote("silence", GuardOutcome.CUT)]
    assert 60 <= len(heard.tokens) < 60 + SILENCE_TOKENS


async def test_speech_that_stays_short_is_heard_as_it_is() -> None:
    heard = await spoken(ScriptedLLM([(GOOD[:12], "stop")]))
    assert heard == Spoken(list(GOOD[:12]), "stop", [GuardNote("short", GuardOutcome.HEARD)])


def test_random_speech_is_held_to_no_text(tmp_path: Path) -> None:
    make_random_llm(tmp_path, seed=0)
    assert GuardSettings.of_checkpoint(GuardMode.MEND, load_speech_bounds(tmp_path), None).mode is GuardMode.OFF
    trained = SpeechBounds(silent_tokens=(3,))
    assert GuardSettings.of_checkpoint(GuardMode.MEND, trained, None) == GuardSettings(GuardMode.MEND, frozenset({3}))


SAYS = "We bought a new folder from him last Monday."
SAYING = "".join(letter * 3 for letter in SAYS[:-1].lower().replace(" ", "_"))
WRONG = SAYING.replace("lllaaasssttt", "eeevvveeennn")
LACKING = SAYING.replace("___lllaaasssttt", "")


async def said(*answers: str, redraws: int = 3) -> tuple[Spoken, int]:
    """Speak with an aligner, where tokens of each answer say the letters; tell how often the LLM was asked."""
    llm = ScriptedLLM([(tuple(tokens_of(answer)), "stop") for answer in answers])
    utterance = Utterance(SAYS, "The quick brown fox.", (7,) * 60)
    return await spoken(llm, redraws=redraws, utterance=utterance, aligner=SureAligner()), len(llm.asked)


async def test_a_word_that_is_not_said_is_spoken_again_where_it_was_not_given_out() -> None:
    whole, mended = tokens_of(SAYING), [GuardNote("word", GuardOutcome.MENDED)]
    assert await said(SAYING) == (Spoken(whole, "stop", []), 1)
    assert await said(WRONG, SAYING) == await said(LACKING, SAYING) == (Spoken(whole, "stop", mended), 2)
    heard = [GuardNote("word", GuardOutcome.HEARD)]
    assert await said(LACKING, redraws=2) == (Spoken(tokens_of(LACKING), "stop", heard), 3), "never cut"
    settings = GuardSettings(GuardMode.MEND, aligner=SureAligner())
    given_out = AnswerGuard(SAYS, SpeechLength(0, 90, 200), settings, tokens_of(WRONG))
    assert given_out.end("stop") is None, "what was given out can't be mended"


@pytest.mark.parametrize(
    ("twice", "beside"),
    [
        pytest.param("___hhhiiimmm", "___hhhiiimmm", id="a word twice"),
        pytest.param("___mmmooonnndddaaayyy", "___mmmooonnndddaaayyy", id="the last word twice"),
        pytest.param("___fffrrrooommm", "___vvvaaasssttt", id="what the text does not have"),
    ],
)
async def test_what_the_text_does_not_say_is_left_out(twice: str, beside: str) -> None:
    heard, asked = await said(SAYING.replace(twice, twice + beside))
    assert (heard.finish_reason, asked) == ("stop", 1)
    assert heard.notes == [GuardNote("more", GuardOutcome.MENDED)]
    whole = tokens_of(SAYING)
    assert [each for each in heard.tokens if each] == [each for each in whole if each], "but for pauses"
    settings = GuardSettings(GuardMode.MEND, aligner=SureAligner())
    given_out = AnswerGuard(SAYS, SpeechLength(0, 90, 200), settings, tokens_of(SAYING.replace(twice, twice + beside)))
    assert given_out.end("stop") is None and given_out.left_out is None, "what was given out can't be mended"


async def test_others_have_turns_while_the_tokens_of_a_long_message_are_judged() -> None:
    turns = 0

    async def another() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(another())
    heard = await spoken(ScriptedLLM([(GOOD, "stop")], message_tokens=len(GOOD)))
    beside.cancel()
    assert heard.tokens == list(GOOD) and turns >= 1 + len(GOOD) // 50


async def test_a_caller_who_leaves_ends_the_answer() -> None:
    llm = ScriptedLLM([(GOOD, "stop")])
    ask = SegmentAsk(Utterance(TEXT, "", ()), 5, 0, FREE)
    deltas = guarded(llm, ask, GuardSettings(GuardMode.MEND), lambda note: None)
    await anext(deltas)
    await deltas.aclose()
    assert llm.running == 0


PIECES = ("Please bring ", "the blue ", "folder to ", "the office ", "before nine.")


class Writing(ComingText):
    """Brings the text a piece every half second, the last one after a pause."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self._pause_s, self._left = pause_s, list(PIECES[1:])

    async def _coming(self) -> str | None:
        if not self._left:
            return None
        await asyncio.sleep(0.5 if len(self._left) > 1 else self._pause_s)
        return self._left.pop(0)


@dataclass
class InterleavingLLM(ScriptedLLM):
    """As the other, at most 15 tokens a piece of text until it is whole; asks for text behind token 4, too."""

    utterances: list[Utterance] = field(default_factory=list)
    taken: list[tuple[str, ...]] = field(default_factory=list)
    """Pieces of the text that were taken before each answer."""
    said: str = ""

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        tokens, finish_reason = self.answers[min(len(self.asked), len(self.answers) - 1)]
        self.asked.append((utterance.spoken_tokens, seed))
        self.utterances.append(utterance)
        self.running += 1
        coming = utterance.coming_text
        self.taken.append(() if coming is None else tuple(coming.pieces))
        pieces = [utterance.text, *self.taken[-1]]
        try:
            for place in range(len(utterance.spoken_tokens), len(tokens)):
                while coming is not None and place >= 15 * len(pieces) and finish_reason != "full":
                    piece = await coming.next_piece()
                    if piece is None:
                        coming = None
                    else:
                        pieces.append(piece)
                await asyncio.sleep(0.02)
                yield SpeechTokenDelta((tokens[place],), None, (1,) if place == 4 else ())
            while finish_reason != "full" and coming is not None and (piece := await coming.next_piece()) is not None:
                pieces.append(piece)
            yield SpeechTokenDelta((), "length" if finish_reason == "full" else finish_reason)
        finally:
            self.said = "".join(pieces)
            self.running -= 1


@dataclass
class SpokenLive(Spoken):
    times_s: list[float] = field(default_factory=list)
    """When each token was given out."""


def spoken_live(llm: InterleavingLLM, mode: GuardMode = GuardMode.MEND, pause_s: float = 5.0) -> SpokenLive:
    utterance = replace(USUAL, text=PIECES[0], coming_text=Writing(pause_s))
    ask = SegmentAsk(utterance, 5, stream_tokens=0, free_tokens=FREE)
    heard = SpokenLive([], None, [])

    async def hear(clock: ManualClock) -> SpokenLive:
        async for delta in guarded(llm, ask, GuardSettings(mode, SILENT), heard.notes.append):
            assert heard.finish_reason is None, "the last delta, and only it, has a finish_reason"
            heard.tokens += delta.token_ids
            heard.times_s += [clock.now()] * len(delta.token_ids)
            heard.finish_reason = delta.finish_reason
        return heard

    run_virtually(hear)
    assert llm.running == 0
    return heard


@pytest.mark.parametrize("mode", GuardMode)
def test_good_speech_of_a_text_being_written_is_asked_for_once(mode: GuardMode) -> None:
    llm = InterleavingLLM([(GOOD, "stop")])
    heard = spoken_live(llm, mode)
    assert (heard.tokens, heard.finish_reason, heard.notes) == (list(GOOD), "stop", [])
    assert len(llm.asked) == 1 and llm.said == TEXT


def test_nothing_is_held_back_while_the_text_is_written() -> None:
    heard, off = (spoken_live(InterleavingLLM([(GOOD, "stop")]), mode, 100.0) for mode in reversed(GuardMode))
    assert heard.times_s[FREE:60] == off.times_s[FREE:60] and sum(time_s < 5.0 for time_s in heard.times_s) == 60


def test_a_loop_while_the_text_is_written_is_spoken_again_and_the_text_goes_on() -> None:
    looping = (*GOOD[:24], *((200, 201, 202) * 20))
    llm = InterleavingLLM([(looping, "stop"), (GOOD, "stop")])
    heard = spoken_live(llm)
    first, second = llm.utterances
    kept = second.spoken_tokens
    assert FREE <= len(kept) < 45 and looping[: len(kept)] == kept and second.fills == (5,)
    assert llm.taken == [(), PIECES[1:3]], "the pieces that the first answer took"
    assert llm.said == TEXT and first.fills == ()
    assert heard.tokens == [*kept, *GOOD[len(kept) :]]
    assert (heard.finish_reason, heard.notes) == ("stop", [GuardNote("loop", GuardOutcome.MENDED)])
    assert [seed for _, seed in llm.asked] == [5, redraw_seed(5, 1)]


def test_how_long_speech_may_be_is_judged_when_its_text_is_whole() -> None:
    endless = tuple(range(100, 500))
    llm = InterleavingLLM([(endless, "stop"), (GOOD, "stop")])
    heard = spoken_live(llm)
    assert heard.notes == [GuardNote("long", GuardOutcome.MENDED)] and len(llm.asked) == 2
    assert llm.taken[1] == PIECES[1:] and llm.said == TEXT
    cut = spoken_live(InterleavingLLM([(endless, "stop")]))
    assert cut.notes == [GuardNote("long", GuardOutcome.CUT)] and cut.finish_reason == "length"
    assert len(TEXT) <= len(cut.tokens) <= 2 * len(TEXT)
    short = InterleavingLLM([(GOOD[:20], "stop"), (GOOD, "stop")])
    assert spoken_live(short).notes == [GuardNote("short", GuardOutcome.MENDED)] and short.said == TEXT
    stays = spoken_live(InterleavingLLM([(GOOD[:20], "stop")]))
    assert (stays.tokens, stays.notes) == (list(GOOD[:20]), [GuardNote("short", GuardOutcome.HEARD)])


def test_a_context_that_is_full_before_the_text_is_whole_is_no_trouble() -> None:
    llm = InterleavingLLM([(GOOD, "full")])
    heard = spoken_live(llm)
    assert (heard.tokens, heard.finish_reason, heard.notes) == (list(GOOD), "length", []) and len(llm.asked) == 1


def test_silence_while_the_text_is_written_is_cut() -> None:
    silent = (*GOOD[:20], *(1, 2, 3) * 20)
    llm = InterleavingLLM([(silent, "stop")])
    heard = spoken_live(llm)
    assert heard.notes == [GuardNote("silence", GuardOutcome.CUT)] and heard.finish_reason == "length"
    assert len(llm.asked) == 4 and 20 <= len(heard.tokens) <= 60


def test_a_caller_who_leaves_while_the_writer_is_waited_for_ends_the_answer() -> None:
    llm = InterleavingLLM([(GOOD, "stop")])

    async def leave(clock: ManualClock) -> None:
        ask = SegmentAsk(Utterance(PIECES[0], "", (), coming_text=Writing(9.0)), 5, 0, FREE)
        deltas = guarded(llm, ask, GuardSettings(GuardMode.MEND), lambda note: None)
        for _ in range(4):
            await anext(deltas)
        await deltas.aclose()

    run_virtually(leave)
    assert llm.running == 0


async def heard_of_pipeline(llm: ScriptedLLM, voices: list[NamedVoice], mode: GuardMode) -> SpeechResult:
    token2wav, result = FakeToken2Wav(), SpeechResult()
    settings = PipelineSettings(guard=GuardSettings(mode, SILENT))
    speaker = Speaker(llm, token2wav, VoiceRegistry(token2wav, voices), settings, ManualClock())
    async for _ in speaker.synthesize(SpeechRequest(TEXT, seed=5), result):
        pass
    assert token2wav.open_streams == 0
    return result


async def test_the_result_tells_and_equal_seeds_give_equal_speech(voices: list[NamedVoice]) -> None:
    first, second = [
        await heard_of_pipeline(ScriptedLLM([(LOOPING, "stop"), (GOOD, "stop")]), voices, GuardMode.MEND)
        for _ in range(2)
    ]
    assert first.guard_notes == second.guard_notes == [GuardNote("loop", GuardOutcome.MENDED)]
    assert first.chunk_schedule == second.chunk_schedule and first.chunk_schedule[0] == FREE
    assert first.finish_reason == "stop" and first.speech_tokens == len(GOOD)


async def test_speech_that_was_cut_says_so_and_is_not_gone_on_from(voices: list[NamedVoice]) -> None:
    result = await heard_of_pipeline(ScriptedLLM([(LOOPING, "stop")]), voices, GuardMode.MEND)
    assert result.is_truncated and result.carry.parts == ()
