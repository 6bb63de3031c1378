"""FAKE, documented interface: TensorRT's enumerations, base classes, and what loads and runs engines, on the CPU.

See `fake_tensorrt.py`.
"""

from __future__ import annotations

import ctypes
import json
import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tests.token2wav_service.tensorrt.executors import DTYPES, Executor

if TYPE_CHECKING:
    from tests.token2wav_service.tensorrt.fake_tensorrt import FakeTensorRT

ALIGNMENT_BYTES = 256
"""Of a context's memory."""
ACTIVATION_BYTES = 1024


class TensorIOMode(Enum):
    NONE, INPUT, OUTPUT = range(3)


class DataType(Enum):
    FLOAT, HALF, BF16, INT32, INT64, BOOL = ("float32", "float16", "bfloat16", "int32", "int64", "bool")


class ExecutionContextAllocationStrategy(Enum):
    STATIC, ON_PROFILE_CHANGE, USER_MANAGED = range(3)


class Severity(Enum):
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)


class ILogger:
    Severity = Severity

    def log(self, severity: Severity, msg: str) -> None:
        raise NotImplementedError


class IProgressMonitor:
    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        raise NotImplementedError

    def step_complete(self, phase_name: str, step: int) -> bool:
        raise NotImplementedError

    def phase_finish(self, phase_name: str) -> None:
        raise NotImplementedError


@dataclass
class Journal:
    """What the fake was asked to do."""

    builds: int = 0
    contexts: int = 0
    runs: int = 0
    addresses: int = 0
    profiles: list[int] = field(default_factory=list)
    pool_limits: dict[str, int] = field(default_factory=dict)


class Runtime:
    def __init__(self, module: FakeTensorRT, logger: ILogger) -> None:
        self._module, self._logger = module, logger

    def deserialize_cuda_engine(self, plan: bytes) -> ICudaEngine | None:
        header, _, graph = plan.partition(b"\n")
        values = json.loads(header) if header.startswith(b"{") else {"version": "none"}
        if values["version"] != self._module.__version__:
            reason = "the plan is of version " + values["version"]
            self._logger.log(Severity.ERROR, reason)
            return None
        return ICudaEngine(self._module, self._module._read_graph(graph), values["profiles"])


class ICudaEngine:
    def __init__(self, module: FakeTensorRT, graph: Executor, profiles: list[dict[str, list[list[int]]]]) -> None:
        self._module, self._graph, self._profiles = module, graph, profiles
        self._tensors = {**graph.inputs, **graph.outputs}

    @property
    def num_io_tensors(self) -> int:
        return len(self._tensors)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self._profiles)

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self._graph.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType(self._tensors[name].dtype)

    def is_shape_inference_io(self, name: str) -> bool:
        return name in self._module._shape_tensors

    def get_tensor_profile_shape(self, name: str, profile: int) -> list[list[int]]:
        return self._profiles[profile][name]

    def get_device_memory_size_for_profile_v2(self, profile: int) -> int:
        return ACTIVATION_BYTES * (1 + profile)

    def create_execution_context(self, strategy: ExecutionContextAllocationStrategy) -> IExecutionContext:
        assert strategy is ExecutionContextAllocationStrategy.USER_MANAGED
        self._module._journal.contexts += 1
        return IExecutionContext(self)


class IExecutionContext:
    def __init__(self, engine: ICudaEngine) -> None:
        self._engine, self._journal = engine, engine._module._journal
        self._profile: int | None = None
        self._memory = 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        if not 0 <= index < self._engine.num_optimization_profiles:
            return False
        self._profile, self._shapes = index, {}
        self._journal.profiles.append(index)
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        if self._profile is None or name not in self._engine._graph.inputs:
            return False
        low, _, high = self._engine._profiles[self._profile][name]
        self._shapes[name] = tuple(shape)
        return all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True))

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._addresses[name] = address
        self._journal.addresses += 1
        return name in self._engine._tensors and address != 0

    def set_device_memory(self, address: int, size: int) -> None:
        assert address % ALIGNMENT_BYTES == 0
        assert size >= max(ACTIVATION_BYTES * (1 + index) for index in range(len(self._engine._profiles)))
        self._memory = address

    def infer_shapes(self) -> list[str]:
        return [name for name in self._engine._graph.inputs if name not in self._shapes]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        if name in self._shapes:
            return self._shapes[name]
        return self._engine._graph.output_shape(name, self._shapes)

    def execute_async_v3(self, stream: int) -> bool:
        graph = self._engine._graph
        if not self._memory or self.infer_shapes() or set(self._addresses) != set(self._engine._tensors):
            return False
        self._journal.runs += 1
        inputs = {name: self._view(name, graph.inputs[name].dtype).clone() for name in graph.inputs}
        for name, value in graph.run(inputs).items():
            self._view(name, graph.outputs[name].dtype).copy_(value)
        return True

    def _view(self, name: str, dtype: str) -> Tensor:
        shape, kind = self.get_tensor_shape(name), DTYPES[dtype]
        size = math.prod(shape) * kind.itemsize
        memory = (ctypes.c_char * size).from_address(self._addresses[name])
        return torch.frombuffer(memory, dtype=kind).view(shape)
