"""Hints about optional parts name what the package came from, and never a package on an index."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

import pytest

from cosydit.cli.main import main
from cosydit.doctor.command import next_command
from cosydit.doctor.host import Finding, State
from servicekit import extras
from servicekit.extras import install_command, installed_from, missing_extra, own_command, require_modules
from tests.package.test_resolve import PYPROJECT_EXTRAS

ROOT = Path(__file__).parents[2]


class Wheel:
    """A distribution, as importlib.metadata describes it."""

    version = "1.2.3"

    def __init__(self, url: str | None) -> None:
        self._url = url

    def read_text(self, name: str) -> str | None:
        return json.dumps({"url": self._url}) if self._url and name == "direct_url.json" else None


@pytest.fixture
def from_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    wheel = tmp_path / "cosydit-1.2.3-py3-none-any.whl"
    wheel.touch()
    monkeypatch.setattr(extras, "_ROOT", tmp_path / "site-packages")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Wheel(wheel.as_uri()))
    return wheel


def test_in_the_repository_a_hint_names_the_repository() -> None:
    assert installed_from().is_repository
    assert install_command("demo").endswith(f" -m pip install -e '{ROOT}[demo]'")


def test_of_a_wheel_a_hint_names_its_file(from_wheel: Path) -> None:
    assert install_command("demo").endswith(f" -m pip install '{from_wheel}[demo]'")


@pytest.mark.parametrize("url", [None, "file:///gone/cosydit-1.2.3-py3-none-any.whl", "https://a.example/cosydit.whl"])
@pytest.mark.usefixtures("from_wheel")
def test_of_a_wheel_that_is_gone_a_hint_names_its_file_too(url: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Wheel(url))
    assert install_command("demo").endswith(" -m pip install './cosydit-1.2.3-py3-none-any.whl[demo]'")


def test_a_module_that_no_extra_brings_is_not_explained() -> None:
    assert missing_extra(ModuleNotFoundError("No module named 'x'", name="x")) is None
    hint = missing_extra(ModuleNotFoundError("No module named 'onnx.helper'", name="onnx.helper"))
    assert hint is not None and "onnx is not installed" in hint and "[checkpoint]'" in hint


def test_every_extra_of_a_hint_exists() -> None:
    assert set(extras._EXTRA_OF.values()) <= set(PYPROJECT_EXTRAS)


def test_all_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"no_such, nor_this not installed; .*\[demo\]'"):
        require_modules(["json", "no_such", "nor_this"], "demo")


@pytest.mark.slow
@pytest.mark.parametrize("command", [["say", "Hello."], ["serve"]])
def test_a_command_without_its_extra_says_which_one_before_anything_starts(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("COSYDIT_HOME", str(tmp_path))
    monkeypatch.setattr("cosydit.cli.stack_options.TOKEN2WAV_MODULES", ("no_such_module",))
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "no_such_module not installed; install with: " in said and "[demo]'" in said and "Traceback" not in said


def test_any_command_explains_a_missing_module(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*ignored: object) -> int:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")

    monkeypatch.setattr("cosydit.plan.command.run", run)
    assert main(["plan", "--listeners", "10", "--p95-ms", "250"]) == 1
    assert "cosydit plan: matplotlib is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        pytest.param(["torch"], "[demo]'", id="a package"),
        pytest.param(["shared libpython", "torch"], "libpython3", id="the library of Python"),
        pytest.param(["checkpoint"], "cosydit checkpoint unpack-demo", id="a checkpoint"),
        pytest.param([], "cosydit say TEXT", id="nothing"),
    ],
)
@pytest.mark.usefixtures("from_wheel")
def test_doctor_tells_a_user_of_the_wheel_no_command_of_the_repository(missing: list[str], expected: str) -> None:
    command = next_command([Finding("x", name, "", State.MISSING) for name in missing])
    assert expected in command and "run_stepaudio2" not in command


def test_a_hint_names_the_program_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert own_command("doctor") == "cosydit doctor"
    program = tmp_path / ".venv" / "bin" / "cosydit"
    program.parent.mkdir(parents=True)
    program.touch()
    assert own_command("doctor") == f"{program} doctor"
    monkeypatch.chdir(tmp_path)
    assert own_command("doctor") == ".venv/bin/cosydit doctor"


@pytest.mark.parametrize("extra", ["gpu", "tensorrt", "tensorrt-rtx", "download"])
def test_every_extra_of_a_gpu_host_can_download_the_checkpoint(extra: str) -> None:
    assert any(requirement.startswith("huggingface_hub") for requirement in PYPROJECT_EXTRAS[extra])
