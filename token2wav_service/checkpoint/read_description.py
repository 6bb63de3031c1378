"""Reads the values of a HyperPyYAML file: sizes and references between them. It constructs nothing by tag.

`!new:`, `!name:` and `!apply:` are read as the plain values that they tag. `!ref <key>` is the value of that key, with
`<key[inner]>` for nested ones; `!ref <chunk_size> * <token_mel_ratio>` is a product of numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from token2wav_service.errors import CheckpointError

_REFERENCE = re.compile(r"<([^<>]+)>")
_MAX_DEPTH = 20
"""Most references that lead to further references."""


@dataclass(frozen=True)
class _Reference:
    """The text behind `!ref`."""

    text: str


def read_description(path: Path, trees: tuple[str, ...]) -> dict[str, Any]:
    """Read those of the file's top-level trees that are asked for, references resolved.

    Args:
        path: flow.yaml, cosyvoice2.yaml or cosyvoice3.yaml.
        trees: names of top-level keys; each must be there.

    Raises:
        CheckpointError: missing, not YAML, too deep, another kind of tag, a tree is not there or refers to nothing.
    """
    try:
        values = yaml.load(_read_bytes(path), Loader=_ValuesOnlyLoader)  # noqa: S506  # a SafeLoader
        return {name: _resolve(values[name], values, 0) for name in trees}
    except RecursionError as err:
        raise CheckpointError(f"{path} is nested too deeply to be a model's description; download it again") from err
    except (yaml.YAMLError, KeyError, TypeError, ValueError, ArithmeticError) as err:
        raise CheckpointError(
            f"{path}: expected the keys {list(trees)} in the official nesting, got {err!r}; "
            "download the file again, or write the sizes as plain numbers"
        ) from err


def _resolve(value: Any, root: Mapping[str, Any], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError("references that lead back to themselves, or nesting beyond 20 levels")
    if isinstance(value, _Reference):
        return _look_up(value.text, root, depth + 1)
    if isinstance(value, Mapping):
        return {key: _resolve(inner, root, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_resolve(inner, root, depth + 1) for inner in value]
    return value


def _look_up(text: str, root: Mapping[str, Any], depth: int) -> Any:
    paths = [_REFERENCE.fullmatch(part.strip()) for part in text.split("*")]
    values = [_resolve(_at_path(path[1], root), root, depth) for path in paths if path is not None]
    if len(values) < len(paths):
        raise ValueError(f"`!ref {text}` is no reference and no product of references")
    if len(values) == 1:
        return values[0]
    if wrong := [value for value in values if isinstance(value, bool) or not isinstance(value, int | float)]:
        raise ValueError(f"`!ref {text}` multiplies {wrong[0]!r}, which is no number")
    return math.prod(values)


def _at_path(path: str, root: Any) -> Any:
    for key in re.split(r"[\[\].]+", path.rstrip("]")):
        if not isinstance(root, Mapping) or key not in root:
            raise ValueError(f"`!ref <{path}>` refers to nothing in the file")
        root = root[key]
    return root


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as err:
        raise CheckpointError(f"{path} can't be read: {err.strerror}") from err


class _ValuesOnlyLoader(yaml.SafeLoader):
    """A safe loader that reads tagged values as plain ones."""


def _construct_tagged(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    assert isinstance(node, yaml.ScalarNode)
    return loader.construct_scalar(node)


def _construct_reference(loader: yaml.SafeLoader, node: yaml.Node) -> _Reference:
    if not isinstance(node, yaml.ScalarNode):
        raise yaml.YAMLError("!ref must stand before a text such as <key>")
    return _Reference(str(loader.construct_scalar(node)))


for _prefix in ("!new:", "!name:", "!apply:"):
    _ValuesOnlyLoader.add_multi_constructor(_prefix, _construct_tagged)
for _tag in ("!ref", "!copy"):
    _ValuesOnlyLoader.add_constructor(_tag, _construct_reference)
