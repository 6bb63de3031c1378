"""Amounts of money: `$3.50`, `US$5-10 million`, `$9.99/month`, `100 USD`, `99¢`; and thousands and millions: `10k`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.text.english.units import PER, per
from gateway.text.english.words import NUMBER, START, any_of, cardinal
from gateway.text.rules import rule

_SCALES = {"k": "thousand", "K": "thousand", "m": "million", "M": "million", "mn": "million", "b": "billion"}
_SCALES |= {"B": "billion", "bn": "billion", "t": "trillion", "T": "trillion", "tn": "trillion"}
_SCALE = (
    r"(?: ?(?P<scale>thousand|million|billion|trillion)\b|(?P<letter>bn|mn|tn|[kKmMbBtT])(?![\w])"
    r"| (?P<spaced>bn|mn|tn|[kmb])(?![\w&'’-]))?"
)


@dataclass(frozen=True)
class _Currency:
    one: str
    many: str
    cent: str = "cent"
    cents: str = "cents"


def _dollar(country: str) -> _Currency:
    return _Currency(f"{country} dollar", f"{country} dollars")


_CURRENCIES = {
    "$": _Currency("dollar", "dollars"),
    **{f"{sign}$": _dollar("US") for sign in ("US", "US ")},
    **{f"{sign}$": _dollar("Canadian") for sign in ("C", "CA", "CAD")},
    **{f"{sign}$": _dollar("Australian") for sign in ("A", "AU")},
    "HK$": _dollar("Hong Kong"),
    "NZ$": _dollar("New Zealand"),
    "S$": _dollar("Singapore"),
    "NT$": _dollar("New Taiwan"),
    "R$": _Currency("real", "reais", "centavo", "centavos"),
    "€": _Currency("euro", "euros"),
    "£": _Currency("pound", "pounds", "penny", "pence"),
    "¥": _Currency("yen", "yen", "sen", "sen"),
    "₹": _Currency("rupee", "rupees", "paisa", "paise"),
    "₩": _Currency("won", "won", "jeon", "jeon"),
    "₽": _Currency("ruble", "rubles", "kopeck", "kopecks"),
    "₺": _Currency("lira", "lira", "kurus", "kurus"),
}
_CODES: dict[str, str] = {
    "USD": "US$",
    "EUR": "€",
    "GBP": "£",
    "JPY": "¥",
    "CAD": "C$",
    "AUD": "A$",
    "INR": "₹",
    "SGD": "S$",
}
_CODES |= {"HKD": "HK$", "NZD": "NZ$", "BRL": "R$", "KRW": "₩"}
_CURRENCIES |= {code: _CURRENCIES[sign] for code, sign in _CODES.items()}
_CURRENCIES |= {"CHF": _Currency("Swiss franc", "Swiss francs"), "CNY": _Currency("yuan", "yuan", "fen", "fen")}
_SIGN = rf"(?P<sign>{any_of(_CURRENCIES)})"
CURRENCY_CODES = (*_CODES, "CHF", "CNY")
_CODE = rf"(?P<sign>{any_of(CURRENCY_CODES)}|€|£)"
_BEFORE_NOUN = (
    r"(?= (?:bill|note|coin|house|home|deal|fine|prize|budget|loan|fee|gift|bet|check|ticket|question|bonus)\b)"
)
_AMOUNT = rf"(?P<amount>{NUMBER}|\.\d{{1,4}})"


def _money(match: re.Match[str]) -> str:
    currency, amount = _CURRENCIES[match["sign"]], match["amount"]
    if scale := _scale(match):
        return f"{cardinal(amount)} {scale} {currency.many}"
    whole, _, fraction = amount.partition(".")
    if len(fraction) == 2:
        return _with_cents(currency, int(whole.replace(",", "") or 0), int(fraction))
    return f"{cardinal(amount)} {currency.one if amount == '1' else currency.many}"


def _scale(match: re.Match[str]) -> str:
    return match["scale"] or _SCALES.get(match["letter"] or match["spaced"] or "", "")


def _with_cents(currency: _Currency, whole: int, cents: int) -> str:
    wholes = f"{cardinal(whole)} {currency.one if whole == 1 else currency.many}"
    small = f"{cardinal(cents)} {currency.cent if cents == 1 else currency.cents}"
    if not cents:
        return wholes
    return f"{wholes} and {small}" if whole else small


def _before_noun(match: re.Match[str]) -> str:
    return " ".join(filter(None, (cardinal(match["amount"]), _scale(match), _CURRENCIES[match["sign"]].one)))


def _range(match: re.Match[str]) -> str:
    """Name the currency once for whole amounts, twice for others: ten to twenty dollars."""
    first, scale, sign = match["first"], match["scale"] or "", match["sign"]
    is_whole = not scale and "." not in first + match["last"]
    return f"{'' if is_whole else sign}{first}{scale} to {sign}"


def _cents(match: re.Match[str]) -> str:
    return f"{cardinal(match['amount'])} cent{'s' * (match['amount'] != '1')}"


MONEY_RANGES = (
    rule(
        rf"(?<![A-Za-z]){_SIGN}(?P<first>{NUMBER})(?P<scale>[kKmMbB]|bn|mn)? ?[-–—] ?(?P=sign)?(?=(?P<last>{NUMBER}))",
        _range,
    ),
)
MONEY = (
    rule(rf"(?<![\w]){_SIGN} ?{_AMOUNT}{_SCALE}(?:[- ]dollar(?= [a-z])|(?![\w]|[.,]\d){_BEFORE_NOUN})", _before_noun),
    rule(rf"(?<=\b[Aa] ){_SIGN} ?{_AMOUNT}{_SCALE}(?= [a-z])", _before_noun),
    rule(rf"(?<![A-Za-z]){_SIGN} ?{_AMOUNT}{_SCALE}{PER}", lambda m: _money(m) + per(m)),
    rule(rf"(?<![A-Za-z]){_SIGN} ?{_AMOUNT}{_SCALE}(?![\w]|[.,]\d)", _money),
    rule(
        rf"{START}(?P<amount>{NUMBER})(?P<scale>)(?P<letter>)(?P<spaced>) ?{_CODE}{PER}", lambda m: _money(m) + per(m)
    ),
    rule(rf"{START}(?P<amount>{NUMBER})(?P<scale>)(?P<letter>)(?P<spaced>) ?{_CODE}(?!\w)", _money),
    rule(rf"{START}(?P<amount>{NUMBER}) ?¢", _cents),
)
SCALED = (
    # `5k run` is no thousand; `the 5K` neither.
    rule(
        rf"{START}(?P<amount>\d{{1,4}}(?:\.\d{{1,2}})?)(?P<letter>k(?![\w/-]| (?:run|race|walk)\b)|M(?= [a-z]))",
        lambda m: f"{cardinal(m['amount'])} {_SCALES[m['letter']]}",
    ),
)
