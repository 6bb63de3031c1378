"""Where the training computes in bfloat16, and where in full precision."""

from __future__ import annotations

import torch


def autocast(device: torch.device) -> torch.autocast:
    """Return a context: bfloat16 products on a GPU, float32 on a CPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
