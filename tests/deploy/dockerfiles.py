"""Reads the Dockerfiles: their stages and instructions."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.tools import DEPLOY

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
