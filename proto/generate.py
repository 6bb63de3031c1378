"""Makes the Python stubs in proto/gen from the *.proto files here. Run it after every change of an interface.

    python -m venv /tmp/stubs && /tmp/stubs/bin/pip install grpcio-tools==1.64.1
    /tmp/stubs/bin/python proto/generate.py

The generator is that old on purpose, and lives in an environment of its own: its code runs with every protobuf from 5
on, while that of newer ones refuses any protobuf older than itself.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

GRPCIO_TOOLS = "1.64.1"
_SHARED_IMPORT = "from google.protobuf import descriptor_pool as _descriptor_pool\n"
_SHARED_POOL = "_descriptor_pool.Default()"
_POOL_MODULE = '''"""Riva's messages, in a pool of their own: NVIDIA's client may have others of the same names."""

from google.protobuf.descriptor_pool import DescriptorPool

POOL = DescriptorPool()
'''
_ROOT = Path(__file__).resolve().parent
_GEN = _ROOT / "gen"


def main() -> int:
    """Replace the stubs; return the exit status."""
    parser = argparse.ArgumentParser(description="Make the Python stubs of the gRPC interfaces.")
    parser.add_argument("--out", type=Path, default=_GEN, help="folder to fill; what was in it goes")
    out: Path = parser.parse_args().out
    if version("grpcio-tools") != GRPCIO_TOOLS:
        sys.stderr.write(f"got grpcio-tools {version('grpcio-tools')}, expected {GRPCIO_TOOLS}; install that\n")
        return 2
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    status = _compile(out)
    for folder in out.glob("*/**/"):
        if folder.parent != out:
            # The folders above may hold packages of others, such as Riva's own client.
            (folder / "__init__.py").touch()
    _keep_apart(out / "riva" / "proto")
    return status


def _keep_apart(folder: Path) -> None:
    """Give Riva's messages a pool of their own: NVIDIA's client brings other versions of the same files."""
    (folder / "__init__.py").write_text(_POOL_MODULE, encoding="utf-8")
    for path in sorted(folder.glob("*_pb2.py")):
        text = path.read_text(encoding="utf-8")
        if _SHARED_IMPORT not in text or _SHARED_POOL not in text:
            raise SystemExit(f"{path} does not use the shared pool as the generator of {GRPCIO_TOOLS} writes it")
        text = text.replace(_SHARED_IMPORT, "from riva.proto import POOL as _POOL\n").replace(_SHARED_POOL, "_POOL")
        path.write_text(text, encoding="utf-8")


def _compile(out: Path) -> int:
    from grpc_tools import protoc

    protos = sorted(_ROOT.rglob("*.proto"))
    services = [path for path in protos if "\nservice " in path.read_text(encoding="utf-8")]
    common = ["protoc", f"--proto_path={_ROOT}"]
    messages = [*common, f"--python_out={out}", f"--pyi_out={out}", *map(str, protos)]
    return int(protoc.main(messages) or protoc.main([*common, f"--grpc_python_out={out}", *map(str, services)]))


if __name__ == "__main__":
    sys.exit(main())
