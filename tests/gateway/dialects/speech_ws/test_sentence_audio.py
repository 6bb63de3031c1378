"""Audio cut where its sentences end: pure."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.speech_ws.sentence_audio import Part, SentenceCutter
from gateway.speech.request import SpeechResult, SpokenSpan
from gateway.speech.session import SessionAudio
from gateway.text import WHOLE_TEXT, Segment, TextOptions, plain_front_end
from token2wav_service.contract import SAMPLES_PER_TOKEN

TEXT = "Hi. "


def spoken(turns: list[list[int]]) -> list[SpeechResult]:
    """Turns whose sentences take so many tokens each."""
    results, start = [], 0
    for tokens in turns:
        spans, first_token = [], 0
        for count in tokens:
            segment = plain_front_end().open(TextOptions(), WHOLE_TEXT).prepare(Segment(TEXT, start))
            spans.append(SpokenSpan(segment, first_token, count, is_complete=True))
            first_token += count
            start += len(TEXT)
        results.append(SpeechResult(spans=spans))
    return results


def audio_of(turn: list[int], cuts: list[int], first_sentence: int) -> list[SessionAudio]:
    """A turn's audio in pieces; each sample says which sentence it is of."""
    sentences = [np.full(count * SAMPLES_PER_TOKEN, first_sentence + index) for index, count in enumerate(turn)]
    samples = np.concatenate(sentences).astype(np.float32)
    ends = sorted({min(cut, len(samples)) for cut in cuts} | {len(samples)})
    pieces = [samples[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return [SessionAudio(piece, (), index == len(pieces) - 1) for index, piece in enumerate(pieces)]


turns = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=3)
cuts = st.lists(st.integers(1, 16 * SAMPLES_PER_TOKEN), max_size=8)


@given(turns, cuts)
def test_every_sample_goes_to_its_own_sentence_however_the_audio_is_cut(
    turns: list[list[int]], cuts: list[int]
) -> None:
    cutter = SentenceCutter(spoken(turns))
    heard: list[Part] = []
    first = 0
    for turn in turns:
        for piece in audio_of(turn, cuts, first):
            heard.extend(cutter.push(piece))
        first += len(turn)
    heard.extend(cutter.finish())
    lengths = [0]
    for sentence, samples in heard:
        assert sentence.index == len(lengths) - 1
        if samples is None:
            lengths.append(0)
        else:
            assert set(samples.tolist()) == {float(sentence.index)}
            lengths[-1] += len(samples)
    assert lengths == [*(count * SAMPLES_PER_TOKEN for turn in turns for count in turn), 0]
    assert cutter.count == len(lengths) - 1
