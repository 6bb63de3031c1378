"""Reads the documentation: pages, fenced blocks with their marks, links and anchors."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE_PAGES = tuple(sorted(DOCS.rglob("*.md")))
OTHER_PAGES = tuple(
    path
    for path in (
        *sorted(ROOT.glob("*.md")),
        *(path for house in ("demo_voice", "lab") for path in sorted((ROOT / house).rglob("*.md"))),
    )
    if ".venv" not in path.parts
)
PAGES = (*SITE_PAGES, *OTHER_PAGES)
_FENCE = re.compile(r"^(```+)(\S*)\s*$")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?)(?:\s*\{\s*#([\w-]+)\s*\})?\s*$")


@dataclass(frozen=True)
class Fence:
    """One fenced block."""

    page: Path
    line: int
    """Of its first fence, from 1."""
    language: str
    mark: str
    """The line before it."""
    text: str

    def __str__(self) -> str:
        """Tell where it stands."""
        return f"{name_of(self.page)}:{self.line}"


def name_of(page: Path) -> str:
    """Return the page's path in the repository."""
    return str(page.relative_to(ROOT))


@cache
def fences(page: Path) -> tuple[Fence, ...]:
    """Return the fenced blocks of a page."""
    lines = page.read_text("utf-8").splitlines()
    found, at = [], 0
    while at < len(lines):
        begin = _FENCE.match(lines[at])
        if begin is None:
            at += 1
            continue
        end = next(i for i in range(at + 1, len(lines)) if lines[i].rstrip() == begin[1])
        before = lines[at - 1].strip() if at else ""
        found.append(Fence(page, at + 1, begin[2], before, "\n".join(lines[at + 1 : end])))
        at = end + 1
    return tuple(found)


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    lines = page.read_text("utf-8").splitlines()
    for fence in fences(page):
        for line in range(fence.line - 1, fence.line + fence.text.count("\n") + 2):
            if line < len(lines):
                lines[line] = ""
    return "\n".join(lines)


def links(page: Path) -> Iterator[str]:
    """Yield the targets of a page's links, those in code left out."""
    for line in prose(page).splitlines():
        yield from _LINK.findall(re.sub(r"`[^`]*`", lambda code: "x" * len(code[0]), line))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings: what MkDocs gives them, and what code hosts do."""
    found: set[str] = set()
    for line in prose(page).splitlines():
        heading = _HEADING.match(line)
        if heading is not None:
            found |= {heading[2]} if heading[2] else {_slug(heading[1]), _host_slug(heading[1])}
    return frozenset(found)


def _slug(title: str) -> str:
    """What Python-Markdown's toc makes of a title."""
    plain = unicodedata.normalize("NFKD", _text_of(title)).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def _host_slug(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", _text_of(title).lower()).replace(" ", "-")


def _text_of(title: str) -> str:
    return re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", lambda found: found[1] or "", title)
