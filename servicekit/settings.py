"""Settings that are declared once: a table gives the command line, the environment, a TOML file and the error texts.

A section is the table of one program. Where a setting is given several times, the command line wins, then the
environment, then the file; a setting that nobody gives has its default. What is given stays text until a program reads
it, so that one program can hand it on to another.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Given = dict[str, "str | list[str]"]
"""Text of settings by name; a list for one that repeats."""
TRUE, FALSE = "true", "false"


class SettingsError(ValueError):
    """A setting that can't be used, in one line: its source, what was got, what was expected."""


@dataclass(frozen=True)
class Kind:
    """A type of values."""

    read: Callable[[str], object]
    """Makes a value of text; its ValueError says what was expected."""
    shown: str
    """Placeholder of a value in help texts; empty: a switch, whose option takes no value."""


@dataclass(frozen=True)
class Setting:
    """One setting as users know it."""

    name: str
    """In a file. The option has hyphens for underscores."""
    help: str
    kind: Kind
    default: str | None = None
    """Text of the default; None: none."""
    repeats: bool = False
    """Whether it may be given several times; a file has a list."""
    is_required: bool = False
    alias: str | None = None
    """A second, older option."""
    variable: str | None = None
    """Environment variable; None: `COSYDIT_`, the section and the name."""
    in_serve: bool = True
    """Whether `cosydit serve` has it; else only the service's own program does."""

    @property
    def meaning(self) -> str:
        """The help text with the default."""
        return self.help if self.default in (None, "") else f"{self.help} (default {self.default})"


@dataclass(frozen=True)
class Section:
    """The settings of one program."""

    name: str
    """Of the section in a file; empty: the file's head."""
    settings: tuple[Setting, ...]
    prefix: str = ""
    """Of its options where several programs are set at once, and of its environment variables."""

    def option(self, setting: Setting, has_prefix: bool = True) -> str:
        """Return the option of a setting; the original's names, in capitals, never have the prefix."""
        prefix = self.prefix if has_prefix and not setting.name.isupper() else ""
        return "--" + f"{prefix}{setting.name}".replace("_", "-").lower()

    def variable(self, setting: Setting) -> str:
        """Return the environment variable of a setting; the original's names are their own."""
        if setting.name.isupper():
            return setting.name
        return setting.variable or f"COSYDIT_{self.prefix}{setting.name}".replace("-", "_").upper()

    def served(self) -> Section:
        """Return the section with the settings that `cosydit serve` has."""
        return Section(self.name, tuple(each for each in self.settings if each.in_serve), self.prefix)


def whole(least: int, most: int | None = None) -> Kind:
    """Return the kind of whole numbers in a range."""
    expected = f"a whole number from {least} to {most}" if most is not None else f"a whole number of at least {least}"

    def read(text: str) -> int:
        if not re.fullmatch(r"-?\d{1,18}", text) or int(text) < least or (most is not None and int(text) > most):
            raise ValueError(f"expected {expected}")
        return int(text)

    return Kind(read, "N")


def number(least: float = 0.0, most: float = float("inf"), *, is_open: bool = False) -> Kind:
    """Return the kind of numbers from `least` to `most`; with `is_open`, `least` itself is refused."""
    bound = f"more than {least:g}" if is_open else f"{least:g} or more"
    expected = f"a number of {bound}" + ("" if most == float("inf") else f" and at most {most:g}")

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"expected {expected}") from None
        if not least <= value <= most or value == float("inf") or (is_open and value == least):
            raise ValueError(f"expected {expected}")
        return value

    return Kind(read, "N")


def argument(kind: Kind) -> Callable[[str], Any]:
    """Return what reads values of a kind for argparse."""

    def read(text: str) -> object:
        try:
            return kind.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"got {text!r}, {error}") from None

    return read


def one_of(*names: str) -> Kind:
    """Return the kind of a few words."""

    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"expected {' or '.join((', '.join(names[:-1]), names[-1]) if names[1:] else names)}")
        return text

    return Kind(read, "|".join(names))


def _switch(text: str) -> bool:
    if text.lower() not in (TRUE, FALSE):
        raise ValueError(f"expected {TRUE} or {FALSE}")
    return text.lower() == TRUE


TEXT = Kind(str, "TEXT")
PATH = Kind(Path, "PATH")
SWITCH = Kind(_switch, "")
PORT = whole(0, 65535)
SECONDS = number()
COUNT = whole(1)


