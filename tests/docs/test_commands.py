"""Commands in the documentation: marked as run or never run, and such as their programs understand."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
from collections.abc import Iterator

import pytest

from cosydit.cli.main import build_parser
from tests.docs.pages import PAGES, ROOT, Fence, fences

COMMAND_LANGUAGES = ("bash", "python")
OTHER_LANGUAGES = ("json", "text", "toml")
RUN = "<!-- run here -->"
NEVER_RUN = re.compile(r"<!-- never run here[^:]*: .{10,} -->")
OWN_RULES = {"demo_voice/README.md", "lab/train/README.md"}
"""Written for the model, with figures of the run that made it."""
FENCES = [fence for page in PAGES for fence in fences(page) if str(page.relative_to(ROOT)) not in OWN_RULES]
COMMANDS = [fence for fence in FENCES if fence.language in COMMAND_LANGUAGES]
SEPARATORS = {"&&", "||", "|", ";", "&", ">", "<", "2>"}


def is_the_two_commands(fence: Fence) -> bool:
    """Whether it is README.md's first block, whose form is given and which CI runs."""
    return fence.page == ROOT / "README.md" and fence is fences(fence.page)[0]


@pytest.mark.parametrize("fence", FENCES, ids=str)
def test_a_fenced_block_has_a_language(fence: Fence) -> None:
    assert is_the_two_commands(fence) or fence.language in COMMAND_LANGUAGES + OTHER_LANGUAGES


@pytest.mark.parametrize("fence", COMMANDS, ids=str)
def test_a_block_of_commands_says_whether_it_was_run(fence: Fence) -> None:
    assert fence.mark == RUN or NEVER_RUN.fullmatch(fence.mark), fence.mark


@pytest.mark.parametrize("fence", [fence for fence in COMMANDS if fence.language == "bash"], ids=str)
def test_cosydit_commands_and_modules_are_understood(fence: Fence) -> None:
    for words in commands_of(fence.text):
        if words[0].endswith("cosydit"):
            check_cosydit(words[1:])
        elif "-m" in words[:2] and words[0].endswith("python"):
            assert importlib.util.find_spec(words[words.index("-m") + 1]) is not None, words
        elif words[0] == "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert set(words[1:]) <= set(targets)


@pytest.mark.parametrize("fence", [fence for fence in COMMANDS if fence.language == "python"], ids=str)
def test_python_programs_compile(fence: Fence) -> None:
    compile(fence.text, str(fence), "exec")


def test_an_unknown_option_is_noticed() -> None:
    with pytest.raises(AssertionError, match="--no-such-option"):
        check_cosydit(["serve", "--no-such-option"])


def commands_of(text: str) -> Iterator[list[str]]:
    """Yield the simple commands of a script, without variables set before them."""
    for line in text.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in [*shlex.split(line, comments=True), ";"]:
            if word in SEPARATORS:
                if words:
                    yield words
                words = []
            elif words or not re.match(r"[A-Z_0-9]+=", word):
                words.append(word)


def check_cosydit(arguments: list[str]) -> None:
    """Fail unless the `cosydit` command takes these arguments."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            build_parser().parse_args(arguments)
    except SystemExit:
        raise AssertionError(complaint.getvalue()) from None
