"""What token2wav answered for each voice, so that it is asked once; the processes of one gateway tell each other."""

from __future__ import annotations

from collections import OrderedDict

from gateway.core import RegisteredVoice
from gateway.ledger import MAX_VOICES, CallerLedger


class KnownVoices:
    """The voices used last, by the keys that `VoiceRegistry` gives them; lives in one event loop."""

    def __init__(self, max_voices: int = MAX_VOICES, ledger: CallerLedger | None = None) -> None:
        """Know none.

        Args:
            max_voices: remembered at most; the least recently used goes first.
            ledger: shared with other processes; None: this one is alone.
        """
        self._max_voices = max_voices
        self._ledger = ledger
        self._voices: OrderedDict[str, RegisteredVoice] = OrderedDict()

    def find(self, key: str) -> RegisteredVoice | None:
        """Return a voice, which is thereby used; None if it must be registered."""
        voice = self._voices.get(key)
        if voice is None and self._ledger is not None:
            voice = self._ledger.told_voice(key)
        if voice is not None:
            self._keep(key, voice)
        return voice

    def registered(self, key: str, voice: RegisteredVoice) -> None:
        """Remember what token2wav has answered."""
        self._keep(key, voice)
        if self._ledger is not None:
            self._ledger.tell_voice(key, voice)

    def forget(self, key: str) -> None:
        """Have the voice registered again when it is next needed; harmless if it is not known."""
        self._voices.pop(key, None)
        if self._ledger is not None:
            self._ledger.forget_voice(key)

    def _keep(self, key: str, voice: RegisteredVoice) -> None:
        self._voices[key] = voice
        self._voices.move_to_end(key)
        while len(self._voices) > self._max_voices:
            self._voices.popitem(last=False)
