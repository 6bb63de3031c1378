"""Flow and vocoder for one bucket of streams and tokens: static inputs and output, a CUDA graph where there is CUDA."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpukit.graphs import capture, graph_memory, warm_up
from servicekit.logs import first_line
from token2wav_service.errors import ProgramCaptureError
from token2wav_service.runtime.slots.pool import BATCH_FIELDS, SCRATCH_ROW, SlotBatch
from token2wav_service.runtime.slots.slot_flow import SlotFlow
from token2wav_service.runtime.slots.slot_vocoder import CausalSlotVocoder, SlotVocoder
from token2wav_service.runtime.slots.step_shapes import StepShapes
from token2wav_service.types import FloatArray

logger = logging.getLogger(__name__)


Vocoder = SlotVocoder | CausalSlotVocoder


@contextmanager
def naming_failures(program: str) -> Iterator[None]:
    """Say of which program an error in capturing it is.

    Raises:
        ProgramCaptureError: instead of whatever is raised inside.
    """
    try:
        yield
    except Exception as err:
        raise ProgramCaptureError(
            f"the program of {program} could not be captured as a CUDA graph: {type(err).__name__}: {first_line(err)}; "
            "runner=torch runs without graphs"
        ) from err


class BucketProgram:
    """Flow and vocoder for one shape, with static inputs and output."""

    def __init__(
        self,
        flow: SlotFlow,
        vocoder: Vocoder,
        device: torch.device,
        *,
        streams: int,
        tokens: int,
        prompt_size: int,
        graph_memory: Any = None,
    ) -> None:
        """Make the inputs.

        Args:
            flow: tokens to mel.
            vocoder: mel to samples.
            device: where both run.
            streams: most streams of a run.
            tokens: of each stream in a run, look-ahead not counted.
            prompt_size: frames of the prompt that attention reads.
            graph_memory: the pool that all graphs share; None where there is no CUDA.
        """
        self.streams = streams
        self.prompt_size = prompt_size
        self.mel: Tensor | None = None
        """[B, F, 80] mel of the latest run."""
        self._flow = flow
        self._vocoder = vocoder
        self._graph_memory = graph_memory
        # Rows that are nobody's: valid input for the first runs.
        row = torch.tensor([SCRATCH_ROW.get(name, 0) for name in BATCH_FIELDS], device=device)
        self._fields = row[:, None].repeat(1, streams)
        self._tokens = torch.zeros(streams, tokens + flow.lookahead, dtype=torch.int64, device=device)
        self._batch = SlotBatch(*self._fields.unbind(0))
        self._graph: torch.cuda.CUDAGraph | None = None
        self._speech: Tensor | None = None

    def launch(self, fields: np.ndarray, tokens: np.ndarray) -> Callable[[], FloatArray]:  # type: ignore[type-arg]
        """Begin to run with these inputs, behind what runs; returns what waits for samples [B, N] on the host."""
        for kept, given in ((self._fields, fields), (self._tokens, tokens)):
            # NOTE: a copy from other memory than pinned one waits for what runs.
            source = torch.from_numpy(given)
            kept.copy_(source.pin_memory() if kept.is_cuda else source, non_blocking=True)
        if self._graph is None:
            self._compute_to_keep()
        else:
            self._graph.replay()
        assert self._speech is not None
        if not self._speech.is_cuda:
            return self._speech.numpy
        host = torch.empty(self._speech.shape, pin_memory=True)  # NOTE: PyTorch keeps what was freed for the next one
        host.copy_(self._speech, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()

        def samples() -> FloatArray:
            done.synchronize()
            return host.numpy()

        return samples

    def _compute(self) -> Tensor:
        self.mel = self._flow.run(self._tokens, self._batch, self.prompt_size)
        return self._vocoder.run(self.mel, self._flow.frame_lengths(self._batch), self._batch)

    def _compute_to_keep(self) -> Tensor:
        self._speech = self._compute()
        return self._speech

    def warm_up(self) -> None:
        """Run once on a side stream, so that everything is compiled and loaded.

        Raises:
            ProgramCaptureError: the step can't run.
        """
        with self._naming_failures():
            side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            warm_up(self._compute, side)
            torch.cuda.current_stream().wait_stream(side)

    def capture(self, stream: Any = None) -> None:
        """Have runs replay a CUDA graph, captured on the stream; `warm_up` comes before.

        Raises:
            ProgramCaptureError: the step does something that a graph can't.
        """
        with self._naming_failures():
            self._graph = capture(self._compute_to_keep, self._graph_memory, stream, error_mode="thread_local")

    def _naming_failures(self) -> AbstractContextManager[None]:
        streams, tokens = self._tokens.shape
        return naming_failures(f"{streams} streams and {tokens} tokens (look-ahead included)")


class ProgramTable:
    """The programs of the steps that run one after another, each made at first use and kept."""

    def __init__(
        self, flow: SlotFlow, vocoder: Vocoder, shapes: StepShapes, device: torch.device, stream: Any = None
    ) -> None:
        """Make no program yet; `stream` is what graphs are captured on, None takes PyTorch's own."""
        self.flow, self.vocoder, self.shapes, self.device, self._stream = flow, vocoder, shapes, device, stream
        # All graphs share one pool of memory: they run one after another.
        self._graph_memory = graph_memory(device)
        self._programs: dict[tuple[int, int, int], BucketProgram] = {}

    def warm_up(self) -> None:
        """Make and run the program of every bucket."""
        for streams, tokens in self.shapes.programs():
            for prompt_size in self.flow.solver.prompt_sizes:
                program = self._programs[streams, tokens, prompt_size] = self._make(streams, tokens, prompt_size)
                program.warm_up()

    def capture(self) -> None:
        """Capture the programs that `warm_up` made."""
        for program in self._programs.values():
            program.capture(self._stream)

    def get(self, streams: int, tokens: int, prompt_size: int = 0) -> BucketProgram:
        """Return the program of a bucket, making it at first use; one of any other size is not kept."""
        if tokens not in self.shapes.token_buckets or prompt_size not in self.flow.solver.prompt_sizes:
            return self._make(streams, tokens, prompt_size)
        key = (streams, tokens, prompt_size)
        if key not in self._programs:
            logger.info("preparing a program for %d streams of %d tokens", streams, tokens)
            program = self._make(streams, tokens, prompt_size)
            if self.device.type == "cuda":
                program.warm_up()
                program.capture(self._stream)
            self._programs[key] = program
        return self._programs[key]

    def _make(self, streams: int, tokens: int, prompt_size: int) -> BucketProgram:
        return BucketProgram(
            self.flow,
            self.vocoder,
            self.device,
            streams=streams,
            tokens=tokens,
            prompt_size=prompt_size,
            graph_memory=self._graph_memory,
        )
