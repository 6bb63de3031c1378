"""Reads a folder of golden vectors: tensors by call number, configurations, weights.

A .safetensors file may be compressed: then its name ends in .safetensors.xz, and it goes by the name without .xz.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load, load_file
from torch import Tensor, nn

from token2wav_service.errors import CheckpointError

Tensors = dict[str, Tensor]
Probe = tuple[str, nn.Module, Callable[[tuple[Any, ...], Any], Tensor]]
"""Name of an inner activation in the vectors, its module, and what reads it from the module's inputs and output."""
_COMPRESSED = ".xz"
FAMILY_FOLDERS = ("cosyvoice2_unet", "cosyvoice3_dit")
"""Folders that hold a whole family: flow, vocoder and streams."""


@dataclass(frozen=True)
class VectorFolder:
    """One folder of a golden set, e.g. `a_dit`."""

    path: Path

    @property
    def kind(self) -> str:
        """The name behind the ordering letter: `dit` of `a_dit`; a family's folder goes by its whole name."""
        return self.path.name if self.path.name in FAMILY_FOLDERS else self.path.name.split("_", 1)[-1]

    def tensors(self, name: str) -> Tensors:
        """Read one .safetensors file.

        Raises:
            CheckpointError: the file is missing.
        """
        path = self.path / name
        if (compressed := self.path / f"{name}{_COMPRESSED}").is_file():
            return load(lzma.decompress(compressed.read_bytes()))
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: the folder is not laid out like the golden vectors")
        return load_file(path)

    def json(self, name: str) -> Any:
        """Read one .json file."""
        return json.loads((self.path / name).read_text("utf-8"))

    def optional_json(self, name: str) -> dict[str, Any]:
        """Read one .json file, or nothing where it is not there."""
        return dict(self.json(name)) if (self.path / name).is_file() else {}

    def matching(self, pattern: str) -> Iterator[Path]:
        """Yield the folder's files that match, by name; a compressed one as if it were not."""
        compressed = (path.with_suffix("") for path in self.path.glob(f"{pattern}{_COMPRESSED}"))
        yield from sorted({*self.path.glob(pattern), *compressed})

    def label(self, file: Path, output: str) -> str:
        """Name an output in a report."""
        return f"{self.path.name}/{file.stem}.{output}"


def calls(tensors: Tensors) -> list[Tensors]:
    """Split `cN.`-prefixed tensors by call, in order."""
    found: dict[int, Tensors] = {}
    for key, value in tensors.items():
        match = re.fullmatch(r"c(\d+)\.(.+)", key)
        if match:
            found.setdefault(int(match[1]), {})[match[2]] = value
    return [found[number] for number in sorted(found)]


def step_counts(tensors: Tensors) -> list[int]:
    """Return N of every `nN.`-prefixed group."""
    return sorted({int(m[1]) for key in tensors if (m := re.match(r"n(\d+)\.", key))})


@contextmanager
def probed(probes: Sequence[Probe]) -> Iterator[Tensors]:
    """Collect inner activations under the vectors' names while a model runs."""
    found: Tensors = {}

    def record(module: nn.Module, inputs: tuple[Any, ...], output: Any, probe: Probe) -> None:
        found[probe[0]] = probe[2](inputs, output)

    with ExitStack() as stack:
        for probe in probes:
            stack.callback(probe[1].register_forward_hook(partial(record, probe=probe)).remove)
        yield found
