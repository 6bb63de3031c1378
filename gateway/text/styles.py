"""How a caller asks for a way of speaking, and the instruction that the LLM gets for it.

    style     happy                      or any instruction: "Speak like a news anchor."
    LLM       Please say a sentence very happily.        <|endofprompt|>  text

A few names stand for instructions of CosyVoice3's own kind, in Chinese before Chinese text. Audio tags are ElevenLabs'
v3 form, words in brackets within the text: those of a sound become the model's own tag, those of a pause silence, and
any other says how to speak what follows. Pure; who may ask for a style is the checkpoint's word (`StyleRule`).

Source of the wording: the sentences that the authors of CosyVoice3 publish as examples of its instructions
(`Please say a sentence in a very soft voice.`); names without one are put in the same words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.errors import InvalidRequestError, UnsupportedOptionError

MAX_STYLE = 1000
"""Most characters of a style; the LLM reads all of them before each sentence."""
AUDIO_TAGS_FIELD = "audio_tags"
"""The name of audio tags in the list of ignored fields."""
NO_STYLES = (
    "this checkpoint takes no instructions on how to speak; CosyVoice2 and CosyVoice3 checkpoints do, where "
    "checkpoint.json declares it"
)
_CHINESE = ("zh", "yue")
_NORMAL = frozenset({"neutral", "normal", "default"})
_STYLES = {
    "happy": ("Please say a sentence very happily.", "请非常开心地说一句话。"),
    "sad": ("Please say a sentence very sadly.", "请非常伤心地说一句话。"),
    "angry": ("Please say a sentence very angrily.", "请非常生气地说一句话。"),
    "fearful": ("Please say a sentence very fearfully.", "请非常恐惧地说一句话。"),
    "surprised": ("Please say a sentence in great surprise.", "请非常惊讶地说一句话。"),
    "disgusted": ("Please say a sentence in disgust.", "请非常厌恶地说一句话。"),
    "calm": ("Please say a sentence in a calm voice.", "请用冷静的语调说一句话。"),
    "excited": ("Please say a sentence with great excitement.", "请用兴奋的感觉说一句话。"),
    "serious": ("Please say a sentence in a serious voice.", "请用严肃的语调说一句话。"),
    "gentle": ("Please say a sentence in a gentle voice.", "请用温柔的语调说一句话。"),
    "curious": ("Please say a sentence with curiosity.", "请用好奇的语气说一句话。"),
    "sarcastic": ("Please say a sentence with sarcasm.", "请用讽刺的语气说一句话。"),
    "whisper": ("Please say a sentence in a very soft voice.", "请非常轻声地说一句话。"),
    "shout": ("Please say a sentence as loudly as possible.", "请尽可能非常大声地说一句话。"),
    "slow": ("Please say a sentence as slowly as possible.", "请用尽可能慢地语速说一句话。"),
    "fast": ("Please say a sentence as fast as possible.", "请用尽可能快地语速说一句话。"),
}
STYLE_NAMES = tuple(_STYLES)
_OTHER_NAMES = {
    **dict.fromkeys(("happily", "cheerful", "cheerfully", "joyful", "pleased", "happy tone"), "happy"),
    **dict.fromkeys(("sadly", "sorrowful", "crying", "depressed"), "sad"),
    **dict.fromkeys(("angrily", "annoyed", "frustrated", "furious"), "angry"),
    **dict.fromkeys(("fear", "afraid", "scared", "nervous", "nervously"), "fearful"),
    **dict.fromkeys(("surprise", "amazed", "pleasantsurprise", "pleasantsurprised"), "surprised"),
    **dict.fromkeys(("disgust",), "disgusted"),
    **dict.fromkeys(("calmly", "relaxed"), "calm"),
    **dict.fromkeys(("excitedly", "excitement", "enthusiastic"), "excited"),
    **dict.fromkeys(("seriously",), "serious"),
    **dict.fromkeys(("gently", "softly", "warm", "warmly"), "gentle"),
    **dict.fromkeys(("curiously", "questioning"), "curious"),
    **dict.fromkeys(("sarcastically", "sarcasm"), "sarcastic"),
    **dict.fromkeys(("whispers", "whispering", "whispered", "quietly"), "whisper"),
    **dict.fromkeys(("shouts", "shouting", "loud", "loudly", "yelling"), "shout"),
    **dict.fromkeys(("slowly", "drawn out"), "slow"),
    **dict.fromkeys(("quickly", "rushed", "rapid"), "fast"),
}
_SOUNDS = {
    **dict.fromkeys(
        ("laughs", "laughing", "laughter", "laughs harder", "starts laughing", "chuckles", "giggles"), "[laughter]"
    ),
    **dict.fromkeys(("sighs", "sigh", "sighing"), "[sigh]"),
    **dict.fromkeys(
        ("exhales", "exhales sharply", "inhales", "inhales deeply", "breathes", "breathes deeply"), "[breath]"
    ),
    **dict.fromkeys(("coughs", "cough", "clears throat"), "[cough]"),
}
_PAUSES_S = {"short pause": 0.5, "pause": 0.75, "pauses": 0.75, "long pause": 1.25}
"""Pauses in seconds: those of `pauses.STRENGTHS_S` for weak, medium and x-strong."""
_AUDIO_TAG = re.compile(r"\[(?P<words>[^\W\d_](?:[^\W\d_]|['’,-]|\s(?!\s)){1,59}(?<!\s))\](?!\()")
"""An audio tag, but not the brackets before a link's address."""


