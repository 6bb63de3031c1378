"""A tiny corpus, made with a stand-in for the source engine, so that training runs where no engine is installed."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from lab.tests.fake_flite import install_fake_flite
from lab.train.corpus import make_corpus, wide_jobs
from lab.train.text.mix import TEXT_FILES
from lab.train.workspace import Workspace

UTTERANCES = 64


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder laid out as the unpacked engines are."""
    return install_fake_flite(tmp_path_factory.mktemp("engines"))


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text files as `carry` writes them, small."""
    directory = tmp_path_factory.mktemp("texts")
    lines = {
        "examples.txt.gz": [f"The {noun} was seen near the old harbour wall." for noun in ("boat", "gull", "light")],
        "definitions.txt.gz": ["A vessel for travel on water.", "A bird that lives by the sea and follows ships."],
        "words.txt.gz": ["lantern", "compass", "anchor", "horizon", "harbour", "Lisbon"],
        "people.txt.gz": ["Ada", "Grace", "Hopper"],
        "places.txt.gz": ["New York", "Oslo"],
    }
    for name in TEXT_FILES:
        with gzip.open(directory / name, "wt", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines[name]))
    return directory


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory, engines: Path, texts: Path) -> Workspace:
    """A workspace with engines, texts and a corpus; nothing is trained yet."""
    work = Workspace(tmp_path_factory.mktemp("work"))
    (work.root / "engines").symlink_to(engines)
    (work.root / "texts").symlink_to(texts)
    jobs = wide_jobs(work.corpus, work.texts, work.engines, UTTERANCES, "flite")
    assert make_corpus(jobs, workers=1, deadline_s=120.0) == len(jobs)
    return work
