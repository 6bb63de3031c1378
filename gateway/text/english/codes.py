"""What is read digit by digit, part by part or in pairs: networks, versions, telephones, codes, rooms and roads."""

from __future__ import annotations

import re

from gateway.text.english.amounts import CURRENCY_CODES
from gateway.text.english.words import any_of, cardinal, digits, groups, pairs, two_digits, year
from gateway.text.rules import rule

_NOT_WITHIN = r"(?<![\w.,/:$€£#+-])"
_NOT_ON = r"(?![\w/:-]|[.,]\d)"
_SOFTWARE = (
    r"[Vv]ersions?|[Rr]eleases?|iOS|iPadOS|macOS|Android|Ubuntu|Debian|Fedora|Windows|Linux|Python|Java|PHP|Ruby|Node"
    r"|Go|Rust|CUDA|PyTorch|Django|Kubernetes|Docker|Firefox|Chrome"
)
_CODES = (
    r"code|codes|passcode|password|pin|zip|zip code|postcode|routing|ssn|otp|extension|ext\.|isbn|serial|tracking|id"
    r"|confirmation"
)
# `tracking 50 parcels`, `the zip is 20 dollars`: an amount of something.
_NO_AMOUNT = r"(?! ?%| (?!is\b|was\b|has\b|expires\b|works\b|does\b|as\b)(?:[a-z]+s|percent|people|more|of)\b)"
_NUMBERED = r"order|ticket|account|reference|ref|invoice|license|licence|case|member|customer|booking|policy|claim"
_EMERGENCY = "[2-9]11|999|112|111|101|988|000"
_CALLED_IN_PAIRS = (
    r"[Rr]oom|[Ff]light|[Hh]ighway|[Rr]oute|[Ii]nterstate|[Ss]uite|[Bb]oeing|[Aa]irbus|[Pp]ort|HTTP|[Ee]rror|[Ss]tatus"
    r"|[Gg]ate|[Bb]us|[Ll]ine"
)
_MEASURED_BY_SIDES = (
    "pixel|truck|card|grid|board|inch|matri|table|foot|feet|room|lumber|photo|print|paper|screen|display|resolution"
    "|image|video"
)
_LONG = 7
"""A number of this many digits or more without separators may be a code, not an amount."""
_MOST_OF_AMOUNT = 9
_OF_A_CODE = re.compile(
    rf"\b(?i:{_CODES}|{_NUMBERED}|number|no\.|call|phone|dial|text|fax|cell|mobile|reach (?:me|us))\b[^.!?]{{0,20}}$"
)
_PLANS = {"401": "four oh one", "403": "four oh three", "457": "four fifty seven", "501": "five oh one"}
"""Retirement plans and the like, by sections of a law."""


def _standard(match: re.Match[str]) -> str:
    """802.11ac, 802.15.4."""
    parts = [cardinal(part) for part in match["parts"].strip(".").split(".")]
    return " dot ".join(["eight oh two", *parts]) + (f" {match['letters'].upper()}" if match["letters"] else "")


def _version(match: re.Match[str]) -> str:
    prefix = "version " if match["v"] else ""
    return prefix + " point ".join(map(_version_part, match["parts"].split(".")))


def _version_part(part: str) -> str:
    return two_digits(part) if len(part) == 2 and part[0] == "0" and part != "00" else cardinal(part)


def _named_version(match: re.Match[str]) -> str:
    return f"{match['name']} {' point '.join(map(_version_part, match['parts'].split('.')))}"


def _telephone(match: re.Match[str]) -> str:
    plus = "plus " if match[0].startswith("+") else ""
    parts = ["eight hundred" if part == "800" else digits(part) for part in re.findall(r"\d+", match[0])]
    return plus + ", ".join(parts)


def _code(match: re.Match[str]) -> str:
    number = "number " if match.groupdict().get("mark") else ""
    return f"{match['name']}{number}{_code_digits(match['code'])}"


def _code_digits(code: str) -> str:
    parts = re.findall(r"\d+", code)
    if len(parts) > 1:
        return ", ".join(map(digits, parts))
    return groups(code) if len(code) > 5 and len(code) != _LONG else digits(code)


