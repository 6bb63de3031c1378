"""The one place that calls NVIDIA's packages `tensorrt` 10 and 11 and `tensorrt_rtx` 1: builds engines and runs them.

TensorRT for RTX differs in three things, all of them here: it builds for GPUs that it is told, on any machine; an
engine must be built for memory that the caller owns, if a CUDA graph is to be captured around it; and contexts say
when kernels are made for a shape. Networks are strongly typed: precision comes from the ONNX graph.
Builds were run with `tensorrt_rtx`; nothing here was ever run on a GPU. The packages carry no types: a test compares
the calls with the published bindings. It knows nothing of the models.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from servicekit.extras import install_command
from token2wav_service.errors import EngineBuildError, EngineUnfitError
from token2wav_service.graphs import ShapeRange
from token2wav_service.runtime.tensorrt.manifest import RTX_ARCHITECTURES, TENSORRT, TENSORRT_RTX

logger = logging.getLogger(__name__)

MODULES = {TENSORRT: "tensorrt", TENSORRT_RTX: "tensorrt_rtx_bindings"}
SUPPORTED_MAJORS = {TENSORRT: (10, 11), TENSORRT_RTX: (1,)}
PROFILE = 0
"""Index of the one profile that engines here have."""
KEPT_ERRORS = 20
"""Number of TensorRT's newest messages in the error that a failed build raises."""


Shape = tuple[int, ...]


@dataclass(frozen=True)
class EngineTensor:
    """An input or output of an engine."""

    name: str
    dtype: str
    """Element type by its name in numpy and torch."""
    is_input: bool


class TensorRT:
    """One of the two packages, with its logger."""

    def __init__(self, module: Any, name: str = TENSORRT) -> None:
        """Take the package.

        Raises:
            EngineUnfitError: a version this was not written for.
        """
        supported = SUPPORTED_MAJORS[name]
        if int(module.__version__.partition(".")[0]) not in supported:
            majors = " or ".join(map(str, supported))
            raise EngineUnfitError(
                f"{name} {module.__version__} is installed, expected version {majors}: "
                f"pip install '{name.replace('_', '-')}>={supported[0]},<{supported[-1] + 1}'"
            )
        self._module, self._name = module, name
        self._is_rtx = name == TENSORRT_RTX
        self._messages: list[str] = []
        self._logger = _make_logger(module, self._messages)

    @property
    def library(self) -> str:
        """The package's name and full version; an engine is bound to it."""
        return f"{self._name} {self._module.__version__}"

    def build(self, onnx: Path, ranges: Mapping[str, ShapeRange], architecture: str) -> bytes:
        """Build an engine and return it serialized; shows on standard error how far it is.

        Args:
            onnx: the graph.
            ranges: shapes of every input, by name.
            architecture: of the GPU it is for, such as sm89; TensorRT builds for this machine's own in any case.

        Raises:
            EngineBuildError: the graph can't be parsed or built; it names the nodes.
            KeyboardInterrupt: the user wanted to stop, which ended the build.
        """
        self._messages.clear()
        trt = self._module
        builder = trt.Builder(self._logger)
        network = self._parse(builder, onnx)
        config = builder.create_builder_config()
        _add_profile(builder, network, config, ranges)
        # NOTE: the builder does not own the monitor, which must live until it is done.
        monitor = config.progress_monitor = _make_monitor(trt, onnx.stem)
        if self._is_rtx:
            self._configure_rtx(config, architecture)
        plan = builder.build_serialized_network(network, config)
        monitor.end()
        if plan is None:
            raise EngineBuildError(f"{self.library} can't build {onnx}:\n{self._said()}")
        return bytes(plan)

    def _parse(self, builder: Any, onnx: Path) -> Any:
        trt = self._module
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, self._logger)
        if not parser.parse_from_file(str(onnx)):
            raise EngineBuildError(f"{self.library} can't parse {onnx}:\n" + "\n".join(_parser_errors(parser)))
        return network

    def _configure_rtx(self, config: Any, architecture: str) -> None:
        if architecture not in RTX_ARCHITECTURES:
            raise EngineBuildError(f"{self.library} builds for {' '.join(RTX_ARCHITECTURES)}, not for {architecture}")
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(self._module.ComputeCapability, architecture.upper()), 0)
        config.set_flag(self._module.BuilderFlag.REQUIRE_USER_ALLOCATION)

    def _said(self) -> str:
        return "\n".join(self._messages or ["no message"])

    def load(self, plan: bytes) -> TensorRTEngine:
        """Put a serialized engine on the current GPU.

        Raises:
            EngineUnfitError: TensorRT refuses it: made for another GPU or version, or damaged.
        """
        self._messages.clear()
        runtime = self._module.Runtime(self._logger)
        engine = runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise EngineUnfitError(f"{self.library} refuses the engine:\n{self._said()}")
        return TensorRTEngine(self._module, runtime, engine, is_rtx=self._is_rtx)


