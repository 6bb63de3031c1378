"""What token2wav answered for each voice, so that it is asked once; the processes of one gateway tell each other."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from gateway.core import RegisteredVoice

MAX_KNOWN_VOICES = 1024


class KnownVoices:
    """The voices used last, by the keys that `VoiceRegistry` gives them; lives in one event loop."""

    def __init__(
        self, max_voices: int = MAX_KNOWN_VOICES, on_registered: Callable[[str, RegisteredVoice], None] | None = None
    ) -> None:
        """Know none.

        Args:
            max_voices: remembered at most; the least recently used goes first.
            on_registered: called with each voice that this process has registered.
        """
        self._max_voices = max_voices
        self._on_registered = on_registered
        self._voices: OrderedDict[str, RegisteredVoice] = OrderedDict()

    def __len__(self) -> int:
        return len(self._voices)

    def find(self, key: str) -> RegisteredVoice | None:
        """Return a voice, which is thereby used; None if it must be registered."""
        if key in self._voices:
            self._voices.move_to_end(key)
        return self._voices.get(key)

    def registered(self, key: str, voice: RegisteredVoice) -> None:
        """Remember what token2wav has answered to this process."""
        self.heard(key, voice)
        if self._on_registered is not None:
            self._on_registered(key, voice)

    def heard(self, key: str, voice: RegisteredVoice) -> None:
        """Remember what it has answered to another process; token2wav may have dropped the voice meanwhile."""
        self._voices[key] = voice
        self._voices.move_to_end(key)
        while len(self._voices) > self._max_voices:
            self._voices.popitem(last=False)

    def forget(self, key: str) -> None:
        """Have the voice registered again when it is next needed; harmless if it is not known."""
        self._voices.pop(key, None)
