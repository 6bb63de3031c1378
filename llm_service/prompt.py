"""Makes the LLM's input out of texts and prompt speech tokens, and bounds the length of its answer.

Pure: an encoder is passed in, and nothing here knows of HTTP, models or audio. The input is

    sos | prompt text | target text | task_id | prompt speech tokens     -> the model goes on with speech tokens

Neither text has blank space at its ends there. An instruction on how to speak and `<|endofprompt|>` stand before the
prompt text; in CosyVoice3's input there always is one, which a caller's own continues.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from llm_service.errors import PromptError, PromptTooLongError
from llm_service.vocab import (
    COSYVOICE2,
    SPEECH_TOKENS_PER_SECOND,
    SpeechVocabulary,
)

Encode = Callable[[str], list[int]]

MIN_SPEECH_PER_TEXT_TOKEN, MAX_SPEECH_PER_TEXT_TOKEN = 2, 20
MAX_SPEECH_TOKENS = 2048
"""Most speech tokens of one answer, whatever the text: about 82 s."""


@dataclass(frozen=True)
class SpeechPrompt:
    """The LLM's input for one utterance."""

    token_ids: tuple[int, ...]  # LLM ids, the whole input
    target_text_tokens: int  # how many of them are the target text; bounds the answer


@dataclass(frozen=True)
class GenerationBounds:
    """Bounds of one answer, in speech tokens; what the request's min_tokens and max_tokens are."""

    min_tokens: int
    max_tokens: int


def build_prompt(
    encode: Encode,
    prompt_text: str,
    target_text: str,
    prompt_speech_tokens: Sequence[int],
    vocabulary: SpeechVocabulary = COSYVOICE2,
    instruction: str = "",
) -> SpeechPrompt:
    """Build the input as token ids.

    Args:
        encode: text to LLM ids, never control or speech ids; `TextEncoder.encode`.
        prompt_text: transcript of the voice prompt; may be empty when there are no prompt speech tokens.
        target_text: what to say.
        prompt_speech_tokens: the voice prompt's speech ids, 0..6560.
        vocabulary: the model's numbering; the encoder's.
        instruction: how to speak, for checkpoints that take one; the family's own stands before it.

    Raises:
        PromptError: the target text has no tokens, or a text holds control tokens.
        VocabularyError: a prompt speech token is out of range.
    """
    target_ids = _encode_target(encode, target_text, vocabulary)
    speech_ids = _llm_ids(prompt_speech_tokens, vocabulary)
    prompt_ids = _encode_text(encode, prompt_text, vocabulary)
    begin = (vocabulary.sos_id, *instruction_ids(encode, vocabulary, instruction))
    return SpeechPrompt((*begin, *prompt_ids, *target_ids, vocabulary.task_id, *speech_ids), len(target_ids))


@dataclass(frozen=True)
class InterleavedSpeechPrompt:
    """The LLM's input for a text that is still being written: what is there before any of it."""

    token_ids: tuple[int, ...]  # LLM ids: begin, transcript, speech, what was drawn elsewhere
    begin_tokens: int
    transcript_tokens: int
    continued_tokens: int  # drawn elsewhere, fills among them


def build_interleaved_prompt(
    encode: Encode,
    prompt_text: str,
    prompt_speech_tokens: Sequence[int],
    vocabulary: SpeechVocabulary = COSYVOICE2,
    instruction: str = "",
    spoken_tokens: Sequence[int] = (),
    fills: Collection[int] = (),
) -> InterleavedSpeechPrompt:
    """Build what stands before a text whose ids come while it is spoken.

    Args:
        encode: see `build_prompt`.
        prompt_text: see `build_prompt`.
        prompt_speech_tokens: see `build_prompt`.
        vocabulary: see `build_prompt`.
        instruction: see `build_prompt`.
        spoken_tokens: speech ids, 0..6560, of this very answer, drawn elsewhere.
        fills: where the LLM asked for text among them: so many stand before.

    Raises:
        PromptError: a text holds control tokens.
        VocabularyError: a prompt speech token is out of range.
    """
    begin = (vocabulary.sos_id, *instruction_ids(encode, vocabulary, instruction))
    transcript = _encode_text(encode, prompt_text, vocabulary)
    speech_ids = _llm_ids(prompt_speech_tokens, vocabulary)
    drawn: list[int] = []
    for place, token in enumerate((*spoken_tokens, None)):
        drawn += [vocabulary.fill_id] * sum(fill == place for fill in fills)
        drawn += [] if token is None else [vocabulary.llm_id(int(token))]
    return InterleavedSpeechPrompt((*begin, *transcript, *speech_ids, *drawn), len(begin), len(transcript), len(drawn))


