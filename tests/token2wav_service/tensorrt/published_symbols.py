"""Which names TensorRT's published Python bindings offer, read from their wheels without loading them.

`python -m tests.token2wav_service.tensorrt.published_symbols WHEEL...` writes `published_symbols.json`. The wheels come
from PyPI:
`pip download --no-deps --only-binary=:all: --platform manylinux_2_28_x86_64 --python-version 3.12 \
    'tensorrt-cu12-bindings==10.*'` (and 11).

The bindings are made with pybind11 and are not stripped. Their `bind...` functions create one class after another and
add its members; each creation and addition is a call that takes the name as a string constant. Signatures are the
texts that pybind11 makes of the bound function's types, `%` standing for a class.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.token2wav_service.tensorrt.elf import Call, Load, SharedLibrary

SYMBOLS_FILE = Path(__file__).with_name("published_symbols.json")
LIBRARY = "tensorrt_bindings/tensorrt.so"
PYTHON_PART = "tensorrt_bindings/__init__.py"

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")
_BIND = re.compile(r"_ZN8tensorrt\d+bind[A-Z]\w*?ERN8pybind117module_E\Z")
_CLASS = re.compile(r"(?P<kind>5enum_|6class_)I.*EC[12]I")
_PROPERTY = re.compile(r"6class_I.*E\d+def_(property|read)\w*?I|def_property_static_impl")
_METHOD = re.compile(r"6class_I.*E3defI|add_class_method")
_VALUE = re.compile(r"5enum_I.*E5valueE")
_INTERNAL = "_pybind11_conduit_v1_"
PROPERTY, VALUE, ASSIGNED = "property", "value", "assigned"

Members = dict[str, str | list[str]]
"""Name to what it is; a method's signatures, one for each overload."""


@dataclass
class _Reader:
    """Follows one bind function."""

    library: SharedLibrary
    classes: dict[str, Members] = field(default_factory=dict)
    _class: str | None = None
    _enumeration: str | None = None
    """May stand inside a class; values go here, everything else to the class."""
    _is_class_next: bool = False
    _second_argument: str | None = None
    _looked_up: str | None = None
    """The name whose earlier overload was looked up; it is kept in a register until it is added."""
    _latest: str | None = None
    _signature: str | None = None

    def read(self, address: int) -> None:
        for event in self.library.body(address):
            if isinstance(event, Load):
                self._load(event)
            else:
                self._call(event)

    def _load(self, load: Load) -> None:
        if load.text.startswith("({"):
            self._signature = load.text
        if not _IDENTIFIER.match(load.text):
            return
        if self._is_class_next:
            self._begin(load.text)
            return
        self._latest = load.text
        if load.is_second_argument:
            self._second_argument = load.text

    def _call(self, call: Call) -> None:
        names = " ".join(call.names)
        if "11type_recordC" in names:
            self._is_class_next = True
        elif created := _CLASS.search(names):
            self._begin(self._second_argument or self._inside(call), created["kind"] == "5enum_")
        elif _VALUE.search(names):
            self._add(self._enumeration, self._second_argument or self._inside(call), VALUE)
        elif _PROPERTY.search(names):
            self._add(self._class, self._second_argument or self._inside(call), PROPERTY)
        elif "add_class_method" in names:
            self._add(self._class, self._second_argument or self._looked_up, self._signature)
        elif _METHOD.search(names):
            self._add(self._class, self._second_argument or self._inside(call), self._signature_inside(call))
        elif "7getattrE" in names:
            self._looked_up = self._latest
        self._second_argument = None

    def _begin(self, name: str | None, is_enumeration: bool = False) -> None:
        self._is_class_next = False
        if is_enumeration:
            self._enumeration = name
        else:
            self._class = name
        if name is not None:
            self.classes.setdefault(name, {})

    def _add(self, owner: str | None, name: str | None, what: str | None) -> None:
        self._signature = self._looked_up = None
        if owner is None or name is None or what is None or name == _INTERNAL:
            return
        if what in (VALUE, PROPERTY):
            self.classes[owner][name] = what
            return
        signatures = self.classes[owner].setdefault(name, [])
        if isinstance(signatures, list) and what not in signatures:
            signatures.append(what)

    def _inside(self, call: Call) -> str | None:
        """Return the name that the compiler moved into the called function."""
        texts = [event.text for event in self.library.body(call.address) if isinstance(event, Load)]
        return next((text for text in texts if _IDENTIFIER.match(text)), None)

    def _signature_inside(self, call: Call) -> str | None:
        texts = [event.text for event in self.library.body(call.address) if isinstance(event, Load)]
        return next((text for text in texts if text.startswith("({")), None)


def read_library(image: bytes) -> dict[str, Members]:
    """Return the classes and enumerations that a bindings library makes, with their members."""
    reader = _Reader(SharedLibrary(image))
    for address, name in reader.library.functions():
        if _BIND.match(name):
            reader.read(address)
    return reader.classes


def read_python_part(source: str) -> dict[str, Members]:
    """Return what the package's `__init__` adds to classes, and its own names under ''."""
    added: dict[str, Members] = {"": {}}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Assign):
            continue
        for target in (*node.targets, node.value):
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                added.setdefault(target.value.id, {})[target.attr] = ASSIGNED
            elif isinstance(target, ast.Name) and target in node.targets:
                added[""][target.id] = ASSIGNED
    return added


def read_wheel(wheel: Path) -> dict[str, Members]:
    """Return everything a bindings wheel offers, by class; module names that are no classes under ''."""
    with zipfile.ZipFile(wheel) as archive:
        offered = read_library(archive.read(LIBRARY))
        for name, members in read_python_part(archive.read(PYTHON_PART).decode()).items():
            offered.setdefault(name, {}).update({k: v for k, v in members.items() if k not in offered.get(name, {})})
    return offered


def arity(signature: str) -> int:
    """Return how many arguments a signature takes, `self` included."""
    arguments, depth = 0, 0
    for letter in signature.rpartition(" -> ")[0]:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        arguments += letter == "{" and depth == 1
    return arguments


def describe(wheels: Iterable[Path], classes: Sequence[str]) -> dict[str, Any]:
    """Return the content of the symbol list: each wheel's name and hash, and what it offers of some classes.

    Wheels that offer the same share an entry.
    """
    entries: list[dict[str, Any]] = []
    for wheel in sorted(wheels):
        offered = read_wheel(wheel)
        own = {name: dict(sorted(offered[name].items())) for name in sorted(classes) if name in offered}
        entry = next((entry for entry in entries if entry["classes"] == own), None)
        if entry is None:
            entry = {"wheels": {}, "classes": own}
            entries.append(entry)
        entry["wheels"][wheel.name] = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return {"made_by": "python -m tests.token2wav_service.tensorrt.published_symbols WHEEL...", "bindings": entries}


def classes_in_use() -> list[str]:
    """Return the classes that the symbol list has to hold; '' for the package's own names."""
    from tests.token2wav_service.tensorrt.used_symbols import declared_module_names, declared_uses

    return sorted({use.owner for use in declared_uses()} | declared_module_names() | {""})


if __name__ == "__main__":
    content = describe([Path(wheel) for wheel in sys.argv[1:]], classes_in_use())
    SYMBOLS_FILE.write_text(json.dumps(content, separators=(",", ":")) + "\n")