class TensorRTEngine:
    """A loaded engine; makes contexts."""

    def __init__(self, module: Any, runtime: object, engine: Any, *, is_rtx: bool = False) -> None:
        """Keep the engine, and the runtime it came from alive.

        Raises:
            EngineUnfitError: an input has to lie in host memory, which no caller here provides.
        """
        self._module, self._runtime, self._engine, self._is_rtx = module, runtime, engine, is_rtx
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        on_host = [name for name in names if engine.is_shape_inference_io(name)]
        if on_host:
            raise EngineUnfitError(f"tensors {on_host} of the engine give shapes; expected graphs without such tensors")
        self.tensors = {name: self._describe(name) for name in names}
        self.ranges = {tensor.name: self._range(tensor.name) for tensor in self.tensors.values() if tensor.is_input}
        self.activation_bytes = int(engine.get_device_memory_size_for_profile_v2(PROFILE))
        """Bytes that one running context needs beside its tensors."""

    def new_context(self) -> Context:
        """Make a context without activation memory.

        Raises:
            EngineUnfitError: TensorRT has no memory for it.
        """
        trt = self._module
        how: Any = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        if self._is_rtx:
            # Eagerly: a CUDA graph would keep the fallback kernel that runs until a shape's own is made.
            config = self._engine.create_runtime_config()
            config.set_execution_context_allocation_strategy(how)
            config.dynamic_shapes_kernel_specialization_strategy = trt.DynamicShapesKernelSpecializationStrategy.EAGER
            how = config
        context = self._engine.create_execution_context(how)
        if context is None:
            raise EngineUnfitError("TensorRT has no memory for another execution context")
        return Context(context)

    def _describe(self, name: str) -> EngineTensor:
        is_input = self._engine.get_tensor_mode(name) == self._module.TensorIOMode.INPUT
        return EngineTensor(name, _dtype_name(self._module, self._engine.get_tensor_dtype(name)), is_input)

    def _range(self, name: str) -> ShapeRange:
        return ShapeRange(*(tuple(shape) for shape in self._engine.get_tensor_profile_shape(name, PROFILE)))


class Context:
    """Shapes and addresses for runs of one engine; used by one thread at a time. Nothing here waits for the GPU."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def use_memory(self, address: int, size: int) -> None:
        """Take activation memory, aligned to 256 bytes."""
        self._context.set_device_memory(address, size)

    def select_profile(self, stream: int) -> None:
        """Take the engine's profile, which only its first context has from the start; shapes must be set again."""
        _check(self._context.set_optimization_profile_async(PROFILE, stream), "profile")

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


