"""Links, anchors, paths and functions that pages name are there; a Chinese page says what its English one says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, SITE_PAGES, anchors, fences, links, name_of, prose

FOLDERS = (
    "benchmarks|cosydit|demo_voice|deploy|docs|gateway|gpukit|lab|llm_service|proto|servicekit|tests|token2wav_service"
)
NO_PATHS = {f"cosydit/{path.stem}" for path in (ROOT / "deploy/docker").glob("*.Dockerfile")}
NO_PATHS |= {"cosydit/cpu", "cosydit/engines-cpu"}
"""Names of images."""
MADE_BY_USERS = {"deploy/models.lock.json"}
HOUSES = ("gateway", "token2wav_service", "llm_service", "cosydit", "demo_voice")
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./+*<>-]*)`")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_internal_links_and_their_anchors_hold(page: Path) -> None:
    broken = []
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and linked.suffix == ".md" and anchor not in anchors(linked)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_of_the_repository_exist(page: Path) -> None:
    named = set(PATH.findall(prose(page))) - NO_PATHS - MADE_BY_USERS
    missing = [path for path in sorted(named) if not list(ROOT.glob(re.sub(r"<\w+>", "*", path.rstrip("/"))))]
    assert not missing


def test_a_page_that_the_site_would_not_show_is_noticed() -> None:
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    unlisted = [name_of(page) for page in SITE_PAGES if page.relative_to(ROOT / "docs").as_posix() not in nav]
    assert not unlisted, "list it in mkdocs.yml"
    index = (ROOT / "docs/decisions/index.md").read_text("utf-8")
    assert all(page.name in index for page in SITE_PAGES if re.match(r"0\d+-", page.name))


def test_the_architecture_page_names_every_room() -> None:
    named = set(PATH.findall((ROOT / "docs/architecture.md").read_text("utf-8")))
    rooms = {path.parent.relative_to(ROOT).as_posix() for house in HOUSES for path in (ROOT / house).glob("*/*.py")}
    missing = {room for room in rooms if not any(name.startswith(f"{room}/") for name in named)}
    assert rooms and not missing


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