class TextPieces:
    """Encodes a text piece by piece; blank space goes with what follows it, as in a whole text."""

    def __init__(self, encode: Encode, vocabulary: SpeechVocabulary = COSYVOICE2) -> None:
        """Begin before the first piece."""
        self._encode, self._vocabulary = encode, vocabulary
        self._held = ""
        self._has_begun = False

    def ids(self, piece: str) -> tuple[int, ...]:
        """Return the ids of the next piece, which ends with a word.

        Raises:
            PromptError: it holds control tokens.
        """
        is_mark = len(piece) == 1 and not piece.isalnum()  # which stands right behind a word
        text = piece if is_mark else self._held + piece
        if not self._has_begun:
            text = text.lstrip()
        spoken = text.rstrip()
        self._held = text[len(spoken) :]
        if not spoken:
            return ()
        self._has_begun = True
        return tuple(_checked(self._encode(spoken), self._vocabulary))


def instruction_ids(encode: Encode, vocabulary: SpeechVocabulary, instruction: str = "") -> tuple[int, ...]:
    """Return the ids that stand before every text; without an instruction none for CosyVoice2.

    Source of the form: the specification of the flows, section 10: CosyVoice3's own instruction, a blank and the
    caller's, then `<|endofprompt|>`.
    """
    whole = " ".join(part for part in (vocabulary.instruction, _as_spoken(instruction)) if part)
    return (*_checked(encode(whole), vocabulary), vocabulary.endofprompt_id) if whole else ()


def target_text_tokens(encode: Encode, target_text: str, vocabulary: SpeechVocabulary = COSYVOICE2) -> int:
    """Count the target text's tokens in the input that `build_prompt` builds, which raises the same."""
    return len(_encode_target(encode, target_text, vocabulary))


def generation_bounds(target_text_tokens: int, max_speech_tokens: int = MAX_SPEECH_TOKENS) -> GenerationBounds:
    """Bound the answer to a text of so many tokens: 2 to 20 speech tokens each, 25 of them a second, up to a cap.

    Raises:
        PromptError: there are no text tokens.
        PromptTooLongError: the least answer is longer than the cap; split the text.
    """
    if target_text_tokens < 1:
        raise PromptError("the target text has no tokens; send at least one word")
    min_tokens = target_text_tokens * MIN_SPEECH_PER_TEXT_TOKEN
    if min_tokens > max_speech_tokens:
        seconds = max_speech_tokens / SPEECH_TOKENS_PER_SECOND
        raise PromptTooLongError(
            f"{target_text_tokens} text tokens need at least {min_tokens} speech tokens, the limit is "
            f"{max_speech_tokens} ({seconds:.0f} s); split the text"
        )
    return GenerationBounds(min_tokens, min(target_text_tokens * MAX_SPEECH_PER_TEXT_TOKEN, max_speech_tokens))


def _encode_target(encode: Encode, target_text: str, vocabulary: SpeechVocabulary) -> list[int]:
    target_ids = _encode_text(encode, target_text, vocabulary)
    if not target_ids:
        raise PromptError("the target text is empty; send at least one word")
    return target_ids


def _encode_text(encode: Encode, text: str, vocabulary: SpeechVocabulary) -> list[int]:
    spoken = _as_spoken(text)
    return _checked(encode(spoken), vocabulary) if spoken else []


def _llm_ids(speech_tokens: Sequence[int], vocabulary: SpeechVocabulary) -> list[int]:
    for outermost in (min(speech_tokens, default=0), max(speech_tokens, default=0)):
        vocabulary.llm_id(outermost)  # raises where one is out of range
    return [vocabulary.first_id + int(token) for token in speech_tokens]


def _as_spoken(text: str) -> str:
    # NOTE: models learn from texts without blank space at their ends; with it some miss their end and babble on.
    return text.strip()


def _checked(text_ids: list[int], vocabulary: SpeechVocabulary) -> list[int]:
    """Refuse what only a wrong encoder yields: an id of the speech part of the table."""
    if max(text_ids, default=0) >= vocabulary.first_id:
        first = vocabulary.first_id
        raise PromptError(f"the encoder gave ids from {first} on for a text; use TextEncoder.encode")
    return text_ids
