"""NVIDIA's own client may be installed beside ours, and loaded in the same process, in whatever version it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

CLIENT = """
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
file = descriptor_pb2.FileDescriptorProto(name="riva/proto/riva_tts.proto", package="nvidia.riva.tts", syntax="proto3")
file.message_type.add(name="SynthesizeSpeechRequest").field.add(name="text", number=1, type=9, label=1)
descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
found = descriptor_pool.Default().FindMessageTypeByName("nvidia.riva.tts.SynthesizeSpeechRequest")
Request = message_factory.GetMessageClass(found)
"""
OURS = "import gateway.doors.grpc; from riva.proto import riva_tts_pb2"
THEIRS = "from riva.client import Request"
READ = """
sent = riva_tts_pb2.SynthesizeSpeechRequest(text="Hello.", zero_shot_data=riva_tts_pb2.ZeroShotData(quality=3))
print(Request.FromString(sent.SerializeToString()).text)
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours-first", "theirs-first"])
def test_another_version_of_the_interface_is_loaded_beside_ours(tmp_path: Path, order: tuple[str, str]) -> None:
    (tmp_path / "riva" / "client").mkdir(parents=True)
    (tmp_path / "riva" / "client" / "__init__.py").write_text(CLIENT)
    paths = f"{tmp_path}:{ROOT}:{ROOT / 'proto' / 'gen'}"
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*order, READ])],
        env={"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "Hello."), done.stderr
