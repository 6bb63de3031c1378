"""Which voices token2wav knows: what one process has registered, the others are told, through the parent.

A voice goes by the registry's key: the hash of a recording that came with a request, the id of a created voice, or the
name of one of the operator's with the state of its file. A process that was told of a voice still looks up for each
caller whether it may speak in it; whoever brings a recording has that voice already.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from gateway.core import RegisteredVoice
from gateway.voices.known import MAX_KNOWN_VOICES, KnownVoices

ToldVoice = list[str]
"""Key, token2wav's id, and as text, which the parent need not read, the prompt's speech tokens and the seconds of
silence that were cut from it."""


class WorkerKnownVoices:
    """A worker's known voices, and those of them that the others have not been told of."""

    def __init__(self) -> None:
        """Know none."""
        self.known = KnownVoices(on_registered=self._note)
        self._untold: dict[str, RegisteredVoice] = {}

    def take_untold(self) -> list[ToldVoice]:
        """Return the voices that were registered since the last call."""
        untold, self._untold = self._untold, {}
        return [
            [key, voice.voice_id, " ".join(map(str, voice.prompt_speech_tokens)), str(voice.silence_cut_s)]
            for key, voice in untold.items()
        ]

    def hear(self, voices: Iterable[ToldVoice]) -> None:
        """Take over what other processes have registered."""
        for key, voice_id, tokens, cut_s in voices:
            self.known.heard(key, RegisteredVoice(voice_id, tuple(map(int, tokens.split())), float(cut_s)))

    def _note(self, key: str, voice: RegisteredVoice) -> None:
        self._untold[key] = voice


class ToldVoices:
    """What the parent was told last, for workers that begin later."""

    def __init__(self, max_voices: int = MAX_KNOWN_VOICES) -> None:
        """Begin with none; the ones told longest ago make room."""
        self._max_voices = max_voices
        self._voices: OrderedDict[str, ToldVoice] = OrderedDict()

    def add(self, voices: Iterable[ToldVoice]) -> None:
        """Remember voices."""
        for voice in voices:
            self._voices[voice[0]] = voice
            self._voices.move_to_end(voice[0])
        while len(self._voices) > self._max_voices:
            self._voices.popitem(last=False)

    def all(self) -> list[ToldVoice]:
        """Return the voices, the ones told last at the end."""
        return list(self._voices.values())
