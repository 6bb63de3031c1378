"""Which words in brackets of a text an LLM acts on: its inline tags, and CosyVoice3's tokens for phonemes.

    [breath] <strong>     [HH][AH0][L][OW1]  hello       [n][ǐ][h][ǎo]  你好

Phonemes are CMU's phones and the parts of pinyin syllables.

Source: FunAudioLLM/CosyVoice, cosyvoice/tokenizer/tokenizer.py, the special tokens of CosyVoice3Tokenizer; their order
is that of their ids.
"""

from __future__ import annotations

from llm_service.vocab import INLINE_TAGS
from servicekit.checkpoint_file import CheckpointDeclaration

_VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW".split()
_CONSONANTS = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH".split()
STRESSES = ("", "0", "1", "2")
"""Behind a vowel: unmarked, none, primary, secondary."""
CMU_PHONES = tuple(sorted([*_CONSONANTS, *(vowel + stress for vowel in _VOWELS for stress in STRESSES)]))
"""84: 24 consonants, and 15 vowels in four forms."""
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
"""176: initials, and finals with the mark of their tone or without one."""
PHONEME_TOKENS = tuple(f"[{part}]" for part in (*CMU_PHONES, *PINYIN_PARTS))
"""260, in the order of their ids."""


def acting_tags(declaration: CheckpointDeclaration) -> tuple[str, ...]:
    """Return what a text may spell to have a checkpoint act on it; whatever else its tokenizer knows is text."""
    tags = INLINE_TAGS if declaration.tags is None else declaration.tags
    return tags if declaration.phonemes is None else (*tags, *PHONEME_TOKENS)
