"""Which names of TensorRT our code uses, read from its source.

`interface.py` declares them class by class, and mypy holds `api.py` to it; `api.py`'s own attribute accesses are read
too, so that nothing goes past the declarations.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from pathlib import Path

from tests.token2wav_service.tensorrt.published_symbols import PROPERTY, VALUE, Members, arity
from token2wav_service.runtime.tensorrt import api, interface, types

MODULE_CLASS = "TensorRTModule"
"""The protocol of the package itself."""
ENUMERATOR = "Enumerator"
PYTHON_ATTRIBUTES = frozenset(
    {"clear", "partition", "getLogger", "log", "warning", "ERROR", "WARNING", "DEBUG", "NOTSET", "join", "values"}
    | {"import_module", "__init__", "items"}
)
"""Of the standard library, as `api.py` uses it."""


@dataclass(frozen=True)
class Use:
    """One declared member."""

    owner: str
    name: str
    kind: str
    """`property`, `value` or `method`."""
    arguments: int = 0
    """Of a method, `self` included."""

    def problem(self, members: Members) -> str | None:
        """Say what the published class has instead; None where it agrees."""
        published = members.get(self.name)
        where = f"{self.owner}.{self.name}"
        if published is None:
            return f"{where} is not published"
        if isinstance(published, str):
            fits = self.kind in (PROPERTY, VALUE) if published == "assigned" else published == self.kind
            return None if fits else f"{where} is used as {self.kind}, published as {published}"
        if self.kind != "method" or self.arguments not in {arity(signature) for signature in published}:
            return f"{where} is used with {self.arguments} arguments, published as {published}"
        return None


def declared_uses() -> list[Use]:
    """Return what the protocols declare, the package's own names apart."""
    return [use for node in _protocols() if node.name != MODULE_CLASS for use in _members(node)]


def declared_module_names() -> set[str]:
    """Return the package's own names that are used."""
    (module,) = (node for node in _protocols() if node.name == MODULE_CLASS)
    return {
        item.target.id for item in module.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def undeclared_accesses(source: str) -> set[str]:
    """Return the attributes that a source reads which neither we, Python nor the protocols define."""
    declared = {use.name for use in declared_uses()} | declared_module_names()
    read = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    ours = [source, inspect.getsource(types)]
    return read - declared - set().union(*map(_own_names, ours)) - PYTHON_ATTRIBUTES - _RANGE


def importers_of_tensorrt(root: Path, packages: tuple[str, ...]) -> set[str]:
    """Return the files that import the package, by `import` or by name."""
    found = set()
    for path in (file for package in packages for file in (root / package).rglob("*.py")):
        tree = ast.parse(path.read_text())
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        called = {ast.unparse(call.func).rpartition(".")[2]: call.args for call in calls}
        by_name = called.get("import_module", [])
        imported |= {arg.value for arg in by_name if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
        if any(name.split(".")[0] == "tensorrt" for name in imported):
            found.add(str(path.relative_to(root)))
    return found


def api_source() -> str:
    """Return the source of the one module that calls TensorRT."""
    return inspect.getsource(api)


_RANGE = frozenset({"min", "opt", "max"})
"""Of `ShapeRange`."""


def _protocols() -> list[ast.ClassDef]:
    tree = ast.parse(inspect.getsource(interface))
    return [node for node in tree.body if isinstance(node, ast.ClassDef)]


def _members(node: ast.ClassDef) -> list[Use]:
    uses = []
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            is_property = any(isinstance(d, ast.Name) and d.id == PROPERTY for d in item.decorator_list)
            arguments = len(item.args.posonlyargs) + len(item.args.args)
            uses.append(Use(node.name, item.name, PROPERTY if is_property else "method", arguments))
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            kind = VALUE if ast.unparse(item.annotation) == ENUMERATOR else PROPERTY
            uses.append(Use(node.name, item.target.id, kind))
    return uses


def _own_names(source: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            names.add(node.attr)
    return names
