"""Pronunciation dictionaries: the operator's files, and their forms, rules as JSON and PLS, the W3C's XML.

    {"rules": {"Xiaomi": "show me"}}
    {"rules": [{"string_to_replace": "SQL", "alias": "sequel", "case_sensitive": false, "word_boundaries": true}]}
    <lexicon version="1.0" ...><lexeme><grapheme>Xiaomi</grapheme><alias>show me</alias></lexeme></lexicon>

A request names those that it wants; the one called `default` comes behind them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.errors import ConfigError, InvalidRequestError, LexiconNotFoundError, UnsupportedOptionError
from gateway.text.aliases import NO_PHONEMES, AliasRule, Lexicon
from gateway.text.options import Normalization, TextOptions, check_counts
from gateway.text.phonemes import IPA

MAX_RULES = 5000
"""Most rules of one dictionary."""
_MAX_FILE_BYTES = 4 * 1024 * 1024
_PHONEME = "phoneme"


class RuleFields(BaseModel):
    """One rule; the names are ElevenLabs'."""

    model_config = ConfigDict(extra="ignore")
    string_to_replace: str
    """The word, or words in a row, to replace; at most 200 characters."""
    alias: str | None = None
    """The text that is spoken for it; at most 400 characters."""
    case_sensitive: bool | None = None
    """`true` (default): upper and lower case must match."""
    word_boundaries: bool | None = None
    """`true` (default): only whole words are replaced."""
    type: str = "alias"
    """Kind of rule: `alias`, or `phoneme` where the checkpoint reads phonemes."""
    phoneme: str | None = None
    """The phonemes that are spoken for it; at most 400 characters."""
    alphabet: str | None = None
    """Alphabet of `phoneme`: `ipa` (default), `cmu-arpabet` or `pinyin`."""


class RulesFile(BaseModel):
    """The JSON form."""

    model_config = ConfigDict(extra="forbid")
    rules: list[RuleFields] | dict[str, str]
    """A list of rules, or simply words and the text spoken for each."""
    description: str = ""


def rules_of_json(text: str | bytes, *, takes_phonemes: bool = False) -> tuple[AliasRule, ...]:
    """Read the JSON form.

    Raises:
        InvalidRequestError: it is not of that form, or a rule can't be had.
        UnsupportedOptionError: phonemes, where the checkpoint reads words only.
    """
    try:
        rules = RulesFile.model_validate_json(text).rules
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise InvalidRequestError(f"{where}: {first['msg']}; expected rules as JSON", param="rules") from error
    if isinstance(rules, dict):
        return rules_of_mapping(rules)
    return _checked([_rule_of(each, takes_phonemes) for each in rules[: MAX_RULES + 1]])


def rules_of_mapping(words: dict[str, str]) -> tuple[AliasRule, ...]:
    """Make rules of words and what is spoken for them.

    Raises:
        InvalidRequestError: a word or alias that can't be, or too many rules.
    """
    return _checked([AliasRule(word, alias) for word, alias in words.items()])


def own_rules(pronunciations: Mapping[str, str] | None, lexicons: Sequence[str] | None = None) -> tuple[AliasRule, ...]:
    """Make the rules that a request brings, which has named `lexicons` beside.

    Raises:
        InvalidRequestError: a word or pronunciation that can't be, or too many of them.
    """
    if not pronunciations:
        return ()
    check_counts(len(lexicons or ()), len(pronunciations))
    return rules_of_mapping(dict(pronunciations))


def rules_of_pls(text: str, *, takes_phonemes: bool = False) -> tuple[AliasRule, ...]:
    """Read a PLS document: every grapheme of a lexeme is spoken as its first alias, or else as its first phoneme.

    Raises:
        InvalidRequestError: it is no PLS, or a rule can't be had.
    """
    try:
        lexicon = ElementTree.fromstring(text)  # noqa: S314  # the operator's own file
    except ElementTree.ParseError as error:
        raise _not_pls(str(error)) from error
    rules: list[AliasRule] = []
    if _name(lexicon) != "lexicon":
        raise _not_pls(f"it begins with <{_name(lexicon)}>, expected <lexicon>")
    for element in lexicon:
        if _name(element) not in ("lexeme", "meta", "metadata"):
            raise _not_pls(f"<{_name(element)}> is not expected in <lexicon>")
        if _name(element) == "lexeme":
            rules += _rules_of_lexeme(element, lexicon.get("alphabet") or IPA, takes_phonemes)
    return _checked(rules)


