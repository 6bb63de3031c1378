"""How much speech a checkpoint's LLM has learnt to speak at once: `speech_bounds.json` beside its tokenizer, optional.

    {"segment_letters": 200, "carry_tokens": 100, "silent_tokens": [1, 2]}

Whoever asks an LLM for speech keeps to them, so that a model which knows short texts only is never asked for long ones.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from llm_service.errors import CheckpointError
from llm_service.vocab import SPEECH_TOKEN_COUNT

BOUNDS_FILE = "speech_bounds.json"


@dataclass(frozen=True)
class SpeechBounds:
    """None bounds nothing beyond what the asking side has as its own."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    segment_letters: Annotated[int, Field(ge=1)] | None = None
    """Letters of about the longest text of one answer, which ends as a whole text does: in a full stop, not a comma."""
    carry_tokens: Annotated[int, Field(ge=0)] | None = None
    """Most speech tokens (25 Hz) of earlier answers that the next one goes on from; 0: none."""
    silent_tokens: tuple[Annotated[int, Field(ge=0, lt=SPEECH_TOKEN_COUNT)], ...] | None = None
    """Speech tokens 0..6560 that sound as silence."""
    follows_text: bool | None = None
    """Whether speech follows the text; False: the weights are random, so no answer is better than another."""

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
        return TypeAdapter(SpeechBounds).validate_json(path.read_bytes())
    except ValidationError as err:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in err.errors())
        names = ", ".join(SpeechBounds.__dataclass_fields__)
        raise CheckpointError(f"{path} can't be read ({problems}); expected a JSON object of {names}") from err
    except OSError as err:
        raise CheckpointError(f"{path} can't be read: {err}") from err


def write_speech_bounds(directory: Path, bounds: SpeechBounds) -> None:
    """Write the file beside the tokenizer in `directory`."""
    (directory / BOUNDS_FILE).write_text(json.dumps(asdict(bounds)) + "\n", encoding="utf-8")
