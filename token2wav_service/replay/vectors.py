"""Reads a folder of golden vectors (tensors by call number, configurations, weights) and compares outputs with them.

A .safetensors file may be compressed: then its name ends in .safetensors.xz, and it goes by the name without .xz.
"""

from __future__ import annotations

import json
import lzma
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from safetensors.torch import load, load_file
from torch import Tensor, nn

from token2wav_service.checkpoint.loader import load_weights
from token2wav_service.errors import CheckpointError

Tensors = dict[str, Tensor]
Module = TypeVar("Module", bound=nn.Module)
FLOW_TOLERANCE = 1e-4
"""Largest absolute error of mel, hidden frames and caches, fp32 on a CPU."""
F0_TOLERANCE_HZ = 2e-3
DECODE_TOLERANCE = 1e-4
"""Largest absolute error of the waveform from given mel and source."""
INJECTED_TOLERANCE = 1e-3
"""Largest absolute error of the streamed waveform with the source injected."""
_TOLERANCES = {
    "f0": F0_TOLERANCE_HZ,
    "uv": 0.0,
    "speech_window": 1e-12,
    **dict.fromkeys(("sine_no_noise", "source"), 1e-3),
    **dict.fromkeys(("wav", "speech"), INJECTED_TOLERANCE),
}
"""Largest absolute error of outputs by the last part of their names; FLOW_TOLERANCE of all others."""
WAVE_SNR_DB = 45.0
"""Least ratio of the waveform end to end: the vocoder amplifies phase errors, so max abs says little."""


@dataclass(frozen=True)
class Row:
    """One output's verdict."""

    output: str
    measure: str
    """What `error` counts: "max abs", "SNR dB" (more is better) or "mismatches"; or why nothing was compared."""
    error: float
    tolerance: float
    passed: bool


def snr_db(got: Tensor, expected: Tensor) -> float:
    """Return 10 log10(|expected|^2 / |got - expected|^2); infinite when equal."""
    wanted = expected.cpu().double()
    noise, signal = (each.pow(2).sum().item() for each in (got.cpu().double() - wanted, wanted))
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


@dataclass(frozen=True)
class VectorFolder:
    """One folder of a golden set, e.g. `a_dit`, and the rows that its outputs go to."""

    path: Path
    rows: list[Row] = field(default_factory=list)
    device: str = "cpu"
    """Device that modules are loaded to."""

    def beside(self, kind: str) -> VectorFolder:
        """Return the folder of another kind in the same directory.

        Raises:
            CheckpointError: it is missing.
        """
        for path in self.path.parent.glob(f"[a-z]_{kind}"):
            return replace(self, path=path)
        raise CheckpointError(f"there is no golden folder *_{kind} beside {self.path}, which needs it")

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
        """Read one .json file; an empty object where it is not there."""
        path = self.path / name
        return json.loads(path.read_text("utf-8")) if path.is_file() else {}

    def load(self, module: Module, name: str = "weights.safetensors") -> Module:
        """Fill a module with the folder's weights."""
        return load_weights(module, self.tensors(name), self.path).to(self.device)

    def case(self, name: str) -> GoldenCase:
        """Read the vectors of one file, named without its suffix."""
        return GoldenCase(self.tensors(f"{name}.safetensors"), f"{self.path.name}/{name}", self.rows)

    def cases(self, pattern: str) -> Iterator[GoldenCase]:
        """Yield the vectors of the files whose names match, in their order; a compressed one as if it were not."""
        names = {path.name.split(".")[0] for path in self.path.glob(f"{pattern}.safetensors*")}
        yield from map(self.case, sorted(names))