def load_tensorrt(library: str) -> TensorRT:
    """Import a package.

    Args:
        library: its name, and the version that it is expected to have.

    Raises:
        EngineUnfitError: it is not installed, its libraries don't load, or its version is another or unknown here.
    """
    name = library.partition(" ")[0]
    try:
        module = importlib.import_module(MODULES[name])
    except (ImportError, OSError) as err:
        extra = install_command(name.replace("_", "-"))
        raise EngineUnfitError(f"can't load {library} ({err}); install it again: {extra}") from err
    loaded = TensorRT(module, name)
    if loaded.library != library:
        raise EngineUnfitError(f"{loaded.library} was loaded, the installed package says {library}; reinstall it")
    return loaded


def _check(is_done: bool, what: str) -> None:
    if not is_done:
        raise EngineUnfitError(f"TensorRT refuses the {what}; its log says why")


def _dtype_name(trt: Any, dtype: Any) -> str:
    names = {
        trt.DataType.FLOAT: "float32",
        trt.DataType.HALF: "float16",
        trt.DataType.INT64: "int64",
        trt.DataType.BOOL: "bool",
    }
    if dtype not in names:
        raise EngineUnfitError(f"the engine has a tensor of type {dtype}, expected one of {sorted(names.values())}")
    return names[dtype]


def _parser_errors(parser: Any) -> list[str]:
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    return [f"  node {e.node()} {e.node_name()!r} ({e.node_operator()}): {e.desc()}" for e in errors] or ["no message"]


def _add_profile(builder: Any, network: Any, config: Any, ranges: Mapping[str, ShapeRange]) -> None:
    names = {network.get_input(index).name for index in range(network.num_inputs)}
    if names != set(ranges):
        raise EngineBuildError(f"the graph has inputs {sorted(names)}, its sizes are of {sorted(ranges)}")
    profile: Any = builder.create_optimization_profile()
    for name, shapes in ranges.items():
        profile.set_shape(name, shapes.min, shapes.opt, shapes.max)
    config.add_optimization_profile(profile)


def _make_logger(trt: Any, messages: list[str]) -> Any:
    severity = trt.ILogger.Severity
    levels = {
        severity.INTERNAL_ERROR: logging.ERROR,
        severity.ERROR: logging.ERROR,
        severity.WARNING: logging.WARNING,
        severity.INFO: logging.DEBUG,
        severity.VERBOSE: logging.NOTSET,
    }

    class Forwarder(trt.ILogger):  # type: ignore[misc]
        """Sends TensorRT's messages to Python's logging and keeps the errors."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, level: Any, message: str) -> None:
            if levels[level] == logging.ERROR:
                messages[:] = [*messages, f"  {message}"][-KEPT_ERRORS:]
            if levels[level] != logging.NOTSET:
                logger.log(levels[level], "TensorRT: %s", message)

    return Forwarder()


def _make_monitor(trt: Any, title: str) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        """Shows a bar for every open phase; called from any thread. Ctrl-C must not cross the library: it is kept."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._is_interrupted = False
            self._bars: dict[str, tqdm[Any]] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            with self._keeping_interrupts():
                shown = phase_name if parent_phase is not None else f"{title}: {phase_name}"
                self._bars[phase_name] = tqdm(total=num_steps, desc=shown, leave=parent_phase is None, unit="step")

        def step_complete(self, phase_name: str, step: int) -> bool:
            with self._keeping_interrupts():
                bar = self._bars[phase_name]
                bar.update(step + 1 - bar.n)
            return not self._is_interrupted

        def phase_finish(self, phase_name: str) -> None:
            with self._keeping_interrupts(), self._bars.pop(phase_name) as bar:
                # The library does not report a phase's last steps.
                bar.update((bar.total or bar.n) - bar.n)

        def end(self) -> None:
            """Close what a failed build left open, and raise the interrupt that was kept."""
            for bar in self._bars.values():
                bar.close()
            if self._is_interrupted:
                raise KeyboardInterrupt

        @contextmanager
        def _keeping_interrupts(self) -> Iterator[None]:
            try:
                yield
            except KeyboardInterrupt:
                self._is_interrupted = True

    return Monitor()