@dataclass(frozen=True)
class Style:
    """A way of speaking, in a caller's words."""

    words: str
    """A name of `STYLE_NAMES`, or an instruction."""
    field: str = "style"
    """Name of the style's field in the caller's protocol."""

    def __post_init__(self) -> None:
        if len(self.words) > MAX_STYLE:
            got = f"{self.field} has {len(self.words)} characters, the limit is {MAX_STYLE}"
            raise InvalidRequestError(f"{got}; say it shorter", param=self.field)
        try:
            self.words.encode("utf-8")
        except UnicodeEncodeError as error:
            got = f"character {error.start} of {self.field} is a lone surrogate"
            raise InvalidRequestError(f"{got}; send valid Unicode", param=self.field) from error


@dataclass(frozen=True)
class StyleRule:
    """Whether the checkpoint takes instructions, and what becomes of those that it does not take."""

    is_declared: bool = False
    refuses: bool = False
    """Whether instructions that the checkpoint does not take are an error; else they are ignored and reported."""

    def check(self, field: str) -> None:
        """Refuse a field that asks for a way of speaking, where it is to be refused.

        Raises:
            UnsupportedOptionError: it is.
        """
        if self.refuses and not self.is_declared:
            raise UnsupportedOptionError(f"got {field}, but {NO_STYLES}; leave it out", param=field)


def style_of(**fields: str | None) -> Style | None:
    """Return the style that one of a request's fields asks for; blank ones ask for none.

    Raises:
        InvalidRequestError: two of them do, or one is too long.
    """
    given = [Style(words, field) for field, words in fields.items() if words and words.strip()]
    if len(given) > 1:
        names = " and ".join(each.field for each in given)
        raise InvalidRequestError(f"got {names}, which mean the same; send one of them", param=given[-1].field)
    return given[0] if given else None


def instruction_of(words: str, language: str | None) -> str:
    """Return what the LLM is told; empty for a name that means nothing special.

    Args:
        words: a name, or an instruction, which stays as it is but for its blank space.
        language: of the text that is spoken, as a primary subtag of BCP 47.
    """
    words = " ".join(words.split())
    name = words.lower().rstrip(".!")
    if name in _NORMAL:
        return ""
    found = _STYLES.get(_OTHER_NAMES.get(name, name))
    return words if found is None else found[language in _CHINESE]


@dataclass(frozen=True)
class AudioTag:
    """One audio tag of a text."""

    end: int
    """Position behind the tag."""
    words: str
    sound: str = ""
    """The model's own tag for a sound; empty if the audio tag is no sound."""
    pause_s: float = 0.0
    """Seconds of silence if the tag asks for a pause; else 0."""

    @property
    def style(self) -> str:
        """How to speak what follows; empty if it is a sound or a pause."""
        if self.sound or self.pause_s:
            return ""
        name = self.words.lower()
        is_name = name in _STYLES or name in _OTHER_NAMES or name in _NORMAL
        return self.words if is_name else f"Please say a sentence in this way: {self.words}."


def audio_tag_at(text: str, at: int) -> AudioTag | None:
    """Return the audio tag that begins at a position; None if none does."""
    found = _AUDIO_TAG.match(text, at)
    return None if found is None else _tag_of(found)


def audio_tags(text: str) -> Iterator[AudioTag]:
    """Yield the different audio tags of a text, in order; a text may repeat one ten thousand times."""
    return map(_tag_of, {found["words"]: found for found in _AUDIO_TAG.finditer(text)}.values())


def _tag_of(found: re.Match[str]) -> AudioTag:
    name = found["words"].lower()
    return AudioTag(found.end(), found["words"], _SOUNDS.get(name, ""), _PAUSES_S.get(name, 0.0))