class GoldenCase(dict[str, Tensor]):
    """Inputs and expected outputs by name; each comparison of an output that they hold adds a row."""

    def __init__(self, tensors: Tensors, label: str, rows: list[Row]) -> None:
        """Take the tensors, the beginning of the rows' names (`folder/file`, and the call) and where the rows go."""
        super().__init__(tensors)
        self.label, self.rows = label, rows

    @property
    def name(self) -> str:
        """The file's name, without its folder."""
        return self.label.split("/")[-1]

    def take(self, *keys: str) -> list[Tensor]:
        """Return tensors by name."""
        return [self[key] for key in keys]

    def close(self, key: str, got: Tensor, note: str = "", tolerance: float | None = None) -> None:
        """Compare an output by its largest absolute error; another shape fails."""
        if tolerance is None:
            tolerance = _TOLERANCES.get(key.rpartition(".")[2], FLOW_TOLERANCE)
        if (expected := self._expected(key, got, note)) is not None:
            error = (got.cpu().double() - expected.double()).abs().max().item() if expected.numel() else 0.0
            self._add(key + note, "max abs", error, tolerance, error <= tolerance)

    def close_all(self, got: Mapping[str, Tensor]) -> None:
        """Compare every output that is held; in some only the first batch item and the first channels are."""
        for key, expected in self.items():
            self.close(key, got[key][tuple(map(slice, expected.shape[:2]))])

    def snr(self, key: str, got: Tensor, note: str = "") -> None:
        """Compare an output by its signal-to-noise ratio; another shape fails."""
        if (expected := self._expected(key, got, note)) is not None:
            ratio_db = snr_db(got, expected)
            self._add(key + note, "SNR dB", ratio_db, WAVE_SNR_DB, ratio_db >= WAVE_SNR_DB)

    def equal(self, key: str, got: Sequence[object], expected: Sequence[object]) -> None:
        """Compare element by element, exactly."""
        wrong = sum(a != b for a, b in zip(got, expected, strict=False)) + abs(len(got) - len(expected))
        self._add(key, "mismatches", float(wrong), 0.0, wrong == 0)

    def equal_lengths(self, key: str, lengths: Tensor) -> None:
        """Compare rows' lengths [B] with those of a mask [B, 1, T], or with given ones [B]."""
        if (held := self.get(key)) is not None:
            self.equal(key, lengths.tolist(), (held.sum((1, 2)) if held.dim() > 1 else held).tolist())

    def part(self, prefix: str, label: str) -> GoldenCase:
        """Return what stands under a prefix of the names."""
        held = {key.removeprefix(prefix): value for key, value in self.items() if key.startswith(prefix)}
        return GoldenCase(held, f"{self.label}{label}", self.rows)

    def calls(self) -> list[GoldenCase]:
        """Return what stands under c0., c1., ..., in order."""
        return [self.part(f"c{number}.", f".c{number}") for number in self.numbers("c")]

    def numbers(self, prefix: str) -> list[int]:
        """Return N, ascending, of every group of names that begins with a prefix and `N.`, such as n4. and n10."""
        found = (re.match(rf"{re.escape(prefix)}(\d+)\.", key) for key in self)
        return sorted({int(match[1]) for match in found if match})

    def _expected(self, key: str, got: Tensor, note: str) -> Tensor | None:
        """Return what an output must be, None if it is not held or has another shape; axes of 1 do not count."""
        expected = self.get(key)
        if expected is None or got.squeeze().shape == expected.squeeze().shape:
            return None if expected is None else expected.reshape(got.shape)
        shapes = f"shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
        self._add(key + note, shapes, math.nan, math.nan, False)
        return None

    def _add(self, key: str, measure: str, error: float, tolerance: float, passed: bool) -> None:
        self.rows.append(Row(f"{self.label}.{key}", measure, error, tolerance, passed))


@contextmanager
def probed(model: nn.Module, paths: Mapping[str, str]) -> Iterator[Tensors]:
    """Collect the first outputs of inner modules under the vectors' names while a model runs; behind `<` the inputs."""
    found: Tensors = {}

    def record(name: str, is_input: bool, _: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        found[name] = inputs[0] if is_input else output[0] if isinstance(output, tuple) else output

    with ExitStack() as stack:
        for name, path in paths.items():
            hook = partial(record, name, path.startswith("<"))
            stack.enter_context(model.get_submodule(path.removeprefix("<")).register_forward_hook(hook))
        yield found
