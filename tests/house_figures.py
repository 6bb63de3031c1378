"""Counts the figures of docs/decisions/house.md: `python tests/house_figures.py [ROOT]`.

Reads Python files only; imports nothing of them. An import counts wherever it stands, inside a function too.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
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
SHORT_LINES = 60
FLAT_FILES = 20
"""A folder with more Python files than this is flat."""

Graph = dict[str, set[str]]


def main() -> None:
    """Write one figure a line."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    files = sorted(path for package in FLOORS for path in (root / package).rglob("*.py"))
    lines = {path: len(path.read_text().splitlines()) for path in files}
    short = sum(count < SHORT_LINES for count in lines.values())
    folders: dict[Path, int] = defaultdict(int)
    for path in files:
        folders[path.parent.relative_to(root)] += 1
    flat = {str(folder): count for folder, count in folders.items() if count > FLAT_FILES}
    imports = import_graph(root, files)
    up = [(a, b) for a, targets in imports.items() for b in targets if floor(a) < floor(b)]
    circles = [circle for circle in strong_components(imports) if len(circle) > 1]
    lines_out = [
        f"product files                          {len(files)}",
        f"  below {SHORT_LINES} lines                       {short} ({100 * short / len(files):.1f} %)",
        f"  median lines                         {sorted(lines.values())[len(files) // 2]}",
        f"folders of more than {FLAT_FILES} files            {len(flat)} {flat or ''}",
        f"imports that run up the floors         {len(up)}",
        f"pairs of packages that import mutually {len(mutual_pairs(imports))}",
        f"circles of files                       {len(circles)}",
        *("    " + " ".join(sorted(circle)) for circle in circles),
    ]
    sys.stdout.write("\n".join(lines_out) + "\n")


def import_graph(root: Path, files: list[Path]) -> Graph:
    """Return which module imports which other module of ours."""
    names = {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}
    return {name: set(_imported(path, name, set(names))) - {name} for name, path in names.items()}


def floor(module: str) -> int:
    """Return the floor of the package that a module is in."""
    return FLOORS[module.partition(".")[0]]


def mutual_pairs(imports: Graph) -> set[frozenset[str]]:
    """Return the pairs of top-level packages that import each other."""
    edges = {(a.partition(".")[0], b.partition(".")[0]) for a, targets in imports.items() for b in targets}
    return {frozenset(edge) for edge in edges if edge[0] != edge[1] and edge[::-1] in edges}


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


def _reachable(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    stack = [start]
    while stack:
        for target in graph[stack.pop()] - seen:
            seen.add(target)
            stack.append(target)
    return seen


def _imported(path: Path, name: str, known: set[str]) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in known]
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [module if module in known else node.module for module in whole]
    return [module for module in found if module in known]


if __name__ == "__main__":
    main()
