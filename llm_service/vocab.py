"""Speech tokens inside the LLM's vocabulary: ids and text form.

The only home of the numbering. A *speech id* is 0..6560 (what token2wav takes); an *LLM id* is its place in the LLM's
table, which differs between families (`SpeechVocabulary`). Knows nothing of tokenizers, prompts or models, and imports
nothing beyond the standard library.

    CosyVoice2
    LLM id   0 ........ 151662 | 151663 ..... 158223 | 158224..158226 | 158227 | 158228   | ... 158335
    token    text and its tags | <|s_0|>..<|s_6560|> | <|eos1|>..3    | <|sos|>| <|task_id|> padding

    CosyVoice3
    LLM id   0 ........ 151923 | 151924 ..... 158484 | 158485  | 158486   | 158487      | 158488   | ..158684 | ..158719
    token    text and its tags | <|s_0|>..<|s_6560|> | <|sos|> | <|eos1|> | <|task_id|> | <|fill|> | unused   | padding

The module's constants are CosyVoice2's, the family of the demo voice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from llm_service.errors import VocabularyError

SPEECH_TOKEN_COUNT = 6561
SPEECH_TOKENS_PER_SECOND = 25
SOS_TOKEN = "<|sos|>"
TASK_TOKEN = "<|task_id|>"
END_TOKENS = ("<|eos1|>", "<|eos2|>", "<|eos3|>")


# The text tokenizer's own control tokens: as dangerous in a user's text as ours.
TEXT_CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|endofprompt|>", "<|endofsystem|>")
# The text tokenizer's tags a user may write, in the official order of their ids.
INLINE_TAGS = (
    *("[breath]", "<strong>", "</strong>", "[noise]", "[laughter]", "[cough]", "[clucking]", "[accent]"),
    *("[quick_breath]", "<laughter>", "</laughter>", "[hissing]", "[sigh]", "[vocalized-noise]", "[lipsmack]", "[mn]"),
)
CONTROL_TOKENS = (*END_TOKENS, SOS_TOKEN, TASK_TOKEN, "<|fill|>", *TEXT_CONTROL_TOKENS)


@dataclass(frozen=True)
class SpeechVocabulary:
    """How one family's LLM numbers its tokens."""

    name: str
    first_id: int
    """LLM id of speech token 0; the head's first row."""
    closing_tokens: tuple[str, ...]
    """The head's rows behind the speech tokens, in order: each of them ends an answer."""
    eos_token: str
    """The closing token that the model is trained to end with."""
    outer_tokens: tuple[str, ...]
    """Control tokens behind the head's rows, in order."""
    table_rows: int
    """Rows of the embedding table: the vocabulary rounded up to a multiple of 128."""
    fill_token: str = "<|eos3|>"
    """The closing token that asks for more text when text comes while speech is drawn."""
    instruction: str = ""
    """Text before every prompt's text, followed by `<|endofprompt|>`; empty for none."""

    @property
    def head_rows(self) -> int:
        """Rows of the only head used for speech; row i is LLM id `first_id + i`."""
        return SPEECH_TOKEN_COUNT + len(self.closing_tokens)

    @cached_property
    def end_ids(self) -> tuple[int, ...]:
        """LLM ids of the closing tokens."""
        first = self.first_id + SPEECH_TOKEN_COUNT
        return tuple(range(first, first + len(self.closing_tokens)))

    @cached_property
    def eos_id(self) -> int:
        """LLM id of `eos_token`."""
        return self.control_ids[self.eos_token]

    @cached_property
    def fill_id(self) -> int:
        """LLM id of `fill_token`."""
        return self.control_ids[self.fill_token]

    @cached_property
    def sos_id(self) -> int:
        """LLM id that begins every prompt."""
        return self.control_ids[SOS_TOKEN]

    @cached_property
    def task_id(self) -> int:
        """LLM id between text and speech."""
        return self.control_ids[TASK_TOKEN]

    @cached_property
    def control_ids(self) -> dict[str, int]:
        """LLM ids of all tokens behind the speech tokens."""
        tokens = (*self.closing_tokens, *self.outer_tokens)
        return {token: self.first_id + SPEECH_TOKEN_COUNT + index for index, token in enumerate(tokens)}

    @property
    def endofprompt_id(self) -> int:
        """LLM id of `<|endofprompt|>`, one of the text tokenizer's own."""
        return ENDOFTEXT_ID + 3

    def llm_id(self, speech_id: int) -> int:
        """Return the LLM id of speech token `speech_id` (0..6560).

        Raises:
            VocabularyError: the id is out of range.
        """
        if not 0 <= speech_id < SPEECH_TOKEN_COUNT:
            raise VocabularyError(f"got speech token {speech_id}; expected 0..{SPEECH_TOKEN_COUNT - 1}")
        return self.first_id + speech_id

    def speech_id(self, llm_id: int) -> int:
        """Return the speech token (0..6560) of an LLM id.

        Raises:
            VocabularyError: the id is not that of a speech token (text, end and control ids are not).
        """
        if not self.is_speech(llm_id):
            last = self.first_id + SPEECH_TOKEN_COUNT - 1
            raise VocabularyError(f"got LLM id {llm_id}; speech tokens are {self.first_id}..{last}")
        return llm_id - self.first_id

    def is_speech(self, llm_id: int) -> bool:
        """Tell whether an LLM id is a speech token's."""
        return 0 <= llm_id - self.first_id < SPEECH_TOKEN_COUNT


