"""Licence, notices and version: complete, and the same wherever they are said."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
import yaml

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
APACHE_2_SHA256 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""Of the text at https://www.apache.org/licenses/LICENSE-2.0.txt."""
IMAGE_TAG = re.compile(r"(?:cosydit/[\w$-]+:|COSYDIT_TAG(?::-|=)|newTag: )(\d+\.\d+\.\d+)")


def test_the_licence_is_the_whole_text_of_apache_2() -> None:
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_SHA256
    assert PROJECT["license"] == "Apache-2.0"


def test_the_notice_names_every_licence_file_of_the_demo_voice_and_the_package_carries_them() -> None:
    notice = (ROOT / "NOTICE").read_text("utf-8")
    texts = sorted((ROOT / "demo_voice/licences").iterdir())
    assert texts
    for text in texts:
        assert str(text.relative_to(ROOT)) in notice
    carried = {path for pattern in PROJECT["license-files"] for path in ROOT.glob(pattern)}
    assert {*texts, ROOT / "LICENSE", ROOT / "NOTICE"} <= carried


def test_the_changelog_and_the_citation_are_of_this_version() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None and newest[1] == PROJECT["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


def test_every_image_tag_is_this_version() -> None:
    files = [path for path in (ROOT / "deploy").rglob("*") if path.is_file()]
    tags = {tag for path in files for tag in IMAGE_TAG.findall(path.read_text("utf-8", errors="replace"))}
    assert tags == {PROJECT["version"]}


def test_workflows_name_every_action_by_its_commit() -> None:
    used = [use for path in (ROOT / ".github").rglob("*.yml") for use in re.findall(r"uses: *(\S+)", path.read_text())]
    assert used and not [use for use in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", use)]


def test_every_package_is_marked_as_typed() -> None:
    packages = {path.parent for path in ROOT.glob("*/__init__.py")} - {ROOT / "tests", ROOT / "lab"}
    assert len(packages) >= 6
    for package in packages:
        assert (package / "py.typed").is_file(), package.name
