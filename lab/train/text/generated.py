"""Sentences from templates: numbers, dates, times, money, names, places, questions, commands. Seeded."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

_MONTHS = tuple("January February March April May June July August September October November December".split())
_DAYS = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
_FIRST = tuple(
    "James Mary Robert Linda Michael Susan David Karen Anna Thomas Sarah Peter Laura Daniel Emily George Alice Henry "
    "Julia Martin Grace Oliver Helen Samuel Rachel Victor Nora Paul Irene Walter Ruth Simon Clara Edward Diana".split()
)
_LAST = tuple(
    "Smith Johnson Brown Taylor Miller Wilson Moore Clark Lewis Walker Young King Wright Scott Green Baker Adams "
    "Nelson Carter Mitchell Turner Parker Collins Morgan Cooper Bailey Kelly Howard Ward Cox Gray Watson Brooks".split()
)
_PLACES = tuple(
    "London Paris Boston Chicago Berlin Tokyo Madrid Dublin Sydney Toronto Denver Seattle Houston Vienna Geneva Oslo "
    "Cairo Lisbon Athens Moscow Atlanta Dallas Montreal Edinburgh Manchester California Texas Canada Brazil India "
    "China Japan Germany France Italy Spain Norway Kenya Mexico Chile Egypt Greece Ireland Scotland".split()
)
_THINGS = tuple(
    "book table letter garden window kitchen ticket river bridge picture camera engine doctor teacher lesson market "
    "station village mountain island coat dinner music story question answer problem message office factory bottle "
    "blanket ladder basket candle mirror pocket pencil hammer button carpet curtain envelope umbrella suitcase "
    "newspaper telephone computer bicycle hospital library museum theatre restaurant airport harbour".split()
)
_QUALITIES = tuple(
    "small large old new red blue green white heavy empty broken quiet strange simple famous narrow bright cold warm "
    "dark clean dirty cheap expensive gentle hungry angry careful honest modern ancient wooden golden silver".split()
)
_VERBS = tuple("find open close carry paint move clean repair sell buy bring show hide send draw count".split())
_UNITS = tuple(
    "miles kilometers pounds hours minutes days weeks dollars people pages books degrees meters feet".split()
)
_PRONOUNS = ("you", "we", "they", "she", "he")
_RELATIONS = tuple("mother father brother sister friend neighbor teacher boss uncle aunt cousin doctor".split())


def generated_sentence(draw: random.Random) -> str:
    """Return one sentence; equal states of `draw` give equal sentences."""
    filled = _SLOT.sub(lambda slot: _SLOTS[slot[1]](draw), draw.choice(_TEMPLATES))
    return filled.replace("..", ".")  # "at 7:30 p.m." already ends in a stop


def varied_sentence(draw: random.Random) -> str:
    """Return one line of dialogue, a list, a heading or an answer, often without a stop."""
    filled = _SLOT.sub(lambda slot: _SLOTS[slot[1]](draw), draw.choice(_VARIED_TEMPLATES))
    return filled.replace("..", ".")


def _number(draw: random.Random) -> str:
    digits = draw.choices((1, 2, 3, 4, 5, 6), (4, 8, 6, 4, 2, 1))[0]
    value = draw.randrange(10 ** (digits - 1), 10**digits)
    return f"{value:,}" if digits > 4 and draw.random() < 0.7 else str(value)


def _ordinal(draw: random.Random) -> str:
    value = draw.randrange(1, 32)
    suffix = "th" if 10 < value < 14 else {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th")
    return f"{value}{suffix}"


def _thing(draw: random.Random) -> str:
    return f"{draw.choice(_QUALITIES)} {draw.choice(_THINGS)}" if draw.random() < 0.6 else draw.choice(_THINGS)


def _year(draw: random.Random) -> str:
    return str(draw.randrange(1700, 2040))


def _time(draw: random.Random) -> str:
    hour = draw.randrange(1, 13)
    half = draw.choice(("a.m.", "p.m.", "in the morning", "in the evening"))
    return f"{hour}:{draw.randrange(10, 60)} {half}" if draw.random() < 0.6 else f"{hour} o'clock"


def _person(draw: random.Random) -> str:
    form = draw.randrange(4)
    if form == 0:
        return draw.choice(_FIRST)
    if form == 1:
        return f"{draw.choice(('Mr.', 'Mrs.', 'Dr.'))} {draw.choice(_LAST)}"
    return f"{draw.choice(_FIRST)} {draw.choice(_LAST)}"


def _date(draw: random.Random) -> str:
    form = draw.randrange(3)
    if form == 0:
        return f"{draw.choice(_MONTHS)} {draw.randrange(1, 31)}, {_year(draw)}"
    if form == 1:
        return f"{draw.choice(_DAYS)}, {draw.choice(_MONTHS)} {_ordinal(draw)}"
    return f"the {_ordinal(draw)} of {draw.choice(_MONTHS)}"


_SLOTS: dict[str, Callable[[random.Random], str]] = {
    "person": _person,
    "date": _date,
    "time": _time,
    "year": _year,
    "number": _number,
    "thing": _thing,
    "day": lambda draw: draw.choice(_DAYS),
    "first": lambda draw: draw.choice(_FIRST),
    "last": lambda draw: draw.choice(_LAST),
    "place": lambda draw: draw.choice(_PLACES),
    "noun": lambda draw: draw.choice(_THINGS),
    "quality": lambda draw: draw.choice(_QUALITIES),
    "verb": lambda draw: draw.choice(_VERBS),
    "unit": lambda draw: draw.choice(_UNITS),
    "pronoun": lambda draw: draw.choice(_PRONOUNS),
    "relation": lambda draw: draw.choice(_RELATIONS),
    "small": lambda draw: str(draw.randrange(1, 100)),
    "cents": lambda draw: f"{draw.randrange(10, 100)}",
    "letter": lambda draw: draw.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    "four": lambda draw: str(draw.randrange(1000, 10_000)),
    "when": lambda draw: draw.choice(("today", "tomorrow", "later", "again", "tonight", "next week")),
}
_TEMPLATES = (
    "{person} was born on {date}.",
    "The meeting is at {time} on {day}.",
    "It costs ${small}.{cents}.",
    "There are {number} {unit} between {place} and {place}.",
    "My number is {small}-{four}.",
    "About {small} percent of the {noun}s are {quality}.",
    "Where did {pronoun} put the {thing}?",
    "Have you ever been to {place}, {first}?",
    "Please {verb} the {thing} before {time}.",
    "What is the {thing} for?",
    "How many {noun}s can {pronoun} {verb} in {small} minutes?",
    "{person} lives at {number} {last} Street in {place}.",
    "My {relation} said that {pronoun} would {verb} the {thing}.",
    "If it rains on {day}, {pronoun} will {verb} the {thing} in {place}.",
    "Yes, {first}, I know.",
    "No! Don't {verb} that {thing}!",
    "The {thing} is behind the {thing}, not under it.",
    "In {year}, {person} moved from {place} to {place}.",
    "Chapter {small}, page {number}.",
    "{first} and {first} can't {verb} it, but we'll try.",
    "The temperature fell to {small} degrees at {time}.",
    "On {date}, the {noun} was {quality}.",
    "I will {verb} the {thing} {when}.",
    "We need a {thing}, a {thing} and a {thing}.",
    "The code is {letter} {letter} {letter} {number}.",
)
_VARIED_TEMPLATES = (
    '"Where is the {thing}?" asked {first}.',
    '"I can\'t {verb} it," said {first}, "but {pronoun} can."',
    '"No," {pronoun} said, "not before {time}."',
    "{first}, are you there?",
    "Well, {pronoun} never told me that!",
    "Really? On {day}?",
    "Oh, what a {quality} {noun}!",
    "Thank you very much, {person}.",
    "Good morning, {person}. How are you {when}?",
    "{noun}s, {noun}s, {noun}s and {noun}s",
    "First, {verb} the {noun}; second, {verb} the {noun}; third, wait until {time}.",
    "A {thing}, two {noun}s, {small} {unit} of {noun} and a {thing}.",
    "the {thing}",
    "no {noun}, no {noun}",
    "{quality} and {quality}",
    "yes, on {day} at {time}",
    "{place}, {date}",
    "{number} {unit}",
    "one, two, three, four, five, six, seven",
    "{letter}{letter}{letter} {small}",
    "It is {number}.{small} {unit} long and {small} {unit} wide.",
    "Call {small} {small} {four} or {small} {small} {four}.",
    "From {year} to {year}, {person} was the {noun} {noun} of {place}.",
    "You owe me ${number}.{cents}, {first}, and you know it.",
    "Sales rose by {small}.{small} percent to {number} million dollars.",
    "{person}, {person} and {person} met in {place} on {date}.",
    "Do {pronoun} want the {quality} one, or the {quality} one?",
    "Let me see. {small} plus {small} is {number}.",
    "ok, see you {when}",
    "Which is it, {noun} or {noun}?",
)
_SLOT = re.compile(r"\{(\w+)\}")
