"""Everything we use of TensorRT is in the published bindings of versions 10 and 11, and in TensorRT for RTX.

`published_symbols.json` lists classes, members and signatures of the bindings' wheels, read from their symbols: without
TensorRT's libraries they can't be loaded. TensorRT for RTX is asked itself where it is installed.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from token2wav_service.runtime.tensorrt import api
from token2wav_service.runtime.tensorrt.manifest import RTX_ARCHITECTURES

SYMBOLS = json.loads(Path(__file__).with_name("published_symbols.json").read_text())
BINDINGS = [pytest.param(entry["classes"], id=min(entry["wheels"])) for entry in SYMBOLS["bindings"]]
RTX_ONLY = frozenset(
    "BuilderFlag ComputeCapability DynamicShapesKernelSpecializationStrategy EAGER REQUIRE_USER_ALLOCATION "
    "create_runtime_config dynamic_shapes_kernel_specialization_strategy num_compute_capabilities "
    "set_compute_capability set_execution_context_allocation_strategy set_flag".split()
)
"""Names that are used of TensorRT for RTX alone."""
PYTHON_ATTRIBUTES = frozenset(
    "DEBUG NOTSET __init__ clear close getLogger import_module items join log max min n opt partition pop replace stem "
    "total update upper values".split()
)
"""Of the standard library, tqdm and `ShapeRange`, as `api.py` uses them."""

Members = Mapping[str, str | list[str]]
"""Name to what it is; a method's signatures, one for each overload."""


def _foreign(source: str) -> dict[str, set[int]]:
    """Return the attributes that a source reads of TensorRT, each with the numbers of arguments it is called with."""
    tree = ast.parse(source)
    ours = _own_names(source) | PYTHON_ATTRIBUTES
    used: dict[str, set[int]] = {
        node.attr: set() for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr not in ours
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in used:
            used[node.func.attr].add(len(node.args))
    return used


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


def _problems(used: Mapping[str, set[int]], classes: Mapping[str, Members]) -> list[str]:
    """Say which names are not published, or take another number of arguments."""
    found = []
    for name, calls in used.items():
        published = [members[name] for members in classes.values() if name in members]
        signatures = [text for value in published if isinstance(value, list) for text in value]
        if not published and name not in classes:
            found.append(f"{name} is not published")
        elif signatures and not calls <= {_arity(text) - 1 for text in signatures}:
            found.append(f"{name} is called with {calls} arguments, published are {signatures}")
    return found


def _arity(signature: str) -> int:
    """Return how many arguments a signature takes, `self` included."""
    arguments, depth = 0, 0
    for letter in signature.rpartition(" -> ")[0]:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        arguments += letter == "{" and depth == 1
    return arguments


def test_the_list_is_of_both_major_versions() -> None:
    assert {name.split("-")[1].split(".")[0] for e in SYMBOLS["bindings"] for name in e["wheels"]} == {"10", "11"}


@pytest.mark.parametrize("classes", BINDINGS)
def test_every_name_that_we_use_is_published_with_its_number_of_arguments(classes: Mapping[str, Members]) -> None:
    used = _foreign(inspect.getsource(api))
    assert len(used) > 40 and set(used) >= RTX_ONLY
    assert _problems({name: calls for name, calls in used.items() if name not in RTX_ONLY}, classes) == []


def test_every_name_that_we_use_is_in_tensorrt_for_rtx() -> None:
    rtx = pytest.importorskip("tensorrt_rtx_bindings", reason="the extra tensorrt-rtx is not installed")
    offered = set(dir(rtx)).union(*(dir(getattr(rtx, name)) for name in dir(rtx)), dir(rtx.ILogger.Severity))
    assert set(_foreign(inspect.getsource(api))) - offered == set()
    known = {name.lower() for name in dir(rtx.ComputeCapability) if name.startswith("SM")}
    assert known == set(RTX_ARCHITECTURES)


def test_the_comparison_finds_what_version_11_removed_and_wrong_arguments() -> None:
    by_major: dict[str, Any] = {min(e["wheels"]).split("-")[1][:2]: e["classes"] for e in SYMBOLS["bindings"]}
    removed = _foreign("engine.create_execution_context_without_device_memory()")
    assert _problems(removed, by_major["10"]) == []
    assert _problems(removed, by_major["11"]) != []
    for wrong in (
        "builder.build_cuda_engine(a, b)",
        "context.execute_async_v3(stream, 0)",
        "builder.platform_has_fast_fp16",
    ):
        assert _problems(_foreign(wrong), by_major["11"]) != [], wrong
