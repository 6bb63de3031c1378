r"""Sums, equations and signs, and LaTeX between dollars.

written                        spoken
x >= 5                         x greater than or equal to five
10/2=5                         ten divided by two equals five
$\frac{n^2}{2}$                n squared over two
"""

from __future__ import annotations

import re

from gateway.text.english.words import NUMBER, any_of, cardinal
from gateway.text.rules import rule

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
