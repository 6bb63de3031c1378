"""The page's files: sound HTML, labels, contrast, words in English and Chinese, nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from gateway.dialects import web_page
from gateway.speech.request import DEFAULT_MAX_TEXT_CHARACTERS
from gateway.voices.registry import VoiceRegistry
from gateway.voices.store import VoiceLimits
from tests import ROOT
from tests.gateway.doors.http_door import opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, app_of, make_voices_host, speech_deltas
from tests.gateway.voices.fakes import FakeVoiceMaker, make_store

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


NAMESPACE = "http://www.w3.org/2000/svg"
TEXT_CONTRAST = 4.5
GRAPHIC_CONTRAST = 3.0


def served_paths() -> set[str]:
    return {route.path for route in web_page.routes()}  # type: ignore[attr-defined]


def test_each_id_is_given_once_and_each_reference_finds_one() -> None:
    page = read_page()
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    references = page.values("for") + [href[1:] for href in page.values("href") if href.startswith("#")]
    for attribute in ("aria-labelledby", "aria-describedby"):
        references += [name for value in page.values(attribute) for name in value.split()]
    assert set(references) <= set(ids)


def test_each_field_has_a_label_and_each_picture_a_name() -> None:
    page = read_page()
    labelled = set(page.values("for"))
    for element in page.all(*FIELDS):
        assert element["id"] in labelled or element.get("aria-label"), element
    for element in [*page.all("canvas"), *page.all("audio"), *page.all("dialog")]:
        assert element.get("aria-label") or element.get("aria-labelledby"), element


def test_the_page_names_its_language_and_leaves_zooming_alone() -> None:
    page = read_page()
    assert page.all("html")[0]["lang"] == "en"
    viewport = next(meta["content"] for meta in page.all("meta") if meta.get("name") == "viewport")
    assert "width=device-width" in viewport
    assert "maximum-scale" not in viewport and "user-scalable" not in viewport


def test_every_element_that_a_script_asks_for_is_on_the_page() -> None:
    ids = set(read_page().values("id"))
    asked = {name for script in scripts().values() for name in re.findall(r'byId\("([\w-]+)"\)', script)}
    assert len(asked) > 20
    assert asked <= ids


def test_every_file_that_is_named_is_served() -> None:
    page = read_page()
    named = {value for value in page.values("src") + page.values("href") if not value.startswith("#")}
    imports = {
        f"web/{name}" for script in scripts().values() for name in re.findall(r'(?:from|WORKLET =) "([^"]+)"', script)
    }
    for name in named | {name.replace("./", "") for name in imports}:
        assert f"/{name}" in served_paths(), name


@pytest.mark.parametrize("name", sorted(path.name for path in DIRECTORY.iterdir()))
def test_nothing_comes_from_elsewhere(name: str) -> None:
    text = (DIRECTORY / name).read_text("utf-8").replace(NAMESPACE, "")
    assert not re.search(r"https?:|//[a-z0-9-]+\.[a-z]|@import|url\(", text)


def test_nothing_is_inline_that_the_policy_would_refuse() -> None:
    page = read_page()
    assert page.inline_scripts == []
    assert not page.values("style")
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    for script in scripts().values():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", script)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("front", "back", "least"),
    [
        pytest.param("ink", "paper", TEXT_CONTRAST, id="text"),
        pytest.param("ink", "sheet", TEXT_CONTRAST, id="text in fields"),
        pytest.param("muted", "paper", TEXT_CONTRAST, id="hints"),
        pytest.param("muted", "sheet", TEXT_CONTRAST, id="hints on notices"),
        pytest.param("muted", "rule", TEXT_CONTRAST, id="what is switched off"),
        pytest.param("ink", "pen-wash", TEXT_CONTRAST, id="errors"),
        pytest.param("accent", "paper", TEXT_CONTRAST, id="links"),
        pytest.param("on-accent", "accent", TEXT_CONTRAST, id="the main button"),
        pytest.param("pen", "paper", TEXT_CONTRAST, id="underruns"),
        pytest.param("edge", "paper", GRAPHIC_CONTRAST, id="edges of fields"),
        pytest.param("accent", "sheet", GRAPHIC_CONTRAST, id="the waveform"),
        pytest.param("pen", "sheet", GRAPHIC_CONTRAST, id="the pen"),
    ],
)
def test_colours_stand_out(scheme: str, front: str, back: str, least: float) -> None:
    named = colours(scheme)
    assert contrast(named[front], named[back]) >= least


def test_less_motion_is_respected() -> None:
    assert "prefers-reduced-motion" in (DIRECTORY / "style.css").read_text("utf-8")
    assert "prefers-reduced-motion" in scripts()["app.js"]


def test_the_wheel_holds_every_file_that_is_served() -> None:
    root = DIRECTORY.parents[1]
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    settings = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    packed = {path for pattern in settings["package-data"]["gateway"] for path in (root / "gateway").glob(pattern)}
    pages = {"/", web_page.API_PATH, web_page.SETTINGS_PATH}
    served = {DIRECTORY / path.removeprefix("/web/") for path in served_paths() - pages}
    assert served | {DIRECTORY / "index.html", DIRECTORY / "docs.html"} == packed


TYPES = {
    "/": "text/html; charset=utf-8",
    "/web/style.css": "text/css; charset=utf-8",
    "/web/app.js": "text/javascript; charset=utf-8",
    "/web/recorder-worklet.js": "text/javascript; charset=utf-8",
    "/web/icon.svg": "image/svg+xml",
    "/web/settings.json": "application/json",
}


@asynccontextmanager
async def page_client(registry: VoiceRegistry | None = None) -> AsyncIterator[httpx.AsyncClient]:
    host = make_voices_host(registry or VoiceRegistry(FakeToken2Wav()))
    transport = httpx.ASGITransport(app_of(host, *web_page.routes()))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


@pytest.mark.parametrize(("path", "media_type"), TYPES.items())
async def test_files_go_out_with_their_types_and_the_policy(path: str, media_type: str) -> None:
    async with page_client() as client:
        response = await client.get(path)
    assert (response.status_code, response.headers["content-type"]) == (200, media_type)
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    policy = dict(part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert not {"unsafe", "http:", "https:", "*"} & set(response.headers["content-security-policy"].split())
    assert "unsafe" not in response.headers["content-security-policy"]


async def test_a_browser_that_has_a_file_is_told_so_without_its_content() -> None:
    async with page_client() as client:
        first = await client.get("/web/app.js")
        again = await client.get("/web/app.js", headers={"if-none-match": first.headers["etag"]})
        other = await client.get("/web/style.css", headers={"if-none-match": first.headers["etag"]})
    assert first.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert other.status_code == 200


async def test_head_tells_the_length_alone() -> None:
    async with page_client() as client:
        whole, head = await client.get("/"), await client.head("/")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.content))


@pytest.mark.parametrize("path", ["/web/", "/web/index.html", "/web/..%2fapp.py", "/web/x.js"])
async def test_nothing_else_is_served(path: str) -> None:
    async with page_client() as client:
        assert (await client.get(path)).status_code == 404


async def test_settings_say_whether_voices_can_be_created(tmp_path: Path) -> None:
    maker = FakeVoiceMaker()
    creating = VoiceRegistry(maker, store=make_store(tmp_path, maker, VoiceLimits(max_audio_bytes=1234)))
    async with page_client() as client, page_client(creating) as other:
        answers = [(await each.get("/web/settings.json")).json() for each in (client, other)]
    assert [(each["voice_creation"], each["max_recording_bytes"]) for each in answers] == [(False, 0), (True, 1234)]


async def test_settings_say_which_formats_and_texts_there_can_be() -> None:
    async with page_client() as client:
        answer = (await client.get("/web/settings.json")).json()
    codecs = ["mp3", "opus", "aac", "flac"] if find_spec("av") else []
    assert answer["formats"] == ["wav", *codecs, "pcm", "mulaw", "alaw"]
    assert answer["max_text_characters"] == DEFAULT_MAX_TEXT_CHARACTERS


async def test_the_gateway_serves_the_page(tmp_path: Path) -> None:
    async with opened_door(FakeLLM(speech_deltas(20)), FakeToken2Wav(), []) as door:
        page, settings = await door.http.get("/"), await door.http.get("/web/settings.json")
    assert page.text.startswith("<!doctype html>")
    assert settings.json()["voice_creation"] is False


HAN = re.compile("[\u4e00-\u9fff]")
SAME_IN_BOTH = {"otherLanguage"}
"""Shown in the language that the page can be switched to."""


def table(name: str) -> dict[str, str]:
    found = re.search(rf"const {name} = {{\n(.*?)\n}};", scripts()["words.js"], re.DOTALL)
    assert found is not None
    entries = re.findall(r'^  (\w+): "((?:[^"\\]|\\.)*)",$', found[1], re.MULTILINE)
    assert len(entries) == found[1].count("\n") + 1, "a line that is no entry"
    return dict(entries)


def named_words() -> set[str]:
    """Every key that the page and its scripts name."""
    others = "\n".join(script for name, script in scripts().items() if name != "words.js")
    quoted = set(re.findall(r'"(\w+)"', others + scripts()["words.js"].partition("const TABLES")[2]))
    return quoted | set(read_page().values("data-t"))


def test_both_languages_have_the_same_words_with_the_same_gaps() -> None:
    english, chinese = table("ENGLISH"), table("CHINESE")
    assert list(english) == list(chinese)
    for key, text in english.items():
        assert set(re.findall(r"{\w+}", text)) >= set(re.findall(r"{\w+}", chinese[key])), key


def test_every_word_is_used_and_every_word_used_is_there() -> None:
    keys = set(table("ENGLISH"))
    assert keys <= named_words(), keys - named_words()
    assert set(read_page().values("data-t")) <= keys
    asked = {key for script in scripts().values() for key in re.findall(r'\b(?:t|say)\("(\w+)"', script)}
    assert len(asked) > 30 and asked <= keys


@pytest.mark.parametrize(("name", "is_chinese"), [("ENGLISH", False), ("CHINESE", True)])
def test_each_table_is_in_its_language(name: str, is_chinese: bool) -> None:
    words = {key: text for key, text in table(name).items() if key not in SAME_IN_BOTH}
    words = {key: text for key, text in words.items() if re.sub(r"{\w+}|\W", "", text)}
    assert {key for key, text in words.items() if bool(HAN.search(text)) != is_chinese} == set()


def test_the_pages_own_text_is_what_english_says() -> None:
    html = (DIRECTORY / "index.html").read_text("utf-8")
    english = table("ENGLISH")
    shown = re.findall(r'data-t="(\w+)">([^<]*)<', html)
    assert len(shown) > 40
    assert [(key, text) for key, text in shown if english[key] != text] == []
