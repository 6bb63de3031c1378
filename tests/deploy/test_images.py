"""The images: linted, pinned, and starting what their programs understand. No Docker engine is needed."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.commands import check_command
from tests.deploy.tools import DEPLOY, wheel_program

DOCKERFILES = sorted((DEPLOY / "docker").glob("*.Dockerfile"))


@dataclass(frozen=True)
class Instruction:
    """One instruction, its continued lines joined."""

    name: str
    value: str

    @property
    def words(self) -> list[str]:
        """The value as a command: JSON form as it is, shell form split."""
        if self.value.startswith("["):
            words: list[str] = json.loads(self.value)
            return words
        return shlex.split(self.value)


def instructions(path: Path) -> list[Instruction]:
    """Return every instruction of a Dockerfile in order."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    return [Instruction(*line.split(maxsplit=1)) for line in text.splitlines()]


def last_stage(path: Path) -> list[Instruction]:
    """Return the instructions of the image itself."""
    every = instructions(path)
    begin = max(index for index, each in enumerate(every) if each.name == "FROM")
    return every[begin:]


def values(found: list[Instruction], name: str) -> list[str]:
    """Return the values of every instruction of a name."""
    return [each.value for each in found if each.name == name]


def start_command(path: Path) -> list[str]:
    """Return what the image runs by default."""
    (command,) = [each for each in last_stage(path) if each.name == "CMD"]
    return command.words


def health_command(path: Path) -> list[str]:
    """Return what tells whether the image's container is well."""
    (value,) = values(last_stage(path), "HEALTHCHECK")
    return Instruction("CMD", value.partition(" CMD ")[2].strip()).words


def install_commands(path: Path) -> list[list[str]]:
    """Return the arguments of install.sh in the order in which the build calls it."""
    words = [part.split() for value in values(instructions(path), "RUN") for part in value.split("&&")]
    return [each[2:] for each in words if each[:2] == ["bash", "deploy/docker/install.sh"]]


IMAGES = [pytest.param(path, id=path.name.removesuffix(".Dockerfile")) for path in DOCKERFILES]


@pytest.mark.parametrize("path", IMAGES)
def test_hadolint_finds_nothing(path: Path) -> None:
    done = wheel_program("hadolint").run("--config", ".hadolint.yaml", str(path))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("path", IMAGES)
def test_an_image_starts_and_checks_what_its_program_takes(path: Path) -> None:
    check_command(start_command(path))
    check_command(health_command(path))


@pytest.mark.parametrize("path", IMAGES)
def test_an_image_runs_as_nobody_special_and_writes_utf8_and_has_no_entry_point_of_its_base(path: Path) -> None:
    stage = last_stage(path)
    assert values(stage, "USER") == ["10001:10001"]
    is_own = values(stage, "FROM") == ["${BASE}"]
    assert values(stage, "ENTRYPOINT") == ([] if is_own else ["[]"])
    assert "PYTHONIOENCODING=utf-8" in " ".join(values(stage, "ENV"))


@pytest.mark.parametrize("path", IMAGES)
def test_bases_are_pinned_and_stages_are_two(path: Path) -> None:
    bases = [value.split(" AS ")[0] for value in values(instructions(path), "FROM")]
    assert len(bases) == 2
    if bases == ["${BASE}", "${BASE}"]:
        assert instructions(path)[0].value == "BASE=debian:bookworm-slim"
        return
    for base in bases:
        assert re.fullmatch(r"\S+:v?\d+\.\d\S*", base), base


@pytest.mark.parametrize("path", IMAGES)
def test_all_that_is_installed_comes_through_the_shared_script(path: Path) -> None:
    installed = {
        "gateway": [["packages", "gateway", "/opt/cosydit"], ["project", "/opt/cosydit"], ["slim", "/opt/cosydit"]],
        "engines": [["packages", '"$NAME"', "/opt/cosydit", '"$COMPUTE"'], ["project", "/opt/cosydit"]],
    }
    expected = installed.get(path.name.removesuffix(".Dockerfile"), [["folder", "/opt/cosydit"]])
    assert install_commands(path) == expected
    assert not re.search(r"pip install|git clone|curl|wget|ADD ", path.read_text())


def test_the_packages_of_a_base_do_not_stand_before_ours() -> None:
    """The bases with packages of their own set no path in which ours would come later."""
    for path in DOCKERFILES:
        if values(last_stage(path), "FROM") != ["${BASE}"]:
            assert "PYTHONPATH=/opt/cosydit " in " ".join(values(last_stage(path), "ENV"))
    script = (DOCKERFILES[0].parent / "install.sh").read_text()
    assert script.index("unset PYTHONPATH") < script.index("install_packages()")
