"""The lock files of the images: complete, hashed, and of the versions that everything else is tested with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.deploy.tools import DEPLOY, ROOT

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")

LOCKS = DEPLOY / "docker" / "locks"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHON = "3.11"
EXTRAS = {
    "gateway": ("text", "audio", "tracing"),
    "engines": ("token2wav", "gpu", "llm-embedded", "triton-embedded", "tracing"),
    "cpu": ("text", "audio", "tracing", "token2wav", "cpu", "llm-embedded", "triton-embedded", "checkpoint"),
}
"""Lock -> what the image can do."""
APART = {"cpu": {"torch"}, "engines": {"torch"}}
"""Packages that install.sh brings by themselves: from cuda.txt, or torch's CPU build."""


def locked(name: str) -> dict[str, str]:
    """Return the version of every package of a lock."""
    pins = re.findall(r"^([\w.-]+)==(\S+)", (LOCKS / f"{name}.txt").read_text(), re.MULTILINE)
    return {canonicalize_name(package): version for package, version in pins}


def test_the_build_context_has_every_package_of_the_wheel() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    find = PROJECT["tool"]["setuptools"]["packages"]["find"]
    packages = {pattern.removesuffix("*") for pattern in find["include"]}
    for package in packages:
        folder = next(Path(where) / package for where in find["where"] if (ROOT / where / package).is_dir())
        assert {str(folder), *map(str, folder.parents)} & allowed, f"{folder} is not in the build context"


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_fits_the_project(name: str) -> None:
    pins = locked(name)
    optional = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *(each for extra in EXTRAS[name] for each in optional[extra])]
    for requirement in map(Requirement, wanted):
        package = canonicalize_name(requirement.name)
        is_for_us = requirement.marker is None or requirement.marker.evaluate({"python_version": PYTHON})
        if package in APART.get(name, set()) or not is_for_us:
            continue
        assert package in pins, f"{package} is not in locks/{name}.txt: run deploy/docker/lock.sh"
        assert requirement.specifier.contains(pins[package]), f"{requirement}, locked {pins[package]}"


@pytest.mark.parametrize("name", ["gateway", "cpu"])
def test_images_have_the_versions_that_the_tests_run_with(name: str) -> None:
    lines = (DEPLOY / "constraints-cpu.txt").read_text().splitlines()
    tested = dict(line.split(" ;")[0].split("==") for line in lines if "==" in line.split(" ;")[0])
    tested = {canonicalize_name(package): version for package, version in tested.items()}
    pins = {package: version for package, version in locked(name).items() if package in tested}
    assert pins and {package: Version(tested[package]) for package in pins} == {
        package: Version(version) for package, version in pins.items()
    }


@pytest.mark.parametrize("name", [*EXTRAS, "cuda", "build"])
def test_every_package_of_a_lock_has_hashes(name: str) -> None:
    blocks = (LOCKS / f"{name}.txt").read_text().replace("\\\n", " ").splitlines()
    assert blocks and all(re.match(r"\S+==\S+ .*--hash=sha256:", block) for block in blocks)


def test_a_gpu_host_has_the_torch_of_the_image() -> None:
    lines = (DEPLOY / "constraints-gpu.txt").read_text().splitlines()
    assert f"torch=={locked('cuda')['torch']}" in lines
