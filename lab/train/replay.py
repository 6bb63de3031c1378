"""Training steps as CUDA graphs: each step is run twice as it is, then captured, then replayed.

The models are small, so a step that Python launches kernel by kernel waits for Python. A step here is a function of a
few small tensors that lie on the device, always in the same place; it draws noise, gathers windows, goes forward and
back, and updates the weights, without waiting for the device. Steps of different kinds or shapes have graphs of their
own, which share memory. On a CPU, and after a capture that failed, the same function runs as it is.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Protocol

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

WARM_UP_RUNS = 2
"""Steps before a capture: libraries choose their algorithms then, and the optimiser makes its moments."""
STEPS_AHEAD = 3
"""Steps that the host may be ahead of the device: enough to keep it busy, few enough to stop in time."""

Inputs = Mapping[str, Tensor]
Losses = Mapping[str, Tensor]
Step = Callable[[Inputs], Losses]


class Graph(Protocol):
    """Launches that were captured."""

    def replay(self) -> None:
        """Make them again."""
        ...


Capture = Callable[[Callable[[], None]], Graph]
"""Captures what a function launches. Raises RuntimeError where a graph can't do that; steps can go on without."""


class CudaCapture:
    """Captures on the current stream of a CUDA device; all graphs share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], None]) -> Graph:
        """Capture what `run` launches.

        Raises:
            RuntimeError: it does something that a graph can't, or memory is out.
        """
        generator = torch.cuda.default_generators[self._device.index or 0]
        spare = generator.clone_state()
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(self._device)
        try:
            # Threads that pin batches use CUDA meanwhile.
            with torch.cuda.graph(graph, self._memory, stream, capture_error_mode="thread_local"):
                run()
        except RuntimeError:
            # It would go on as if it were being captured.
            generator.graphsafe_set_state(spare)
            raise
        return graph


def use_own_stream(device: torch.device) -> None:
    """Let this thread work on a stream that can be captured; CUDA's default one can't. Does nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


class Replayer:
    """Runs steps, as graphs where there are any."""

    def __init__(self, device: torch.device, capture_by: Capture | None = None) -> None:
        """Nothing is captured yet.

        Args:
            device: of the steps; on a CUDA device, `use_own_stream` comes before the first one.
            capture_by: makes graphs; None takes CUDA's own where there is CUDA.
        """
        self._device = device
        self._capture = CudaCapture(device) if capture_by is None and device.type == "cuda" else capture_by
        self._kinds: dict[Hashable, _Kind] = {}
        self._ends: deque[torch.cuda.Event] = deque()

    def stop_capturing(self) -> None:
        """Run steps as they are from here on, where they have no graph yet."""
        self._capture = None

    def run(self, name: Hashable, inputs: Inputs, step: Step) -> Losses:
        """Run a step.

        Args:
            name: of the kind of step; steps of one name and one set of shapes are the same but for their inputs.
            inputs: small tensors on the CPU, pinned or not; copied to the device.
            step: gets them there. It must not wait for the device, and what else it reads stays where it is.

        Returns:
            What the step returns, on the device; valid until the next step.
        """
        key = (name, tuple((part, value.shape, value.dtype) for part, value in inputs.items()))
        if key not in self._kinds:
            self._kinds[key] = _Kind(inputs, self._device)
        kind = self._kinds[key]
        kind.fill(inputs)
        if self._capture is not None and kind.may_be_captured:
            try:
                kind.capture(step, self._capture)
            except RuntimeError as err:
                self.stop_capturing()
                logger.warning("no more CUDA graphs, steps are launched one by one: step %s: %s", name, err)
        losses = kind.run(step)
        self._wait_for_earlier_steps()
        return losses

    def _wait_for_earlier_steps(self) -> None:
        if self._device.type != "cuda":
            return
        end = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        end.record()
        self._ends.append(end)
        if len(self._ends) > STEPS_AHEAD:
            self._ends.popleft().synchronize()


class _Kind:
    """Steps of one name and one set of shapes: where their inputs lie, and their graph once there is one."""

    def __init__(self, like: Inputs, device: torch.device) -> None:
        self._inputs = {part: torch.empty_like(value, device=device) for part, value in like.items()}
        self._losses: Losses = {}
        self._graph: Graph | None = None
        self._runs = 0

    @property
    def may_be_captured(self) -> bool:
        return self._graph is None and self._runs >= WARM_UP_RUNS

    def fill(self, inputs: Inputs) -> None:
        for part, value in inputs.items():
            place = self._inputs[part]
            # What is not pinned would make the host wait until the device is done with everything before.
            place.copy_(value.pin_memory() if place.is_cuda and not value.is_pinned() else value, non_blocking=True)

    def capture(self, step: Step, capture_by: Capture) -> None:
        def launch() -> None:
            self._losses = _detached(step(self._inputs))

        self._graph = capture_by(launch)

    def run(self, step: Step) -> Losses:
        self._runs += 1
        if self._graph is None:
            return _detached(step(self._inputs))
        self._graph.replay()
        return self._losses


def _detached(losses: Losses) -> Losses:
    return {name: value.detach() for name, value in losses.items()}
