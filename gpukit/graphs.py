"""CUDA graphs: launches run twice, so that everything is compiled and tuned, and are captured then.

Graphs that run one after another share one pool of memory. Where there is no CUDA there is no stream and no pool; the
caller then runs its launches at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch

WARM_UP_RUNS = 2

ErrorMode = Literal["global", "thread_local", "relaxed"]
"""Which threads' CUDA calls break a capture: those of all threads, or of the capturing one alone. CUDA's own names."""


def own_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return a new stream on a CUDA device; None on any other."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def graph_memory(device: torch.device) -> Any:
    """Return a new pool of memory for graphs of a CUDA device; None on any other."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


def warm_up(run: Callable[[], object], stream: torch.cuda.Stream) -> None:
    """Run twice on a stream, behind what the current stream does now.

    Args:
        run: makes the launches that will be captured.
        stream: what it runs on. Nobody waits for it here.
    """
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_RUNS):
            run()


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
