r"""Plain numbers, ranges, percentages, fractions, ratings; sums, equations and signs, and LaTeX between dollars.

written                        spoken
x >= 5                         x greater than or equal to five
10/2=5                         ten divided by two equals five
$\frac{n^2}{2}$                n squared over two
"""

from __future__ import annotations

import re

from gateway.text.english.amounts import MEASURE, unit_words
from gateway.text.english.words import NUMBER, START, any_of, cardinal, digits, groups, ordinal, year
from gateway.text.rules import rule

_VULGAR = "½¼¾⅓⅔⅛⅜⅝⅞⅕⅖⅗⅘⅙⅚"
_FRACTIONS = dict(zip(_VULGAR, "1/2 1/4 3/4 1/3 2/3 1/8 3/8 5/8 7/8 1/5 2/5 3/5 4/5 1/6 5/6".split(), strict=True))
_SAID_AS_NUMBERS = {"24/7", "9/11", "50/50", "7/11", "20/20", "60/40", "80/20", "70/30", "90/10", "180/360"}
_MOST_PARTS = 100
_LIKE_A_YEAR = re.compile(r"1[1-9]\d\d|20\d\d")
_ZIP = 5
_RATED = (
    r"(?:rated|rates|rating|ratings|scored?|scores|reviews?|stars|gave (?:it|them|us|him|her)|give (?:it|them)|graded?)"
)


def _fraction(match: re.Match[str]) -> str:
    whole, top, bottom = match["whole"], int(match["top"]), int(match["bottom"])
    unit = match["unit"]
    spoken = _fraction_words(whole, top, bottom)
    if spoken is None:
        return match[0]
    if not unit:
        return spoken
    if whole:
        return f"{spoken} {unit_words(unit, '2')}"
    name = unit_words(unit, "1")
    return f"{spoken} of a{'n' * (name[0] in 'aeio' or name == 'hour')} {name}"


def _fraction_words(whole: str | None, top: int, bottom: int) -> str | None:
    written = f"{top}/{bottom}"
    if written in _SAID_AS_NUMBERS:
        return f"{whole or ''}{cardinal(top)} {cardinal(bottom)}"
    if not 1 < bottom <= _MOST_PARTS or not 0 < top < _MOST_PARTS:
        return None
    if not whole:
        return f"{cardinal(top)} {_parts(top, bottom)}"
    part = "a half" if written == "1/2" else f"{cardinal(top)} {_parts(top, bottom)}"
    return f"{cardinal(whole.strip(' -'))} and {part}"


def _parts(top: int, bottom: int) -> str:
    if bottom == 2:
        return "half" if top == 1 else "halves"
    name = (
        "quarter" if bottom == 4 else ordinal(bottom).removeprefix("one ") if bottom == _MOST_PARTS else ordinal(bottom)
    )
    return name if top == 1 else f"{name}s"


def _out_of(match: re.Match[str]) -> str:
    return f"{match['before'] or ''}{cardinal(match['top'])} out of {cardinal(match['bottom'])}"


def _range(match: re.Match[str]) -> str:
    """A range, unless it falls as no score does: 978-0 is a code, 5 - 3 a sum."""
    first, last = match["first"], match["last"]
    if match["unit"] is not None:
        return f"{cardinal(first)} to {last}"
    if first.isdecimal() and last.isdecimal() and int(first) > int(last):
        if len(first) == _ZIP and len(last) == _ZIP - 1:
            return f"{digits(first)}, {digits(last)}"
        if len(first) > 2:
            return f"{groups(first)}, {groups(last)}" if len(last) < len(first) else f"{first} to {last}"
        if " " in match[0]:
            return f"{first} minus {last}"
    return f"{first} to {last}"


def _amount(match: re.Match[str]) -> str:
    return cardinal(match["amount"])


def _amount_before_in(match: re.Match[str]) -> str:
    """The grammar takes the word for inches."""
    amount = match["amount"]
    return year(int(amount)) if _LIKE_A_YEAR.fullmatch(amount) else cardinal(amount)


