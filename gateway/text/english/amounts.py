"""Measures and amounts of money; of units those that the grammar does not know or misreads.

5 km   3 sq. ft.   100 Mb/s   3.5m x 4m   5'11"
$3.50   US$5-10 million   $9.99/month   100 USD   99¢   10k
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.text.english.abbreviations import ends_before_capital
from gateway.text.english.words import NUMBER, START, any_of, cardinal, plural
from gateway.text.rules import rule

_UNITS = {
    "s": "second", "h": "hour", "ms": "millisecond", "ns": "nanosecond", "mL": "milliliter", "ml": "milliliter",
    "L": "liter", "l": "liter", "dL": "deciliter", "cL": "centiliter", "m": "meter", "V": "volt", "mV": "millivolt",
    "kV": "kilovolt", "W": "watt", "kW": "kilowatt", "MW": "megawatt", "kWh": "kilowatt hour", "Wh": "watt hour",
    "mAh": "milliamp hour", "mA": "milliamp", "Ω": "ohm", "dB": "decibel", "mpg": "miles per gallon",
    "rpm": "revolutions per minute", "fps": "frames per second", "mi": "mile",
    "yd": "yard", "ft": "foot", "in": "inch", "lb": "pound", "lbs": "pounds", "oz": "ounce", "hr": "hour",
    "hrs": "hours", "min": "minute", "mins": "minutes", "sec": "second", "secs": "seconds", "yr": "year",
    "yrs": "years", "mo": "month", "mos": "months", "wk": "week", "wks": "weeks", "km": "kilometer",
    "m2": "square meter", "gal": "gallon",
    "µm": "micrometer", "μm": "micrometer", "µg": "microgram", "μg": "microgram", "mcg": "microgram",
    "µs": "microsecond", "px": "pixel", "mmHg": "millimeters of mercury", "kcal": "kilocalorie", "cal": "calorie",
    "kJ": "kilojoule", "kPa": "kilopascal", "hPa": "hectopascal", "tbsp": "tablespoon", "tsp": "teaspoon",
    "°C": "degree Celsius", "°F": "degree Fahrenheit", "Hz": "hertz", "kHz": "kilohertz", "MHz": "megahertz",
    "GHz": "gigahertz", "KB": "kilobyte", "kB": "kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte",
    "PB": "petabyte", "Mb": "megabit", "Gb": "gigabit", "kbps": "kilobits per second",
    "Mbps": "megabits per second", "Gbps": "gigabits per second", "mph": "miles per hour",
    "kph": "kilometers per hour", "kg": "kilogram", "kgs": "kilograms", "g": "gram", "mg": "milligram",
    "cm": "centimeter", "mm": "millimeter", "mol": "mole", "mmol": "millimole",
}  # fmt: skip
_UNITS |= {
    f"{power}{short}{sign}": f"{name} {_UNITS[short]}"
    for short in ("m", "km", "cm", "mm", "ft", "mi", "in", "yd")
    for power, name, sign in (
        *(("", "square", "²"), ("", "cubic", "³"), ("sq ", "square", ""), ("sq. ", "square", ""), ("cu ", "cubic", "")),
    )
}
_PER_WORDS = {"s²": "second squared", "d": "day", "yr": "year", "wk": "week", "mo": "month", "sqft": "square foot"}
_PERIODS = (
    "second|minute|hour|day|night|week|month|quarter|year|person|people|user|seat|head|pound|ounce|gallon|liter|litre"
    "|mile|kilometer|unit|item|piece|word|page|token|request|student|child|d|sqft"
)
_PLURALS = {"foot": "feet", "inch": "inches"}
MEASURE = f"(?:{any_of(_UNITS)})"
"""A unit's short form, as a pattern."""
PER = rf"/(?P<per>s²|{_PERIODS}|{MEASURE})(?![\w/²³])(?:\.(?= [a-z]))?"
"""What an amount is counted by, as a pattern: `/month`."""
_SINGLE_AFTER_A = (
    r"(?= (?:bulb|drip|run|race|line|cable|monitor|screen|display|angle|turn|drive|battery|motor|engine|walk|hike|swim"
    r"|dash|sprint|hurdles|relay|freestyle|bag|bar|box|bottle|bullet)\b)"
)
_END = r"(?!\s*$|[\"'”’)]{1,3}\s*$|\s+[A-Z][a-z])"
_DOTTED_UNITS = r"in|ft|lbs?|oz|hrs?|mins?|secs?|yrs?|mo|wks?|mi|yd|gal|tbsp|tsp|sq\. ft|sq ft|sq\. mi|sq mi"


