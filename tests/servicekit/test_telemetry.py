"""No library that our packages import reports to its maker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("package", ["token2wav_service", "llm_service", "gateway", "cosydit", "demo_voice"])
def test_whoever_imports_a_package_of_ours_has_onnx_runtime_write_no_device_id(tmp_path: Path, package: str) -> None:
    pytest.importorskip("onnxruntime")
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        environment[name] = str(tmp_path)
    command = [sys.executable, "-B", "-c", f"import {package}, onnxruntime"]
    subprocess.run(command, env=environment, cwd=ROOT, check=True)
    assert list(tmp_path.rglob("*")) == []