GROUPED = (rule(r"(?<![\w.,+:/-])(?<!\d )[1-9]\d{0,2}(?: \d{3}){0,3} 000(?! ?\d)", lambda m: m[0].replace(" ", "")),)
SPECIAL_FRACTIONS = (
    rule(rf"(?<=\d)[{_VULGAR}]", lambda m: f" {_FRACTIONS[m[0]]}"),
    rule(rf"[{_VULGAR}]", lambda m: _FRACTIONS[m[0]]),
)
RANGES = (
    rule(rf"{START}(?P<first>{NUMBER})% ?[-–—] ?(?={NUMBER}%)", lambda m: f"{m['first']} to "),
    rule(rf"{START}(?P<first>{NUMBER}k) ?[-–—] ?(?={NUMBER}k\b)", lambda m: f"{m['first']} to "),
    rule(
        rf"{START}(?P<first>{NUMBER}) ?[-–—] ?(?P<last>{NUMBER})(?=%|°|[a-zA-Z]|\W|$)"
        rf"(?P<unit>(?= ?{MEASURE}(?![\w/-])))?(?![-–—/:]\w|[.,]\d| ?=|\w{{0,24}}-\w{{0,24}}\d)",
        _range,
    ),
    rule(
        rf"{START}(?P<first>\d{{1,2}}):(?P<last>\d{{1,2}})(?= (?:screen|ratio|aspect|odds|scale|display|monitor|mix))",
        lambda m: f"{cardinal(m['first'])} to {cardinal(m['last'])}",
    ),
)
FRACTIONS = (
    rule(r"(?<![\w.,:/$€£-])(?P<before>)(?P<top>\d{1,2}\.\d{1,2})/(?P<bottom>\d{1,3})(?![\w/-]|[.,:]\d)", _out_of),
    rule(
        rf"(?P<before>\b(?i:{_RATED})(?: of| is|:| at| an?)? )"
        r"(?P<top>\d{1,3})/(?P<bottom>5|10|100)(?![\w/-]|[.,:]\d)",
        _out_of,
    ),
    rule(
        r"(?<![\w.,:/$€£-])(?P<whole>\d{1,4}[ -])?(?P<top>\d{1,3})/(?P<bottom>\d{1,3})(?:th|rd|nd)?"
        rf"(?: (?P<unit>(?!in (?:the|a|an|my)\b){MEASURE})\b)?(?![\w/-]|[.,:]\d)",
        _fraction,
    ),
)
NUMBERS = (
    rule(r"(?<![\w.,])(?P<amount>\d{1,4})(?:st|nd|rd|th)(?!\w)", lambda m: ordinal(int(m["amount"]))),
    rule(rf"{START}(?P<amount>{NUMBER})(?= in\b(?!\.\s*$))", _amount_before_in),
    rule(
        r"(?<![\w.,:/-])(?P<first>\d{1,3})-(?P<second>\d{1,3})-(?P<third>\d{1,3})(?![\w-])",
        lambda m: " ".join(cardinal(m[part]) for part in ("first", "second", "third")),
    ),
    rule(
        r"(?<![\w./])(?P<first>\d{1,9})/(?P<second>\d{1,9})/(?P<third>\d{1,9})(?![\w/])",
        lambda m: " slash ".join(cardinal(m[part]) for part in ("first", "second", "third")),
    ),
    rule(r"(?<!\w)@(?=\d)", lambda _: "at "),
    rule(r"(?<=\d)@(?!\w)", lambda _: " at"),
    rule(r"(?<![\w.,])#(?P<amount>\d{1,6})(?!\w|[.,]\d)", lambda m: f"number {cardinal(m['amount'])}"),
    rule(r"(?<![\w.,])(?P<amount>\d{1,3}(?:,\d{3})+(?:\.\d+)?)(?![\w]|[.,]\d)", _amount),
    rule(
        r"(?<![\w.,])(?P<first>\d{1,2}),(?P<second>\d{1,2})(?![\w]|[.,]\d)",
        lambda m: f"{cardinal(m['first'])}, {cardinal(m['second'])}",
    ),
    rule(r"(?<![\w.,:/])(?P<amount>100\d|\d{5,9})(?![\w]|[.,:/]\d)", _amount),
    rule(r"(?<![\w.,])(?P<amount>\d{1,6}\.\d{0,8}0\d{0,8})(?![\w]|[.,]\d| ?[°%])", _amount),
    rule(r"(?<![\w.])\.(?P<amount>\d{1,9})(?![\w]|[.,]\d)", lambda m: f"point {digits(m['amount'])}"),
    rule(r"(?<![\w.,])(?P<amount>\d{1,4})\+(?= [a-z]|\s*$)", lambda m: f"{cardinal(m['amount'])} plus"),
    rule(r"(?<![\w.,])(?P<amount>\d{1,4}(?:\.\d{1,3})?)[x×](?![\w]| ?\d)", lambda m: f"{cardinal(m['amount'])} times"),
    # The grammar reads `25.]` digit by digit.
    rule(r"(?<![\w.,:/$€£#-])(?P<amount>\d{1,3})(?=[.!?][\])}])", _amount),
)