def _long(match: re.Match[str]) -> str:
    """An amount of millions as it is; more digits, or such as follow `my number is`, one by one."""
    written = match[0]
    if len(written) <= _MOST_OF_AMOUNT and not _OF_A_CODE.search(
        match.string[max(0, match.start() - 40) : match.start()]
    ):
        return written
    is_telephone = len(written) == 10
    return ", ".join(map(digits, (written[:3], written[3:6], written[6:]))) if is_telephone else groups(written)


def _in_pairs(match: re.Match[str]) -> str:
    return f"{match['name']} {pairs(match['number'])}"


def _model(match: re.Match[str]) -> str:
    """BA2490, FY2024, F-16, B-52."""
    number = match["number"]
    return f"{match['letters']} {digits(number) if number[0] == '0' else pairs(number)}"


def _hexadecimal(match: re.Match[str]) -> str:
    return "zero X " + " ".join(digits(each) if each.isdecimal() else each.upper() for each in match["digits"])


def _plan(match: re.Match[str]) -> str:
    parts = [
        _PLANS[match["section"]],
        match["letter"] or match["plain"],
        cardinal(match["part"]) if match["part"] else "",
    ]
    return " ".join(filter(None, parts)) + (match["many"] or "")


NETWORKS_AND_VERSIONS = (
    rule(r"(?<!\w)0[xX](?P<digits>[0-9a-fA-F]{1,16})(?!\w)", _hexadecimal),
    rule(_NOT_WITHIN + r"802(?P<parts>(?:\.\d{1,2}){1,2})(?P<letters>[a-z]{0,2})(?!\w)", _standard),
    rule(_NOT_WITHIN + r"\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)", lambda m: " dot ".join(map(digits, m[0].split(".")))),
    rule(_NOT_WITHIN + r"\d{3}\.\d{3}\.\d{4}(?![\w]|\.\d)", _telephone),
    rule(r"(?<![\w.])(?P<v>[vV]\.?)(?P<parts>\d{1,4}(?:\.\d{1,4}){0,4})(?!\w|\.\d)", _version),
    rule(_NOT_WITHIN + r"(?P<v>)(?P<parts>\d{1,4}(?:\.\d{1,4}){2,4})(?!\w|\.\d)", _version),
    rule(rf"(?<!\w)(?P<name>{_SOFTWARE}) (?P<parts>\d{{1,4}}\.\d{{1,3}})(?!\w|\.\d)", _named_version),
)
TELEPHONES_AND_CODES = (
    rule(r"(?<![\w+])\+\d{1,3}(?:[ .-]?\(?\d{1,5}\)?){2,5}(?![\w])", _telephone),
    rule(r"(?<![\w.+-])(?:1[ .-])?\(\d{3}\) ?\d{3}[-. ]\d{4}(?![\w-])", _telephone),
    rule(r"(?<![\w.+-])(?:1-)?\d{3}-\d{3}-\d{4}(?![\w-])", _telephone),
    rule(r"(?<![\w.+-])\d{3}-\d{4}(?![\w-])", _telephone),
    rule(r"(?<![\w.+-])\d{3}-\d{2}-\d{4}(?![\w-])", _telephone),
    rule(r"(?<![\w.+-])97[89]-\d{1,5}-\d{1,7}-\d{1,6}-[\dXx](?![\w-])", _telephone),
    rule(r"(?<![\w.+-])\d{4}([ -])\d{4}\1\d{4}\1\d{4}(?![\w-])", _telephone),
    rule(rf"(?<!\w)(?i:(?P<name>(?:call|dial|phone|ring) ))(?P<code>{_EMERGENCY})(?!\w|[.,:-]\d)", _code),
    rule(
        r"(?<![\w.$€£])(?P<section>401|403|457|501)"
        r"(?: ?\((?P<letter>[a-z])\)(?:\((?P<part>\d)\))?|[ -]?(?P<plain>k))(?P<many>s)?(?!\w)",
        _plan,
    ),
    rule(r"(?i:(?P<name>\b(?:text|txt|sms)\b[^.!?]{0,40} to ))(?P<code>\d{4,6})(?!\w|[.,:/-]\d)", _code),
    rule(
        r"(?P<name>\b(?i:card|account|number|phone|visa|iban)\b[^.!?]{0,20} (?:ending|ends|end) (?:in|with) )"
        r"(?P<code>\d{2,6})(?!\w|[.,:/-]\d)",
        _code,
    ),
    rule(
        rf"(?<!\w)(?i:(?P<name>(?:{_CODES}|pnr)(?: number| no\.| code)?(?: is|:)? ))"
        r"(?P<letters>[A-Za-z]{1,3})(?P<code>\d{3,12})(?!\w|[.,:/-]\d)",
        lambda m: f"{m['name']}{' '.join(m['letters'].upper())} {digits(m['code'])}",
    ),
    rule(
        rf"(?<!\w)(?i:(?P<name>(?:{_CODES})(?: number| no\.| code)?(?: is|:)? ?))#? ?"
        rf"(?P<code>\d{{3}}[ -]\d{{3}}|\d{{2,20}})(?!\w|[.,:/-]\d){_NO_AMOUNT}",
        _code,
    ),
    rule(
        rf"(?<!\w)(?i:(?P<name>(?:{_NUMBERED})(?: number| no\.| id)(?: is|:)? ?))#? ?"
        r"(?P<code>\d{3,20})(?!\w|[.,:/-]\d)",
        _code,
    ),
    rule(rf"(?<!\w)(?i:(?P<name>(?:{_NUMBERED}):? ))(?P<mark># ?)?(?P<code>\d{{5,20}})(?!\w|[.,:/-]\d)", _code),
    rule(_NOT_WITHIN + r"00([1-9])" + _NOT_ON, lambda m: f"double oh {digits(m[1])}"),
    rule(_NOT_WITHIN + rf"\d{{{_LONG},40}}" + _NOT_ON, _long),
    rule(_NOT_WITHIN + r"0\d{1,9}" + _NOT_ON, lambda match: digits(match[0])),
)
CALLED_IN_PAIRS = (
    rule(
        r"(?<!\w)(?P<name>Boeing|Airbus) (?P<a>\d{3})-(?P<b>\d{3})(?!\w)",
        lambda m: f"{m['name']} {pairs(m['a'])} {pairs(m['b'])}",
    ),
    rule(rf"(?<!\w)(?P<name>{_CALLED_IN_PAIRS}) (?P<number>[1-9]\d{{2,3}})(?![\w-]|[.,:/]\d)", _in_pairs),
    rule(
        rf"(?<![\w.])(?!{any_of(CURRENCY_CODES)})(?P<name>[A-Z]{{2,3}}) (?P<number>[1-9]\d{{3}})"
        r"(?![\w-]|[.,:/]\d)(?<!AD \d{4})(?<!BC \d{4})",
        _in_pairs,
    ),
    rule(r"(?<![\w-])FY ?(?P<year>(?:19|20)\d\d)(?!\w)", lambda m: f"FY {year(int(m['year']))}"),
    rule(r"(?<![\w-])(?P<letters>[A-Z]{1,3})(?P<number>\d{3,4})(?![\w-]|[.,:/]\d)", _model),
    rule(r"(?<=\d)\((?P<letter>M)\)(?!\w)", lambda m: f" {m['letter']}"),
    rule(r"(?<![\w.-])(?P<letters>[A-Z]{1,6})-(?P<number>\d{1,4})(?![\w-]|[.,:/]\d)", _model),
    rule(r"(?<![\w.,$€£])(?P<number>480|720|1080|1440|2160)(?=[pi]\b)", lambda m: f"{pairs(m['number'])} "),
    rule(
        rf"(?<![\w.,$€£])(?P<a>\d{{1,4}}) ?[x×] ?(?P<b>\d{{1,4}})(?= (?:{_MEASURED_BY_SIDES}))",
        lambda m: f"{pairs(m['a'])} by {pairs(m['b'])}",
    ),
)
