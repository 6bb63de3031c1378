"""FAKE, documented interface: stands for NVIDIA's package `tensorrt` and computes on the CPU.

It has the documented names only (a test compares them with the published ones) and is stricter than the documentation
where that finds mistakes: wrong names, shapes outside the profile, a missing address or missing memory all fail. It
shows that our code calls TensorRT in a sensible order with sensible values; it can't show that TensorRT accepts them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from enum import Enum
from types import SimpleNamespace
from typing import Any

from tests.token2wav_service.tensorrt.executors import OnnxExecutor, ReadGraph
from tests.token2wav_service.tensorrt.fake_engine import (
    DataType,
    ExecutionContextAllocationStrategy,
    ICudaEngine,
    IExecutionContext,
    ILogger,
    IProgressMonitor,
    Journal,
    Runtime,
    Severity,
    TensorIOMode,
)


class MemoryPoolType(Enum):
    WORKSPACE = 0


class NetworkDefinitionCreationFlag:
    STRONGLY_TYPED = 1


class ITimingCache:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def serialize(self) -> bytes:
        return self._content


class IOptimizationProfile:
    def __init__(self) -> None:
        self._shapes: dict[str, list[list[int]]] = {}

    def set_shape(self, name: str, minimum: Sequence[int], optimum: Sequence[int], maximum: Sequence[int]) -> None:
        assert all(a <= b <= c for a, b, c in zip(minimum, optimum, maximum, strict=True)), name
        self._shapes[name] = [list(minimum), list(optimum), list(maximum)]


class IBuilderConfig:
    def __init__(self, journal: Journal) -> None:
        self.progress_monitor: IProgressMonitor | None = None
        self.builder_optimization_level = 3
        self._journal, self._profiles = journal, []  # type: ignore[var-annotated]
        self._cache: ITimingCache | None = None

    def set_memory_pool_limit(self, pool: MemoryPoolType, size: int) -> None:
        self._journal.pool_limits[pool.name] = size

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        self._profiles.append(profile._shapes)
        return len(self._profiles) - 1

    def create_timing_cache(self, serialized: bytes) -> ITimingCache:
        return ITimingCache(serialized)

    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
        if cache._content == FOREIGN_CACHE and not ignore_mismatch:
            return False
        self._cache = cache
        return True

    def get_timing_cache(self) -> ITimingCache | None:
        return self._cache


FOREIGN_CACHE = b"timings of another GPU"


class INetworkDefinition:
    def __init__(self, flags: int) -> None:
        self._flags, self._graph, self._names = flags, b"", []  # type: ignore[var-annotated]

    @property
    def num_inputs(self) -> int:
        return len(self._names)

    def get_input(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(name=self._names[index])


class ParserError:
    def __init__(self, node: int, name: str, operator: str, desc: str) -> None:
        self._values = (node, name, operator, desc)

    def node(self) -> int:
        return int(self._values[0])

    def node_name(self) -> str:
        return str(self._values[1])

    def node_operator(self) -> str:
        return str(self._values[2])

    def desc(self) -> str:
        return str(self._values[3])


class OnnxParser:
    def __init__(self, module: FakeTensorRT, network: INetworkDefinition) -> None:
        self._module, self._network, self._errors = module, network, list(module._parse_errors)

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> ParserError:
        return self._errors[index]

    def parse_from_file(self, path: str) -> bool:
        if self._errors:
            return False
        with open(path, "rb") as file:
            self._network._graph = file.read()
        self._network._names = list(self._module._read_graph(self._network._graph).inputs)
        return True


class Builder:
    def __init__(self, module: FakeTensorRT, logger: ILogger) -> None:
        self._module, self._logger = module, logger

    def create_network(self, flags: int) -> INetworkDefinition:
        return INetworkDefinition(flags)

    def create_builder_config(self) -> IBuilderConfig:
        return IBuilderConfig(self._module._journal)

    def create_optimization_profile(self) -> IOptimizationProfile:
        return IOptimizationProfile()

    def build_serialized_network(self, network: INetworkDefinition, config: IBuilderConfig) -> bytes | None:
        assert network._flags == 1 << NetworkDefinitionCreationFlag.STRONGLY_TYPED, "weakly typed"
        if self._module._build_error:
            self._logger.log(Severity.ERROR, self._module._build_error)
            return None
        self._module._journal.builds += 1
        # The documentation says that several threads may call the monitor.
        answers: list[bool] = []
        worker = threading.Thread(target=_report, args=(config.progress_monitor, answers))
        worker.start()
        worker.join()
        if not all(answers):
            return None
        assert config._cache is not None
        config._cache = ITimingCache(config._cache._content + b"+")
        header = {"version": self._module.__version__, "profiles": config._profiles}
        return json.dumps(header).encode() + b"\n" + network._graph


class FakeTensorRT:
    """The package. FAKE, documented interface."""

    def __init__(
        self,
        version: str = "10.16.1.11",
        read_graph: ReadGraph = OnnxExecutor,
        parse_errors: Sequence[ParserError] = (),
        build_error: str = "",
        shape_tensors: Sequence[str] = (),
    ) -> None:
        self.__version__ = version
        self._read_graph, self._parse_errors, self._build_error = read_graph, parse_errors, build_error
        self._shape_tensors = shape_tensors
        self._journal = Journal()
        self.ILogger, self.IProgressMonitor = ILogger, IProgressMonitor
        self.NetworkDefinitionCreationFlag, self.MemoryPoolType = NetworkDefinitionCreationFlag, MemoryPoolType
        self.ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy
        self.TensorIOMode, self.DataType = TensorIOMode, DataType

    def Builder(self, logger: ILogger) -> Builder:
        return Builder(self, logger)

    def OnnxParser(self, network: INetworkDefinition, logger: ILogger) -> OnnxParser:
        return OnnxParser(self, network)

    def Runtime(self, logger: ILogger) -> Runtime:
        return Runtime(self, logger)


def offered_names() -> Mapping[str, set[str]]:
    """Return the public names that the fake's classes offer."""
    classes: list[Any] = [
        *(TensorIOMode, DataType, ExecutionContextAllocationStrategy, MemoryPoolType, Severity, ILogger),
        *(NetworkDefinitionCreationFlag, IProgressMonitor, ITimingCache, IOptimizationProfile, IBuilderConfig),
        *(INetworkDefinition, ParserError, OnnxParser, Builder, Runtime, ICudaEngine, IExecutionContext),
    ]
    enum_names = {"name", "value"}
    return {kind.__name__: {n for n in vars(kind) if not n.startswith("_")} - enum_names for kind in classes}


def _report(monitor: IProgressMonitor | None, answers: list[bool]) -> None:
    if monitor is None:
        return
    monitor.phase_start("Building", None, 2)
    monitor.phase_start("Timing", "Building", 1)
    answers.append(monitor.step_complete("Timing", 0))
    monitor.phase_finish("Timing")
    answers += [monitor.step_complete("Building", step) for step in range(2)]
    monitor.phase_finish("Building")
