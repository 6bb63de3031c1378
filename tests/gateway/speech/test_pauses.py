"""Pauses in the audio: where the silence lies, to the sample, and what is told of it."""

from __future__ import annotations

import numpy as np
import pytest

from gateway import errors
from gateway.core import FloatArray
from gateway.delivery import timed
from gateway.speech.pauses import FADE_SAMPLES
from gateway.speech.request import SpeechRequest, SpeechResult
from gateway.speech.session import SpeechSession
from gateway.speech.text_clock import WordGatherer, WordTime
from gateway.text import Normalization, TextOptions
from gateway.voices.registry import NamedVoice
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, make_pipeline, speech_deltas

TOKENS = 50
SPEECH = TOKENS * 960
"""Samples of each segment; the fake's sound is 0.5 throughout."""


async def heard(voices: list[NamedVoice], text: str, result: SpeechResult | None = None) -> FloatArray:
    pipeline = make_pipeline(FakeLLM(speech_deltas(TOKENS)), FakeToken2Wav(), voices)
    chunks = [chunk async for chunk in pipeline.synthesize(SpeechRequest(text, seed=1), result)]
    assert [chunk.is_last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    return np.concatenate([chunk.samples for chunk in chunks])


def silences(samples: FloatArray) -> list[tuple[int, int]]:
    """Return where each silence begins and how long it is."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], samples == 0.0, [False]]).astype(np.int8)))
    return [(int(begin), int(end - begin)) for begin, end in edges.reshape(-1, 2)]


async def test_a_break_is_silence_between_its_words_exact_to_the_sample(voices: list[NamedVoice]) -> None:
    samples = await heard(voices, 'One.<break time="300ms"/> Two. <break time="1ms"/>Three.')
    assert silences(samples) == [(SPEECH, 7200), (2 * SPEECH + 7200, 24)]
    assert len(samples) == 3 * SPEECH + 7224


async def test_breaks_at_both_ends_and_beside_each_other_are_heard(voices: list[NamedVoice]) -> None:
    result = SpeechResult()
    text = '<break time="20ms"/>One.<break time="100ms"/>...<break time="200ms"/>Two.<break time="1s"/>'
    samples = await heard(voices, text, result)
    assert silences(samples) == [(0, 480), (480 + SPEECH, 7200), (480 + 2 * SPEECH + 7200, 24000)]
    assert result.audio_samples == len(samples) == 2 * SPEECH + 480 + 7200 + 24000
    assert result.silence_samples == 480 + 7200 + 24000


async def test_speech_fades_at_a_break_and_nowhere_else(voices: list[NamedVoice]) -> None:
    samples = await heard(voices, 'One.<break time="300ms"/>Two.')
    steps = np.abs(np.diff(samples))
    assert steps.max() < 0.005, "a click is a step of the sound's height, 0.5"
    touched = np.flatnonzero(samples != 0.5)
    assert (touched[0], touched[-1]) == (SPEECH - FADE_SAMPLES, SPEECH + 7200 + FADE_SAMPLES - 1)


async def test_speech_without_breaks_is_passed_through_as_it_is(voices: list[NamedVoice]) -> None:
    samples = await heard(voices, "One. Two.")
    assert np.array_equal(samples, np.full(SPEECH, 0.5, np.float32))


async def test_a_text_of_breaks_alone_holds_nothing_to_say(voices: list[NamedVoice]) -> None:
    with pytest.raises(errors.InvalidTextError, match="nothing to say"):
        await heard(voices, '<break time="1s"/>')


async def test_a_bad_break_is_refused_before_anything_is_spoken(voices: list[NamedVoice]) -> None:
    llm = FakeLLM(speech_deltas(TOKENS))
    text = "This is the first of two sentences. " * 200 + '<break time="11s"/>'
    with pytest.raises(errors.InvalidRequestError, match="the longest is 10s"):
        await anext(make_pipeline(llm, FakeToken2Wav(), voices).synthesize(SpeechRequest(text)))
    assert llm.utterances == []
    as_written = SpeechRequest("One.<break time='11s'/>", text_options=TextOptions("en", Normalization.OFF))
    assert await anext(make_pipeline(llm, FakeToken2Wav(), voices).synthesize(as_written))
    assert llm.utterances[0].text.startswith("One.<break")


async def words_of(voices: list[NamedVoice], text: str) -> list[WordTime]:
    result, gatherer = SpeechResult(), WordGatherer()
    pipeline = make_pipeline(FakeLLM(speech_deltas(TOKENS)), FakeToken2Wav(), voices)
    speech = timed(pipeline.synthesize(SpeechRequest(text), result), result)
    words = [word async for audio in speech for word in gatherer.push(audio.characters)]
    return words + gatherer.finish()


async def test_words_behind_a_break_are_told_as_late_as_they_are_heard(voices: list[NamedVoice]) -> None:
    words = await words_of(voices, '<break time="500ms"/>One<break time="1s"/>two.')
    assert [word.word for word in words] == ["One", "two."]
    assert words[0].start_s == pytest.approx(0.5)
    assert words[0].end_s <= 0.5 + 2.0
    assert words[1].start_s == pytest.approx(0.5 + 2.0 + 1.0)
    assert words[1].end_s == pytest.approx(0.5 + 2.0 + 1.0 + 2.0)


async def test_the_characters_of_a_break_last_as_long_as_its_silence(voices: list[NamedVoice]) -> None:
    result = SpeechResult()
    text = 'One.<break time="1s"/>Two.'
    pipeline = make_pipeline(FakeLLM(speech_deltas(TOKENS)), FakeToken2Wav(), voices)
    speech = timed(pipeline.synthesize(SpeechRequest(text), result), result)
    characters = [each async for audio in speech for each in audio.characters]
    assert "".join(each.character for each in characters) == text
    tag = [each for each in characters if each.is_pause]
    assert "".join(each.character for each in tag) == '<break time="1s"/>'
    assert (tag[0].start_s, tag[-1].end_s) == (pytest.approx(2.0), pytest.approx(3.0))
    times = [time for each in characters for time in (each.start_s, each.end_s)]
    assert times == sorted(times)


async def test_a_session_keeps_a_pause_that_comes_between_two_turns(voices: list[NamedVoice]) -> None:
    pipeline = make_pipeline(FakeLLM(speech_deltas(TOKENS)), FakeToken2Wav(), voices)
    session = SpeechSession(pipeline, SpeechRequest(""))
    session.write('One.<break time="100ms"/>')
    session.flush()
    session.write('<break time="200ms"/>')
    session.flush()
    session.write("Two.")
    session.end()
    audio = [each async for each in session.audio()]
    samples = np.concatenate([each.samples for each in audio])
    assert silences(samples) == [(SPEECH, 7200)]
    assert session.samples == len(samples) == 2 * SPEECH + 7200
    assert audio[-1].characters[-1].end_s == pytest.approx(len(samples) / 24000)


async def test_prosody_changes_rate_and_volume_of_its_words_alone(voices: list[NamedVoice]) -> None:
    pytest.importorskip("av", reason="the audio extra is not installed")
    text = 'One.<prosody rate="50%" volume="-6dB">Two.</prosody>Three.<break time="300ms"/>'
    result = SpeechResult()
    pipeline = make_pipeline(FakeLLM(speech_deltas(TOKENS)), FakeToken2Wav(), voices)
    request = SpeechRequest(text, text_options=TextOptions("en", is_ssml=True))
    chunks = [chunk async for chunk in pipeline.synthesize(request, result)]
    samples = np.concatenate([chunk.samples for chunk in chunks])
    assert len(samples) == 4 * SPEECH + 7200, "half as fast is twice as long, to the sample"
    assert [span.begin_samples for span in result.spans] == [0, SPEECH, 3 * SPEECH]
    loud, quiet = samples[FADE_SAMPLES : SPEECH - 10], samples[SPEECH + 2400 : 3 * SPEECH - 2400]
    assert np.all(loud == 0.5)
    assert np.median(quiet) == pytest.approx(0.5 * 10 ** (-6 / 20), rel=0.02)
    assert np.all(samples[3 * SPEECH + FADE_SAMPLES : 4 * SPEECH - FADE_SAMPLES] == 0.5)
    assert not samples[4 * SPEECH :].any()


async def test_words_in_prosody_are_told_as_long_as_they_last(voices: list[NamedVoice]) -> None:
    pytest.importorskip("av", reason="the audio extra is not installed")
    result, gatherer = SpeechResult(), WordGatherer()
    pipeline = make_pipeline(FakeLLM(speech_deltas(TOKENS)), FakeToken2Wav(), voices)
    request = SpeechRequest('<prosody rate="200%">One.</prosody>Two.', text_options=TextOptions(is_ssml=True))
    speech = timed(pipeline.synthesize(request, result), result)
    words = [word async for audio in speech for word in gatherer.push(audio.characters)] + gatherer.finish()
    assert (words[-1].end_s, result.audio_s) == (pytest.approx(3.0), pytest.approx(3.0))


async def test_bad_ssml_is_refused_before_anything_is_spoken(voices: list[NamedVoice]) -> None:
    llm = FakeLLM(speech_deltas(TOKENS))
    request = SpeechRequest("<speak>One.", text_options=TextOptions(is_ssml=True))
    with pytest.raises(errors.InvalidRequestError, match="line 1, column 12"):
        await anext(make_pipeline(llm, FakeToken2Wav(), voices).synthesize(request))
    assert llm.utterances == []
