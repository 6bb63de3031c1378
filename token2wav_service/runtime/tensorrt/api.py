"""The one place that calls NVIDIA's Python package `tensorrt`, versions 10 and 11: builds engines and runs them.

Written to the package's documentation and checked against its published symbols; not run where this is developed.
Networks are strongly typed: precision comes from the ONNX graph. It knows nothing of the models or of files but ONNX.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from token2wav_service.errors import EngineBuildError, EngineUnfitError
from token2wav_service.graphs.spec import ShapeRange
from token2wav_service.runtime.tensorrt.interface import (
    Enumerator,
    IBuilderConfig,
    ICudaEngine,
    IExecutionContext,
    ILogger,
    IProgressMonitor,
    OnnxParser,
    TensorRTModule,
)
from token2wav_service.runtime.tensorrt.types import (
    BuildOptions,
    BuildProgress,
    BuiltPlan,
    EngineTensor,
    Interrupts,
    Shape,
)

logger = logging.getLogger(__name__)

SUPPORTED_MAJORS = (10, 11)
KEPT_ERRORS = 20
"""Number of TensorRT's newest messages in the error that a failed build raises."""


class TensorRT:
    """The package, with its logger."""

    def __init__(self, module: TensorRTModule) -> None:
        """Take the package.

        Raises:
            EngineUnfitError: a version this was not written for.
        """
        major = int(module.__version__.partition(".")[0])
        if major not in SUPPORTED_MAJORS:
            raise EngineUnfitError(
                f"TensorRT {module.__version__} is installed, expected version 10 or 11: pip install 'tensorrt>=10,<12'"
            )
        self._module = module
        self._messages: list[str] = []
        self._logger = _make_logger(module, self._messages)

    @property
    def version(self) -> str:
        """The package's full version; an engine is bound to it."""
        return self._module.__version__

    def build(
        self,
        onnx: Path,
        profiles: Sequence[Mapping[str, ShapeRange]],
        options: BuildOptions,
        progress: BuildProgress,
        timing_cache: bytes,
    ) -> BuiltPlan:
        """Build an engine; minutes of work on the GPU.

        Args:
            onnx: the graph; external data lies beside it.
            profiles: each names every input.
            timing_cache: of an earlier build, or empty.

        Raises:
            EngineBuildError: the graph can't be parsed or built; it names the nodes.
        """
        self._messages.clear()
        trt = self._module
        builder = trt.Builder(self._logger)
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, self._logger)
        if not parser.parse_from_file(str(onnx)):
            raise EngineBuildError(f"TensorRT can't parse {onnx}:\n" + "\n".join(_parser_errors(parser)))
        config = builder.create_builder_config()
        config.builder_optimization_level = options.optimization_level
        if options.workspace_bytes is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_bytes)
        for ranges in profiles:
            profile = builder.create_optimization_profile()
            names = {network.get_input(index).name for index in range(network.num_inputs)}
            if names != set(ranges):
                raise EngineBuildError(f"{onnx} has inputs {sorted(names)}, the profile gives {sorted(ranges)}")
            for name, shapes in ranges.items():
                profile.set_shape(name, shapes.min, shapes.opt, shapes.max)
            config.add_optimization_profile(profile)
        # NOTE: the builder does not own these two; they must live until it is done.
        interrupts = Interrupts()
        monitor = config.progress_monitor = _make_monitor(trt, progress, interrupts)
        cache = _attach_timing_cache(config, timing_cache)
        plan = builder.build_serialized_network(network, config)
        interrupts.raise_if_any()
        if plan is None:
            raise EngineBuildError(f"TensorRT can't build {onnx}:\n" + "\n".join(self._messages or ["no message"]))
        del monitor
        return BuiltPlan(_bytes(plan), _bytes((config.get_timing_cache() or cache).serialize()))

    def load(self, plan: bytes) -> TensorRTEngine:
        """Put a serialized engine on the current GPU.

        Raises:
            EngineUnfitError: TensorRT refuses it: made for another GPU or version, or damaged.
        """
        self._messages.clear()
        runtime = self._module.Runtime(self._logger)
        engine = runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise EngineUnfitError("TensorRT refuses the engine:\n" + "\n".join(self._messages or ["no message"]))
        return TensorRTEngine(self._module, runtime, engine)


class TensorRTEngine:
    """A loaded engine; makes contexts."""

    def __init__(self, module: TensorRTModule, runtime: object, engine: ICudaEngine) -> None:
        """Keep the engine, and the runtime it came from alive.

        Raises:
            EngineUnfitError: an input has to lie in host memory, which no caller here provides.
        """
        self._module, self._runtime, self._engine = module, runtime, engine
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        on_host = [name for name in names if engine.is_shape_inference_io(name)]
        if on_host:
            raise EngineUnfitError(f"tensors {on_host} of the engine give shapes; expected graphs without such tensors")
        self.tensors = {name: self._describe(name) for name in names}
        self.profiles: tuple[dict[str, ShapeRange], ...] = tuple(
            {tensor.name: self._range(tensor.name, index) for tensor in self.tensors.values() if tensor.is_input}
            for index in range(engine.num_optimization_profiles)
        )
        self.activation_bytes = max(
            engine.get_device_memory_size_for_profile_v2(index) for index in range(engine.num_optimization_profiles)
        )
        """Bytes that one running context needs beside its tensors, under the largest profile."""

    def new_context(self) -> Context:
        """Make a context without activation memory.

        Raises:
            EngineUnfitError: TensorRT has no memory for it.
        """
        strategy = self._module.ExecutionContextAllocationStrategy.USER_MANAGED
        context = self._engine.create_execution_context(strategy)
        if context is None:
            raise EngineUnfitError("TensorRT can't make another execution context; lower tensorrt_contexts")
        return Context(context)

    def _describe(self, name: str) -> EngineTensor:
        is_input = self._engine.get_tensor_mode(name) == self._module.TensorIOMode.INPUT
        return EngineTensor(name, _dtype_name(self._module, self._engine.get_tensor_dtype(name)), is_input)

    def _range(self, name: str, profile: int) -> ShapeRange:
        smallest, expected, largest = self._engine.get_tensor_profile_shape(name, profile)
        return ShapeRange(tuple(smallest), tuple(expected), tuple(largest))


