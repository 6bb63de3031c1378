"""Measures an engine against the float32 modules, on inputs like the golden ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from token2wav_service.runtime.tensorrt.api import Engine
from token2wav_service.runtime.tensorrt.manifest import Certificate, CertifiedCase, OutputError
from token2wav_service.runtime.tensorrt.run_once import run_once

MIN_SNR_DB: Mapping[str, float] = {"float32": 55.0, "float16": 45.0, "bfloat16": 30.0}
"""What an engine has to reach, by precision. Products have 11 (TF32 in float32 engines, float16) or 8 bits (bfloat16);
an overflow or a wrong mask leaves less than 20 dB."""
MAX_SNR_DB = 300.0
"""Stands for no error at all."""

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Case:
    """Inputs to measure at."""

    sizes: Mapping[str, int]
    """Of the graph's axes."""
    inputs: Tensors
    """By name, in the engine's own types."""


class ReferenceCertifier:
    """Runs an engine and a float32 reference on the same inputs."""

    def __init__(
        self,
        cases: Sequence[Case],
        reference: Callable[[Tensors], Tensors],
        min_snr_db: float,
        device: torch.device,
    ) -> None:
        """Keep what to compare.

        Args:
            cases: at least one for each of the engine's profiles.
            reference: computes the outputs in float32 from inputs on `device`; floating inputs come as float32.
            min_snr_db: what every output has to reach.
        """
        self._cases, self._reference, self._min_snr_db, self._device = cases, reference, min_snr_db, device

    @torch.inference_mode()
    def __call__(self, engine: Engine) -> Certificate:
        """Measure every case."""
        return Certificate(self._min_snr_db, tuple(self._measure(engine, case) for case in self._cases))

    def _measure(self, engine: Engine, case: Case) -> CertifiedCase:
        inputs = {name: value.to(self._device) for name, value in case.inputs.items()}
        got = run_once(engine, inputs, self._device)
        expected = self._reference({name: _widened(value) for name, value in inputs.items()})
        errors = tuple(_error(name, got[name].float(), expected[name].float()) for name in got)
        return CertifiedCase(dict(case.sizes), errors)


def _widened(value: Tensor) -> Tensor:
    return value.float() if value.is_floating_point() else value


def _error(name: str, got: Tensor, expected: Tensor) -> OutputError:
    difference = (got.double() - expected.double()).flatten()
    power, noise = expected.double().square().sum().item(), difference.square().sum().item()
    worst = difference.abs().max().item()
    if not math.isfinite(noise):
        return OutputError(name, -MAX_SNR_DB, worst if math.isfinite(worst) else float(torch.finfo(torch.float32).max))
    snr_db = MAX_SNR_DB if noise == 0 else 10 * math.log10(max(power, 1e-30) / noise)
    return OutputError(name, max(-MAX_SNR_DB, min(MAX_SNR_DB, snr_db)), worst)
