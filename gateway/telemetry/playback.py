"""How much audio a listener has left when the next comes. Pure arithmetic: no clock, no metrics.

    first audio ├──── audio so far ────┤ runs dry
                          next chunk ▲ ├ ─ ─ ─ slack above 0
                                       ├ ─ ─ ▲ next chunk: slack below 0, an underrun

The listener plays from the first audio on and, after an underrun, from the chunk that ended it. A caller who asks for
the next chunk only when its audio is over, as one who reads slowly does, waits for us from then on.
"""

from __future__ import annotations


class Playback:
    """One listener; all times are seconds of one clock."""

    def __init__(self) -> None:
        """Begin before the first audio."""
        self._dry_s: float | None = None

    def deliver(self, asked_s: float, now_s: float, audio_s: float) -> float | None:
        """Note a chunk.

        Args:
            asked_s: when the caller began to wait for it.
            now_s: when it was handed over.
            audio_s: its length; 0 changes nothing.

        Returns:
            Its slack in seconds: how long before the listener would have run dry it came, below 0 if after. None for
            the first audio and for chunks without audio.
        """
        if audio_s <= 0:
            return None
        if self._dry_s is None:
            self._dry_s = now_s + audio_s
            return None
        slack_s = max(self._dry_s, asked_s) - now_s
        self._dry_s = max(self._dry_s, now_s) + audio_s
        return slack_s


def underrun_s(slack_s: float) -> float:
    """Return the silence that a listener hears for such a slack."""
    return max(-slack_s, 0.0)
