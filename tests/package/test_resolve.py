"""Every documented set of extras resolves with pip from the public index alone, and quickly.

Takes metadata of up to 300 packages, no package; reports the time of each set (`pytest -rP`). Skips where no index is
within reach. It takes one to four minutes a set, so it is done where COSYDIT_RESOLVE=all says so, as `checks.yml` does
every night.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")

ROOT = Path(__file__).parents[2]
PYPROJECT_EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
INDEX = "https://pypi.org/simple/pip/"
REACH_S = 10.0
PATIENCE_S = 600.0
"""Far more than the half to two minutes that they take; a search among old versions takes longer."""
DOCUMENTED = ("", "demo", "all", "token2wav,gpu,llm-embedded,text,audio", "docs", "test")
"""What the documentation says to install; vLLM and TensorRT-LLM have environments of their own."""
ALL_SETS = "COSYDIT_RESOLVE"


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
