"""GPU hosts as `nvidia-smi` tells of them, for tests: none is needed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from servicekit.gpu_host import GpuFacts, RunProgram

H100 = GpuFacts("NVIDIA H100 80GB HBM3", 81559, 81000, "580.95.05", (9, 0))
H200 = GpuFacts("NVIDIA H200", 143771, 143150, "580.95.05", (9, 0))
L4 = GpuFacts("NVIDIA L4", 23034, 22560, "580.95.05", (8, 9))
L40S = GpuFacts("NVIDIA L40S", 46068, 45460, "580.95.05", (8, 9))
A4000 = GpuFacts("NVIDIA RTX A4000", 16376, 15900, "580.95.05", (8, 6))
KINDS = (A4000, L4, L40S, H100, H200)
SLICES = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)
  MIG 3g.40gb     Device  0: (UUID: MIG-a)
  MIG 1g.10gb     Device  1: (UUID: MIG-b)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-1)
"""


def nvidia_smi(*gpus: GpuFacts, mig: Sequence[int] = (), listed: str = "") -> RunProgram:
    """Return what answers as the driver's program on a host with these GPUs, those of `mig` cut into slices."""

    def run(command: Sequence[str]) -> str:
        if not gpus:
            raise subprocess.CalledProcessError(9, command)
        if command[1] == "-L":
            return listed
        return "\n".join(_row(index, gpu, index in mig) for index, gpu in enumerate(gpus)) + "\n"

    return run


def _row(index: int, gpu: GpuFacts, is_cut: bool) -> str:
    memory = f"{gpu.memory_mib}, {'[Insufficient Permissions]' if is_cut else gpu.free_mib}"
    capability = ".".join(map(str, gpu.capability))
    mode = "Enabled" if is_cut else "[N/A]"
    return f"{index}, GPU-{index}, {gpu.name}, {memory}, {gpu.driver}, {capability}, {mode}"
