"""The wheel, built from the source distribution, speaks from an environment in which the repository can't be seen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import wave
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND_TIMEOUT_S = 300.0
SPEAK_TIMEOUT_S = 600.0
BUILD_SDIST = "import sys, setuptools.build_meta as backend; backend.build_sdist(sys.argv[1])"

pytestmark = [pytest.mark.servers, pytest.mark.slow]


def run(*command: str | Path, cwd: Path, timeout_s: float = COMMAND_TIMEOUT_S, **variables: str) -> str:
    """Run a command that must succeed, without the repository on any path; return what it wrote to stdout."""
    return finished(command, cwd, timeout_s, variables).stdout


def finished(
    command: Sequence[str | Path], cwd: Path, timeout_s: float, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Do the same, and return all that it wrote."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COSYDIT"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def sources(*folders: str) -> set[str]:
    """Return the repository's files, without what git ignores."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of a copy of the sources, without what git ignores."""
    folder = tmp_path_factory.mktemp("sdist")
    source = folder / "source"
    for name in sources():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-c", BUILD_SDIST, folder, cwd=source)
    (archive,) = folder.glob("cosydit-*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # older than 3.10.12 and 3.11.4 have none
        archive.extractall(folder)
    source = folder / sdist.name.removesuffix(".tar.gz")
    options = ("--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    run(sys.executable, "-m", "pip", "wheel", *options, source, cwd=folder)
    (built,) = folder.glob("cosydit-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment that holds the wheel.

    Packages come from the tests' own environment, appended to the path, but for onnx, which `demo` lacks. An editable
    installation in there has no effect, as Python reads `.pth` files in the environment's own folder only.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    interpreter = folder / "bin" / "python"
    site = run(interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    (Path(site) / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\nimport sys; sys.modules['onnx'] = None\n")
    run(sys.executable, "-m", "pip", "--python", interpreter, "install", "--no-deps", "--no-compile", wheel, cwd=folder)
    return interpreter


def test_the_source_distribution_has_what_a_developer_needs(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("LICENSE", "NOTICE", "Makefile", "README.DIT.md", "run_stepaudio2_dit_token2wav.sh"):
        assert name in names
    assert sources("tests", "deploy", "docs", "proto", "benchmarks") <= names


def test_the_wheel_carries_licence_notices_and_types(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if re.fullmatch(r"cosydit-[^/]+\.dist-info/METADATA", name)]
        header = archive.read(metadata).decode().partition("\n\n")[0]
    assert "License-Expression: Apache-2.0" in header
    for text in ("LICENSE", "NOTICE", *(path.name for path in (ROOT / "demo_voice/licences").iterdir())):
        assert any(name.endswith(text) and ".dist-info/licenses/" in name for name in names), text
    packages = {name.partition("/")[0] for name in names if name.endswith("/__init__.py")} - {"riva", "tts_api"}
    assert packages and all(f"{package}/py.typed" in names for package in packages)
    assert not any(name.startswith("tests/") for name in names)


def test_nothing_of_the_repository_is_seen_from_there(python: Path, tmp_path: Path) -> None:
    program = "import cosydit, gateway, token2wav_service as t; print(cosydit.__file__, gateway.__file__, t.__file__)"
    for path in run(python, "-c", program, cwd=tmp_path).split():
        assert Path(path).is_relative_to(python.parents[1])


def test_its_data_files_are_there(python: Path, tmp_path: Path) -> None:
    plan = run(python.parent / "cosydit", "plan", "--listeners", "10", "--p95-ms", "250", cwd=tmp_path)
    assert "one GPU" in plan


def test_it_speaks_from_there_and_warns_of_what_the_voice_was_not_made_for(python: Path, tmp_path: Path) -> None:
    text = "The library closes at six on Fridays. 今天天气很好。"
    command = (python.parent / "cosydit", "say", text, "--seed", "7")
    done = finished(command, tmp_path, SPEAK_TIMEOUT_S, {"COSYDIT_HOME": str(tmp_path / "home")})
    assert "wrote speech.wav" in done.stdout
    assert "warning: the text is in zh, which the checkpoint does not declare" in done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == ["speech.wav"]
    with wave.open(str(tmp_path / "speech.wav")) as file:
        assert file.getframerate() == 24_000
        assert file.getnframes() > file.getframerate()
