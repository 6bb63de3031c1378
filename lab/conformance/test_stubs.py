"""The gRPC stubs, in the environment of their generator: made from the interfaces as they are, and at home there too.

python -m venv DIRECTORY/stubs && DIRECTORY/stubs/bin/pip install grpcio-tools==1.64.1
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests import ROOT

PROTO = ROOT / "proto"
MODULES = "tts_api.tts.v1.tts_service_pb2_grpc, riva.proto.riva_tts_pb2_grpc"


def _files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_stubs_are_what_the_generator_makes_of_the_interfaces(
    python_of: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "gen"
    done = subprocess.run([python_of("stubs"), PROTO / "generate.py", "--out", out], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert _files(out) == _files(PROTO / "gen"), "run proto/generate.py"


def test_the_stubs_load_with_the_generators_old_protobuf(python_of: Callable[[str], Path]) -> None:
    code = f"import google.protobuf, {MODULES}; print(google.protobuf.__version__)"
    environment = {"PYTHONPATH": str(PROTO / "gen")}
    done = subprocess.run(
        [python_of("stubs"), "-W", "error", "-c", code], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.startswith(b"5.")
