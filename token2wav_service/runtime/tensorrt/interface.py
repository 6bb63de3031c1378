"""The part of NVIDIA's Python package `tensorrt` that is used here, as types.

Classes and members carry the package's names and hold for its versions 10 and 11; a test compares them with the
symbols of the published bindings. No calls here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Enumerator = Any
"""A member of one of the package's enumerations; hashable, compares by identity."""


class NetworkDefinitionCreationFlag(Protocol):
    """Bit numbers for `Builder.create_network`."""

    STRONGLY_TYPED: Enumerator


class MemoryPoolType(Protocol):
    """Kinds of memory the builder may use."""

    WORKSPACE: Enumerator


class ExecutionContextAllocationStrategy(Protocol):
    """The side that provides a context's activation memory."""

    USER_MANAGED: Enumerator


class TensorIOMode(Protocol):
    """What an engine's tensor is."""

    INPUT: Enumerator


class DataType(Protocol):
    """Element types."""

    FLOAT: Enumerator
    HALF: Enumerator
    BF16: Enumerator
    INT32: Enumerator
    INT64: Enumerator
    BOOL: Enumerator


class Severity(Protocol):
    """Levels of log messages."""

    INTERNAL_ERROR: Enumerator
    ERROR: Enumerator
    WARNING: Enumerator
    INFO: Enumerator
    VERBOSE: Enumerator


class ILogger(Protocol):
    """Base of loggers; the package calls `log`, from any thread."""

    Severity: Severity

    def log(self, severity: Enumerator, msg: str, /) -> None: ...


class IProgressMonitor(Protocol):
    """Base of progress monitors; the package calls these, from any thread."""

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int, /) -> None: ...
    def step_complete(self, phase_name: str, step: int, /) -> bool: ...
    def phase_finish(self, phase_name: str, /) -> None: ...


class IHostMemory(Protocol):
    """Bytes on the host; offers the buffer protocol."""

    @property
    def nbytes(self) -> int: ...


class ITimingCache(Protocol):
    """Measured times of kernels, so that a later build need not take them again."""

    def serialize(self, /) -> IHostMemory: ...


class IOptimizationProfile(Protocol):
    """Ranges of the inputs' shapes."""

    def set_shape(
        self, name: str, minimum: Sequence[int], optimum: Sequence[int], maximum: Sequence[int], /
    ) -> None: ...


class IBuilderConfig(Protocol):
    """How to build."""

    progress_monitor: IProgressMonitor | None
    builder_optimization_level: int

    def set_memory_pool_limit(self, pool: Enumerator, size: int, /) -> None: ...
    def add_optimization_profile(self, profile: IOptimizationProfile, /) -> int: ...
    def create_timing_cache(self, serialized: bytes, /) -> ITimingCache: ...
    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool, /) -> bool: ...
    def get_timing_cache(self, /) -> ITimingCache | None: ...


class ITensor(Protocol):
    """A tensor of a network."""

    @property
    def name(self) -> str: ...


class INetworkDefinition(Protocol):
    """A network to build."""

    @property
    def num_inputs(self) -> int: ...
    def get_input(self, index: int, /) -> ITensor: ...


class ParserError(Protocol):
    """One thing the ONNX parser could not do."""

    def desc(self, /) -> str: ...
    def node(self, /) -> int: ...
    def node_name(self, /) -> str: ...
    def node_operator(self, /) -> str: ...


class OnnxParser(Protocol):
    """Reads ONNX into a network."""

    @property
    def num_errors(self) -> int: ...
    def parse_from_file(self, path: str, /) -> bool: ...
    def get_error(self, index: int, /) -> ParserError: ...


class Builder(Protocol):
    """Makes networks and engines."""

    def create_network(self, flags: int, /) -> INetworkDefinition: ...
    def create_builder_config(self, /) -> IBuilderConfig: ...
    def create_optimization_profile(self, /) -> IOptimizationProfile: ...
    def build_serialized_network(
        self, network: INetworkDefinition, config: IBuilderConfig, /
    ) -> IHostMemory | None: ...


class IExecutionContext(Protocol):
    """One set of shapes and addresses of an engine, and its state."""

    def set_optimization_profile_async(self, index: int, stream: int, /) -> bool: ...
    def set_input_shape(self, name: str, shape: tuple[int, ...], /) -> bool: ...
    def set_tensor_address(self, name: str, address: int, /) -> bool: ...
    def set_device_memory(self, address: int, size: int, /) -> None: ...
    def infer_shapes(self, /) -> Sequence[str]: ...
    def get_tensor_shape(self, name: str, /) -> Sequence[int]: ...
    def execute_async_v3(self, stream: int, /) -> bool: ...


class ICudaEngine(Protocol):
    """A built network on the GPU."""

    @property
    def num_io_tensors(self) -> int: ...
    @property
    def num_optimization_profiles(self) -> int: ...
    def get_tensor_name(self, index: int, /) -> str: ...
    def get_tensor_mode(self, name: str, /) -> Enumerator: ...
    def get_tensor_dtype(self, name: str, /) -> Enumerator: ...
    def is_shape_inference_io(self, name: str, /) -> bool: ...
    def get_tensor_profile_shape(self, name: str, profile: int, /) -> Sequence[Sequence[int]]: ...
    def get_device_memory_size_for_profile_v2(self, profile: int, /) -> int: ...
    def create_execution_context(self, strategy: Enumerator, /) -> IExecutionContext | None: ...


class Runtime(Protocol):
    """Loads engines."""

    def deserialize_cuda_engine(self, plan: bytes, /) -> ICudaEngine | None: ...


MakeBuilder = Callable[[ILogger], Builder]
MakeParser = Callable[[INetworkDefinition, ILogger], OnnxParser]
MakeRuntime = Callable[[ILogger], Runtime]
CreationFlags = NetworkDefinitionCreationFlag
PoolTypes = MemoryPoolType
Strategies = ExecutionContextAllocationStrategy
Modes = TensorIOMode
DataTypes = DataType


class TensorRTModule(Protocol):
    """The package itself."""

    __version__: str
    ILogger: Any
    """TensorRT's class to derive a logger from."""
    IProgressMonitor: Any
    """TensorRT's class to derive a progress monitor from."""
    Builder: MakeBuilder
    OnnxParser: MakeParser
    Runtime: MakeRuntime
    NetworkDefinitionCreationFlag: CreationFlags
    MemoryPoolType: PoolTypes
    ExecutionContextAllocationStrategy: Strategies
    TensorIOMode: Modes
    DataType: DataTypes