def unit_words(unit: str, amount: str) -> str:
    """Return the name of a unit behind an amount as written: `1`, `2.5`."""
    noun = _UNITS[unit]
    if noun.startswith("degree"):
        return noun if amount == "1" else noun.replace("degree", "degrees", 1)
    if noun.startswith(("mile", "kilo", "mega", "giga", "frame", "rev")) and " per " in noun:
        return noun.replace("s per", " per", 1) if amount == "1" else noun
    if amount == "1" or noun.endswith(("s", "hertz")) or " of " in noun:
        return noun[:-1] if amount == "1" and unit.endswith("s") and noun.endswith("s") else noun
    first, _, last = noun.rpartition(" ")
    return f"{first} {_PLURALS.get(last) or plural(last)}".strip()


def per(match: re.Match[str]) -> str:
    """Return the words of `PER`: per month."""
    written = match["per"]
    return f" per {_PER_WORDS.get(written) or (unit_words(written, '1') if written in _UNITS else written)}"


def _measure(match: re.Match[str]) -> str:
    return f"{cardinal(match['amount'])} {unit_words(match['unit'], match['amount'])}"


def _dotted(match: re.Match[str]) -> str:
    is_end = ends_before_capital(match.string[match.end() :])
    return _measure(match) + "." * is_end


def _before_noun(match: re.Match[str]) -> str:
    return f"{cardinal(match['amount'])} {_UNITS[match['unit']]}"


def _height(match: re.Match[str]) -> str:
    inches = f" {cardinal(match['inches'])}" if match["inches"] else ""
    return f"{cardinal(match['feet'])} {'foot' if inches else 'feet'}{inches}"


def _inches(match: re.Match[str]) -> str:
    """Twelve inches, where the mark closes no quotation."""
    is_closing = match.string[: match.start()].count('"') % 2 and match["mark"] == '"'
    is_one = match["amount"] == "1" or match["article"]
    return (
        match[0] if is_closing else f"{match['article'] or ''}{cardinal(match['amount'])} inch{'' if is_one else 'es'}"
    )


def _by(match: re.Match[str]) -> str:
    return f"{match['first'].rstrip()} by "


SIDES = (
    rule(r"(?<![\w.,/-])(?P<first>\d{2,3})/(?=\d{2,3} ?mmHg)", lambda m: f"{cardinal(m['first'])} over "),
    rule(
        rf"{START}(?P<first>{NUMBER} ?{MEASURE}?) ?[x×] ?(?={NUMBER}(?: ?{MEASURE}(?![\w/])| ?[x×]))(?! \d+ =)",
        _by,
    ),
    rule(rf"{START}(?P<first>\d{{1,3}})[x×](?=\d{{1,3}}(?![\w.]| ?[=x×]))", _by),
)
"""Pairs of measures: the sides of something, the pressure of blood."""
MEASURES = (
    rule(
        rf"{START}(?P<feet>\d{{1,2}}) ?(?:ft|feet)\.? ?(?P<inches>\d{{1,2}}) ?(?:inches|in)\b\.?(?! (?:the|a)\b)",
        lambda m: f"{cardinal(m['feet'])} feet {cardinal(m['inches'])} inch{'es' * (m['inches'] != '1')}",
    ),
    rule(
        rf"{START}(?P<feet>\d{{1,2}})['’′] ?(?:(?P<inches>\d{{1,2}})(?:[\"”″]|''|(?!\w)))",
        _height,
    ),
    rule(
        rf"{START}(?P<amount>{NUMBER})[\"”″]"
        r"(?= (?:monitor|screen|display|tv|TV|laptop|pizza|wheel|pipe|tall|wide|long))",
        lambda m: f"{cardinal(m['amount'])} inch",
    ),
    rule(rf"(?P<article>\b[Aa]n? )?{START}(?P<amount>{NUMBER})(?P<mark>[\"″])(?!\w)", _inches),
    rule(
        rf"{START}(?P<amount>{NUMBER})°(?= (?:angle|turn|rotation|view|bend|arc)\b)",
        lambda m: f"{cardinal(m['amount'])} degree",
    ),
    rule(rf"{START}(?P<amount>{NUMBER})[ -]?(?P<unit>{MEASURE})(?!\w|[/²³-]){_SINGLE_AFTER_A}", _before_noun),
    rule(
        rf"{START}(?P<amount>\d{{1,4}})-(?P<unit>km|kg|cm|mm|ft|lb|oz|mi|yd|hr|min|sec|in|g|mg|V|W|kW|L|mL|gal)(?!\w)",
        _before_noun,
    ),
    rule(rf"{START}(?P<amount>{NUMBER}) ?(?P<unit>{MEASURE}){PER}", lambda m: _measure(m) + per(m)),
    rule(rf"(?<=\d) (?P<noun>[a-z]{{3,20}}){PER}", lambda m: f" {m['noun']}{per(m)}"),
    rule(rf"{START}(?P<amount>{NUMBER}) ?(?P<unit>{_DOTTED_UNITS})\.(?![\w.])", _dotted),
    rule(rf"{START}(?P<amount>{NUMBER}) (?P<unit>(?!(?:in|l)\b){MEASURE})(?![\w/²³-])", _measure),
    rule(rf"{START}(?P<amount>{NUMBER})(?P<unit>(?!(?:in|s|h)\b){MEASURE})(?![\w/²³-])", _measure),
)

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


