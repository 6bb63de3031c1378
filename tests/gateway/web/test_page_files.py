"""The page's files by themselves: sound HTML, labels, contrast, nothing from elsewhere, all of it in the wheel."""

from __future__ import annotations

import re

import pytest

from gateway.dialects.http import web_page
from gateway.voices.registry import VoiceRegistry
from tests.gateway.fakes import FakeToken2Wav, make_voices_host
from tests.gateway.web.page_files import DIRECTORY, FIELDS, colours, contrast, read_page, scripts

NAMESPACE = "http://www.w3.org/2000/svg"
TEXT_CONTRAST = 4.5
GRAPHIC_CONTRAST = 3.0


def served_paths() -> set[str]:
    routes = web_page.routes(lambda: make_voices_host(VoiceRegistry(FakeToken2Wav())))
    return {route.path for route in routes}  # type: ignore[attr-defined]


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
