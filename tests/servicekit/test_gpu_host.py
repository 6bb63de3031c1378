"""What the driver tells of this host's GPUs."""

from __future__ import annotations

from servicekit.gpu_host import default_device, read_gpus
from tests.cosydit.stack.gpu_hosts import H100, H200, L4, SLICES, nvidia_smi


def test_gpus_are_read_from_the_driver() -> None:
    assert read_gpus(nvidia_smi(H100, L4), {}) == (H100, L4)
    assert read_gpus(nvidia_smi(), {}) == ()
    assert read_gpus(lambda _: "No devices were found", {}) == ()


def test_only_visible_gpus_count_in_the_order_in_which_they_are_named() -> None:
    run = nvidia_smi(H100, L4, H200)
    assert read_gpus(run, {"CUDA_VISIBLE_DEVICES": "2,0"}) == (H200, H100)
    assert read_gpus(run, {"CUDA_VISIBLE_DEVICES": "GPU-1"}) == (L4,)
    assert read_gpus(run, {"CUDA_VISIBLE_DEVICES": "0,7,1"}) == (H100,), "CUDA stops at the first that is none"
    assert read_gpus(run, {"CUDA_VISIBLE_DEVICES": ""}) == ()
    assert read_gpus(run, {"CUDA_VISIBLE_DEVICES": "-1"}) == ()


def test_a_slice_counts_with_its_own_memory() -> None:
    run = nvidia_smi(H100, H100, mig=[0], listed=SLICES)
    large, small, whole = read_gpus(run, {})
    assert large.is_slice and 38_000 < large.memory_mib < 41_000
    assert small.memory_mib < 10_000 and whole == H100
    assert read_gpus(run, {"CUDA_VISIBLE_DEVICES": "MIG-b"}) == (small,)


def test_the_environment_names_the_device() -> None:
    assert default_device({}) == default_device({"COSYDIT_DEVICE": ""}) == "auto"
    assert default_device({"COSYDIT_DEVICE": "cpu"}) == "cpu"
