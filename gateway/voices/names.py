"""Finds names that only the operator may give to voices, also in letters that only look the same. Pure.

Two names are taken for one if a reader could: their forms after NFKC, without marks, and with every letter or digit
replaced by the ASCII one that it looks like. So `default` is also DEFAULT, `ｄefault`, and `defаult` with a Cyrillic а.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

_MARKS = ("M", "C")
"""Unicode categories of marks over letters and of invisible characters."""


class ReservedNames:
    """The operator's names and aliases."""

    def __init__(self, names: Iterable[str]) -> None:
        """Keep the names."""
        self._by_form = {form: name for name in names for form in _forms(name)}

    def like(self, name: str) -> str | None:
        """Return the reserved name that a reader could take `name` for, or None."""
        return next((self._by_form[form] for form in _forms(name) if form in self._by_form), None)


def _forms(name: str) -> tuple[str, ...]:
    """Return what a name looks like as it is written, and in small letters: В looks like b, but в does not."""
    plain = _without_marks(unicodedata.normalize("NFKC", name))
    return _look(plain), _look(plain.casefold())


def _look(name: str) -> str:
    alike = name.translate(_ALIKE).casefold().translate(_ALIKE_ASCII)
    return alike.replace("rn", "m").replace("vv", "w")


def _without_marks(name: str) -> str:
    apart = unicodedata.normalize("NFKD", name)
    return "".join(letter for letter in apart if not unicodedata.category(letter).startswith(_MARKS))


_ALIKE_ASCII = str.maketrans("i1|0", "lllo")
_LOOKS: dict[str, str] = {
    "2": "ƧϨᒿꙄꛯꝚ",
    "3": "ƷȜЗӠⳌꝪꞫ𑣊𖼻",
    "4": "Ꮞ𑢯",
    "5": "Ƽ𑢻",
    "6": "бᏮⳒ𑣕",
    "7": "𐓒𑣆",
    "8": "Ȣȣ৪੪𐌚",
    "9": "৭੧୨൭ⳊꝮ𑢬𑣌𑣖",
    "A": "ΑАᎪᗅꓮ𐊠𖽀",
    "B": "ΒВᏴᗷꓐꞴ𐊂𐊡𐌁",
    "C": "СᏟⲤꓚ𐊢𐌂𐐕𐔜𑣩𑣲",
    "D": "Ꭰᗞᗪꓓ",
    "E": "ΕЕᎬⴹꓰ𐊆𑢦𑢮",
    "F": "ϜᖴꓝꞘ𐊇𐊥𐔥𑢢𑣂",
    "G": "ԌᏀᏳꓖ",
    "H": "ΗНᎻᕼⲎꓧ𐋏",
    "J": "ͿЈᎫᒍꓙꞲ",
    "K": "ΚКᏦᛕⲔꓗ𐔘",
    "L": "ᏞᒪⳐꓡ𐐛𐔦𑢣𑢲𖼖",
    "M": "ΜϺМᎷᗰᛖⲘꓟ𐊰𐌑",
    "N": "ΝⲚꓠ𐔓",
    "O": "ΟОՕ০ଠ୦ዐⲞⵔ〇ꓳ𐊒𐊫𐐄𐓂𐔖𑓐𑢵𑣠",
    "P": "ΡРᏢᑭⲢꓑ𐊕",
    "Q": "ⵕ",
    "R": "ƦᎡᏒᖇꓣ𐒴𖼵",
    "S": "ЅՏᏕᏚꓢ𐊖𐐠𖼺",
    "T": "ΤТᎢⲦꓔ𐊗𐊱𐌕𑢼𖼊",
    "U": "Սሀᑌꓴ𐓎𑢸𖽂",
    "V": "Ѵ۷Ꮩᐯⴸꓦꛟ𐔝𑢠𖼈",
    "W": "ԜᎳᏔꓪ𑣦𑣯",
    "X": "ΧХᚷⲬⵝꓫꞳ𐊐𐊴𐌗𐌢𐔧𑣬",
    "Y": "ΥУҮᎩᎽⲨꓬ𐊲𑢤𖽃",
    "Z": "ΖᏃꓜ𐋵𑢩𑣥",
    "a": "ɑαа",
    "b": "ƄЬᏏᑲᖯ",
    "c": "сᴄⲥꮯ𐐽",
    "d": "ԁᏧᑯꓒ",
    "e": "еҽꬲ",
    "f": "քẝꞙꬵ",
    "g": "ƍɡցᶃ",
    "h": "һհᏂ",
    "i": "ıɩɪιіӏᎥꙇꭵ𑣃",
    "j": "ϳј",
    "l": "ƖǀΙІӀ۱ᛁⲒⵏꓲ𐊊𐌉𐌠𖼨",
    "n": "ոռ",
    "o": "οσоօ۵०੦૦௦౦೦ഠ൦๐໐ဝ၀ჿᴏᴑⲟꬽ𐐬𐓪𑣈𑣗",
    "p": "ρрⲣ",
    "q": "ԛգզ",
    "r": "гᴦⲅꭇꭈꮁ",
    "s": "ƽѕꜱꮪ𐑈𑣁",
    "u": "ʋυսᴜꞟꭎꭒ𐓶𑣘",
    "v": "νѵᴠꮩ𑜆𑣀",
    "w": "ɯѡԝաᴡꮃ𑜊𑜎𑜏",
    "x": "хᕁᕽ",
    "y": "ɣʏγуүყᶌỿꭚ𑣜",
    "z": "ᴢꮓ𑣄",
}
_ALIKE = {ord(letter): ascii_letter for ascii_letter, letters in _LOOKS.items() for letter in letters}
"""Characters that look like one ASCII letter or digit after NFKC -> that one. Source: the table of confusable
characters of Unicode's Technical Standard 39."""
NO_RESERVED_NAMES = ReservedNames(())
