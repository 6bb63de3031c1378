"""Runs an engine once and waits for it; for measurements, not for serving."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from token2wav_service.runtime.tensorrt.api import Engine
from token2wav_service.runtime.tensorrt.binding import BoundContext, choose_profile, stream_handle, torch_dtype
from token2wav_service.runtime.tensorrt.contexts import ContextPool


def run_once(engine: Engine, inputs: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return the outputs for some inputs.

    Args:
        inputs: every input, on the device, in the engine's types.

    Raises:
        EngineUnfitError: names, types or shapes are not the engine's.
    """
    with ContextPool(engine, 1, device).lend() as context:
        profile = choose_profile(engine.profiles, {name: tuple(value.shape) for name, value in inputs.items()})
        context.select_profile(profile, stream_handle(device))
        for name, value in inputs.items():
            context.set_shape(name, tuple(value.shape))
        outputs = {
            tensor.name: torch.empty(context.shape(tensor.name), dtype=torch_dtype(tensor.dtype), device=device)
            for tensor in engine.tensors.values()
            if not tensor.is_input
        }
        tensors = {name: value.contiguous() for name, value in inputs.items()} | outputs
        BoundContext(engine, context, tensors).run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return outputs
