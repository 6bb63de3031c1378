"""Links, anchors, paths and functions that the documentation names: all there; and every room is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, SITE_PAGES, anchors, links, name_of, prose

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
