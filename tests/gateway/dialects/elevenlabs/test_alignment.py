"""Times of characters, and where everything is in the client's own text: pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.elevenlabs.feeds import AlignmentWriter, MessageFeed
from gateway.dialects.elevenlabs.wire import ClientMessage
from gateway.speech.request import SpeechRequest
from gateway.speech.session import SpeechSession
from gateway.speech.text_clock import CharacterTime
from gateway.voices.registry import NamedVoice
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, make_pipeline

gaps = st.floats(0, 0.4, allow_nan=False)
messages = st.lists(st.lists(st.tuples(gaps, gaps), max_size=6), max_size=20)
"""Of each character: the silence before it and its length, in seconds."""


def spoken(lengths: list[list[tuple[float, float]]]) -> list[list[CharacterTime]]:
    now_s, position, parts = 0.0, 0, []
    for part in lengths:
        characters = []
        for silence_s, length_s in part:
            start_s = now_s + silence_s
            now_s = start_s + length_s
            characters.append(CharacterTime("x", position, start_s, now_s))
            position += 1
        parts.append(characters)
    return parts


@given(messages)
def test_relative_times_add_up_to_absolute_ones_to_the_millisecond(lengths: list[list[tuple[float, float]]]) -> None:
    absolute, relative = AlignmentWriter(is_absolute=True), AlignmentWriter(is_absolute=False)
    clock_ms = 0
    for part in spoken(lengths):
        true, given_ = absolute.write(part), relative.write(part)
        if true is None or given_ is None:
            assert true == given_ == (None if not part else true)
            continue
        assert [clock_ms + start for start in given_["charStartTimesMs"]] == true["charStartTimesMs"]
        assert given_["charDurationsMs"] == true["charDurationsMs"]
        clock_ms += given_["charStartTimesMs"][-1] + given_["charDurationsMs"][-1]


@given(messages)
def test_times_never_go_back_and_characters_cover_the_text(lengths: list[list[tuple[float, float]]]) -> None:
    writer = AlignmentWriter(is_absolute=True)
    parts = spoken(lengths)
    written = [alignment for part in parts if (alignment := writer.write(part)) is not None]
    starts = [start for alignment in written for start in alignment["charStartTimesMs"]]
    durations = [duration for alignment in written for duration in alignment["charDurationsMs"]]
    assert len(starts) == sum(map(len, parts))
    assert all(duration >= 0 for duration in durations)
    ends = [start + duration for start, duration in zip(starts, durations, strict=True)]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))


async def test_a_position_leaves_out_the_spaces_that_were_put_between_messages(voices: list[NamedVoice]) -> None:
    session = SpeechSession(make_pipeline(FakeLLM([]), FakeToken2Wav(), voices), SpeechRequest(""))
    feed = MessageFeed(session)
    for text in ("One.", "Two. ", "Three."):
        feed.push(ClientMessage(text=text))
    assert session.characters_written == len("One. Two. Three. ")
    assert [feed.position_in_text(at) for at in range(18)] == [*range(5), *range(4, 16), 15]
