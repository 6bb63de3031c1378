"""Money, measures, percentages, ranges, fractions and sums."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.text.english.words import cardinal, digits, ordinal, plural, rule, year

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d{1,15})(?:\.\d{1,9})?"
_SCALES = {"k": "thousand", "K": "thousand", "m": "million", "M": "million", "mn": "million", "b": "billion"}
_SCALES |= {"B": "billion", "bn": "billion", "t": "trillion", "T": "trillion", "tn": "trillion"}
_SCALE = r"(?: ?(?P<scale>thousand|million|billion|trillion)\b|(?P<letter>bn|mn|tn|[kKmMbBtT])(?![\w]))?"


@dataclass(frozen=True)
class _Currency:
    one: str
    many: str
    cent: str = "cent"
    cents: str = "cents"


_DOLLAR, _EURO = _Currency("dollar", "dollars"), _Currency("euro", "euros")
_CURRENCIES = {
    "$": _DOLLAR,
    "US$": _Currency("US dollar", "US dollars"),
    "C$": _Currency("Canadian dollar", "Canadian dollars"),
    "CA$": _Currency("Canadian dollar", "Canadian dollars"),
    "A$": _Currency("Australian dollar", "Australian dollars"),
    "AU$": _Currency("Australian dollar", "Australian dollars"),
    "HK$": _Currency("Hong Kong dollar", "Hong Kong dollars"),
    "€": _EURO,
    "£": _Currency("pound", "pounds", "penny", "pence"),
    "¥": _Currency("yen", "yen", "sen", "sen"),
    "₹": _Currency("rupee", "rupees", "paisa", "paise"),
    "₩": _Currency("won", "won", "jeon", "jeon"),
    "₽": _Currency("ruble", "rubles", "kopeck", "kopecks"),
    "₺": _Currency("lira", "lira", "kurus", "kurus"),
}
_CURRENCIES |= {"USD": _CURRENCIES["US$"], "EUR": _EURO, "GBP": _CURRENCIES["£"], "JPY": _CURRENCIES["¥"]}
_CURRENCIES |= {"CAD": _CURRENCIES["C$"], "AUD": _CURRENCIES["A$"], "INR": _CURRENCIES["₹"]}
_CURRENCIES |= {"CHF": _Currency("Swiss franc", "Swiss francs"), "CNY": _Currency("yuan", "yuan", "fen", "fen")}
_SIGN = r"(?P<sign>(?:US|CA?|AU?|HK)?\$|[€£¥₹₩₽₺])"
_CODE = r"(?P<sign>USD|EUR|GBP|JPY|CAD|AUD|INR|CHF|CNY|€|£)"
_BEFORE_NOUN = (
    r"(?= (?:bill|note|coin|house|home|deal|fine|prize|budget|loan|fee|gift|bet|check|ticket|question|bonus)\b)"
)

# Units that the grammar does not know or reads as something else.
_UNITS = {
    "s": "second", "h": "hour", "ms": "millisecond", "ns": "nanosecond", "mL": "milliliter", "ml": "milliliter",
    "L": "liter", "l": "liter", "dL": "deciliter", "cL": "centiliter", "m": "meter", "V": "volt", "mV": "millivolt",
    "kV": "kilovolt", "W": "watt", "kW": "kilowatt", "MW": "megawatt", "kWh": "kilowatt hour", "Wh": "watt hour",
    "mAh": "milliamp hour", "mA": "milliamp", "Ω": "ohm", "dB": "decibel", "mpg": "miles per gallon",
    "rpm": "revolutions per minute", "fps": "frames per second", "m/s": "meters per second", "mi": "mile",
    "yd": "yard", "ft": "foot", "in": "inch", "lb": "pound", "lbs": "pounds", "oz": "ounce", "hr": "hour",
    "hrs": "hours", "min": "minute", "mins": "minutes", "sec": "second", "secs": "seconds", "yr": "year",
    "yrs": "years", "mo": "month", "wk": "week", "wks": "weeks", "km": "kilometer", "sq ft": "square foot",
    "sq mi": "square mile", "m²": "square meter", "m2": "square meter", "km²": "square kilometer",
    "m³": "cubic meter", "cm³": "cubic centimeter", "cm²": "square centimeter", "ft²": "square foot", "gal": "gallon",
    "µm": "micrometer", "μm": "micrometer", "µg": "microgram", "μg": "microgram", "µs": "microsecond", "px": "pixel",
    "mmHg": "millimeters of mercury", "kcal": "kilocalorie", "cal": "calorie", "kJ": "kilojoule", "kPa": "kilopascal",
    "tbsp": "tablespoon", "tsp": "teaspoon", "°C": "degree Celsius", "°F": "degree Fahrenheit", "Hz": "hertz",
    "kHz": "kilohertz", "MHz": "megahertz", "GHz": "gigahertz", "KB": "kilobyte", "kB": "kilobyte", "MB": "megabyte",
    "GB": "gigabyte", "TB": "terabyte", "PB": "petabyte", "kbps": "kilobits per second",
    "Mbps": "megabits per second", "Gbps": "gigabits per second", "mph": "miles per hour",
    "km/h": "kilometers per hour", "kph": "kilometers per hour", "kg": "kilogram", "g": "gram", "mg": "milligram",
    "cm": "centimeter", "mm": "millimeter",
}  # fmt: skip
_PLURALS = {"foot": "feet"}
_DOTTED_UNITS = r"in|ft|lbs?|oz|hrs?|mins?|secs?|yrs?|mo|wks?|mi|yd|gal|tbsp|tsp|sq\. ft|sq ft|sq\. mi"
_MEASURE = f"(?:{'|'.join(sorted(map(re.escape, _UNITS), key=len, reverse=True))})"
_SINGLE_AFTER_A = (
    r"(?= (?:bulb|drip|run|race|line|cable|monitor|screen|display|angle|turn|drive|battery|motor|engine|walk|hike|swim"
    r"|dash|sprint|hurdles|relay|freestyle)\b)"
)
_VULGAR = "½¼¾⅓⅔⅛⅜⅝⅞⅕⅖⅗⅘⅙⅚"
_FRACTIONS = dict(zip(_VULGAR, "1/2 1/4 3/4 1/3 2/3 1/8 3/8 5/8 7/8 1/5 2/5 3/5 4/5 1/6 5/6".split(), strict=True))
_SAID_AS_NUMBERS = {"24/7", "9/11", "50/50", "7/11", "20/20", "60/40", "80/20", "70/30", "90/10", "180/360"}
_MOST_PARTS = 100
_LIKE_A_YEAR = re.compile(r"1[1-9]\d\d|20\d\d")


def _money(match: re.Match[str]) -> str:
    currency, amount = _CURRENCIES[match["sign"]], match["amount"]
    scale = match["scale"] or _SCALES.get(match["letter"] or "")
    if scale:
        return f"{cardinal(amount)} {scale} {currency.many}"
    whole, _, fraction = amount.partition(".")
    if len(fraction) == 2:
        return _with_cents(currency, int(whole.replace(",", "") or 0), int(fraction))
    return f"{cardinal(amount)} {currency.one if amount == '1' else currency.many}"


def _with_cents(currency: _Currency, whole: int, cents: int) -> str:
    wholes = f"{cardinal(whole)} {currency.one if whole == 1 else currency.many}"
    small = f"{cardinal(cents)} {currency.cent if cents == 1 else currency.cents}"
    if not cents:
        return wholes
    return f"{wholes} and {small}" if whole else small


def _money_before_noun(match: re.Match[str]) -> str:
    scale = match["scale"] or _SCALES.get(match["letter"] or "")
    amount = cardinal(match["amount"])
    return (
        f"{amount} {scale} {_CURRENCIES[match['sign']].one}" if scale else f"{amount} {_CURRENCIES[match['sign']].one}"
    )


def _cents(match: re.Match[str]) -> str:
    return f"{cardinal(match['amount'])} cent{'s' * (match['amount'] != '1')}"


def _measure(match: re.Match[str]) -> str:
    amount, unit = match["amount"], match["unit"].replace("sq. ", "sq ")
    return f"{cardinal(amount)} {_unit_words(unit, amount)}"


def _unit_words(unit: str, amount: str) -> str:
    noun = _UNITS[unit]
    if noun.startswith("degree"):
        return noun if amount == "1" else noun.replace("degree", "degrees", 1)
    if amount == "1" or noun.endswith(("s", "hertz")) or " per " in noun or " of " in noun:
        return noun[:-1] if amount == "1" and unit.endswith("s") and noun.endswith("s") else noun
    first, _, last = noun.rpartition(" ")
    return f"{first} {_PLURALS.get(last) or plural(last)}".strip()


def _measure_before_noun(match: re.Match[str]) -> str:
    return f"{cardinal(match['amount'])} {_UNITS[match['unit']]}"


def _dotted_measure(match: re.Match[str]) -> str:
    unit = match["unit"].replace("sq. ", "sq ")
    return f"{cardinal(match['amount'])} {_unit_words(unit, match['amount'])}"


def _height(match: re.Match[str]) -> str:
    inches = f" {cardinal(match['inches'])}" if match["inches"] else ""
    return f"{cardinal(match['feet'])} {'foot' if inches else 'feet'}{inches}"


def _fraction(match: re.Match[str]) -> str:
    whole, top, bottom = match["whole"], int(match["top"]), int(match["bottom"])
    written = f"{top}/{bottom}"
    if written in _SAID_AS_NUMBERS:
        return f"{whole or ''}{cardinal(top)} {cardinal(bottom)}"
    if not 1 < bottom <= _MOST_PARTS or not 0 < top < _MOST_PARTS:
        return match[0]
    if not whole:
        return f"{cardinal(top)} {_parts(top, bottom)}"
    part = "a half" if written == "1/2" else f"{cardinal(top)} {_parts(top, bottom)}"
    return f"{cardinal(whole.strip())} and {part}"


def _parts(top: int, bottom: int) -> str:
    if bottom == 2:
        return "half" if top == 1 else "halves"
    name = (
        "quarter" if bottom == 4 else ordinal(bottom).removeprefix("one ") if bottom == _MOST_PARTS else ordinal(bottom)
    )
    return name if top == 1 else f"{name}s"


def _power(match: re.Match[str]) -> str:
    exponent = match["exponent"].replace("−", "-")
    sign = "minus " if exponent.startswith("-") else ""
    return f"{match['base']} to the power of {sign}{cardinal(exponent.lstrip('-+').lstrip('0') or '0')}"


def _exponential(match: re.Match[str]) -> str:
    sign = "minus " if match["sign"] == "-" else ""
    return f"{cardinal(match['amount'])} times ten to the power of {sign}{cardinal(match['exponent'])}"


def _scaled(match: re.Match[str]) -> str:
    return f"{cardinal(match['amount'])} {_SCALES[match['letter']]}"


def _amount(match: re.Match[str]) -> str:
    return cardinal(match["amount"])


def _amount_before_in(match: re.Match[str]) -> str:
    """The grammar takes the word for inches."""
    amount = match["amount"]
    return year(int(amount)) if _LIKE_A_YEAR.fullmatch(amount) else cardinal(amount)


_START = r"(?<![\w.,:/$€£₹-])"
SPECIAL_FRACTIONS = (
    rule(rf"(?<=\d)[{_VULGAR}]", lambda m: f" {_FRACTIONS[m[0]]}"),
    rule(rf"[{_VULGAR}]", lambda m: _FRACTIONS[m[0]]),
)
RANGES = (
    rule(r"(?P<sign>[$€£])(?P<first>\d[\d,.]{0,12}) ?[-–] ?(?P=sign)?(?=\d)", lambda m: f"{m['first']} to {m['sign']}"),
    rule(
        rf"{_START}(?P<first>{_NUMBER}) ?[-–—] ?(?P<last>{_NUMBER})(?=%|°|[a-zA-Z]|\W|$)"
        r"(?![-–—/:]\w|[.,]\d| ?=|\w{0,24}-\w{0,24}\d)",
        lambda m: f"{m['first']} to {m['last']}",
    ),
    rule(
        rf"{_START}(?P<first>\d{{1,2}}):(?P<last>\d{{1,2}})(?= (?:screen|ratio|aspect|odds|scale|display|monitor|mix))",
        lambda m: f"{cardinal(m['first'])} to {cardinal(m['last'])}",
    ),
)
SIGNS = (
    rule(r"(?<![\w)\]}.,:])[-−–](?=[$€£¥₹]?\.?\d)", lambda _: "minus "),
    rule(r"(?<![\w)\]}.,:/])\+(?=\d)", lambda _: "plus "),
    rule(r"± ?(?=\d)", lambda _: "plus or minus "),
    rule(r"(?:(?<=\s)|^)[~≈] ?(?=[$€£]?\d)", lambda _: "about "),
    rule(r"≥ ?(?=\d)|(?<![<>=-])>= ?(?=\d)", lambda _: "greater than or equal to "),
    rule(r"≤ ?(?=\d)|(?<![<>=-])<= ?(?=\d)", lambda _: "less than or equal to "),
    rule(r"(?<![<\w-])< ?(?=\d)", lambda _: "less than "),
    rule(r"(?<![>\w=-])> ?(?=\d)", lambda _: "greater than "),
    rule(r"(?<=[\w)]) ?÷ ?(?=[\w(])", lambda _: " divided by "),
    rule(r"(?<=[\w)]) ?≠ ?(?=[\w(-])", lambda _: " does not equal "),
    rule(r"(?<=\d) \* (?=\d)|(?<=\d) ?× ?(?=\d)", lambda _: " times "),
    rule(r"(?<=\w) = (?=[\w(-])", lambda _: " equals "),
    rule(r"(?<=[\w)]) \+ (?=[\w(])", lambda _: " plus "),
    rule(r"(?<=\d) [-−] (?=\d)", lambda _: " minus "),
    rule(rf"{_START}(?P<amount>{_NUMBER}) ?(?P<unit>[kcm]?m²|[cm]?m³|ft²)", _measure),
    rule(r"(?<=[A-Za-z\d)])²(?!\w)", lambda _: " squared"),
    rule(r"(?<=[A-Za-z\d)])³(?!\w)", lambda _: " cubed"),
    rule(r"(?P<base>(?<!\w)\w{1,12})\^\(?(?P<exponent>[-−]?\d{1,4})\)?", _power),
    rule(
        rf"{_START}(?P<amount>\d{{1,4}}(?:\.\d{{1,6}})?)[eE](?P<sign>[+-]?)(?P<exponent>\d{{1,3}})(?!\w)", _exponential
    ),
)
AMOUNTS = (
    rule(rf"(?<![\w]){_SIGN} ?(?P<amount>{_NUMBER}|\.\d\d){_SCALE}(?![\w]|[.,]\d){_BEFORE_NOUN}", _money_before_noun),
    rule(rf"(?<=\b[Aa] ){_SIGN} ?(?P<amount>{_NUMBER}|\.\d\d){_SCALE}(?= [a-z])", _money_before_noun),
    rule(rf"(?<![A-Za-z]){_SIGN} ?(?P<amount>{_NUMBER}|\.\d\d){_SCALE}(?![\w]|[.,]\d)", _money),
    rule(rf"{_START}(?P<amount>{_NUMBER})(?P<scale>)(?P<letter>) ?{_CODE}(?!\w)", _money),
    rule(rf"{_START}(?P<amount>{_NUMBER}) ?¢", _cents),
    rule(
        rf"{_START}(?P<feet>\d{{1,2}})['’′] ?(?:(?P<inches>\d{{1,2}})(?:[\"”″]|''|(?!\w)))",
        _height,
    ),
    rule(
        rf"{_START}(?P<amount>{_NUMBER})[\"”″](?P<unit>)"
        r"(?= (?:monitor|screen|display|tv|TV|laptop|pizza|wheel|pipe|tall|wide|long))",
        lambda m: f"{cardinal(m['amount'])} inch",
    ),
    rule(
        rf"{_START}(?P<amount>{_NUMBER})°(?= (?:angle|turn|rotation|view|bend|arc)\b)",
        lambda m: f"{cardinal(m['amount'])} degree",
    ),
    rule(
        rf"{_START}(?P<amount>{_NUMBER})[ -]?(?P<unit>{_MEASURE})(?!\w|[/²³-]){_SINGLE_AFTER_A}", _measure_before_noun
    ),
    rule(
        rf"{_START}(?P<amount>\d{{1,4}})-(?P<unit>km|kg|cm|mm|ft|lb|oz|mi|yd|hr|min|sec|in|g|mg|V|W|kW|L|mL|gal)(?!\w)",
        _measure_before_noun,
    ),
    rule(
        rf"{_START}(?P<amount>{_NUMBER}) ?(?P<unit>{_DOTTED_UNITS})\.(?!\w)(?!\s*$|[\"'”’)]{{1,3}}\s*$|\s+[A-Z][a-z])",
        lambda m: _dotted_measure(m),
    ),
    rule(rf"{_START}(?P<amount>{_NUMBER}) (?P<unit>in)\.(?=\s|$)", lambda m: f"{_measure(m)}."),
    rule(rf"{_START}(?P<amount>{_NUMBER}) ?(?P<unit>sq\. ft|sq\. mi|sq ft|sq mi)(?!\w)", _measure),
    rule(rf"{_START}(?P<amount>{_NUMBER}) (?P<unit>(?!in\b|l\b){_MEASURE})(?![\w/²³-])", _measure),
    rule(rf"{_START}(?P<amount>{_NUMBER})(?P<unit>(?!(?:in|s|h)\b){_MEASURE})(?![\w/²³-])", _measure),
    rule(rf"{_START}(?P<amount>\d{{1,4}}(?:\.\d{{1,2}})?)(?P<letter>[kM])(?= [a-z])", _scaled),
)
FRACTIONS = (
    rule(r"(?<![\w.,:/$€£-])(?P<whole>\d{1,4}[ -])?(?P<top>\d{1,3})/(?P<bottom>\d{1,3})(?![\w/-]|[.,:]\d)", _fraction),
)
NUMBERS = (
    rule(r"(?<![\w.,])(?P<amount>\d{1,4})(?:st|nd|rd|th)(?!\w)", lambda m: ordinal(int(m["amount"]))),
    rule(rf"{_START}(?P<amount>{_NUMBER})(?= in\b(?!\.\s*$))", _amount_before_in),
    rule(
        r"(?<![\w.,:/-])(?P<first>\d{1,3})-(?P<second>\d{1,3})-(?P<third>\d{1,3})(?![\w-])",
        lambda m: " ".join(cardinal(m[part]) for part in ("first", "second", "third")),
    ),
    rule(r"(?<![\w.,])#(?P<amount>\d{1,6})(?!\w|[.,]\d)", lambda m: f"number {cardinal(m['amount'])}"),
    rule(r"(?<![\w.,])(?P<amount>\d{1,3}(?:,\d{3})+(?:\.\d+)?)(?![\w]|[.,]\d)", _amount),
    rule(
        r"(?<![\w.,])(?P<first>\d{1,2}),(?P<second>\d{1,2})(?![\w]|[.,]\d)",
        lambda m: f"{cardinal(m['first'])}, {cardinal(m['second'])}",
    ),
    rule(r"(?<![\w.,:/])(?P<amount>100\d|\d{5,6})(?![\w]|[.,:/]\d)", _amount),
    rule(r"(?<![\w.,])(?P<amount>\d{1,6}\.\d{0,8}0\d{0,8})(?![\w]|[.,]\d| ?[°%])", _amount),
    rule(r"(?<![\w.])\.(?P<amount>\d{1,9})(?![\w]|[.,]\d)", lambda m: f"point {digits(m['amount'])}"),
    rule(r"(?<![\w.,])(?P<amount>\d{1,4})\+(?= [a-z]|\s*$)", lambda m: f"{cardinal(m['amount'])} plus"),
    rule(r"(?<![\w.,])(?P<amount>\d{1,3})x(?= [a-z])", lambda m: f"{cardinal(m['amount'])} times"),
)
