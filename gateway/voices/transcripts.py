"""Holds a recording's transcript against the recording: speech that goes on from a wrong one loses words.

The length tells of every recording: nobody says so many letters in so many seconds, or so few. Where the checkpoint has
an aligner, the sounds tell as well. By the bundled aligner a frame of a bundled voice's prompt is likelier by 1.03 to
1.39 (natural logarithm) with its own transcript than without any, and less likely by 0.15 to 0.86 with another
sentence or a placeholder; of eight recordings of people, whom it knows less well, by -0.21 to 0.47 with their own and
by -0.02 to -1.14 with another.
"""

from __future__ import annotations

from functools import lru_cache

from gateway.core import RegisteredVoice
from gateway.errors import InvalidVoicePromptError
from gateway.llm.length import speech_of_any_pace
from gateway.speech.letter_times import mean_score
from llm_service.aligner import Aligner
from token2wav_service.contract import TOKEN_RATE_HZ

_REFUSED_BELOW, _DOUBTED_BELOW = -0.35, 0.0
_DOUBTED_SHARE = 0.75
"""Of the most speech that a transcript may have; the eight people's recordings have at most 0.5 of it."""
_INSTEAD = "write what is said in it, word by word, or leave the transcript out: then only the timbre is taken"


class TranscriptCheck:
    """Refuses a transcript that can't be the recording's, and warns of one that may not be."""

    def __init__(self, aligner: Aligner | None = None, *, is_on: bool = True) -> None:
        """Judge by the length, and by the sounds if there is an aligner.

        Args:
            aligner: of the checkpoint.
            is_on: False: accept every transcript, as speech of random weights follows no text.
        """
        self._aligner = aligner
        self._is_on = is_on
        self._judged = lru_cache(maxsize=256)(self._judge)

    def warning(self, transcript: str, voice: RegisteredVoice) -> str:
        """Return what to tell who gave a recording: silence that was cut, a doubtful transcript; empty: nothing.

        Args:
            transcript: what the caller says the recording says; may be empty.
            voice: made from the recording.

        Raises:
            InvalidVoicePromptError: the recording says something else.
        """
        text, cut_s = transcript.strip(), voice.silence_cut_s
        doubt = self._judged(text, voice.prompt_speech_tokens) if self._is_on and text else ""
        silence = f"{cut_s:.1f} s of silence were cut from the recording" if cut_s else ""
        return "; ".join(filter(None, (silence, doubt)))

    def _judge(self, text: str, tokens: tuple[int, ...]) -> str:
        least, most = speech_of_any_pace(text)
        seconds = len(tokens) / TOKEN_RATE_HZ
        got = f"the transcript has {len(text)} characters and the recording {seconds:.1f} s of speech"
        if not least <= len(tokens) <= most:
            expected = f"expected {least / TOKEN_RATE_HZ:.1f} to {most / TOKEN_RATE_HZ:.1f} s for such a text"
            raise InvalidVoicePromptError(f"{got}, {expected}; {_INSTEAD}", param="transcript")
        score = None if self._aligner is None else mean_score(self._aligner, text, tokens)
        if score is not None and score < _REFUSED_BELOW:
            message = f"the recording does not say its transcript, which begins {text[:40]!r}; {_INSTEAD}"
            raise InvalidVoicePromptError(message, param="transcript")
        is_doubtful = len(tokens) > _DOUBTED_SHARE * most or (score is not None and score < _DOUBTED_BELOW)
        return "the recording may not say its transcript; where it does not, answers lack words" if is_doubtful else ""
