"""Collects what training needs and a machine without network lacks: `python -m lab.train.collect`.

Run it where Debian's packages can be fetched. It writes into an ignored folder:

    engines.tar.xz   flite with its voices and the sound library it links to, unpacked from their packages
    texts/           WordNet's examples, definitions and names, a word list: one text a line
    copyright/       each package's copyright file
"""

from __future__ import annotations

import argparse
import gzip
import logging
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from lab.train.text.mix import TEXT_FILES
from lab.train.text.wordnet import read_glosses, read_names

logger = logging.getLogger(__name__)

DEFAULT_DIRECTORY = Path("carry/demo_voice")
ENGINE_PACKAGES = ("flite", "libflite1", "libasound2")
TEXT_PACKAGES = ("wordnet-base", "wamerican")
ENGINES_ARCHIVE = "engines.tar.xz"
_ENGINE_FILES = ("usr/bin/flite", "usr/lib/x86_64-linux-gnu/lib")


def collect(directory: Path) -> None:
    """Fetch the packages and write everything into `directory`.

    Raises:
        subprocess.CalledProcessError: apt-get or dpkg failed; its message was printed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "root"
        _unpack(Path(scratch), root, (*ENGINE_PACKAGES, *TEXT_PACKAGES))
        _write_engines(root, directory / ENGINES_ARCHIVE)
        write_texts(root, directory / "texts")
        for package in (*ENGINE_PACKAGES, *TEXT_PACKAGES):
            target = directory / "copyright" / f"{package}.txt"
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(root / "usr/share/doc" / package / "copyright", target)


def unpack_engines(archive: Path, root: Path) -> None:
    """Unpack `engines.tar.xz` where training runs; nothing happens if it is there already."""
    if (root / _ENGINE_FILES[0]).exists():
        return
    with tarfile.open(archive) as file:
        file.extraction_filter = getattr(tarfile, "data_filter", None)  # older than 3.10.12 and 3.11.4 have none
        file.extractall(root)


def write_texts(root: Path, directory: Path) -> None:
    """Write the text files out of the unpacked packages."""
    directory.mkdir(parents=True, exist_ok=True)
    glosses, names = read_glosses(root / "usr/share/wordnet"), read_names(root / "usr/share/wordnet")
    words = (root / "usr/share/dict/american-english").read_text("utf-8").split("\n")
    plain = [word for word in words if len(word) > 1 and word.isascii() and word.isalpha()]
    columns = (glosses.examples, glosses.definitions, plain, names.people, names.places)
    for name, lines in zip(TEXT_FILES, columns, strict=True):
        _write_lines(directory / name, lines)
        logger.info("%s: %d lines", name, len(lines))


def _unpack(scratch: Path, root: Path, packages: Iterable[str]) -> None:
    subprocess.run(["apt-get", "download", "-q", *packages], cwd=scratch, check=True)
    for package in sorted(scratch.glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(package), str(root)], check=True)


def _write_engines(root: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:xz", preset=9) as file:
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            if name.startswith(_ENGINE_FILES) and not path.is_dir():
                file.add(path, name)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    # No name and no time in the header: equal texts give equal files.
    with path.open("wb") as raw, gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())


def main(argv: Sequence[str] | None = None) -> int:
    """Collect everything; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.train.collect", description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_DIRECTORY, help="folder to fill (default %(default)s)")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    collect(args.out)
    for path in sorted(path for path in args.out.rglob("*") if path.is_file()):
        logger.info("%9d %s", path.stat().st_size, path.relative_to(args.out))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