_OPERATORS = {
    "+": "plus", "-": "minus", "−": "minus", "–": "minus", "*": "times", "×": "times", "x": "times", "∗": "times",
    "∙": "times", "⋅": "times", "·": "times", "/": "divided by", "÷": "divided by", "∕": "divided by",
    "±": "plus or minus",
}  # fmt: skip
_RELATIONS = {
    "=": "equals", "==": "equals", "≠": "does not equal", "!=": "does not equal", "≈": "is about",
    "≤": "less than or equal to",
    "≦": "less than or equal to", "<=": "less than or equal to", "≥": "greater than or equal to",
    "≧": "greater than or equal to", ">=": "greater than or equal to", "<": "less than", ">": "greater than",
    "⊆": "is a subset of", "∈": "is in", "→": "goes to", "⋈": "join",
}  # fmt: skip
_SIGNS = {**_OPERATORS, **_RELATIONS}
_OPERAND = r"(?:[-−]?(?:\d{1,3}(?:,\d{3})+|\d{1,15})?(?:\.\d{1,9})?(?:(?<=\d)%|[A-Za-z])?(?:[²³]|\^[-−]?\w{1,4})?)"
_TERM = rf"(?:\(?(?<![\w.]){_OPERAND}(?![\w.]\w)\)?)"
_OPERATOR = f"[{re.escape(''.join(_OPERATORS).replace('x', ''))}]|(?<=\\d)x(?=\\d)|(?<= )x(?= )"
_SUM = rf"{_TERM}(?: ?(?:{_OPERATOR}) ?{_TERM}){{1,6}}"
_RELATION = any_of(set(_RELATIONS) - {"<", ">"})
_BETWEEN = re.compile(
    rf"(?<=[\w)%²³]) ?(?P<sign>{any_of(set(_SIGNS) - {'x'})}) ?(?=[\w(.−-])|(?<=\d) ?(?P<by>x) ?(?=\d)"
)
_COEFFICIENT = re.compile(r"(?<![\w.])\d{1,6}(?=[A-Za-z](?![A-Za-z]))")
_LATEX_COMMANDS = {
    "times": "times", "cdot": "times", "div": "divided by", "pm": "plus or minus", "le": "less than or equal to",
    "leq": "less than or equal to", "ge": "greater than or equal to", "geq": "greater than or equal to",
    "ne": "does not equal", "neq": "does not equal", "approx": "is about", "infty": "infinity", "to": "to",
    "rightarrow": "to", "in": "in", "int": "the integral of", "sum": "the sum of", "partial": "partial", "left": "",
    "right": "", "text": "", "mathrm": "", "mathbf": "", "cdots": "and so on", "ldots": "and so on", "log": "log",
    "ln": "natural log", "lim": "the limit of",
}  # fmt: skip
_GROUP = r"\{([^{}]{1,60})\}"
_LATEX = (
    (re.compile(r"\\d?frac" + _GROUP + _GROUP), r"\1 over \2"),
    (re.compile(r"\\sqrt" + _GROUP), r"the square root of \1"),
    (re.compile(r"_\{?(\w{1,6})\}?"), r" sub \1"),
    (re.compile(r"\^\{([^{}]{1,20})\}"), r"^\1"),
)


def _latex(match: re.Match[str]) -> str:
    body = match["display"] or match["inline"]
    for pattern, words in _LATEX:
        body = pattern.sub(words, body)
    body = re.sub(r"\\([A-Za-z]+)", lambda m: f" {_LATEX_COMMANDS.get(m[1], m[1])} ", body)
    return " ".join(_in_words(re.sub(r"\\.|[{}]", " ", body)).split())


def _equation(match: re.Match[str]) -> str:
    return _in_words(match[0])


def _in_words(formula: str) -> str:
    """Return a formula with the signs between its terms in words."""
    formula = _COEFFICIENT.sub(lambda m: f"{cardinal(m[0])} ", formula)
    return _BETWEEN.sub(lambda m: f" {_SIGNS[m['sign'] or m['by']]} ", formula)


