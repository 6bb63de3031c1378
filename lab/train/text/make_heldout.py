"""Chooses what is held out: `python -m lab.train.text.make_heldout`. Run once, before any training.

Source: Jane Austen's six novels (public domain), from the Debian package r-cran-janeaustenr, of which nothing is
trained on. Chosen by their text alone: 6 to 14 words, no name, no number, and only words that the novels use at least
150 times, so that what is measured is the speech and not the recogniser's vocabulary. The fifty fragments are what
stands between two commas: 2 to 6 such words, without a stop and without a capital. The hundred long
sentences have 100 to 200 letters, and words that the novels use at least 30 times; the twenty paragraphs have 100 to
300 words, of which at most one in 25 is a name or rare.
"""

from __future__ import annotations

import argparse
import random
import re
import struct
import subprocess
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.lib.word_errors import HELDOUT

FRAGMENTS = Path(__file__).parent / "fragments.txt"
LONG = Path(__file__).parent / "long.txt"
PARAGRAPHS = Path(__file__).parent / "paragraphs.txt"
PACKAGE = "r-cran-janeaustenr"
WORD_LIST_PACKAGE = "wamerican"
COUNT, FRAGMENT_COUNT, LONG_COUNT, PARAGRAPH_COUNT = 100, 50, 100, 20
SEED = 20240
MIN_WORDS, MAX_WORDS = 6, 14
MIN_FRAGMENT_WORDS, MAX_FRAGMENT_WORDS = 2, 6
LONG_LETTERS, PARAGRAPH_WORDS = range(100, 201), range(100, 301)
MIN_USES, LONG_MIN_USES, PARAGRAPH_MIN_USES = 150, 30, 5
RARE_SHARE = 0.04

_SENTENCE = re.compile(r"(?:(?<=[.?!] )|^ ?)[A-Z][a-z ,']*[.?!]")
_LONG = re.compile(r"(?:(?<=[.?!] )|^ ?)[A-Z][A-Za-z ,;:']*[.?!]")
_PARAGRAPH = re.compile(r"^ ?[A-Z][A-Za-z ,;:'.?!-]*[.?!]$")
_FRAGMENT = re.compile(r"(?<=, )[a-z][a-z ']*(?=,)")
_WORD = re.compile(r"[A-Za-z']+")
_TWICE = re.compile(r"\b(\w+) (?:\w+ )?\1\b")
_FRAGMENT_STARTS = ("Which", "Who", "Whose", "Than")

_R_HEADER_BYTES = 14
"""`X`, a line end, and three versions."""
_INT = struct.Struct(">i")


def heldout_fragments() -> list[str]:
    """Read the committed fragments, one a line: no stop at their end, no capital at their beginning."""
    return FRAGMENTS.read_text("utf-8").splitlines()


def heldout_long() -> list[str]:
    """Read the committed long sentences, one a line."""
    return LONG.read_text("utf-8").splitlines()


def heldout_paragraphs() -> list[str]:
    """Read the committed paragraphs, one a line."""
    return PARAGRAPHS.read_text("utf-8").splitlines()


def choose(novels: Sequence[str], known_words: set[str]) -> list[str]:
    """Draw the sentences out of the novels' texts (paragraphs divided by blank lines)."""
    uses = _uses(novels)
    found = {sentence for novel in novels for sentence in _candidates(novel) if _is_plain(sentence, uses, known_words)}
    return random.Random(SEED).sample(sorted(found), COUNT)


def choose_fragments(novels: Sequence[str], known_words: set[str], sentences: Sequence[str]) -> list[str]:
    """Draw the fragments out of the novels' texts; none is part of one of the held-out `sentences`."""
    uses, spoken = _uses(novels), " ".join(sentences).lower()
    candidates = {fragment for novel in novels for fragment in _candidates(novel, _FRAGMENT)}
    found = [each for each in sorted(candidates) if _is_short(each, uses, known_words) and each not in spoken]
    return random.Random(SEED).sample(found, FRAGMENT_COUNT)


def choose_long(novels: Sequence[str], known_words: set[str]) -> list[str]:
    """Draw the long sentences; no word of one follows itself."""
    uses = _uses(novels)
    found = {
        each.strip() for novel in novels for each in _candidates(novel, _LONG) if len(each.strip()) in LONG_LETTERS
    }
    kept = [
        each for each in sorted(found) if not _TWICE.search(each) and not _rare(each, uses, known_words, LONG_MIN_USES)
    ]
    return random.Random(SEED).sample(kept, LONG_COUNT)


