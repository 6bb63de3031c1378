"""Speech tokens inside the LLM's vocabulary: ids, text form, and a parser of that text.

The only home of the numbering. A *speech id* is 0..6560 (what token2wav takes); an *LLM id* is its place in the LLM's
table. Knows nothing of tokenizers, prompts or models, and imports nothing beyond the standard library.

    LLM id   0 ........ 151662 | 151663 ..... 158223 | 158224..158226 | 158227 | 158228   | ... 158335
    token    text and its tags | <|s_0|>..<|s_6560|> | <|eos1|>..3    | <|sos|>| <|task_id|> padding
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from llm_service.errors import VocabularyError

__all__ = [
    "CONTROL_TOKENS",
    "END_IDS",
    "END_TOKENS",
    "INLINE_TAGS",
    "PADDED_VOCABULARY_SIZE",
    "SOS_ID",
    "SOS_TOKEN",
    "SPEECH_HEAD_ROWS",
    "SPEECH_TOKENS_PER_SECOND",
    "SPEECH_TOKEN_COUNT",
    "SPEECH_TOKEN_OFFSET",
    "TASK_ID",
    "TASK_TOKEN",
    "SpeechTokenTextParser",
    "VocabularyError",
    "contains_protected_token",
    "format_speech_tokens",
    "is_speech_llm_id",
    "llm_id_from_speech_id",
    "speech_id_from_llm_id",
    "speech_token_text",
]

SPEECH_TOKEN_OFFSET = 151663
SPEECH_TOKEN_COUNT = 6561
SPEECH_TOKENS_PER_SECOND = 25

END_TOKENS = ("<|eos1|>", "<|eos2|>", "<|eos3|>")
END_IDS = tuple(SPEECH_TOKEN_OFFSET + SPEECH_TOKEN_COUNT + index for index in range(len(END_TOKENS)))
# Rows of the only head used for speech: speech tokens, then end tokens; row i is LLM id SPEECH_TOKEN_OFFSET + i.
SPEECH_HEAD_ROWS = SPEECH_TOKEN_COUNT + len(END_TOKENS)
SOS_TOKEN = "<|sos|>"
SOS_ID = END_IDS[-1] + 1
TASK_TOKEN = "<|task_id|>"
TASK_ID = SOS_ID + 1
# Rows of the embedding table: the vocabulary rounded up to a multiple of 128.
PADDED_VOCABULARY_SIZE = 158336

# The text tokenizer's own control tokens: as dangerous in a user's text as ours.
TEXT_CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|endofprompt|>")
# The text tokenizer's tags a user may write, in the official order of their ids.
INLINE_TAGS = (
    *("[breath]", "<strong>", "</strong>", "[noise]", "[laughter]", "[cough]", "[clucking]", "[accent]"),
    *("[quick_breath]", "<laughter>", "</laughter>", "[hissing]", "[sigh]", "[vocalized-noise]", "[lipsmack]", "[mn]"),
)
CONTROL_TOKENS = (*END_TOKENS, SOS_TOKEN, TASK_TOKEN, *TEXT_CONTROL_TOKENS)

_PROTECTED = re.compile("|".join([r"<\|s_\d+\|>", *(re.escape(token) for token in CONTROL_TOKENS)]))
# A whole token at the start of the text, or blank space between tokens (some servers put it there).
_TOKEN = re.compile(r"<\|s_(\d{1,5})\|>|\s+|" + "|".join(re.escape(token) for token in END_TOKENS))
_PARTIAL = re.compile(r"<(\|([a-z](?:[a-z_0-9]{0,12}\|?)?)?)?")


def llm_id_from_speech_id(speech_id: int) -> int:
    """Return the LLM id of speech token `speech_id` (0..6560).

    Raises:
        VocabularyError: the id is out of range.
    """
    if not 0 <= speech_id < SPEECH_TOKEN_COUNT:
        raise VocabularyError(f"got speech token {speech_id}; expected 0..{SPEECH_TOKEN_COUNT - 1}")
    return SPEECH_TOKEN_OFFSET + speech_id


def speech_id_from_llm_id(llm_id: int) -> int:
    """Return the speech token (0..6560) of an LLM id.

    Raises:
        VocabularyError: the id is not that of a speech token (text, end and control ids are not).
    """
    if not is_speech_llm_id(llm_id):
        first, last = SPEECH_TOKEN_OFFSET, SPEECH_TOKEN_OFFSET + SPEECH_TOKEN_COUNT - 1
        raise VocabularyError(f"got LLM id {llm_id}; speech tokens are {first}..{last}")
    return llm_id - SPEECH_TOKEN_OFFSET


def is_speech_llm_id(llm_id: int) -> bool:
    """Tell whether an LLM id is a speech token's."""
    return 0 <= llm_id - SPEECH_TOKEN_OFFSET < SPEECH_TOKEN_COUNT


def speech_token_text(speech_id: int) -> str:
    """Return the text form of one speech token, `<|s_N|>`.

    Raises:
        VocabularyError: the id is out of range.
    """
    return f"<|s_{llm_id_from_speech_id(speech_id) - SPEECH_TOKEN_OFFSET}|>"


def format_speech_tokens(speech_ids: Iterable[int]) -> str:
    """Return `<|s_a|><|s_b|>...` for speech ids 0..6560."""
    return "".join(speech_token_text(speech_id) for speech_id in speech_ids)


def contains_protected_token(text: str) -> bool:
    """Tell whether a text spells a control or speech token, which must never come from a user."""
    return _PROTECTED.search(text) is not None


class SpeechTokenTextParser:
    """Turns text deltas into speech ids; a token's text may be split anywhere between deltas.

    End tokens are skipped (the server says why it ended); anything else is an error.
    """

    def __init__(self) -> None:
        self._pending = ""

    def feed(self, text: str) -> list[int]:
        """Take the next delta and return the speech ids (0..6560) completed by it, in order.

        Raises:
            VocabularyError: the text is not speech tokens. The parser is then spent.
        """
        self._pending += text
        speech_ids: list[int] = []
        position = 0
        while match := _TOKEN.match(self._pending, position):
            if match[1] is not None:
                speech_ids.append(_checked_speech_id(match[0], match[1]))
            position = match.end()
        self._pending = self._pending[position:]
        if self._pending and not _PARTIAL.fullmatch(self._pending):
            raise VocabularyError(f"got text {self._pending[:40]!r}; expected only speech tokens such as '<|s_0|>'")
        return speech_ids

    def close(self) -> None:
        """Say that the text has ended.

        Raises:
            VocabularyError: it ended inside a token.
        """
        if self._pending:
            raise VocabularyError(f"text ended inside a token: {self._pending!r}")


def _checked_speech_id(text: str, digits: str) -> int:
    speech_id = int(digits)
    if speech_id >= SPEECH_TOKEN_COUNT:
        raise VocabularyError(f"got {text}; speech tokens are <|s_0|>..<|s_{SPEECH_TOKEN_COUNT - 1}|>")
    return speech_id
