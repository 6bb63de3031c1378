"""`.ci/run` takes the tests' command from README.md and runs exactly that."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests import ROOT


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder that holds `.ci/run` and nothing else."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    return tmp_path


def ci_run(clone: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([clone / ".ci" / "run"], capture_output=True, text=True, timeout=30, check=False, cwd="/")


def test_the_second_command_of_the_first_block_runs_in_the_clone(clone: Path) -> None:
    (clone / "README.md").write_text("# T\n\n```bash\necho main\n\necho tests in $PWD\n```\n\n```\necho later\n```\n")
    done = ci_run(clone)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == f"tests in {clone}"
    assert "later" not in done.stdout


def test_a_failing_test_command_fails_the_run(clone: Path) -> None:
    (clone / "README.md").write_text("```\ntrue\nexit 7\n```\n")
    assert ci_run(clone).returncode == 7


@pytest.mark.parametrize(
    "readme",
    [
        pytest.param(None, id="no-readme"),
        pytest.param("no block at all\n", id="no-block"),
        pytest.param("```\none\n```\n\n```\na\nb\n```\n", id="one-command"),
        pytest.param("```\none\ntwo\nthree\n```\n", id="three-commands"),
    ],
)
def test_a_readme_without_its_two_commands_fails_the_run(clone: Path, readme: str | None) -> None:
    if readme is not None:
        (clone / "README.md").write_text(readme)
    done = ci_run(clone)
    assert done.returncode == 1
    assert "README.md" in done.stderr


def test_the_projects_own_readme_names_the_main_job_and_the_tests() -> None:
    block = (ROOT / "README.md").read_text("utf-8").split("```")[1].strip().splitlines()
    commands = [line for line in block if line and not line.isalpha()]
    assert [command.split()[:3] for command in commands] == [
        ["bash", "run_stepaudio2_dit_token2wav.sh", "say"],
        ["bash", "run_stepaudio2_dit_token2wav.sh", "test"],
    ]
