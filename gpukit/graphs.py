"""CUDA graphs: launches run once, so that everything is compiled and loaded, and are captured then.

Graphs that run one after another share one pool of memory. Where there is no CUDA there is no stream and no pool; the
caller then runs its launches at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, Literal

import torch

UNINTERRUPTED_S = 1.0
"""Seconds that a thread keeps the interpreter while kernels compile side by side. Up to Triton 3.6 all launchers are
modules of one name, and one that is loaded again changes the one loaded last: a thread that was interrupted between its
module and that module's function would get another kernel's."""
LOAD_S = 0.03
"""Seconds that a launch waits for its kernel: longer than one takes that was compiled before and lies on the disk."""

ErrorMode = Literal["global", "thread_local", "relaxed"]
"""Which threads' CUDA calls break a capture: those of all threads, or of the capturing one alone. CUDA's own names."""


def own_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return a new stream on a CUDA device; None on any other."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def graph_memory(device: torch.device) -> Any:
    """Return a new pool of memory for graphs of a CUDA device; None on any other."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


def warm_up(run: Callable[[], object], stream: torch.cuda.Stream) -> None:
    """Run once on a stream, behind what the current stream does now.

    Args:
        run: makes the launches that will be captured.
        stream: what it runs on. Nobody waits for it here.
    """
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        run()


@contextmanager
def compiling_side_by_side() -> Iterator[None]:
    """Have the kernels of all launches inside compile in threads; all are compiled and loaded when the context is left.

    A launch whose kernel is not ready yet is left out, so what is computed inside means nothing. A kernel that can't be
    compiled raises at its next launch.
    """
    from triton import knobs  # there are hosts without it

    compiling: dict[tuple[Any, str], Future[None]] = {}
    with ThreadPoolExecutor(initializer=torch.cuda.set_device, initargs=(torch.cuda.current_device(),)) as pool:

        def leave_out(*, fn: Any, key: str, compile: Any, is_manual_warmup: bool, **_: Any) -> bool:
            if is_manual_warmup:  # a thread of ours asks
                return False
            kernel = fn.jit_function
            if (kernel, key) not in compiling:
                compiling[kernel, key] = pool.submit(_compile_and_load, kernel, compile["specialization_data"])
                wait([compiling[kernel, key]], LOAD_S)
            return True

        earlier, knobs.runtime.jit_cache_hook = knobs.runtime.jit_cache_hook, leave_out
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(UNINTERRUPTED_S)
        try:
            yield
            wait(compiling.values())
        finally:
            sys.setswitchinterval(interval_s)
            knobs.runtime.jit_cache_hook = earlier


def _compile_and_load(kernel: Any, specialization: str) -> None:
    kernel.preload(specialization).run  # noqa: B018  a property that loads


def capture(
    run: Callable[[], object], memory: Any, stream: torch.cuda.Stream | None = None, error_mode: ErrorMode = "global"
) -> torch.cuda.CUDAGraph:
    """Capture what `run` launches; `warm_up` comes before.

    Args:
        run: called once. It reads and writes tensors that stay where they are; what it allocates lives in `memory`.
        memory: the pool, from `graph_memory`.
        stream: to capture on; None takes PyTorch's own for captures.
        error_mode: `thread_local` lets other threads use CUDA meanwhile.

    Returns:
        The graph, to be replayed.

    Raises:
        RuntimeError: the launches do something that a graph can't, or memory is out.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=memory, stream=stream, capture_error_mode=error_mode):
        run()
    return graph