_DOLLARS = {
    "US$": "US", "US $": "US", "C$": "Canadian", "CA$": "Canadian", "CAD$": "Canadian", "A$": "Australian",
    "AU$": "Australian", "HK$": "Hong Kong", "NZ$": "New Zealand", "S$": "Singapore", "NT$": "New Taiwan",
}  # fmt: skip
_CURRENCIES = {sign: _Currency(f"{country} dollar", f"{country} dollars") for sign, country in _DOLLARS.items()} | {
    "$": _Currency("dollar", "dollars"),
    "R$": _Currency("real", "reais", "centavo", "centavos"),
    "€": _Currency("euro", "euros"),
    "£": _Currency("pound", "pounds", "penny", "pence"),
    "¥": _Currency("yen", "yen", "sen", "sen"),
    "₹": _Currency("rupee", "rupees", "paisa", "paise"),
    "₩": _Currency("won", "won", "jeon", "jeon"),
    "₽": _Currency("ruble", "rubles", "kopeck", "kopecks"),
    "₺": _Currency("lira", "lira", "kurus", "kurus"),
}
_CODES = {"USD": "US$", "EUR": "€", "GBP": "£", "JPY": "¥", "CAD": "C$", "AUD": "A$", "INR": "₹", "SGD": "S$"}
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


def _priced(match: re.Match[str]) -> str:
    return " ".join(filter(None, (cardinal(match["amount"]), _scale(match), _CURRENCIES[match["sign"]].one)))


def _range(match: re.Match[str]) -> str:
    """Name the currency once for whole amounts, twice for others: ten to twenty dollars."""
    first, scale, sign = match["first"], match["scale"] or "", match["sign"]
    is_whole = not scale and "." not in first + match["last"]
    return f"{'' if is_whole else sign}{first}{scale} to {sign}"


MONEY_RANGES = (
    rule(
        rf"(?<![A-Za-z]){_SIGN}(?P<first>{NUMBER})(?P<scale>[kKmMbB]|bn|mn)? ?[-–—] ?(?P=sign)?(?=(?P<last>{NUMBER}))",
        _range,
    ),
)
MONEY = (
    rule(
        rf"(?<![\w]){_SIGN} ?{_AMOUNT}{_SCALE}(?:[- ]dollar(?= [a-z])|(?![\w]|[.,]\d){_BEFORE_NOUN})",
        _priced,
    ),
    rule(rf"(?<=\b[Aa] ){_SIGN} ?{_AMOUNT}{_SCALE}(?= [a-z])", _priced),
    rule(rf"(?<![A-Za-z]){_SIGN} ?{_AMOUNT}{_SCALE}{PER}", lambda m: _money(m) + per(m)),
    rule(rf"(?<![A-Za-z]){_SIGN} ?{_AMOUNT}{_SCALE}(?![\w]|[.,]\d)", _money),
    rule(
        rf"{START}(?P<amount>{NUMBER})(?P<scale>)(?P<letter>)(?P<spaced>) ?{_CODE}{PER}", lambda m: _money(m) + per(m)
    ),
    rule(rf"{START}(?P<amount>{NUMBER})(?P<scale>)(?P<letter>)(?P<spaced>) ?{_CODE}(?!\w)", _money),
    rule(rf"{START}(?P<amount>{NUMBER}) ?¢", lambda m: f"{cardinal(m['amount'])} cent{'s' * (m['amount'] != '1')}"),
)
SCALED = (
    # `5k run` is no thousand; `the 5K` neither.
    rule(
        rf"{START}(?P<amount>\d{{1,4}}(?:\.\d{{1,2}})?)(?P<letter>k(?![\w/-]| (?:run|race|walk)\b)|M(?= [a-z]))",
        lambda m: f"{cardinal(m['amount'])} {_SCALES[m['letter']]}",
    ),
)
