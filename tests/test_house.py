"""Rules of the house that no tool checks: no private call to others, a fast tier that is fast, bounds of its size."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house_figures import FLOORS, house_figures

ROOT = Path(__file__).parents[1]
OF_OTHERS = {
    "argparse._ArgumentGroup",
    "argparse._SubParsersAction",
    "config._attn_implementation",  # Transformers
    "os._exit",  # documented, ends a process at once
    "other._when",  # asyncio's timers
    "timer._scheduled",
    "torch._addmm_activation",
    "torch._foreach_add_",
    "torch._foreach_copy_",
    "torch._foreach_mul_",
    "torch._foreach_sub",
    "torch.cpu._is_amx_tile_supported",
    "torch.ops.mkldnn._linear_pointwise",
    "torch.ops.mkldnn._reorder_linear_weight",
}
"""Names of the standard library and of other packages that have no public form."""


def privates_of_others(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each private attribute that is asked of anything but `self`, `cls` or its own class."""
    of_own_class = {
        id(node)
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute) and node.attr in private_methods(owner)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
            continue
        is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        is_inherited = isinstance(node.value, ast.Call) and ast.unparse(node.value) == "super()"
        if not is_own and not is_inherited and id(node) not in of_own_class and ast.unparse(node) not in OF_OTHERS:
            yield node.lineno, ast.unparse(node)


def private_methods(owner: ast.ClassDef) -> set[str]:
    """Return the private methods and properties that a class defines: it may ask them of its other objects."""
    return {each.name for each in owner.body if isinstance(each, ast.FunctionDef) and each.name.startswith("_")}


@pytest.mark.slow
@pytest.mark.parametrize("package", FLOORS)
def test_nobody_asks_for_a_private_attribute_of_another_object(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in (ROOT / package).rglob("*.py")
        for line, text in privates_of_others(ast.parse(path.read_text("utf-8")))
    ]
    assert found == []


def test_a_test_without_a_mark_starts_no_python_process() -> None:
    with pytest.raises(AssertionError, match="mark it slow"):
        subprocess.run([sys.executable, "--version"], check=True)


BOUNDS = {
    "wheel_lines": 65_946,
    "wheel_files": 412,
    "benchmarks_lines": 4_918,
    "test_lines": 45_991,
    "doc_words": 49_976,
    "serve_settings": 64,
    "routing_lines": 949,
    "routing_constants": 8,
    "double_names": 7,
    "imports_up_the_floors": 0,
    "circles_of_files": 0,
}
"""Largest sizes of the product: it shrinks, and each change that makes it smaller lowers its bound."""


@pytest.mark.slow
def test_the_product_is_no_larger_than_its_bounds() -> None:
    sizes = house_figures(ROOT)
    assert {name: sizes[name] for name, bound in BOUNDS.items() if sizes[name] > bound} == {}
