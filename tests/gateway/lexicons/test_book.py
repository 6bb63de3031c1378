"""The operator's dictionaries and those that callers create: files, versions, owners, limits."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.errors import (
    ConfigError,
    InvalidRequestError,
    LexiconNotFoundError,
    LexiconProtectedError,
    LexiconStoreFullError,
)
from gateway.lexicons.book import LexiconBook, LexiconSettings, open_lexicons
from gateway.lexicons.store import KEPT_VERSIONS, LexiconStore
from gateway.text import Normalization, TextOptions
from gateway.text.options import LexiconLocator
from gateway.text.pronunciation.aliases import AliasRule, apply_lexicons

SQL, XIAOMI = AliasRule("SQL", "sequel"), AliasRule("Xiaomi", "show me")


class Caller:
    """Whose key a call comes with."""

    key: str | None = "anna"

    def __call__(self) -> str | None:
        return self.key


def operator_dir(path: Path) -> Path:
    (path / "default.json").write_text('{"rules": {"SQL": "sequel"}}')
    (path / "tech.pls").write_text(
        "<lexicon><lexeme><grapheme>SQL</grapheme><alias>squirrel</alias></lexeme></lexicon>"
    )
    (path / "notes.txt").write_text("not a dictionary")
    return path


def spoken(book: LexiconBook, *names: str, normalization: Normalization = Normalization.ON) -> str:
    options = TextOptions(None, normalization, lexicons=tuple(map(LexiconLocator, names)))
    return apply_lexicons("SQL on Xiaomi", book.lexicons_for(options)).text


def test_the_default_dictionary_comes_behind_those_that_are_asked_for(tmp_path: Path) -> None:
    book = open_lexicons(LexiconSettings(operator_dir(tmp_path)))
    assert spoken(book) == "sequel on Xiaomi"
    assert spoken(book, "tech") == "squirrel on Xiaomi"
    assert spoken(book, normalization=Normalization.OFF) == "SQL on Xiaomi", "read as it is written"
    assert spoken(book, "tech", normalization=Normalization.OFF) == "squirrel on Xiaomi", "asked for by name"
    with pytest.raises(LexiconNotFoundError, match="'nothing'"):
        spoken(book, "nothing")
    with pytest.raises(LexiconProtectedError, match="--created-lexicons-dir"):
        assert book.store


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.json", "{", "a.json can't be read"),
        ("a.pls", "<lexicon>", "line 1, column 10"),
        ("default.pls", "<lexicon/>", "two dictionaries 'default'"),
    ],
)
def test_a_file_of_the_operator_that_can_not_be_read_stops_the_start(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    (operator_dir(tmp_path) / name).write_text(text)
    with pytest.raises(ConfigError, match=told):
        open_lexicons(LexiconSettings(tmp_path))
    with pytest.raises(ConfigError, match="is not there"):
        open_lexicons(LexiconSettings(tmp_path / "missing"))


async def test_a_created_dictionary_has_versions_that_locators_name(tmp_path: Path) -> None:
    book = open_lexicons(LexiconSettings(created_dir=tmp_path))
    created = await book.store.create("mine", "", [SQL])
    changed = await book.store.change_rules(created.id, lambda rules: (*rules, XIAOMI))
    assert spoken(book, created.id) == spoken(book, "mine") == "sequel on show me"
    old = TextOptions(lexicons=(LexiconLocator(created.id, created.latest.id),))
    assert apply_lexicons("SQL on Xiaomi", book.lexicons_for(old)).text == "sequel on Xiaomi"
    for _ in range(KEPT_VERSIONS):
        changed = await book.store.change_rules(created.id, lambda rules: rules)
    assert len(changed.versions) == KEPT_VERSIONS
    with pytest.raises(LexiconNotFoundError, match="has no version"):
        book.lexicons_for(old)


async def test_gateways_that_share_a_directory_agree(tmp_path: Path) -> None:
    one, other = (open_lexicons(LexiconSettings(created_dir=tmp_path)) for _ in range(2))
    created = await one.store.create("mine", "said so", [SQL])
    assert other.store.find(created.id) == created
    await other.store.change_rules(created.id, lambda rules: [XIAOMI])
    assert spoken(one, created.id) == "SQL on show me"
    (tmp_path / f"{created.id}.json").write_text("{")
    assert one.store.lexicons() == [], "a damaged file hides no others"


async def test_a_dictionary_belongs_to_the_key_that_made_it(tmp_path: Path) -> None:
    caller = Caller()
    store = LexiconStore(tmp_path, caller)
    created = await store.create("mine", "", [SQL])
    assert json.loads((tmp_path / f"{created.id}.json").read_text())["owner"] == "anna"
    caller.key = "bob"
    assert (store.lexicons(), store.find(created.id), store.find("mine")) == ([], None, None)
    with pytest.raises(LexiconNotFoundError):
        await store.change_rules(created.id, lambda rules: [])
    with pytest.raises(LexiconNotFoundError):
        await store.describe(created.id, "stolen", None)
    caller.key = ""
    assert store.find(created.id) is None, "nor is it that of a call without a key"
    caller.key = "anna"
    assert [each.id for each in store.lexicons()] == [created.id]
    caller.key = None
    assert store.find(created.id) is not None, "without keys everyone may do all"


async def test_one_key_can_not_take_all_the_room(tmp_path: Path) -> None:
    caller = Caller()
    store = LexiconStore(tmp_path, caller, max_lexicons=20)
    await asyncio.gather(*(store.create(f"number {number}", "", [SQL]) for number in range(2)))
    with pytest.raises(LexiconStoreFullError, match="2 pronunciation dictionaries of yours"):
        await store.create("one more", "", [SQL])
    caller.key = "bob"
    await store.create("mine", "", [SQL])


@pytest.mark.parametrize("name", ["", " ", "x" * 101, "a\nb", "lexicon_" + "0" * 24])
async def test_a_name_that_can_not_be_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequestError):
        await LexiconStore(tmp_path).create(name, "", [SQL])


async def test_no_name_of_a_caller_becomes_a_path(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("{}")
    store = LexiconStore(tmp_path / "lexicons")
    for name in ("../secret", "secret", "lexicon_../../secret", "/etc/passwd"):
        assert store.find(name) is None
        with pytest.raises(LexiconNotFoundError):
            store.own(name)
