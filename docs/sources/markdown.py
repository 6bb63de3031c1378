"""Small pieces of Markdown, and what a class says about its attributes."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence

WARNING = "<!-- Written by docs/generate.py. Change the source that it names, then run it again. -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells may hold Markdown."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join(lines)


def listing(rows: Iterable[tuple[str, str, str]]) -> str:
    """Return a list of names, each with its default (or type) in parentheses, if it has one, and its meaning."""
    return "\n".join(f"- {name}{f' ({note})' if note else ''}: {_line(text).rstrip('.')}" for name, text, note in rows)


def code(text: str) -> str:
    """Return a text as code, nothing as nothing."""
    return f"`{text}`" if text else ""


def attribute_docs(cls: type) -> dict[str, str]:
    """Return the docstring below each attribute of a class, its bases included, on one line each."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if each.__module__ != "builtins" and "pydantic" not in each.__module__:
            found |= _own_docs(each)
    return found


def _own_docs(cls: type) -> dict[str, str]:
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            docs[statement.target.id] = " ".join(str(following.value.value).split())
    return docs


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")


def _line(text: str) -> str:
    """Keep a text on one line, and what looks like HTML, outside code, as text."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)