def choose_paragraphs(novels: Sequence[str], known_words: set[str]) -> list[str]:
    """Draw the paragraphs, without speech in quotes."""
    uses, found = _uses(novels), set[str]()
    for paragraph in (each.strip() for novel in novels for each in _candidates(novel, _PARAGRAPH)):
        words = len(_WORD.findall(paragraph))
        if (
            words in PARAGRAPH_WORDS
            and len(_rare(paragraph, uses, known_words, PARAGRAPH_MIN_USES)) <= RARE_SHARE * words
        ):
            found.add(paragraph)
    return random.Random(SEED).sample(sorted(found), PARAGRAPH_COUNT)


def _rare(text: str, uses: Counter[str], known: set[str], least: int) -> list[str]:
    """Return the words of a text that are names, or used less often."""
    words = _WORD.findall(text)
    small = [words[0].lower(), *words[1:]]
    return [word for word in small if word != "I" and not (word in known and uses[word] >= least)]


def _uses(novels: Sequence[str]) -> Counter[str]:
    return Counter(word for novel in novels for word in _WORD.findall(novel.lower()))


def _candidates(novel: str, form: re.Pattern[str] = _SENTENCE) -> Iterator[str]:
    for paragraph in novel.split("\n\n"):
        yield from form.findall(" ".join(paragraph.split()))


def _is_short(fragment: str, uses: Counter[str], known: set[str]) -> bool:
    words = fragment.split()
    is_of_length = MIN_FRAGMENT_WORDS <= len(words) <= MAX_FRAGMENT_WORDS
    return is_of_length and all(word in known and uses[word] >= MIN_USES for word in words)


def _is_plain(sentence: str, uses: Counter[str], known: set[str]) -> bool:
    words = _WORD.findall(sentence)
    if not MIN_WORDS <= len(words) <= MAX_WORDS or words[0] in _FRAGMENT_STARTS or _TWICE.search(sentence):
        return False
    small = [words[0].lower(), *words[1:]]
    return all(word == "I" or (word in known and uses[word] >= MIN_USES) for word in small)


def read_novels(database: Path) -> list[str]:
    """Read an R data file of compressed character vectors: one text for each, its strings joined by line ends."""
    data, novels = database.read_bytes(), []
    while data:
        inflate = zlib.decompressobj()
        novels.append("\n".join(_strings(inflate.decompress(data[_INT.size :]))))
        data = inflate.unused_data
    return novels


def _strings(serialized: bytes) -> Iterator[str]:
    """Yield the strings of one serialized character vector (R's format 3, big endian)."""
    position = _R_HEADER_BYTES
    (length,) = _INT.unpack_from(serialized, position)
    position += _INT.size + length + _INT.size  # the encoding's name, then the vector's flags
    (count,) = _INT.unpack_from(serialized, position)
    position += _INT.size
    for _ in range(count):
        (size,) = _INT.unpack_from(serialized, position + _INT.size)  # behind the string's own flags
        position += 2 * _INT.size
        yield serialized[position : position + size].decode("utf-8")
        position += size


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch the packages and write sentences and fragments; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.train.text.make_heldout", description=__doc__)
    parser.add_argument("--out", type=Path, default=HELDOUT, help="file of the sentences (default %(default)s)")
    parser.add_argument(
        "--fragments-out", type=Path, default=FRAGMENTS, help="file of the fragments (default %(default)s)"
    )
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        subprocess.run(["apt-get", "download", "-q", PACKAGE, WORD_LIST_PACKAGE], cwd=root, check=True)
        for package in root.glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(root)], check=True)
        novels = read_novels(root / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb")
        words = set((root / "usr/share/dict/american-english").read_text("utf-8").split())
    sentences = choose(novels, words)
    fragments = choose_fragments(novels, words, sentences)
    long, paragraphs = choose_long(novels, words), choose_paragraphs(novels, words)
    chosen = ((args.out, sentences), (args.fragments_out, fragments), (LONG, long), (PARAGRAPHS, paragraphs))
    for path, lines in chosen:
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