def _rules_of_lexeme(lexeme: Element, alphabet: str, takes_phonemes: bool) -> list[AliasRule]:
    words, aliases, phonemes = (
        [each for each in lexeme if _name(each) == kind] for kind in ("grapheme", "alias", _PHONEME)
    )
    if not words:
        raise _not_pls("a <lexeme> has no <grapheme>")
    if not aliases and not (phonemes and takes_phonemes):
        raise _not_pls(f"{_words(words[0])!r}: {NO_PHONEMES if phonemes else 'its <lexeme> has no <alias>'}")
    spoken = (aliases or phonemes)[0]
    read_as = None if aliases else spoken.get("alphabet") or alphabet
    return [AliasRule(_words(word), _words(spoken), alphabet=read_as) for word in words]


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _words(element: Element) -> str:
    return " ".join("".join(element.itertext()).split())


def _not_pls(why: str) -> InvalidRequestError:
    return InvalidRequestError(f"the PLS file can't be read: {why}", param="file")


def _rule_of(fields: RuleFields, takes_phonemes: bool) -> AliasRule:
    is_phonemes = fields.type == _PHONEME or fields.phoneme is not None
    if is_phonemes and not takes_phonemes:
        raise UnsupportedOptionError(f"rule for {fields.string_to_replace[:40]!r}: {NO_PHONEMES}", param="rules")
    spoken, name = (fields.phoneme, _PHONEME) if is_phonemes else (fields.alias, "alias")
    if spoken is None:
        got = f"the rule for {fields.string_to_replace[:40]!r} has no {name}"
        raise InvalidRequestError(f"{got}; add it", param="rules")
    return AliasRule(
        fields.string_to_replace,
        spoken,
        fields.case_sensitive is not False,
        fields.word_boundaries is not False,
        (fields.alphabet or IPA) if is_phonemes else None,
    )


def _checked(rules: Sequence[AliasRule]) -> tuple[AliasRule, ...]:
    if len(rules) > MAX_RULES:
        raise InvalidRequestError(f"there are more than {MAX_RULES} rules; make several dictionaries", param="rules")
    return tuple(rules)


logger = logging.getLogger(__name__)

DEFAULT_LEXICON = "default"
_READERS = {".json": rules_of_json, ".pls": rules_of_pls}


class LexiconBook:
    """Finds dictionaries for texts."""

    def __init__(self, lexicons: Mapping[str, Lexicon]) -> None:
        self._lexicons = dict(lexicons)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all dictionaries, in the order of the alphabet."""
        return tuple(sorted(self._lexicons))

    def lexicons_for(self, options: TextOptions) -> tuple[Lexicon, ...]:
        """Return what a text asks for, and the default dictionary; a text that is read as written gets no default.

        Raises:
            LexiconNotFoundError: there is none of that name.
        """
        asked = tuple(map(self._found, options.lexicons))
        default = self._lexicons.get(DEFAULT_LEXICON)
        if default is None or options.normalization is Normalization.OFF:
            return asked
        return (*asked, default)

    def _found(self, name: str) -> Lexicon:
        found = self._lexicons.get(name)
        if found is None:
            got = f"there is no pronunciation dictionary {name[:100]!r}"
            expected = f"this server has {', '.join(self.names) or 'none'}"
            raise LexiconNotFoundError(f"{got}; {expected}; its operator adds a file", param="lexicons")
        return found


def load_lexicons(directory: Path | None, *, takes_phonemes: bool = False) -> LexiconBook:
    """Read every <name>.json and <name>.pls of a directory.

    Args:
        directory: None: there are no dictionaries.
        takes_phonemes: whether the checkpoint reads phonemes; else dictionaries of them are refused.

    Raises:
        ConfigError: there is no such directory, or a file can't be read.
    """
    if directory is None:
        return LexiconBook({})
    if not directory.is_dir():
        raise ConfigError(f"the directory of pronunciation dictionaries {directory} is not there; make it")
    files = sorted(file for file in directory.iterdir() if file.suffix in _READERS)
    names = [file.stem for file in files]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{directory} has two dictionaries {twice!r}; rename one of {twice}.json and {twice}.pls")
    return LexiconBook({file.stem: _load(file, takes_phonemes) for file in files})


def _load(file: Path, takes_phonemes: bool) -> Lexicon:
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError(f"{file} is larger than {_MAX_FILE_BYTES} bytes; make several files of it")
        text = file.read_text(encoding="utf-8-sig")
        rules = _READERS[file.suffix](text, takes_phonemes=takes_phonemes)
    except (OSError, UnicodeDecodeError, InvalidRequestError) as error:
        raise ConfigError(f"the pronunciation dictionary {file} can't be read: {error}") from error
    logger.info("pronunciation dictionary %s: %d rules", file.stem, len(rules))
    return Lexicon(rules)
