"""Web and mail addresses as they are read aloud: `https://www.example.com/docs` -> `example dot com slash docs`.

The scheme, `www.` and what follows `?` or `#` are left out: nobody hears an address by them. Pure.
"""

from __future__ import annotations

import re

from gateway.text.alignment import NormalizedText, replaced, unchanged

# In words: dot, slash, at, dash, underscore, plus.
_ENGLISH = ("dot", "slash", "at", "dash", "underscore", "plus")
_WORDS = {
    "en": _ENGLISH,
    "de": ("Punkt", "Schrägstrich", "ät", "Minus", "Unterstrich", "Plus"),
    "fr": ("point", "slash", "arobase", "tiret", "tiret bas", "plus"),
    "es": ("punto", "barra", "arroba", "guion", "guion bajo", "más"),
    "it": ("punto", "barra", "chiocciola", "trattino", "trattino basso", "più"),
    "pt": ("ponto", "barra", "arroba", "hífen", "sublinhado", "mais"),
    "nl": ("punt", "slash", "apenstaartje", "streepje", "laag streepje", "plus"),
    "ru": ("точка", "слэш", "собака", "дефис", "подчёркивание", "плюс"),
    "zh": ("点", "斜杠", "艾特", "杠", "下划线", "加"),
    "ja": ("ドット", "スラッシュ", "アットマーク", "ハイフン", "アンダーバー", "プラス"),
    "ko": ("점", "슬래시", "골뱅이", "하이픈", "언더바", "더하기"),
}
_SIGNS = "./@-_+"
_DOMAINS = (
    "com|org|net|edu|gov|io|dev|app|ai|info|biz|co|uk|de|fr|es|it|nl|eu|cn|jp|kr|ru|ch|at|ca|au|us|in|me|tv|xyz|tech"
)
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?\.){1,6}"
_PATH = r"(?:[/?#][A-Za-z0-9/%_.~:?#@!$&()*+,;=|-]{0,2000})?"
_ASIAN = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
"""Behind these characters an address begins, and before them it ends, without a blank."""
_ADDRESS = re.compile(
    rf"(?:(?P<scheme>https?://|ftp://)|(?<![\w@./-])|(?<=[{_ASIAN}]))(?:"
    rf"(?P<user>[A-Za-z0-9_%+-]{{1,64}}(?:\.[A-Za-z0-9_%+-]{{1,64}}){{0,4}})@(?P<mail>{_HOST}[A-Za-z]{{2,24}})"
    r"(?![A-Za-z0-9_-])(?P<rest>(?:/[A-Za-z0-9_.-]{1,60}){0,4})"
    rf"|(?P<host>(?:localhost|\d{{1,3}}(?:\.\d{{1,3}}){{3}}|{_HOST}[A-Za-z]{{2,24}}))(?P<port>:\d{{1,5}})?(?P<path>{_PATH}))"
)
_HAS_ADDRESS = re.compile(r"://|@|\w\.[A-Za-z]{2}|localhost:")
_BARE = re.compile(rf"(?:www\.|(?:[a-z0-9_-]{{1,63}}\.){{1,5}}(?:{_DOMAINS})$)", re.IGNORECASE)
_WITHOUT_BLANKS = ("zh", "ja")
_BLANK_BESIDE = re.compile(rf" (?=[{_ASIAN}])|(?<=[{_ASIAN}]) ")
_TRAILING = ".,;:!?)*|&=-"
_MOST_HEARD = 60
"""Most characters of a path that are spoken; listeners do not follow more."""
_SPELLED = frozenset("uk io ai tv us eu cn jp kr de fr es nl ru ch ca au xyz".split())
_PART = re.compile(r"[./@_+-]|\d+|[^\d./@_+-]+")


def spoken_addresses(text: str, language: str | None) -> NormalizedText:
    """Return the text with its addresses in words.

    Args:
        text: at most a segment, without markup.
        language: primary subtag of BCP 47; one without words of its own and None get English ones.
    """
    if not _HAS_ADDRESS.search(text):
        return unchanged(text)
    words = dict(zip(_SIGNS, _WORDS.get(language or "", _ENGLISH), strict=True))
    changes = list[tuple[int, int, str]]()
    for match in _ADDRESS.finditer(text):
        spoken, written = _spoken(match, words)
        if spoken:
            spoken = _BLANK_BESIDE.sub("", spoken) if language in _WITHOUT_BLANKS else spoken
            changes.append((match.start(), match.start() + len(written), spoken))
    return replaced(text, changes)


def _spoken(match: re.Match[str], words: dict[str, str]) -> tuple[str, str]:
    """Return an address in words and what was written of it; without words for what only looks like one."""
    if match["user"]:
        rest = match["rest"].rstrip(_TRAILING)
        written = match[0][: len(match[0]) - len(match["rest"]) + len(rest)]
        return (
            f"{_in_words(match['user'], words)} {words['@']} {_host(match['mail'], words)}{_path(rest, words)}",
            written,
        )
    host = match["host"]
    port = match["port"] or ""
    if not match["scheme"] and not _BARE.match(host) and not (host == "localhost" and port):
        return "", ""
    written = match[0].rstrip(_TRAILING)
    path = match["path"].rstrip(_TRAILING + "/").split("?")[0].split("#")[0]
    spoken_port = f" {' '.join(port[1:])}" if port else ""
    return _host(host.removeprefix("www."), words) + spoken_port + _path(path, words), written


def _host(host: str, words: dict[str, str]) -> str:
    labels = host.split(".")
    spelled = [
        " ".join(label.upper()) if label.lower() in _SPELLED else _in_words(label, words) for label in labels[1:]
    ]
    return f" {words['.']} ".join([_in_words(labels[0], words), *spelled])


def _path(path: str, words: dict[str, str]) -> str:
    heard = path if len(path) <= _MOST_HEARD else path[:_MOST_HEARD].rpartition("/")[0]
    return f" {_in_words(heard.rstrip('/'), words)}" if heard.strip("/") else ""


def _in_words(part: str, words: dict[str, str]) -> str:
    """Return signs in words and digits one by one, so that they are read so."""
    found = [words.get(each) or (" ".join(each) if each.isdecimal() else each) for each in _PART.findall(part)]
    return " ".join(found)
