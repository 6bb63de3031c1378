"""Transcripts against their recordings: by length, by sound, and at every way to a voice."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gateway.core import FloatArray, InlineVoice, RegisteredVoice
from gateway.errors import InvalidVoicePromptError
from gateway.voices.registry import NamedVoice, VoiceRegistry
from gateway.voices.transcripts import TranscriptCheck
from llm_service.aligner import LetterModel
from tests.gateway.fakes import FakeToken2Wav
from tests.gateway.speech.test_letter_times import PlainAligner, tokens_of
from tests.gateway.voices.fakes import FakeVoiceMaker, draft, make_store

PLACEHOLDER = "What the recording says."
SENTENCE = "The old boat drifted past the bridge while we watched from the shore."
CHINESE = "小船慢慢地漂过了桥，我们在岸边看着它。"


class HearingAligner(PlainAligner):
    """A letter that is said is likelier than any other, as by a real one."""

    def scores(self, token_ids: tuple[int, ...], since: int, until: int, letters: LetterModel) -> FloatArray:
        return super().scores(token_ids, since, until, letters) / 10 + 1


def voice(tokens: int | list[int], cut_s: float = 0.0) -> RegisteredVoice:
    return RegisteredVoice("voice", (1,) * tokens if isinstance(tokens, int) else tuple(tokens), cut_s)


@pytest.mark.parametrize(
    ("transcript", "tokens", "outcome"),
    [
        pytest.param(SENTENCE, 102, "", id="a sentence in 4 s"),
        pytest.param(CHINESE, 102, "", id="Chinese"),
        pytest.param("", 102, "", id="none"),
        pytest.param("Yes.", 25, "", id="a word"),
        pytest.param(PLACEHOLDER, 110, "may not say", id="the placeholder of 4 s"),
        pytest.param(PLACEHOLDER, 150, "24 characters and the recording 6.0 s", id="the placeholder of 6 s"),
        pytest.param(SENTENCE * 3, 102, r"expected 4\.9 to", id="three sentences in 4 s"),
        pytest.param(CHINESE, 450, "expected", id="Chinese in 18 s"),
    ],
)
def test_a_transcript_is_held_against_the_length_of_its_recording(transcript: str, tokens: int, outcome: str) -> None:
    check = TranscriptCheck()
    if "expected" in outcome or "characters" in outcome:
        with pytest.raises(InvalidVoicePromptError, match=outcome):
            check.warning(transcript, voice(tokens))
    elif outcome:
        assert outcome in check.warning(transcript, voice(tokens))
    else:
        assert check.warning(transcript, voice(tokens)) == ""
    assert TranscriptCheck(is_on=False).warning(transcript, voice(tokens)) == ""


def test_a_transcript_is_held_against_the_sounds_of_its_recording() -> None:
    check, said = TranscriptCheck(HearingAligner()), voice(tokens_of("_cat_sat_on_"))

    assert check.warning("Cat sat on.", said) == ""
    with pytest.raises(InvalidVoicePromptError, match="does not say its transcript, which begins 'Dig mud up"):
        check.warning("Dig mud up.", said)
    assert check.warning("1 2 3.", said) == ""  # digits sound like anything


async def test_no_way_to_a_voice_takes_a_wrong_transcript(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    maker, wrong = FakeVoiceMaker(), 20 * SENTENCE
    maker.silence_cut_s = 2.7
    (tmp_path / "own.wav").write_bytes(b"RIFF-own")
    named = NamedVoice("own", tmp_path / "own.wav", wrong)
    registry = VoiceRegistry(maker, [named], make_store(tmp_path / "made", maker))

    with pytest.raises(InvalidVoicePromptError, match="transcript"):
        await registry.resolve(InlineVoice(b"RIFF-a", wrong))
    with pytest.raises(InvalidVoicePromptError, match="transcript"):
        await registry.create(draft(transcript=wrong))
    assert not registry.created
    with caplog.at_level(logging.WARNING):
        await registry.resolve("own")  # the operator's; refused, a server would lose its voice
    assert "voice own: the transcript has" in caplog.text


async def test_silence_that_was_cut_is_told_to_who_gave_the_recording(tmp_path: Path) -> None:
    maker = FakeVoiceMaker()
    maker.silence_cut_s = 2.7
    registry = VoiceRegistry(maker, store=make_store(tmp_path, maker))

    created = await registry.create(draft())
    spoken = [await registry.resolve(source) for source in (created.id, InlineVoice(b"RIFF-a", "I am Eva."))]

    told = "2.7 s of silence were cut from the recording"
    assert [created.warning, *(ready.warning for ready in spoken)] == [told] * 3
    assert (await VoiceRegistry(FakeToken2Wav()).resolve(InlineVoice(b"RIFF-a", ""))).warning == ""
