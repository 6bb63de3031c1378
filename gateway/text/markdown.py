"""Removes from a text the parts that are only for the eye: Markdown, HTML and SSML tags, emoji. The words stay.

    written   ## Plan\\n- **Buy** [milk](https://a.example) 🥛   ->   Plan.\\nBuy milk

Reads a text as it arrives. What becomes of a form depends on the text up to the first character behind it and on
nothing later; so the result is the same however the text is divided into pieces. Every form is bounded in length, and
with it the text that is held back.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from gateway.errors import InvalidRequestError
from gateway.text.breaks import ALL_MARKS, CLOSERS_AND_BLANKS, full_stop
from gateway.text.cleaning import cleaned
from gateway.text.manner import Manner, read_break
from gateway.text.stretches import Stretch
from gateway.text.styles import AUDIO_TAGS_FIELD, AudioTag, StyleRule, audio_tag_at
from gateway.text.tags import InlineTags

_HTML = (
    "a abbr address article aside audio b bdi bdo blockquote body br button caption center cite code col colgroup "
    "data dd del details dfn div dl dt em embed fieldset figcaption figure font footer form h1 h2 h3 h4 h5 h6 "
    "head header hr html i iframe img input ins kbd label legend li link main map mark meta nav object ol option "
    "p picture pre q s samp script section select small source span strike strong style sub summary sup svg table "
    "tbody td textarea tfoot th thead time title tr track tt u ul var video wbr"
)
_SSML = "speak voice prosody emphasis say-as phoneme sub lang w token audio mark desc lexicon lookup metadata s p"
_ELEMENTS = frozenset(f"{_HTML} {_SSML}".split())
_BREAK = "break"
# Their ends are those of lines: what stands before them gets a full stop if it has no mark.
_BLOCKS = frozenset(
    (
        "p div br li ul ol h1 h2 h3 h4 h5 h6 tr table blockquote section article header footer dt dd hr pre s speak"
        " title"
    ).split()
)
_BOOLEANS = "checked|disabled|hidden|controls|autoplay|loop|muted|required|selected|open|async|defer|readonly"
_VALUE = r"(?:\"[^\"<]{0,4000}\"|'[^'<]{0,4000}'|[^\s\"'<>=`]{1,400})"
_ATTRIBUTE = rf"(?:\s+(?:[\w:.-]{{1,40}}\s?=\s?{_VALUE}|(?:{_BOOLEANS})(?=[\s/>])))"
_TAG = re.compile(rf"<(?P<close>/)?(?P<name>[A-Za-z][A-Za-z0-9:-]{{0,20}})(?P<rest>{_ATTRIBUTE}{{0,30}}\s{{0,4}}/?)>")
_UNFINISHED_TAG = re.compile(
    rf"<(?:/?(?:(?P<name>[A-Za-z][A-Za-z0-9:-]{{0,20}})(?P<rest>{_ATTRIBUTE}{{0,30}}\s{{0,4}}"
    r"(?:/|(?<=\s)[\w:.-]{1,40}(?:\s?=\s?(?:\"[^\"<]{0,4000}\"?|'[^'<]{0,4000}'?|[^\s\"'<>=`]{0,400})?)?)?)?)?)?"
)
_COMMENT = re.compile(r"<!--(?:(?!-->)[\s\S]){0,4000}-->|<[!?][A-Za-z][^<>]{0,400}>")
_UNFINISHED_COMMENT = re.compile(r"<(?:!(?:-(?:-(?:(?!-->)[\s\S]){0,4000})?)?|[!?][A-Za-z][^<>]{0,400}|\?)?")
_AUTOLINK = re.compile(r"<((?:https?://|mailto:)[^\s<>]{1,2000}|[\w.+-]{1,64}@[\w.-]{1,255})>")
_UNFINISHED_AUTOLINK = re.compile(r"<[!-;=?-~]{0,2000}")
_LINK = re.compile(
    r"!?\[(?P<text>(?:[^\[\]\n]|\[[^\[\]\n]{0,40}\]){0,300})\]"
    r"(?:\((?P<url>[^()\s]{0,2000}(?:\([^()\s]{0,100}\)[^()\s]{0,200})?)(?:\s\"[^\"\n]{0,200}\")?\)|\[(?P<label>[^\[\]\n]{1,60})\])"
)
_UNFINISHED_LINK = re.compile(
    r"!?\[(?:[^\[\]\n]|\[[^\[\]\n]{0,40}\]){0,300}(?:\[[^\[\]\n]{0,40}"
    r"|\](?:\([^()\s]{0,2000}(?:\([^()\s]{0,100}(?:\)[^()\s]{0,200})?)?(?:\s(?:\"[^\"\n]{0,200}\"?)?)?|\[[^\[\]\n]{0,60})?)?|!"
)
_FOOTNOTE = re.compile(r"\[\^[\w-]{1,20}\]:?")
_ENTITY = re.compile(r"&(?:#\d{1,6}|#[xX][0-9a-fA-F]{1,5}|[a-zA-Z][a-zA-Z0-9]{1,11});")
_UNFINISHED_ENTITY = re.compile(r"&(?:#(?:\d{0,6}|[xX][0-9a-fA-F]{0,5})|[a-zA-Z][a-zA-Z0-9]{0,11})?")
_ESCAPED = re.compile(r"\\[\\`*_{}\[\]#~|<>]")
_RUN = re.compile(r"\*{1,40}|_{1,40}|~{1,40}|`{1,40}")
_LONGEST_RUN, _STRUCK_RUN = 3, 2
_EMOJI = re.compile(
    "[\U0001f000-\U0001faff\u2600-\u2775\u2794-\u27bf\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u231a\u231b\u23e9-\u23fa\ufe0e\ufe0f"
    "\u20e3\u200d\U000e0020-\U000e007f]"
)
_JOINER = "\u200d"
_CELL_END = re.compile(r"\|[ \t]{0,8}")
_SLICE = 1024
"""Characters of a long piece that are read at once."""
_LINE_END, _SHORT_PAUSE, _LONG_PAUSE = "\n", "\x00,", "\x00."
"""Marks that are put in place of markup; whether they are written depends on the character before them."""
_PUT_MARKS = frozenset(".,。，")
_INLINE = re.compile(r"[*_~`]{1,3}")
_AROUND = frozenset("([{<\"'“‘«)]}>”’».,!?;:—–-*~`|…。，！？：；（）「」")
_TRIGGER = re.compile(rf"[*_~`\[!<&\\|\n]|{_EMOJI.pattern}")
_LINE_START = re.compile(
    r"[ \t]{0,8}(?:"
    r"(?P<fence>(?:```|~~~)[^\n`]{0,80}(?=\n|$))"
    r"|(?P<rule>(?:\*[ \t]*){3,80}(?=\n|$)|(?:-[ \t]*){3,80}(?=\n|$)|(?:_[ \t]*){3,80}(?=\n|$)|={3,80}(?=\n|$))"
    r"|(?P<table>\|?(?:[ \t]*:?-{1,80}:?[ \t]*\|){1,30}(?:[ \t]*:?-{1,80}:?[ \t]*)?(?=\n|$))"
    r"|(?P<heading>#{1,6}[ \t]{1,4})"
    r"|(?P<item>(?:[-*•‣◦]|\+(?![ \t]{1,4}\d))[ \t]{1,4}(?:\[[ xX]\][ \t])?(?![-+=|<>][ \t]|[ \t]))"
    r"|(?P<number>\d{1,3}[.)][ \t]{1,4}(?=[^\W\d]|[*_`\[\"“]))"
    r"|(?P<quote>(?:>[ \t]?){1,8}(?![\d \t>]))"
    r"|(?P<row>\|[ \t]{0,8})"
    r")"
)
_UNFINISHED_LINE_START = re.compile(
    r"[ \t]{0,8}(?:(?:```|~~~)[^\n`]{0,80}|[`~]{1,2}|[-*_=•‣◦+ \t:|]{1,80}(?:\[[ xX]?\]?[ \t]?[-+=|<>]?|\d|[<>])?"
    r"|#{1,6}[ \t]{0,4}|\d{1,3}(?:[.)][ \t]{0,4})?|(?:>[ \t]?){1,8})?"
)


class MarkupReader:
    """Reads one text. Holds what is not certain yet, which is bounded."""

    def __init__(self, tags: InlineTags, styles: StyleRule | None = None) -> None:
        """Begin a text.

        Args:
            tags: the model's own, which stay.
            styles: what becomes of audio tags; None: they are text like any other.
        """
        self._tags = tags
        self._styles = styles
        self._manner: Manner | None = None
        """Manner of the text that follows, if an audio tag sets one."""
        self._own_tag = re.compile(tags.pattern)
        self._text = ""
        self._held: list[Stretch] = []
        """Blank space, and markup behind it, not returned yet: the space is dropped if a punctuation mark follows."""
        self._last = ""
        """The last character written."""
        self._break: float | None = None
        """Seconds of a pause that was read and is not returned yet."""
        self._is_behind_break = False
        self._problem: InvalidRequestError | None = None
        self._form_of: dict[str, Callable[[int, bool], _Form | None]] = {
            "\n": lambda at, _: (at + 1, _LINE_END),
            **dict.fromkeys("*_~`", self._run),
            **dict.fromkeys("[!", self._bracket),
            "<": self._angle,
            "&": self._entity,
            "\\": self._backslash,
            "|": self._bar,
        }
        self._begin_line()

    def reading(self, piece: str) -> Iterator[list[Stretch]]:
        """See `TextReader.reading`; yields form by form."""
        for at in range(0, len(piece), _SLICE):
            self._text += piece[at : at + _SLICE]
            yield from self._read(is_complete=False)
        self._check()

    def finishing(self) -> Iterator[list[Stretch]]:
        """See `TextReader.finishing`."""
        yield from self._read(is_complete=True)
        held, self._held, self._last, self._manner = self._held, [], "", None
        self._begin_line()
        yield held
        self._check()

    def _check(self) -> None:
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def _begin_line(self) -> None:
        self._is_line_start = True
        self._needs_stop = False
        """True if the line is a heading, an item or a row: without a final mark it gets a full stop."""
        self._is_row = False
        self._last_spoken = ""
        """The line's last character that is neither blank space nor closes something."""

    def _read(self, *, is_complete: bool) -> Iterator[list[Stretch]]:
        at = 0
        while at < len(self._text) and (form := self._next_form(at, is_complete)) is not None:
            end, spoken = form
            given = self._given(self._text[at:end], spoken)
            yield given if self._manner is None else [replace(each, manner=self._manner) for each in given]
            at = end
        self._text = self._text[at:]

    def _next_form(self, at: int, is_complete: bool) -> _Form | None:
        """Return where the form that begins at `at` ends and what is spoken for it; None if more text must tell."""
        text = self._text
        if self._is_line_start:
            if not is_complete and _UNFINISHED_LINE_START.fullmatch(text, at):
                return None
            self._is_line_start = False
            if (end := self._words_of_line(at)) > at:
                return end, ""
        trigger = _TRIGGER.search(text, at)
        plain_end = len(text) if trigger is None else trigger.start()
        if plain_end > at:
            return plain_end, text[at:plain_end]
        form = self._form_of.get(text[at])
        return form(at, is_complete) if form else self._emoji(at)

    def _words_of_line(self, at: int) -> int:
        """Note what kind of line begins here; return where its words do."""
        found = _LINE_START.match(self._text, at)
        if found is None:
            return at
        self._needs_stop = found.lastgroup in ("heading", "item", "number", "row")
        self._is_row = found.lastgroup == "row"
        return at if found.lastgroup == "number" else found.end()

    def _run(self, at: int, is_complete: bool) -> _Form | None:
        """Emphasis, struck text and code: their marks go, unless they stand between blanks or within a word."""
        found = _RUN.match(self._text, at)
        assert found is not None
        end, mark = found.end(), self._text[at]
        if end == len(self._text) and not is_complete:
            return None
        left, right = self._last, self._text[end : end + 1]
        return end, "" if _is_emphasis(mark, end - at, left, right) else found[0]

    def _bracket(self, at: int, is_complete: bool) -> _Form | None:
        """Links and pictures: their text is spoken. Footnotes are not."""
        text = self._text
        if own := self._own_tag.match(text, at):
            return own.end(), own[0]
        if self._styles is not None and (tag := audio_tag_at(text, at)) is not None:
            is_unfinished = tag.end == len(text) and not is_complete
            return None if is_unfinished else (tag.end, self._spoken_of_audio_tag(tag, self._styles))
        if footnote := _FOOTNOTE.match(text, at):
            is_unfinished = footnote.end() == len(text) and text[-1] == "]"
            return None if is_unfinished and not is_complete else (footnote.end(), "")
        if link := _LINK.match(text, at):
            return link.end(), _INLINE.sub("", link["text"]).strip() or link["url"] or ""
        may_go_on = _UNFINISHED_LINK.fullmatch(text, at) or self._tags.unfinished_from(text) == at
        return None if may_go_on and not is_complete else (at + 1, text[at])

    def _spoken_of_audio_tag(self, tag: AudioTag, styles: StyleRule) -> str:
        """Obey an audio tag, from here on; where the checkpoint can't, it is refused or goes."""
        if tag.pause_s:
            self._break = tag.pause_s
        elif not tag.sound and styles.is_declared:
            self._manner, self._break = Manner(style=tag.style), 0.0
        elif not tag.sound:
            try:
                styles.check(AUDIO_TAGS_FIELD)
            except InvalidRequestError as error:
                self._problem = self._problem or error
        return tag.sound

    def _angle(self, at: int, is_complete: bool) -> _Form | None:
        """Tags go, their text stays; what opens no known tag is read."""
        text = self._text
        if own := self._own_tag.match(text, at):
            return own.end(), own[0]
        if link := _AUTOLINK.match(text, at):
            return link.end(), link[1].removeprefix("mailto:")
        if comment := _COMMENT.match(text, at):
            return comment.end(), ""
        if (tag := _TAG.match(text, at)) and _is_known(tag["name"]):
            return tag.end(), self._spoken_of_tag(tag["name"].lower(), tag["rest"], is_end=tag["close"] is not None)
        is_unfinished = not is_complete and (self._tags.unfinished_from(text) == at or _may_be_tag(text, at))
        return None if is_unfinished else (at + 1, "<")

    def _spoken_of_tag(self, name: str, attributes: str, *, is_end: bool) -> str:
        if name == _BREAK and not is_end:
            self._read_break(attributes)
        if name in _BLOCKS and self._last_spoken:
            self._needs_stop = True
            return _LINE_END
        return ""

    def _read_break(self, attributes: str) -> None:
        try:
            seconds = read_break(attributes)
        except InvalidRequestError as error:
            self._problem = self._problem or error
        else:
            self._break = seconds or None

    def _entity(self, at: int, is_complete: bool) -> _Form | None:
        if entity := _ENTITY.match(self._text, at):
            return entity.end(), cleaned(html.unescape(entity[0]))
        is_unfinished = not is_complete and _UNFINISHED_ENTITY.fullmatch(self._text, at)
        return None if is_unfinished else (at + 1, "&")

    def _backslash(self, at: int, is_complete: bool) -> _Form | None:
        if escaped := _ESCAPED.match(self._text, at):
            return escaped.end(), escaped[0][1]
        return None if at + 1 == len(self._text) and not is_complete else (at + 1, "\\")

    def _bar(self, at: int, is_complete: bool) -> _Form | None:
        """The border of two cells is a pause."""
        if not self._is_row:
            return at + 1, "|"
        behind = _CELL_END.match(self._text, at)
        assert behind is not None
        if behind.end() == len(self._text) and not is_complete:
            return None
        is_last = self._text[behind.end() : behind.end() + 1] in ("", "\n")
        return at + 1, "" if is_last else _SHORT_PAUSE

    def _emoji(self, at: int) -> _Form:
        character = self._text[at]
        if character == _JOINER and not _EMOJI.match(self._last):
            return at + 1, character
        return at + 1, ""

    def _given(self, written: str, spoken: str) -> list[Stretch]:
        """Return stretches for what was read, with the marks and without the blanks that this brings about."""
        self._last = written[-1]
        if self._break is not None:
            return self._given_break(written, self._break)
        if self._is_behind_break and spoken:
            blank = len(spoken) - len(spoken.lstrip(" "))
            self._is_behind_break = blank == len(spoken)
            if blank and written == spoken:
                self._held.append(Stretch(written[:blank], ""))
                return self._given(written[blank:], spoken[blank:]) if spoken[blank:] else []
        if spoken in (_SHORT_PAUSE, _LONG_PAUSE):
            spoken = self._pause(spoken)
        if spoken == _LINE_END:
            spoken = ("" if not self._needs_stop else self._pause(_LONG_PAUSE)) + "\n"
            self._begin_line()
        elif last := spoken.rstrip(CLOSERS_AND_BLANKS)[-1:]:
            self._last_spoken = last
        if not spoken:
            self._held.append(Stretch(written, ""))
            return []
        bare = spoken.rstrip(" ")
        parts = [(written, spoken)]
        if written == spoken and bare != spoken:
            parts = [(bare, bare), (spoken[len(bare) :],) * 2] if bare else []
        stretches = list[Stretch]()
        for part_written, part_spoken in parts or [(written, spoken)]:
            is_blank = part_spoken.strip(" ") == ""
            if not is_blank or any(not each.spoken for each in self._held):
                stretches += self._released_before(part_spoken, is_put=part_written != part_spoken)
            (self._held if is_blank else stretches).append(Stretch(part_written, part_spoken))
        return stretches

    def _given_break(self, written: str, pause: float) -> list[Stretch]:
        """Return what was held back, and the break; blanks behind it go, as the text begins anew."""
        held, self._held, self._break = self._held, [], None
        self._is_behind_break, self._last_spoken = True, ""
        return [*held, Stretch(written, "", pause)]

    def _pause(self, pause: str) -> str:
        """Return the mark for a pause here; none where there is one already."""
        if not self._last_spoken or self._last_spoken in ALL_MARKS:
            return ""
        if pause == _LONG_PAUSE:
            return full_stop(self._last_spoken, None)
        return "，" if full_stop(self._last_spoken, None) == "。" else ","

    def _released_before(self, spoken: str, *, is_put: bool) -> list[Stretch]:
        """Return what was held back: blanks go before a new mark, and one of two where something between them went."""
        held, self._held = self._held, []
        has_vanished = any(not each.spoken for each in held) or (is_put and spoken[:1] in _PUT_MARKS)
        is_blank_wanted = not (spoken[:1] in ALL_MARKS or spoken[:1] in " \n")
        if has_vanished and not is_blank_wanted:
            return [Stretch(each.written, "") for each in held]
        return held


