"""The interfaces' rules, that they change without breaking callers, and that the stubs are made from them."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from riva.proto import riva_tts_pb2, riva_tts_pb2_grpc
from tts_api.tts.v1 import tts_service_pb2, tts_service_pb2_grpc

from tests import ROOT

PROTO = ROOT / "proto"
RELEASED = PROTO / "released.binpb"
BUF = Path(sys.executable).with_name("buf")


def buf(*args: str | Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([BUF, *args], capture_output=True, check=False)


def described() -> list[descriptor_pb2.FileDescriptorProto]:
    """Compile the interfaces."""
    built = buf("build", PROTO, "--exclude-source-info", "--as-file-descriptor-set", "-o", "-")
    assert built.returncode == 0, built.stderr.decode()
    return list(descriptor_pb2.FileDescriptorSet.FromString(built.stdout).file)


def test_the_interfaces_keep_the_rules_of_the_linter() -> None:
    lint = buf("lint", PROTO)
    assert lint.returncode == 0, lint.stdout.decode()


def test_the_interfaces_are_formatted() -> None:
    formatted = buf("format", "--exit-code", "--diff", PROTO)
    assert formatted.returncode == 0, formatted.stdout.decode()


def test_no_change_since_the_release_breaks_a_caller() -> None:
    breaking = buf("breaking", PROTO, "--against", RELEASED)
    assert breaking.returncode == 0, breaking.stdout.decode()


def test_a_change_that_breaks_callers_would_be_found(tmp_path: Path) -> None:
    shutil.copytree(PROTO, tmp_path / "proto", ignore=shutil.ignore_patterns("gen"))
    speech = tmp_path / "proto/tts_api/tts/v1/speech.proto"
    speech.write_text(speech.read_text().replace("int32 sample_rate_hz = 2;", "int64 sample_rate_hz = 12;"))
    breaking = buf("breaking", tmp_path / "proto", "--against", RELEASED)
    assert breaking.returncode != 0
    assert b"sample_rate_hz" in breaking.stdout


def test_the_stubs_describe_the_interfaces_as_they_are() -> None:
    for file in described():
        stub = importlib.import_module(file.name.removesuffix(".proto").replace("/", ".") + "_pb2")
        generated = descriptor_pb2.FileDescriptorProto()
        stub.DESCRIPTOR.CopyToProto(generated)
        for each in (file, generated):
            _forget_json_names(each)
        assert generated == file, f"{file.name} has changed; run proto/generate.py"


def _forget_json_names(file: descriptor_pb2.FileDescriptorProto) -> None:
    """Compilers differ in whether they write them out; they follow from the names."""
    messages = list(file.message_type)
    while messages:
        message = messages.pop()
        messages += message.nested_type
        for field in message.field:
            field.ClearField("json_name")


def test_every_interface_has_its_stub_and_no_other() -> None:
    stubs = {path.relative_to(PROTO / "gen").as_posix() for path in (PROTO / "gen").rglob("*_pb2.py")}
    assert stubs == {file.name.removesuffix(".proto") + "_pb2.py" for file in described()}


@pytest.mark.parametrize(
    ("descriptor", "servicer"),
    [
        (tts_service_pb2.DESCRIPTOR, tts_service_pb2_grpc.TextToSpeechServiceServicer),
        (riva_tts_pb2.DESCRIPTOR, riva_tts_pb2_grpc.RivaSpeechSynthesisServicer),
    ],
)
def test_the_services_have_the_methods_of_their_interfaces(descriptor: object, servicer: type) -> None:
    (service,) = descriptor.services_by_name.values()  # type: ignore[attr-defined]
    assert {name for name in vars(servicer) if not name.startswith("_")} == set(service.methods_by_name)


def test_riva_has_the_numbers_of_its_clients() -> None:
    request = riva_tts_pb2.SynthesizeSpeechRequest.DESCRIPTOR
    assert {field.name: field.number for field in request.fields} == {
        "text": 1,
        "language_code": 2,
        "encoding": 3,
        "sample_rate_hz": 4,
        "voice_name": 5,
        "zero_shot_data": 6,
        "custom_dictionary": 7,
        "custom_configuration": 8,
        "enable_word_time_offsets": 9,
        "id": 100,
    }


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
