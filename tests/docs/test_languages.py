"""A Chinese page has its English page's commands, names and result files, and no figure that the English page lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, fences, name_of, prose

CHINESE = tuple(sorted((DOCS / "zh").glob("*.md")))
ENGLISH_OF = {ROOT / "README.zh.md": ROOT / "README.md"} | {
    page: ROOT / "README.DIT.md" if page.stem == "deployment" else DOCS / page.name for page in CHINESE
}
PAIRS = pytest.mark.parametrize("chinese", ENGLISH_OF, ids=name_of)
NUMBER = re.compile(r"(?<![\w.])(\d+(?:[.,]\d+)*)(?:\s?(ms|s|[kMG]i?B|kHz|dB|%)(?![A-Za-z]))?")
RESULT = re.compile(r"\w+\.json\b")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")


@PAIRS
def test_both_languages_have_the_same_commands(chinese: Path) -> None:
    assert [*commands(chinese)] == [*commands(ENGLISH_OF[chinese])]


@PAIRS
def test_a_chinese_page_has_no_figure_that_the_english_one_lacks(chinese: Path) -> None:
    english, found = figures(ENGLISH_OF[chinese]), figures(chinese)
    assert found
    # NOTE: "41 and 46 s" has the unit of its second number only.
    assert [f"{number} {unit}" for number, unit in sorted(found - english) if (number, "") not in english] == []


@PAIRS
def test_both_languages_name_the_same_result_files(chinese: Path) -> None:
    english, found = (set(RESULT.findall(prose(page))) for page in (ENGLISH_OF[chinese], chinese))
    assert found == english


@PAIRS
def test_what_english_tables_and_lists_explain_by_name_is_named_in_chinese(chinese: Path) -> None:
    lines = prose(ENGLISH_OF[chinese]).splitlines()
    heads = [line.split(" | ")[0] for line in lines if line.startswith("| ")]
    heads += [line.partition("`: ")[0] + "`" for line in lines if line.startswith("- `") and "`: " in line]
    explained = {name for head in heads for name in CODE.findall(head)}
    assert sorted(name for name in explained - set(CODE.findall(prose(chinese))) if re.search("[a-z]", name)) == []


@PAIRS
def test_a_chinese_page_names_no_option_that_the_english_one_lacks(chinese: Path) -> None:
    english, found = (set(OPTION.findall(page.read_text("utf-8"))) for page in (ENGLISH_OF[chinese], chinese))
    assert sorted(found - english) == []


def commands(page: Path) -> Iterator[str]:
    """Yield the blocks that a reader copies, without comments."""
    for fence in fences(page):
        if fence.language != "text":
            yield "\n".join(re.sub(r"\s+# .*", "", line).rstrip() for line in fence.text.splitlines())


def figures(page: Path) -> set[tuple[str, str]]:
    """Return the numbers outside code and links, each with its unit."""
    return set(NUMBER.findall(re.sub(r"``.*?``|`[^`]*`|\]\([^)]*\)", " ", prose(page))))