_Form = tuple[int, str]


def _is_emphasis(mark: str, length: int, left: str, right: str) -> bool:
    """Tell marks of emphasis from multiplication, lists of stars and names_with_underscores."""
    if mark == "`":
        return True
    if length > _LONGEST_RUN or (mark == "~" and length != _STRUCK_RUN):
        return False
    is_left_blank, is_right_blank = not left or left.isspace(), not right or right.isspace()
    if is_left_blank and is_right_blank:
        return False
    is_within_word = left.isalnum() and right.isalnum()
    if mark == "_":
        return not is_within_word and (is_left_blank or is_right_blank or left in _AROUND or right in _AROUND)
    return not is_within_word or length > 1


def _is_known(name: str) -> bool:
    return name.lower() in _ELEMENTS or name.lower() == _BREAK or (":" in name and not name.endswith(":"))


def _may_be_tag(text: str, at: int) -> bool:
    """Tell whether what begins at `at` may become a tag, a comment or a link with more text."""
    if _UNFINISHED_COMMENT.fullmatch(text, at) or _UNFINISHED_AUTOLINK.fullmatch(text, at):
        return True
    tag = _UNFINISHED_TAG.fullmatch(text, at)
    return tag is not None and (not tag["name"] or tag.end("name") == len(text) or _is_known(tag["name"]))
