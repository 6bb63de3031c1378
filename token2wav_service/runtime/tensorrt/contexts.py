"""Lends execution contexts of one engine. Knows nothing of shapes or tensors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from token2wav_service.errors import CapacityError
from token2wav_service.runtime.tensorrt.api import Context, Engine

ALIGNMENT_BYTES = 256
"""Of activation memory, as TensorRT asks for."""


class ContextPool:
    """Contexts that share one activation memory: many may be lent, one computes at a time.

    A captured CUDA graph holds addresses of its context's state, so it must keep its context for as long as it is
    replayed.
    """

    def __init__(self, engine: Engine, size: int, device: torch.device) -> None:
        """Allocate the activation memory; contexts are made as they are first needed.

        Args:
            size: contexts at most.
        """
        self._engine, self._size = engine, size
        self._memory = torch.empty(engine.activation_bytes + ALIGNMENT_BYTES, dtype=torch.uint8, device=device)
        self._lock = threading.Lock()
        self._idle: list[Context] = []
        self._lent = 0

    @property
    def num_free(self) -> int:
        """Contexts that can be lent now."""
        with self._lock:
            return self._size - self._lent

    @contextmanager
    def lend(self) -> Iterator[Context]:
        """Lend a context; shapes and addresses of an earlier use may still be set.

        Raises:
            CapacityError: all are lent.
        """
        context = self._take()
        try:
            yield context
        finally:
            with self._lock:
                self._lent -= 1
                self._idle.append(context)

    def _take(self) -> Context:
        with self._lock:
            if self._lent == self._size:
                raise CapacityError(
                    f"all {self._size} TensorRT contexts are lent; raise tensorrt_contexts, or name fewer "
                    "tensorrt_prompt_frames"
                )
            context = self._idle.pop() if self._idle else self._new()
            self._lent += 1
            return context

    def _new(self) -> Context:
        context = self._engine.new_context()
        address = -(-self._memory.data_ptr() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        context.use_memory(address, self._engine.activation_bytes)
        return context