def _power(match: re.Match[str]) -> str:
    exponent = match["exponent"].replace("−", "-")
    if exponent in ("2", "3"):
        return f"{match['base']} {'squared' if exponent == '2' else 'cubed'}"
    sign = "minus " if exponent.startswith("-") else ""
    bare = exponent.lstrip("-+")
    return f"{match['base']} to the power of {sign}{cardinal(bare.lstrip('0') or '0') if bare.isdecimal() else bare}"


def _exponential(match: re.Match[str]) -> str:
    sign = "minus " if match["sign"] == "-" else ""
    return f"{cardinal(match['amount'])} times ten to the power of {sign}{cardinal(match['exponent'])}"


LATEX = (
    rule(
        r"(?<![\w$\\])(?:\$\$(?P<display>[^$]{1,200})\$\$|\$(?P<inline>(?! )[^$\n]{1,120}(?<! ))\$)(?![\w$])",
        _latex,
    ),
)
MAY_BE_FORMULA = re.compile(r"[=+÷≠^√]|\$\S|\w ?[≤≥≦≧⊆⋈→∈]")
"""What a text without numbers has if any rule here may change it."""
EQUATIONS = (
    rule(
        rf"(?:{_SUM}|{_TERM}) ?(?:{_RELATION}) ?(?:{_SUM}|{_TERM})(?: ?(?:{_RELATION}) ?(?:{_SUM}|{_TERM})){{0,2}}",
        _equation,
    ),
    rule(r"(?<![\w.,-])\d{1,6} [-−–] \d{1,6}(?= (?:is|equals|makes|leaves)\b)", _equation),
    rule(r"(?<=[\w)²³]) ?={1,2} ?(?=[\w(-])", lambda _: " equals "),
    rule(r"√ ?(?=[\w(])", lambda _: "the square root of "),
)
SIGNS = (
    rule(r"(?<![\w)\]}.,:^])[-−–](?=[$€£¥₹]?\.?\d)", lambda _: "minus "),
    rule(r"№ ?(?=\d)", lambda _: "number "),
    rule(r"(?<=\d) ?‰", lambda _: " per mille"),
    rule(r"(?<![\w)\]}.,:/])\+(?=\d)", lambda _: "plus "),
    rule(r"± ?(?=\d)", lambda _: "plus or minus "),
    rule(r"(?:(?<=\s)|^)[~≈] ?(?=[$€£]?\d)", lambda _: "about "),
    rule(r"[≥≧] ?(?=\d)|(?<![<>=-])>= ?(?=\d)", lambda _: "greater than or equal to "),
    rule(r"[≤≦] ?(?=\d)|(?<![<>=-])<= ?(?=\d)", lambda _: "less than or equal to "),
    rule(r"(?<![<\w-])< ?(?=\d)", lambda _: "less than "),
    rule(r"(?<![>\w=-])> ?(?=\d)", lambda _: "greater than "),
    rule(r"(?<=[\w)]) ?[÷∕] ?(?=[\w(])", lambda _: " divided by "),
    rule(r"(?<=[\w)]) ?≠ ?(?=[\w(-])", lambda _: " does not equal "),
    rule(r"(?<=\d) ?\* ?(?=\d)|(?<=\d) ?[×∗∙⋅] ?(?=\d)|(?<=\d) x (?=\d)", lambda _: " times "),
    rule(r"(?<=[\w)]) \+ (?=[\w(])", lambda _: " plus "),
    rule(r"(?<=\d) [-−] (?=\d)", lambda _: " minus "),
)
POWERS = (
    rule(r"(?<=[A-Za-z\d)])²(?!\w)", lambda _: " squared"),
    rule(r"(?<=[A-Za-z\d)])³(?!\w)", lambda _: " cubed"),
    rule(r"(?P<base>(?<!\w)\w{1,12}|\))\^\(?(?P<exponent>[-−]?(?:\d{1,4}|[A-Za-z]))(?![A-Za-z])\)?", _power),
    rule(
        rf"(?<![\w.,:/$€£₹-])(?P<amount>{NUMBER})[eE](?P<sign>[+-]?)(?P<exponent>\d{{1,3}})(?!\w)",
        _exponential,
    ),
)
