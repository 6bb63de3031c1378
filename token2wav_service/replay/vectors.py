"""Reads a folder of golden vectors (tensors by call number, configurations, weights) and compares outputs with them.

A .safetensors file may be compressed: then its name ends in .safetensors.xz, and it goes by the name without .xz.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load, load_file
from torch import Tensor, nn

from token2wav_service.checkpoint.loader import load_weights
from token2wav_service.errors import CheckpointError
from token2wav_service.replay.report import FLOW_TOLERANCE, Report

Tensors = dict[str, Tensor]
Module = TypeVar("Module", bound=nn.Module)
Probe = tuple[str, nn.Module, Callable[[tuple[Any, ...], Any], Tensor]]
"""Name of an inner activation in the vectors, its module, and what reads it from the module's inputs and output."""
FAMILY_FOLDERS = ("cosyvoice2_unet", "cosyvoice3_dit")
"""Folders that hold a whole family: flow, vocoder and streams."""


@dataclass(frozen=True)
class VectorFolder:
    """One folder of a golden set, e.g. `a_dit`, and the report that its outputs go to."""

    path: Path
    report: Report = field(default_factory=Report)

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
        if (compressed := self.path / f"{name}.xz").is_file():
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

    def load(self, module: Module, name: str = "weights.safetensors") -> Module:
        """Fill a module with the folder's weights."""
        return load_weights(module, self.tensors(name), self.path)

    def case(self, name: str) -> GoldenCase:
        """Read the vectors of one file, named without its suffix."""
        return GoldenCase(self.tensors(f"{name}.safetensors"), f"{self.path.name}/{name}", self.report)

    def cases(self, pattern: str) -> Iterator[GoldenCase]:
        """Yield the vectors of the files whose names match, in their order; a compressed one as if it were not."""
        names = {path.name.split(".")[0] for path in self.path.glob(f"{pattern}.safetensors*")}
        yield from map(self.case, sorted(names))


@dataclass(frozen=True)
class GoldenCase:
    """Inputs and expected outputs by name, and the report that compares what was computed."""

    tensors: Tensors
    label: str
    """What the report calls it: `folder/file`, and the call."""
    report: Report

    def __getitem__(self, key: str) -> Tensor:
        return self.tensors[key]

    def __contains__(self, key: str) -> bool:
        return key in self.tensors

    @property
    def name(self) -> str:
        """The file's name, without its folder."""
        return self.label.split("/")[-1]

    def take(self, *keys: str) -> list[Tensor]:
        """Return tensors by name."""
        return [self.tensors[key] for key in keys]

    def close(self, key: str, got: Tensor, tolerance: float = FLOW_TOLERANCE, note: str = "") -> None:
        """Compare an output by its largest absolute error."""
        self.report.check_close(f"{self.label}.{key}{note}", got, self.tensors[key], tolerance)

    def close_if_held(self, key: str, got: Tensor, tolerance: float = FLOW_TOLERANCE) -> None:
        """Compare an output that not every set of vectors holds."""
        if key in self.tensors:
            self.close(key, got, tolerance)

    def snr(self, key: str, got: Tensor, note: str = "") -> None:
        """Compare an output by its signal-to-noise ratio."""
        self.report.check_snr(f"{self.label}.{key}{note}", got, self.tensors[key])

    def equal(self, key: str, got: Sequence[object], expected: Sequence[object]) -> None:
        """Compare numbers element by element."""
        self.report.check_equal(f"{self.label}.{key}", got, expected)

    def part(self, prefix: str, label: str) -> GoldenCase:
        """Return what stands under a prefix of the names."""
        held = {key.removeprefix(prefix): value for key, value in self.tensors.items() if key.startswith(prefix)}
        return GoldenCase(held, f"{self.label}{label}", self.report)

    def calls(self) -> list[GoldenCase]:
        """Return what stands under c0., c1., ..., in order."""
        numbers = {int(found[1]) for key in self.tensors if (found := re.match(r"c(\d+)\.", key))}
        return [self.part(f"c{number}.", f".c{number}") for number in sorted(numbers)]

    def step_counts(self, prefix: str = "") -> list[int]:
        """Return N of every group of names that begins with `nN.` behind a prefix."""
        found = (re.match(rf"{re.escape(prefix)}n(\d+)\.", key) for key in self.tensors)
        return sorted({int(match[1]) for match in found if match})


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
