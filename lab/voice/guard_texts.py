"""A thousand texts that speech models stumble over, five kinds of two hundred. Seeded: the same list on every machine.

numbers    long numbers, written in digits
names      people and places that are common, and are not in the templates that the voice has learnt from
twisters   repeated words and tongue twisters
short      one to three words
long       300 to 400 letters: half of them one sentence, half of them several
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest

from benchmarks.lib.word_errors import heldout_sentences

KINDS = ("numbers", "names", "twisters", "short", "long")
TEXTS_A_KIND = 200
SEED = 2026
SHORTEST_LONG, LONGEST_LONG = 300, 400


@dataclass(frozen=True)
class GuardText:
    """One text of the study."""

    number: int
    """Position of the text in the list, which is its seed too."""
    kind: str
    text: str


def guard_texts() -> list[GuardText]:
    """Return all texts, the kinds taking turns, so that the first of them are a fair sample."""
    columns = [_distinct(make, random.Random(f"{SEED} {kind}")) for kind, make in _MAKERS.items()]
    pairs = chain.from_iterable(zip_longest(*columns))
    return [GuardText(number, KINDS[number % len(KINDS)], text) for number, text in enumerate(pairs)]


def _distinct(make: Callable[[random.Random], str], draw: random.Random) -> list[str]:
    found = dict.fromkeys(_endless(make, draw))
    return list(found)


def _endless(make: Callable[[random.Random], str], draw: random.Random) -> Iterator[str]:
    """Yield texts until so many different ones have come as a kind has."""
    seen: set[str] = set()
    while len(seen) < TEXTS_A_KIND:
        text = make(draw)
        seen.add(text)
        yield text


def _numbers(draw: random.Random) -> str:
    template = draw.choice(_NUMBER_TEMPLATES)
    while "#" in template:
        template = template.replace("#", _number(draw), 1)
    return template


def _number(draw: random.Random) -> str:
    digits = draw.randrange(5, 11)
    value = draw.randrange(10 ** (digits - 1), 10**digits)
    form = draw.randrange(4)
    if form == 0:
        return str(value)
    if form == 1:
        return f"{value:,}.{draw.randrange(1, 1000)}"
    return f"{value:,}"


def _names(draw: random.Random) -> str:
    template = draw.choice(_NAME_TEMPLATES)
    for mark, choices in (("@", _PEOPLE), ("~", _SURNAMES), ("^", _PLACES)):
        while mark in template:
            template = template.replace(mark, draw.choice(choices), 1)
    return template


def _twisters(draw: random.Random) -> str:
    form = draw.randrange(3)
    if form == 0:
        return draw.choice(_TWISTERS)
    word = draw.choice(_REPEATED)
    if form == 1:
        count = draw.randrange(3, 9)
        joint = draw.choice((" ", ", "))
        return f"{joint.join([word] * count).capitalize()}."
    start, end = draw.choice(_FRAMES)
    return f"{start} {' '.join([word] * draw.randrange(2, 6))} {end}"


def _short(draw: random.Random) -> str:
    phrase = draw.choice(draw.choice((_ONE_WORD, _TWO_WORDS, _THREE_WORDS)))
    return f"{phrase}{draw.choice('...!?')}"


def _long(draw: random.Random) -> str:
    is_one_sentence = draw.random() < 0.5
    sentences = draw.sample(heldout_sentences(), len(heldout_sentences()))
    text = ""
    for sentence in sentences:
        joined = _joined(text, sentence, draw) if is_one_sentence else f"{text} {sentence}".strip()
        if len(joined) > LONGEST_LONG:
            continue
        text = joined
        if len(text) >= draw.randrange(SHORTEST_LONG, LONGEST_LONG):
            break
    return text


def _joined(text: str, sentence: str, draw: random.Random) -> str:
    if not text:
        return sentence
    first, rest = sentence.split(" ", 1)
    first = first if first in ("I", "I'm") else first.lower()
    return f"{text.rstrip('.?!')}{draw.choice((', and', ', but', ', so', ', while'))} {first} {rest}"


_MAKERS = {"numbers": _numbers, "names": _names, "twisters": _twisters, "short": _short, "long": _long}

_NUMBER_TEMPLATES = (
    *("The account number is #.", "The total came to # last year.", "There are # people in that region."),
    *("Please write down # and then #.", "The distance is # miles.", "It cost $# to build the bridge."),
    *("They counted # birds and # eggs.", "The order number # was sent today.", "# is a very large number."),
    *("The first result was #, the second was #.", "We sold # tickets in a single week.", "The code is #."),
)
_NAME_TEMPLATES = (
    *("@ ~ met @ ~ in ^.", "Please ask @ ~ about it.", "@ and @ live near ^.", "Mr. ~ and Mrs. ~ went to ^."),
    *("The letter was signed by @ ~.", "Dr. ~ works with @ ~ and @ ~.", "From ^ they drove to ^ and on to ^."),
    *("@, @, @ and @ were there.", "@ ~ was born in ^.", "The winner is @ ~ from ^."),
)
_PEOPLE = tuple(
    "William Elizabeth Patricia Jennifer Barbara Richard Jessica Christopher Nancy Matthew Betty Anthony Sandra Mark "
    "Margaret Donald Ashley Steven Kimberly Andrew Kenneth Joshua Kevin Brian Dorothy Carol Amanda Melissa Deborah "
    "Stephanie Rebecca Timothy Jason Jeffrey Ryan Jacob Gary Nicholas Eric Jonathan Catherine Christine".split()
)
_SURNAMES = tuple(
    "Williams Jones Davis Anderson Thomas Jackson White Harris Martin Thompson Robinson Allen Hill Roberts Campbell "
    "Phillips Evans Edwards Stewart Morris Rogers Reed Cook Murphy Peterson James Bennett Ross Henderson Coleman "
    "Jenkins Perry Powell Long Patterson Hughes Washington Butler Simmons Foster".split()
)
_PLACES = (
    *("New York", "Los Angeles", "Philadelphia", "San Francisco", "Washington", "Detroit", "Baltimore", "Cleveland"),
    *("Pittsburgh", "Milwaukee", "New Orleans", "Minneapolis", "Florida", "Virginia", "Michigan", "Pennsylvania"),
    *("Minnesota", "Hawaii", "Alaska", "Oregon", "England", "Australia", "Switzerland", "Austria", "Russia", "Poland"),
    *("Hong Kong", "Amsterdam", "Barcelona", "Jerusalem", "Birmingham", "Liverpool"),
)
_TWISTERS = (
    "She sells sea shells by the sea shore.",
    "The shells she sells are sea shells, I'm sure.",
    "Peter Piper picked a peck of pickled peppers.",
    "How many pickled peppers did Peter Piper pick?",
    "How much wood would a woodchuck chuck if a woodchuck could chuck wood?",
    "Betty Botter bought some butter, but she said the butter's bitter.",
    "If I put it in my batter, it will make my batter bitter.",
    "Red lorry, yellow lorry, red lorry, yellow lorry.",
    "Unique New York, unique New York, you know you need unique New York.",
    "Fuzzy Wuzzy was a bear, Fuzzy Wuzzy had no hair.",
    "Six thick thistle sticks, six thick thistles stick.",
    "I scream, you scream, we all scream for ice cream.",
    "The sixth sick sheik's sixth sheep's sick.",
    "Toy boat, toy boat, toy boat, toy boat.",
    "A proper copper coffee pot.",
    "Which witch is which, and which wrist watch is a Swiss wrist watch?",
    "He threw three free throws.",
    "Fresh fried fish, fish fresh fried, fried fish fresh, fish fried fresh.",
    "Lesser leather never weathered wetter weather better.",
    "Can you can a can as a canner can can a can?",
    "I thought a thought, but the thought I thought was not the thought I thought I thought.",
    "Four fine fresh fish for you.",
    "Black background, brown background, black background, brown background.",
    "Seven slick slimy snakes slowly sliding southward.",
    "Rubber baby buggy bumpers, rubber baby buggy bumpers.",
    "A big black bug bit a big black bear.",
    "Freshly fried flying fish, freshly fried flesh.",
    "How can a clam cram in a clean cream can?",
    "Six sleek swans swam swiftly southwards.",
    "Greek grapes, Greek grapes, Greek grapes.",
    "Nine nice night nurses nursing nicely.",
    "Eleven benevolent elephants.",
    "Give papa a cup of proper coffee in a copper coffee cup.",
    "The great Greek grape growers grow great Greek grapes.",
    "Many an anemone sees an enemy anemone.",
    "No need to light a night light on a light night like tonight.",
)
_REPEATED = tuple(
    "no yes very more again never now wait really long far go run stop please hello one two home faster row knock "
    "bla ha many slowly old big".split()
)
_FRAMES = (
    ("It was a", "long way to the station."),
    ("She said", "and then she laughed."),
    ("They went", "into the night."),
    ("I told you", "and you did not listen."),
    ("We waited", "until the morning came."),
)
_ONE_WORD = tuple(
    "Yes No Hello Thanks Please Wait Stop Maybe Never Always Today Tomorrow Yesterday Welcome Goodbye Sorry Great Fine "
    "Sure Nothing Something Everyone Nobody Why When Where Who Really Exactly Perfect Absolutely Seven Eleven Twenty "
    "Monday Friday Sunday Quickly Slowly Carefully Together Again Finally Listen Look Help Ready Done Correct Wrong "
    "Excellent Interesting Wonderful Impossible Certainly Indeed Hurry Breakfast Dinner Water Music".split()
)
_TWO_WORDS = (
    *("Good morning", "Good night", "Good evening", "Thank you", "Come here", "Go away", "Not now", "Of course"),
    *("Very good", "Well done", "Right now", "Hello there", "Excuse me", "I see", "I know", "Next time", "Sit down"),
    *("Stand up", "Look here", "All right", "No problem", "Too late", "Try again", "Come in", "Turn left"),
    *(
        "Turn right",
        "Good luck",
        "Happy birthday",
        "Keep going",
        "One moment",
        "Never mind",
        "Not yet",
        "That's fine",
        "It works",
    ),
    *("Who knows", "What happened", "How much", "How many", "Why not", "Be careful", "Take care", "Slow down"),
    *("Speak up", "Open it", "Close it", "Last week", "Next year", "Every day", "Good idea", "Bad news", "Stay here"),
    *("Call me", "Help me", "Follow me", "Let's go", "We won", "You're welcome", "Coffee please", "Ten minutes"),
    *("Red wine", "Cold water", "Hot coffee", "Green tea", "Ice cream", "Main street", "First floor", "Second door"),
)
_THREE_WORDS = (
    *("How are you", "Thank you all", "See you soon", "See you tomorrow", "I don't know", "Where are you"),
    *("What is that", "Who is it", "I am here", "It is late", "Come with me", "Wait for me", "Not at all"),
    *("That is right", "That is wrong", "You are right", "I am sorry", "It is raining"),
    *("Open the door", "Close the window", "Turn it off", "Turn it on", "Give me that", "Leave me alone"),
    *("Have a seat", "Have some tea", "Take your time", "Make a wish", "On the table", "In the morning"),
    *("At the station", "Over the bridge", "Under the tree", "More and more", "Again and again"),
    *("Left or right", "Yes or no", "Now or never", "Here we go", "There it is", "What a day", "What a pity"),
    *("I love you", "I need help", "We are ready", "They are gone", "She is happy", "He is tired", "Bread and butter"),
    *("Salt and pepper", "Black and white", "Day and night", "Two hundred dollars", "Half past nine"),
    *("Good to know", "Time to go", "Ready to start", "Glad to help", "Nothing to say", "Let me see", "Let me think"),
    *("Keep it simple", "Say it again", "Read it aloud", "Mind the step", "Stop right there", "One more time"),
)
