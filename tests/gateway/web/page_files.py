"""Reads the page's files as a browser would, for checks that need no browser."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

from tests import ROOT

DIRECTORY = ROOT / "gateway" / "web"
VOID = {"meta", "link", "input", "br", "hr", "img"}
FIELDS = {"input", "textarea", "select", "meter"}

Attributes = dict[str, str]


@dataclass
class Page(HTMLParser):
    """The elements of index.html, and whether they are closed in order."""

    elements: list[tuple[str, Attributes]] = field(default_factory=list)
    inline_scripts: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice"
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag, f"</{tag}> closes what is not open"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("script", "style") and data.strip():
            self.inline_scripts.append(data)

    def close(self) -> None:
        super().close()
        assert not self._open, f"never closed: {self._open}"

    def all(self, *tags: str) -> list[Attributes]:
        return [attributes for tag, attributes in self.elements if tag in tags]

    def values(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.elements if name in attributes]


def read_page() -> Page:
    page = Page()
    page.feed((DIRECTORY / "index.html").read_text("utf-8"))
    page.close()
    return page


def scripts() -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in DIRECTORY.glob("*.js")}


def colours(scheme: str) -> dict[str, str]:
    """Return the custom properties of `:root` that are colours, in the light or dark scheme."""
    css = (DIRECTORY / "style.css").read_text("utf-8")
    roots = re.findall(r":root\s*{(.*?)}", css, re.DOTALL)
    light, dark = (dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6});", root)) for root in roots)
    return light if scheme == "light" else light | dark


def contrast(first: str, second: str) -> float:
    """Return WCAG 2's contrast ratio of two colours, 1 to 21. Source: WCAG 2.2, relative luminance."""
    darker, lighter = sorted((_luminance(first), _luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