ENDOFTEXT_ID = 151643
"""LLM id of the first special token of the text tokenizer, in every family."""
UNUSED_ROWS = range(6565, 6761)
"""Head rows of CosyVoice3 that mean nothing; its Hugging Face form calls them `<|s_6565|>` and so on."""
COSYVOICE2 = SpeechVocabulary("cosyvoice2", 151663, END_TOKENS, END_TOKENS[0], (SOS_TOKEN, TASK_TOKEN), 158336)
COSYVOICE3 = SpeechVocabulary(
    "cosyvoice3",
    151924,
    (SOS_TOKEN, "<|eos1|>", TASK_TOKEN, "<|fill|>", *(f"<|s_{row}|>" for row in UNUSED_ROWS)),
    "<|eos1|>",
    (),
    158720,
    "<|fill|>",
    "You are a helpful assistant.",
)
VOCABULARIES = (COSYVOICE2, COSYVOICE3)


def vocabulary_of_table(rows: int) -> SpeechVocabulary:
    """Return the vocabulary of an embedding table: CosyVoice3's by its size, CosyVoice2's by any that holds its tokens.

    Raises:
        VocabularyError: the table has too few rows for a speech-token LLM.
    """
    if rows == COSYVOICE3.table_rows:
        return COSYVOICE3
    if rows > COSYVOICE2.task_id:
        return COSYVOICE2
    known = " or ".join(f"{each.table_rows} ({each.name})" for each in VOCABULARIES)
    raise VocabularyError(f"got a vocabulary of {rows} rows; expected {known}")


def vocabulary_of_ids(first_id: int | None) -> SpeechVocabulary:
    """Return the vocabulary whose first speech token has an LLM id.

    Raises:
        VocabularyError: none has.
    """
    for vocabulary in VOCABULARIES:
        if vocabulary.first_id == first_id:
            return vocabulary
    known = " or ".join(f"{each.first_id} ({each.name})" for each in VOCABULARIES)
    raise VocabularyError(f"<|s_0|> has id {first_id}, expected {known}; wrong tokenizer?")


def speech_token_text(speech_id: int) -> str:
    """Return the text form of one speech token, `<|s_N|>`.

    Raises:
        VocabularyError: the id is out of range.
    """
    return f"<|s_{COSYVOICE2.llm_id(speech_id) - COSYVOICE2.first_id}|>"
