"""Describes the operator's voices, and maps the names of other servers' voices to them.

A profile lies beside the recording, as `<name>.json`:

    {"description": "A man, calm and clear, American English.", "gender": "male", "language": "en-US"}

Knows files of profiles and tables of names; nothing of recordings or services.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from gateway.errors import ConfigError

DEFAULT_VOICE = "default"
"""The voice that is used if a request names none; it counts as the checkpoint's best voice."""
MAX_DESCRIPTION_CHARACTERS = 500
_LANGUAGE = r"^([A-Za-z]{2,3}(-[A-Za-z0-9]{1,8})*)?$"
"""The form of a BCP 47 tag, or nothing."""


class Gender(str, Enum):
    """How a voice sounds to most listeners."""

    FEMALE = "female"
    MALE = "male"
    NEUTRAL = "neutral"


@dataclass(frozen=True)
class VoiceProfile:
    """What listeners are told of a voice; all of it may be unknown."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    description: Annotated[str, Field(max_length=MAX_DESCRIPTION_CHARACTERS)] = ""
    """Who speaks (a woman, a man), in which manner and language; a sentence or two."""
    gender: Gender | None = None
    language: Annotated[str, Field(pattern=_LANGUAGE)] = ""
    """BCP 47 tag of the language that the voice was recorded in; empty if unknown."""

    @property
    def facts(self) -> dict[str, str]:
        """The known fields, by name."""
        named = {
            "description": self.description,
            "gender": self.gender and self.gender.value,
            "language": self.language,
        }
        return {name: value for name, value in named.items() if value}


NO_PROFILE = VoiceProfile()
_PROFILES = TypeAdapter(VoiceProfile)


def read_profile(path: Path) -> VoiceProfile:
    """Read a voice's profile; an empty one if there is no such file.

    Raises:
        ConfigError: it is no JSON object of these fields, or one of them can't be.
    """
    expected = 'expected JSON such as {"description": "A woman, warm and quick.", "gender": "female", "language": "en"}'
    try:
        return _PROFILES.validate_json(path.read_bytes())
    except FileNotFoundError:
        return NO_PROFILE
    except OSError as error:
        raise ConfigError(f"voice profile {path} can't be read ({error.strerror}); {expected}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise ConfigError(f"voice profile {path}: {where}: {first['msg']}; {expected}") from error


def _sounding(names: str) -> Mapping[str, Gender | None]:
    """Return names with how they sound: `f` a woman, `m` a man, `?` whoever it is."""
    genders = {"f": Gender.FEMALE, "m": Gender.MALE, "?": None}
    return {name: genders[gender] for name, _, gender in (each.partition(":") for each in names.split())}


# `alloy` is the name that examples and clients send where nobody chose: the best voice, whoever it is.
OPENAI_VOICES = _sounding(
    "alloy:? ash:m ballad:m coral:f echo:m fable:m nova:f onyx:m sage:f shimmer:f verse:m marin:f cedar:m"
)
"""OpenAI's voices and how they sound."""

# `ryan` is what the public harness tts_bench asks for.
QWEN_VOICES = _sounding("ryan:m vivian:f serena:f uncle_fu:m dylan:m eric:m aiden:m ono_anna:f sohee:f")
"""Voices of Qwen3-TTS, which clients and benchmarks of vllm-omni and sglang-omni ask for unless told otherwise."""


@dataclass(frozen=True)
class VoiceAliases:
    """What the operator wants; a voice's own name always comes before an alias, whose case does not matter."""

    given: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Alias -> name or id of a voice."""
    has_openai_names: bool = True
    """Whether the names of OpenAI's and Qwen3-TTS's voices that are not in `given` are dealt out to the voices of the
    voices directory."""

    def table(self, voices: Mapping[str, Gender | None]) -> dict[str, str]:
        """Return alias -> voice.

        The names go round the directory's voices, `default` first and the others in alphabetical order, beginning again
        when there are fewer voices than names: names of women to the voices known as female, names of men to the male
        ones. Where no voice is known to be of a kind, its names go round all. Created voices take no part, so that the
        table stays as it is while they come and go.

        Args:
            voices: of the voices directory, with what is known of them.
        """
        dealt: dict[str, str] = {}
        ordered = sorted(voices, key=lambda name: (name != DEFAULT_VOICE, name))
        if self.has_openai_names and ordered:
            for names in (OPENAI_VOICES, QWEN_VOICES):
                dealt |= _dealt(names, ordered, voices)
        return {**dealt, **self.given}


NO_ALIASES = VoiceAliases(has_openai_names=False)


def _dealt(
    names: Mapping[str, Gender | None], ordered: Iterable[str], voices: Mapping[str, Gender | None]
) -> dict[str, str]:
    everyone = list(ordered)
    table: dict[str, str] = {}
    for place, (name, gender) in enumerate(names.items()):
        alike = [voice for voice in everyone if gender is not None and voices[voice] is gender]
        turn = [other for other in names if names[other] is gender].index(name) if alike else place
        choices = alike or everyone
        table[name] = choices[turn % len(choices)]
    return table