class Context:
    """Shapes and addresses for runs of one engine; used by one thread at a time. Nothing here waits for the GPU."""

    def __init__(self, context: IExecutionContext) -> None:
        self._context = context

    def use_memory(self, address: int, size: int) -> None:
        """Take activation memory, aligned to 256 bytes."""
        self._context.set_device_memory(address, size)

    def select_profile(self, index: int, stream: int) -> None:
        """Choose a profile; shapes must be set again."""
        _check(self._context.set_optimization_profile_async(index, stream), f"profile {index}")

    def set_shape(self, name: str, shape: Shape) -> None:
        """Set an input's shape."""
        _check(self._context.set_input_shape(name, shape), f"shape {shape} of input {name!r}")

    def set_address(self, name: str, address: int) -> None:
        """Say where a tensor lies."""
        _check(self._context.set_tensor_address(name, address), f"address of tensor {name!r}")

    def check_complete(self) -> None:
        """Check that every shape follows from the inputs'.

        Raises:
            EngineUnfitError: some do not.
        """
        missing = list(self._context.infer_shapes())
        if missing:
            raise EngineUnfitError(f"shapes of {missing} are not set")

    def shape(self, name: str) -> Shape:
        """Return a tensor's shape under the inputs' shapes."""
        return tuple(self._context.get_tensor_shape(name))

    def execute(self, stream: int) -> None:
        """Queue one run on a CUDA stream; returns at once."""
        _check(self._context.execute_async_v3(stream), "run")


def load_tensorrt() -> TensorRT:
    """Import the package.

    Raises:
        EngineUnfitError: it is not installed, its libraries don't load, or its version is unknown here.
    """
    try:
        module = importlib.import_module("tensorrt")
    except (ImportError, OSError) as err:
        raise EngineUnfitError(f"can't load TensorRT ({err}): pip install 'tensorrt>=10,<12' on the GPU host") from err
    return TensorRT(cast(TensorRTModule, module))


def _check(is_done: bool, what: str) -> None:
    if not is_done:
        raise EngineUnfitError(f"TensorRT refuses the {what}; its log says why")


def _bytes(memory: object) -> bytes:
    return bytes(cast(bytes, memory))


def _dtype_name(trt: TensorRTModule, dtype: Enumerator) -> str:
    names = {
        trt.DataType.FLOAT: "float32",
        trt.DataType.HALF: "float16",
        trt.DataType.BF16: "bfloat16",
        trt.DataType.INT32: "int32",
        trt.DataType.INT64: "int64",
        trt.DataType.BOOL: "bool",
    }
    if dtype not in names:
        raise EngineUnfitError(f"the engine has a tensor of type {dtype}, expected one of {sorted(names.values())}")
    return names[dtype]


def _parser_errors(parser: OnnxParser) -> list[str]:
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    return [f"  node {e.node()} {e.node_name()!r} ({e.node_operator()}): {e.desc()}" for e in errors] or ["no message"]


def _attach_timing_cache(config: IBuilderConfig, serialized: bytes) -> Any:
    cache = config.create_timing_cache(serialized)
    if not config.set_timing_cache(cache, False):
        logger.warning("the timing cache is of another GPU or TensorRT version; starting an empty one")
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, False)
    return cache


def _make_logger(trt: TensorRTModule, messages: list[str]) -> ILogger:
    severity = trt.ILogger.Severity
    levels = {
        severity.INTERNAL_ERROR: logging.ERROR,
        severity.ERROR: logging.ERROR,
        severity.WARNING: logging.WARNING,
        severity.INFO: logging.DEBUG,
        severity.VERBOSE: logging.NOTSET,
    }

    class Forwarder(trt.ILogger):  # type: ignore[name-defined, misc]
        """Sends TensorRT's messages to Python's logging and keeps the errors."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, level: Enumerator, message: str) -> None:
            if levels[level] == logging.ERROR:
                messages[:] = [*messages, f"  {message}"][-KEPT_ERRORS:]
            if levels[level] != logging.NOTSET:
                logger.log(levels[level], "TensorRT: %s", message)

    return cast(ILogger, Forwarder())


def _make_monitor(trt: TensorRTModule, progress: BuildProgress, interrupts: Interrupts) -> IProgressMonitor:
    class Monitor(trt.IProgressMonitor):  # type: ignore[name-defined, misc]
        """Hands progress on, and cancels the build where the user wants to stop."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            interrupts.keep(progress.start, phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            return interrupts.keep(progress.step, phase_name, step)

        def phase_finish(self, phase_name: str) -> None:
            interrupts.keep(progress.finish, phase_name)

    return cast(IProgressMonitor, Monitor())
