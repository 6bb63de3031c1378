"""Encodes a user's text so that it can't become anything but text.

Wraps a tokenizer directory through the `tokenizers` library. Of the tokenizer's own tokens beside plain text, only the
tags that the checkpoint declares (`[breath]`, `<laughter>`, `<strong>`, ...) keep their ids; all others, control and
speech tokens among them, are encoded as the characters that they are spelled with. Knows nothing of prompts or models;
imports no torch and no transformers.

Words in brackets on which an LLM acts are inline tags and CosyVoice3's tokens for phonemes, which are CMU's phones and
the parts of pinyin syllables:

    [breath] <strong>     [HH][AH0][L][OW1]  hello       [n][ǐ][h][ǎo]  你好
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path

from tokenizers import Tokenizer

from llm_service.errors import CheckpointError, PromptError, VocabularyError
from llm_service.vocab import (
    CONTROL_TOKENS,
    COSYVOICE2,
    INLINE_TAGS,
    SPEECH_TOKEN_COUNT,
    SpeechVocabulary,
    speech_token_text,
    vocabulary_of_ids,
)
from servicekit.checkpoint_file import CheckpointDeclaration, CheckpointFileError, find_declaration

TOKENIZER_FILE = "tokenizer.json"
_SPEECH_TOKEN = re.compile(r"<\|s_\d+\|>")
# Source: FunAudioLLM/CosyVoice, cosyvoice/tokenizer/tokenizer.py, the special tokens of CosyVoice3Tokenizer; their
# order is that of their ids.
_VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW".split()
_CONSONANTS = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH".split()
STRESSES = ("", "0", "1", "2")
"""Stress marks behind a vowel: unmarked, none, primary, secondary."""
CMU_PHONES = tuple(sorted([*_CONSONANTS, *(vowel + stress for vowel in _VOWELS for stress in STRESSES)]))
"""The 84 phones: 24 consonants, and 15 vowels in four forms."""
PINYIN_PARTS = tuple(
    (
        "a ai an ang ao b c ch d e ei en eng f g h i ian in ing iu ià iàn iàng iào iá ián iáng iáo iè ié iòng "
        "ióng iù iú iā iān iāng iāo iē iě iōng iū iǎ iǎn iǎng iǎo iǒng iǔ j k l m n o ong ou p q r s sh t u "
        "uang ue un uo uà uài uàn uàng uá uái uán uáng uè ué uì uí uò uó uā uāi uān uāng uē uě uī uō uǎ uǎi "
        "uǎn uǎng uǐ uǒ vè w x y z zh à ài àn àng ào á ái án áng áo è èi èn èng èr é éi én éng ér ì ìn ìng í "
        "ín íng ò òng òu ó óng óu ù ùn ú ún ā āi ān āng āo ē ēi ēn ēng ě ěi ěn ěng ěr ī īn īng ō ōng ōu ū ūn "
        "ǎ ǎi ǎn ǎng ǎo ǐ ǐn ǐng ǒ ǒng ǒu ǔ ǔn ǘ ǚ ǜ"
    ).split()
)
"""The 176 parts: initials, and finals with the mark of their tone or without one."""
PHONEME_TOKENS = tuple(f"[{part}]" for part in (*CMU_PHONES, *PINYIN_PARTS))
"""The 260 phoneme tokens, in the order of their ids."""


def acting_tags(declaration: CheckpointDeclaration) -> tuple[str, ...]:
    """Return the tags in a text that a checkpoint acts on; all other tokens of its tokenizer are ordinary text."""
    tags = INLINE_TAGS if declaration.tags is None else declaration.tags
    return tags if declaration.phonemes is None else (*tags, *PHONEME_TOKENS)


class TextEncoder:
    """Text to LLM ids, all of them below the speech tokens and none a control token."""

    def __init__(
        self, tokenizer: Tokenizer, vocabulary: SpeechVocabulary = COSYVOICE2, protected: Collection[str] = ()
    ) -> None:
        """Wrap a tokenizer whose special flags say what is protected; use `load_text_encoder`.

        Args:
            tokenizer: encodes.
            vocabulary: its numbering.
            protected: the tokens that no text may become, beside the speech tokens.
        """
        self._tokenizer = tokenizer
        self.vocabulary = vocabulary
        protected = {*CONTROL_TOKENS, *protected}
        ids = (tokenizer.token_to_id(token) for token in protected)
        self._protected_ids = frozenset(token_id for token_id in ids if token_id is not None)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; spelled control or speech tokens become plain characters.

        Raises:
            PromptError: the text is not valid Unicode, or a protected id came out all the same.
        """
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeError) as err:
            raise PromptError("got a text with lone surrogates; expected valid Unicode") from err
        for token_id in ids:
            if token_id >= self.vocabulary.first_id or token_id in self._protected_ids:
                raise PromptError(
                    f"the text encodes to control token {token_id}; remove markup of the form <|...|> or [...]"
                )
        return ids


