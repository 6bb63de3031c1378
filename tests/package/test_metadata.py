"""Licence, notices, version and extras: complete, and the same wherever they are said."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
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


PYPROJECT_EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
INDEX = "https://pypi.org/simple/pip/"
REACH_S = 10.0
PATIENCE_S = 600.0
"""Far more than the half to two minutes that they take; a search among old versions takes longer."""
DOCUMENTED = ("", "demo", "all", "token2wav,gpu,llm-embedded,text,audio", "docs", "test")
"""What the documentation says to install; vLLM and TensorRT-LLM have environments of their own."""
ALL_SETS = "COSYDIT_RESOLVE"
"""Resolving takes metadata of up to 300 packages, no package, and one to four minutes a set: it is done where this
variable says `all`, as `checks.yml` does every night, and left out where no index is within reach."""


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A pip of today that knows the public index only."""
    if os.environ.get(ALL_SETS) != "all":
        pytest.skip(f"takes minutes; {ALL_SETS}=all tries it")
    try:
        urllib.request.urlopen(INDEX, timeout=REACH_S).close()
    except (urllib.error.URLError, OSError) as error:
        pytest.skip(f"no package index is within reach ({error})")
    folder = tmp_path_factory.mktemp("pip")
    venv.create(folder, symlinks=True, with_pip=True)
    command = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*command, "install", "--quiet", "--upgrade", "pip"], check=True, timeout=PATIENCE_S, env=bare())
    return command


def bare() -> dict[str, str]:
    """The environment without what points pip to other indexes; certificates and timeouts stay."""
    others = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CONSTRAINT", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if name not in others}
    return kept | {"PIP_CONFIG_FILE": os.devnull}


@pytest.mark.slow
@pytest.mark.parametrize("extras", DOCUMENTED)
def test_a_documented_set_of_extras_resolves_from_the_public_index(pip: list[str], extras: str) -> None:
    project = f"{ROOT}[{extras}]" if extras else str(ROOT)
    began_s = time.monotonic()
    command = [*pip, "install", "--dry-run", "--quiet", "--ignore-installed", project]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=bare(), check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    sys.stdout.write(f"cosydit[{extras}]: {time.monotonic() - began_s:.0f} s\n")


def test_what_the_demo_needs_is_in_the_demo() -> None:
    (demo,) = PYPROJECT_EXTRAS["demo"]
    needed = {"token2wav", "cpu", "llm-embedded", "triton-embedded", "text"}
    assert needed <= set(demo.removeprefix("cosydit[").removesuffix("]").split(","))
    brought = [line for name in needed for line in PYPROJECT_EXTRAS[name]]
    assert not [line for line in brought if line.startswith(("onnx>", "onnx="))], "onnxruntime is enough"


def test_collections_name_extras_that_exist() -> None:
    for collection in ("demo", "all"):
        for line in PYPROJECT_EXTRAS[collection]:
            named = line.removeprefix("cosydit[").removesuffix("]").split(",")
            assert set(named) <= set(PYPROJECT_EXTRAS)
