"""How much speech a checkpoint's LLM has learnt to speak at once: `speech_bounds.json` beside its tokenizer, optional.

    {"segment_letters": 200, "carry_tokens": 100, "silent_tokens": [1, 2]}

Whoever asks an LLM for speech keeps to them, so that a model which knows short texts only is never asked for long ones.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from llm_service.errors import CheckpointError
from llm_service.vocab import SPEECH_TOKEN_COUNT

BOUNDS_FILE = "speech_bounds.json"


@dataclass(frozen=True)
class SpeechBounds:
    """None bounds nothing beyond what the asking side has as its own."""

    segment_letters: int | None = None
    """Letters of about the longest text of one answer, which ends as a whole text does: in a full stop, not a comma."""
    carry_tokens: int | None = None
    """Most speech tokens (25 Hz) of earlier answers that the next one goes on from; 0: none."""
    silent_tokens: tuple[int, ...] | None = None
    """Speech tokens 0..6560 that sound as silence."""
    follows_text: bool | None = None
    """Whether speech follows the text; False: the weights are random, so no answer is better than another."""

    def __post_init__(self) -> None:
        least = {"segment_letters": 1, "carry_tokens": 0}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < smallest):
                raise CheckpointError(f"got {name} {value!r}, expected null or an integer from {smallest} on")
        if self.follows_text not in (None, False, True):
            raise CheckpointError(f"got follows_text {self.follows_text!r}, expected null, true or false")
        if self.silent_tokens is None:
            return
        tokens = tuple(self.silent_tokens)
        object.__setattr__(self, "silent_tokens", tokens)  # JSON has no tuples
        if not all(type(token) is int and 0 <= token < SPEECH_TOKEN_COUNT for token in tokens):
            raise CheckpointError(
                f"got silent_tokens {tokens!r}, expected null or integers 0..{SPEECH_TOKEN_COUNT - 1}"
            )

    def overridden_by(self, other: SpeechBounds) -> SpeechBounds:
        """Return these with every bound replaced that the other sets."""
        chosen = {name: value for name, value in asdict(other).items() if value is not None}
        return SpeechBounds(**{**asdict(self), **chosen})


def load_speech_bounds(tokenizer_dir: Path) -> SpeechBounds:
    """Read the bounds of a checkpoint; one without the file has none, as the official one.

    Raises:
        CheckpointError: the file is there and holds something else.
    """
    path = tokenizer_dir / BOUNDS_FILE
    if not path.exists():
        return SpeechBounds()
    try:
        return SpeechBounds(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, CheckpointError) as err:
        names = ", ".join(SpeechBounds.__dataclass_fields__)
        raise CheckpointError(f"{path} can't be read ({err}); expected a JSON object of {names}") from err


def write_speech_bounds(directory: Path, bounds: SpeechBounds) -> None:
    """Write the file beside the tokenizer in `directory`."""
    (directory / BOUNDS_FILE).write_text(json.dumps(asdict(bounds)) + "\n", encoding="utf-8")