def load_text_encoder(tokenizer_dir: Path, declaration: CheckpointDeclaration | None = None) -> TextEncoder:
    """Load `tokenizer.json` from a directory and find out, by its numbering, whose it is.

    Args:
        tokenizer_dir: of the LLM.
        declaration: says which tags act; None: what `find_declaration` finds there.

    Raises:
        CheckpointError: the file is missing or unreadable, or numbers a token otherwise than `vocab` says; or what the
            checkpoint declares can't be read.
    """
    description = _read_description(tokenizer_dir)
    tags = frozenset(acting_tags(declaration or _found_declaration(tokenizer_dir)))
    try:
        for token in description.get("added_tokens", []):
            token["special"] = str(token["content"]) not in tags
        tokenizer = Tokenizer.from_str(json.dumps(description))
    except Exception as err:  # the library raises bare Exception
        raise CheckpointError(f"{tokenizer_dir / TOKENIZER_FILE} is no tokenizer: {err}") from err
    vocabulary = check_numbering(tokenizer, tokenizer_dir)
    tokenizer.encode_special_tokens = True  # special tokens spelled in a text are text
    protected = [str(token["content"]) for token in description.get("added_tokens", []) if token["special"]]
    return TextEncoder(tokenizer, vocabulary, [each for each in protected if not _SPEECH_TOKEN.fullmatch(each)])


def check_numbering(tokenizer: Tokenizer, tokenizer_dir: Path) -> SpeechVocabulary:
    """Check that speech and control tokens have the ids that a vocabulary of `vocab` says; return that vocabulary.

    Raises:
        CheckpointError: one has not; the message names the first.
    """
    try:
        vocabulary = vocabulary_of_ids(tokenizer.token_to_id(speech_token_text(0)))
    except VocabularyError as err:
        raise CheckpointError(f"{tokenizer_dir}: {err}") from err
    expected = {speech_token_text(index): vocabulary.llm_id(index) for index in range(SPEECH_TOKEN_COUNT)}
    for token, token_id in (expected | vocabulary.control_ids).items():
        found = tokenizer.token_to_id(token)
        if found != token_id:
            raise CheckpointError(f"{tokenizer_dir}: {token} has id {found}, expected {token_id}; wrong tokenizer?")
    return vocabulary


def _found_declaration(tokenizer_dir: Path) -> CheckpointDeclaration:
    try:
        return find_declaration(tokenizer_dir)
    except CheckpointFileError as err:
        raise CheckpointError(str(err)) from err


def _read_description(tokenizer_dir: Path) -> dict[str, list[dict[str, object]]]:
    path = tokenizer_dir / TOKENIZER_FILE
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise CheckpointError(
            f"{path} is missing; point to the LLM's tokenizer directory (stage 0 of the run script makes one)"
        ) from err
    except (OSError, ValueError, RecursionError) as err:
        raise CheckpointError(f"{path} can't be read as JSON: {err}; copy it again") from err
    if not isinstance(description, dict):
        raise CheckpointError(f"{path} holds {type(description).__name__}, expected a JSON object")
    return description
