"""Stands for a loaded engine, whose library computes on GPUs only: it runs a graph's module in torch on the CPU.

It takes the place of `api.TensorRTEngine`; shapes outside the ranges, missing addresses or memory fail.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from token2wav_service.graphs import GraphSpec
from token2wav_service.runtime.tensorrt.api import EngineTensor, Shape
from token2wav_service.runtime.tensorrt.planned import torch_dtype

ALIGNMENT_BYTES = 256


@dataclass
class Journal:
    """What the engine was asked to do."""

    contexts: int = 0
    runs: int = 0
    addresses: int = 0


class ModuleEngine:
    """A graph in torch, behind the interface of `api.TensorRTEngine`."""

    activation_bytes = 1024

    def __init__(self, spec: GraphSpec, module: nn.Module) -> None:
        self.spec, self.module, self.journal = spec, module, Journal()
        given = [EngineTensor(tensor.name, tensor.dtype, True) for tensor in spec.inputs]
        made = [EngineTensor(tensor.name, tensor.dtype, False) for tensor in spec.outputs]
        self.tensors = {tensor.name: tensor for tensor in (*given, *made)}
        self.ranges = spec.shape_ranges()

    def new_context(self) -> ModuleContext:
        self.journal.contexts += 1
        return ModuleContext(self)


class ModuleContext:
    """Shapes and addresses of one engine, behind the interface of `api.Context`."""

    def __init__(self, engine: ModuleEngine) -> None:
        self._engine, self._journal, self._memory = engine, engine.journal, 0
        self._shapes: dict[str, Shape] = {}
        self._has_profile = False
        self._addresses: dict[str, int] = {}

    def use_memory(self, address: int, size: int) -> None:
        assert address % ALIGNMENT_BYTES == 0 and size >= self._engine.activation_bytes
        self._memory = address

    def select_profile(self, stream: int) -> None:
        self._has_profile, self._shapes = True, {}

    def set_shape(self, name: str, shape: Shape) -> None:
        assert self._has_profile
        ranges = self._engine.ranges[name]
        assert all(a <= size <= b for a, size, b in zip(ranges.min, shape, ranges.max, strict=True)), (name, shape)
        self._shapes[name] = shape

    def set_address(self, name: str, address: int) -> None:
        assert address
        self._addresses[name] = address
        self._journal.addresses += 1

    def check_complete(self) -> None:
        assert set(self._shapes) == {tensor.name for tensor in self._engine.spec.inputs}

    def shape(self, name: str) -> Shape:
        if name in self._shapes:
            return self._shapes[name]
        spec = self._engine.spec
        sizes: dict[int | str, int] = {}
        for tensor in spec.inputs:
            sizes.update(zip(tensor.dims, self._shapes[tensor.name], strict=True))
        axes = spec.complete({axis: size for axis, size in sizes.items() if isinstance(axis, str)})
        return next(tensor.shape(axes) for tensor in spec.outputs if tensor.name == name)

    def execute(self, stream: int) -> None:
        assert self._memory and set(self._addresses) == set(self._engine.tensors)
        self._journal.runs += 1
        spec = self._engine.spec
        made = self._engine.module(*(self._view(tensor.name).clone() for tensor in spec.inputs))
        outputs = made if isinstance(made, tuple) else (made,)
        for tensor, value in zip(spec.outputs, outputs, strict=True):
            self._view(tensor.name).copy_(value)

    def _view(self, name: str) -> Tensor:
        shape, kind = self.shape(name), torch_dtype(self._engine.tensors[name].dtype)
        memory = (ctypes.c_char * (math.prod(shape) * kind.itemsize)).from_address(self._addresses[name])
        return torch.frombuffer(memory, dtype=kind).view(shape)
