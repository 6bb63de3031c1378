"""Other names for voices, so that clients which know only OpenAI's thirteen can speak. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

OPENAI_VOICES = (
    "alloy",
    "ash",
    "ballad",
    "coral",
    "echo",
    "fable",
    "nova",
    "onyx",
    "sage",
    "shimmer",
    "verse",
    "marin",
    "cedar",
)


@dataclass(frozen=True)
class VoiceAliases:
    """What the operator wants; a voice's own name always comes before an alias."""

    given: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Alias -> name or id of a voice."""
    has_openai_names: bool = True
    """Whether OpenAI's names that are not in `given` are dealt out to the voices of the voices directory."""

    def table(self, names: Sequence[str]) -> dict[str, str]:
        """Return alias -> voice.

        OpenAI's names go round the directory's in alphabetical order: the first to the first, and so on, beginning
        again when there are fewer voices than names. Created voices take no part, so that the table stays as it is
        while they come and go.

        Args:
            names: of the voices directory.
        """
        dealt: dict[str, str] = {}
        ordered = sorted(names)
        if self.has_openai_names and ordered:
            dealt = {alias: ordered[turn % len(ordered)] for turn, alias in enumerate(OPENAI_VOICES)}
        return {**dealt, **self.given}
