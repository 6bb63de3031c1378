"""Prints the size of the product: `python tests/house_figures.py [ROOT]`. Reads files only; imports nothing of them.

The figures of one request's path need the gateway, and stand in `tests/gateway/test_request_path.py`.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

FLOORS = {
    "servicekit": 0,
    "gpukit": 0,
    "llm_service": 1,
    "token2wav_service": 1,
    "gateway": 2,
    "demo_voice": 2,
    "cosydit": 3,
    "benchmarks": 4,
}
WHEEL = tuple(package for package in FLOORS if package != "benchmarks")
ROUTING = "gateway/routing"
LABORATORY = ("lab",)
NO_PAGES = (".venv", ".cosydit", ".pytest_cache", "build", "carry", "CHANGELOG.md")
"""Folders and files whose Markdown is no documentation."""

Graph = dict[str, set[str]]


def main() -> None:
    """Write one figure a line."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    for name, value in house_figures(root).items():
        sys.stdout.write(f"{name:24} {value}\n")


def house_figures(root: Path) -> dict[str, int]:
    """Return each figure by its name.

    Lines are those of Python files. `serve_settings` counts the declared settings that `cosydit serve` has, beside
    `--config` and `--no-gateway`; `routing_constants` the numbers that modules of the gateway's routing name;
    `double_names` the public class names that more than one module of the wheel defines.
    """
    wheel = _files(root, *WHEEL)
    routing = _files(root, ROUTING)
    names = Counter(name for path in wheel for name in _public_classes(path))
    imports = import_graph(root, _files(root, *FLOORS))
    return {
        "wheel_lines": _lines(wheel),
        "wheel_files": len(wheel),
        "benchmarks_lines": _lines(_files(root, "benchmarks")),
        "test_lines": _lines(_files(root, "tests")),
        "lab_lines": _lines(_files(root, *LABORATORY)),
        "doc_words": sum(len(page.read_text("utf-8").split()) for page in _pages(root)),
        "serve_settings": _served(root),
        "routing_lines": _lines(routing),
        "routing_constants": sum(_numbers_named(path) for path in routing),
        "double_names": sum(count > 1 for count in names.values()),
        "imports_up_the_floors": sum(floor(a) < floor(b) for a, targets in imports.items() for b in targets),
        "circles_of_files": sum(len(circle) > 1 for circle in strong_components(imports)),
    }


def import_graph(root: Path, files: Sequence[Path]) -> Graph:
    """Return which module imports which other module of ours; an import counts wherever it stands."""
    names = {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}
    return {name: set(_imported(path, set(names))) - {name} for name, path in names.items()}


def floor(module: str) -> int:
    """Return the floor of the package that a module is in."""
    return FLOORS[module.partition(".")[0]]


def strong_components(graph: Graph) -> list[set[str]]:
    """Return the sets of nodes that reach each other."""
    reach = {node: _reachable(graph, node) for node in graph}
    found: list[set[str]] = []
    done: set[str] = set()
    for node in graph:
        if node not in done:
            component = {other for other in reach[node] if node in reach[other]} | {node}
            done |= component
            found.append(component)
    return found


def _files(root: Path, *folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (root / folder).rglob("*.py"))


def _pages(root: Path) -> Iterator[Path]:
    for path in root.rglob("*.md"):
        if not set(NO_PAGES) & set(path.relative_to(root).parts):
            yield path


def _lines(files: Sequence[Path]) -> int:
    return sum(len(path.read_text("utf-8").splitlines()) for path in files)


def _public_classes(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def _numbers_named(path: Path) -> int:
    """Count the numbers of a module's constants, and the default numbers of its settings."""
    count = 0
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            is_named = any(isinstance(leaf, ast.Name) for target in targets for leaf in ast.walk(target))
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            if is_named and node.col_offset in (0, 4):
                count += sum(_is_number(value) for value in values)
    return count


def _is_number(node: ast.expr) -> bool:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return False
    return isinstance(value, int | float) and not isinstance(value, bool) and value != 0


def _served(root: Path) -> int:
    """Count the settings of `cosydit serve`: calls of `Setting` that do not leave it out, and names of token2wav's."""
    count = 0
    for name in ("gateway/settings.py", "llm_service/config.py", "cosydit/cli/stack_options.py"):
        calls = [node for node in ast.walk(ast.parse((root / name).read_text("utf-8"))) if isinstance(node, ast.Call)]
        made = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id.endswith("Setting")]
        count += sum(all(keyword.arg != "in_serve" for keyword in call.keywords) for call in made)
    return count + len(_names_of(root / "token2wav_service/serving/settings.py", "SERVED"))


def _names_of(path: Path, constant: str) -> Sequence[str]:
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == constant:
            return [str(name) for name in ast.literal_eval(node.value)]
    return ()


def _reachable(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    stack = [start]
    while stack:
        for target in graph[stack.pop()] - seen:
            seen.add(target)
            stack.append(target)
    return seen


def _imported(path: Path, known: set[str]) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in known]
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [module if module in known else node.module for module in whole]
    return [module for module in found if module in known]


if __name__ == "__main__":
    main()
