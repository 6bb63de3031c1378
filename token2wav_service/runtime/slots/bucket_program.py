"""Flow and vocoder for one bucket of streams and tokens: static inputs and output, a CUDA graph where there is CUDA."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from token2wav_service.runtime.slots.slot_flow import SlotBatch, SlotFlow
from token2wav_service.runtime.slots.slot_vocoder import SlotVocoder
from token2wav_service.types import FloatArray

FIELDS = len(SlotBatch.__dataclass_fields__)


class BucketProgram:
    """Flow and vocoder for one shape, with static inputs and output."""

    def __init__(
        self,
        flow: SlotFlow,
        vocoder: SlotVocoder,
        device: torch.device,
        *,
        streams: int,
        tokens: int,
        prompt_size: int,
        graph_memory: Any = None,
        is_captured: bool = False,
    ) -> None:
        """Make the inputs, and capture the graph if there is to be one.

        Args:
            flow: tokens to mel.
            vocoder: mel to samples.
            device: where both run.
            streams: most streams of a run.
            tokens: of each stream in a run, look-ahead not counted.
            prompt_size: frames of the prompt that attention reads.
            graph_memory: the pool that all graphs share; None where there is no CUDA.
            is_captured: whether runs replay a CUDA graph.
        """
        self.streams = streams
        self.prompt_size = prompt_size
        self.mel: Tensor | None = None
        """[B, 2T, 80] of the latest run."""
        self._flow = flow
        self._vocoder = vocoder
        self._graph_memory = graph_memory
        # A scratch batch without history: valid input for the first runs.
        self._fields = torch.zeros(FIELDS, streams, dtype=torch.int64, device=device)
        self._tokens = torch.zeros(streams, tokens + flow.lookahead, dtype=torch.int64, device=device)
        names = list(SlotBatch.__dataclass_fields__)
        self._fields[names.index("num_tokens")] = 1
        self._fields[names.index("is_last")] = 1
        self._batch = SlotBatch(*self._fields.unbind(0))
        self._graph: torch.cuda.CUDAGraph | None = None
        self._speech: Tensor | None = None
        self._host: Tensor | None = None
        if is_captured:
            self._capture()

    def run(self, fields: np.ndarray, tokens: np.ndarray) -> FloatArray:  # type: ignore[type-arg]
        """Run with these inputs; returns samples [B, N] on the host, valid until the next run."""
        self._fields.copy_(torch.from_numpy(fields))
        self._tokens.copy_(torch.from_numpy(tokens))
        if self._graph is None:
            self._speech = self._compute()
            if self._speech.is_cuda and self._host is None:
                self._host = torch.empty(self._speech.shape, pin_memory=True)
        else:
            self._graph.replay()
        assert self._speech is not None
        if self._host is None:
            return self._speech.numpy()
        self._host.copy_(self._speech, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return self._host.numpy()

    def _compute(self) -> Tensor:
        self.mel = self._flow.run(self._tokens, self._batch, self.prompt_size)
        return self._vocoder.run(self.mel, self._flow.frame_lengths(self._batch), self._batch)

    def _capture(self) -> None:
        """Run twice on a side stream, so that everything is compiled and tuned, then capture."""
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._compute()
            self._compute()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=self._graph_memory, capture_error_mode="thread_local"):
            self._speech = self._compute()
        self._host = torch.empty(self._speech.shape, pin_memory=True)