def add_options(parser: argparse.ArgumentParser, section: Section, has_prefix: bool = True) -> None:
    """Add the options of a section, in a group of its name."""
    group = parser.add_argument_group(section.name or "settings")
    for setting in section.settings:
        words = [section.option(setting, has_prefix), *([setting.alias] if setting.alias else [])]
        dest, meaning = _dest(section, setting), setting.meaning.replace("%", "%%")
        if not setting.kind.shown:
            group.add_argument(*words, dest=dest, action="store_const", const=TRUE, help=meaning)
        else:
            action = "append" if setting.repeats else "store"
            group.add_argument(*words, dest=dest, action=action, metavar=setting.kind.shown, help=meaning)


def given_settings(
    section: Section,
    args: argparse.Namespace,
    environment: Mapping[str, str],
    file: Mapping[str, Given] | None = None,
    has_prefix: bool = True,
) -> Given:
    """Return what users gave of a section, each value checked.

    Args:
        section: whose options `add_options` added.
        environment: variables; an empty one counts as not given.
        file: what `read_file` returned.
        has_prefix: as for `add_options`.

    Raises:
        SettingsError: a value that can't be read.
    """
    given: Given = {}
    for setting in section.settings:
        sources = (
            (section.option(setting, has_prefix), getattr(args, _dest(section, setting), None)),
            (section.variable(setting), environment.get(section.variable(setting)) or None),
            (f"{setting.name} in the file", (file or {}).get(section.name, {}).get(setting.name)),
        )
        for source, value in sources:
            if value is not None:
                given[setting.name] = _checked(setting, source, value)
                break
    return given


def _checked(setting: Setting, source: str, value: str | list[str]) -> str | list[str]:
    if setting.repeats:
        value = _parts(value)
    for text in [value] if isinstance(value, str) else value:
        try:
            setting.kind.read(text)
        except ValueError as error:
            raise SettingsError(f"got {source} {text!r}; {error}") from None
    return value


def read_settings(section: Section, given: Given) -> argparse.Namespace:
    """Return the value of each setting: read from what was given, else from its default; None without one.

    Raises:
        SettingsError: a required setting is missing.
    """
    values: dict[str, object] = {}
    for setting in section.settings:
        got = given.get(setting.name, setting.default)
        if got is None and setting.is_required:
            named = f"{section.option(setting, has_prefix=False)} or {section.variable(setting)}"
            raise SettingsError(f"{setting.name} is missing ({setting.help}); give {named}")
        if setting.repeats:
            values[setting.name] = [setting.kind.read(text) for text in _parts(got or [])]
        elif setting.kind is SWITCH:
            values[setting.name] = got == TRUE
        else:
            values[setting.name] = None if got is None else setting.kind.read(str(got))
    return argparse.Namespace(**values)


def as_options(given: Mapping[str, str | list[str]]) -> list[str]:
    """Return what was given as the command line of the program that has the section."""
    words: list[str] = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-').lower()}"
        if value == TRUE:
            words.append(option)
        elif value != FALSE:
            words += [word for text in ([value] if isinstance(value, str) else value) for word in (option, text)]
    return words


def read_file(path: Path, sections: Sequence[Section]) -> dict[str, Given]:
    """Read a TOML file: the head and a table a section; the values become text.

    Raises:
        SettingsError: it can't be read, is no TOML, or has a section or a setting that is not known.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"can't read the settings of {path}: {error}") from error
    tables = {section.name: section for section in sections}
    found: dict[str, Given] = {name: {} for name in tables}
    for name, value in content.items():
        items = {name: value} if not isinstance(value, dict) else value
        section = tables.get(name if isinstance(value, dict) else "")
        if section is None:
            raise SettingsError(f"{path} has the section [{name}]; known are {', '.join(filter(None, tables))}")
        known = {setting.name for setting in section.settings}
        for key, item in items.items():
            if key not in known:
                where = f"[{section.name}]" if section.name else "its head"
                raise SettingsError(f"{path} has {key} in {where}; known there are {', '.join(sorted(known))}")
            found[section.name][key] = list(_texts(item)) if isinstance(item, list) else next(_texts(item))
    return found


def _texts(value: object) -> Iterator[str]:
    for item in value if isinstance(value, list) else [value]:
        yield str(item).lower() if isinstance(item, bool) else str(item)


def _parts(value: str | list[str]) -> list[str]:
    return [part for text in ([value] if isinstance(value, str) else value) for part in text.split(",")]


def _dest(section: Section, setting: Setting) -> str:
    return f"{section.name}.{setting.name}"
