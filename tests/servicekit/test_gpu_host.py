"""What the driver tells of this host's GPUs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from servicekit.gpu_host import default_device, missing_for_kernels, mps_problem, read_gpus
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


def test_a_host_without_compiler_or_headers_is_told_the_packages(tmp_path: Path) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert missing_for_kernels(tmp_path, {"PATH": str(tmp_path)}) == ["gcc", "libc6-dev", f"libpython{version}-dev"]
    (tmp_path / "Python.h").touch()
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    assert missing_for_kernels(tmp_path, {"PATH": str(tmp_path)}) == []
    assert missing_for_kernels(tmp_path, {"PATH": str(tmp_path), "CC": "other"}) == ["gcc", "libc6-dev"]


def test_a_daemon_of_mps_serves_its_owner_and_roots_serves_everybody(tmp_path: Path) -> None:
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    assert mps_problem({}) is None and mps_problem(environment) is None, "no daemon, no problem"
    (tmp_path / "control").touch()
    owner = (tmp_path / "control").stat().st_uid
    assert mps_problem(environment, owner) is None
    if owner != 0:
        assert f"belongs to user {owner}" in str(mps_problem(environment, owner + 1))
    else:
        assert mps_problem(environment, 10001) is None
        os.chown(tmp_path / "control", 4711, -1)
        assert "belongs to user 4711 and serves nobody else; this process is user 10001" in str(
            mps_problem(environment, 10001)
        )
