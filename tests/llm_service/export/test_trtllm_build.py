"""Building an engine: the command line, and a stand-in for trtllm-build that succeeds, fails or forgets the engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from llm_service.adapters import TRTLLM_ENGINE_FILE
from llm_service.errors import BackendUnavailableError, BuildError, CheckpointError, LLMConfigError
from llm_service.export.convert import build_trtllm
from llm_service.export.trtllm_build import BuildLimits, build_command

# Takes trtllm-build's documented options. Not the real program, which can't be installed here.
STAND_IN = """#!{python}
import argparse, pathlib, sys
parser = argparse.ArgumentParser()
for name in ("checkpoint_dir", "output_dir", "model_cls_file", "model_cls_name", "gemm_plugin", "max_seq_len"):
    parser.add_argument("--" + name)
for name in ("max_batch_size", "max_num_tokens"):
    parser.add_argument("--" + name, type=int)
args = parser.parse_args()
print("[TensorRT-LLM] building", flush=True)
out = pathlib.Path(args.output_dir)
(pathlib.Path(__file__).parent / "calls").open("a").write(" ".join(sys.argv[1:]) + chr(10))
{body}
"""
BUILDS = "(out / 'rank0.engine').write_bytes(b'engine'); (out / 'config.json').write_text('{}')"
FAILS = "print('Error Code 4: no kernel for layer lm_head', file=sys.stderr); sys.exit(3)"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """What the converter writes, without the weights."""
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"dtype": "bfloat16"}))
    (directory / "rank0.safetensors").write_bytes(b"weights")
    return directory


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """Put a stand-in on PATH; return the file that lists its calls."""
    programs = tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    program = programs / "trtllm-build"
    program.write_text(STAND_IN.format(python=sys.executable, body=body))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    return programs / "calls"


def test_the_command_is_the_documented_one(checkpoint: Path) -> None:
    command = build_command(checkpoint, Path("engine"), BuildLimits())
    expected = (
        f"trtllm-build --checkpoint_dir {checkpoint} --output_dir engine --model_cls_file {TRTLLM_ENGINE_FILE} "
        "--model_cls_name SpeechQwen2ForCausalLM --max_batch_size 64 --max_num_tokens 32768 --gemm_plugin bfloat16"
    )
    assert command == expected.split()
    other = " ".join(build_command(checkpoint, Path("engine"), BuildLimits(8, 64, 1024)))
    assert "--max_batch_size 8 --max_num_tokens 64" in other
    assert other.endswith("--max_seq_len 1024")


def test_an_engine_is_built_once(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install(tmp_path, monkeypatch, BUILDS)
    engine = tmp_path / "engine"
    assert build_trtllm(checkpoint, engine, BuildLimits())
    assert not build_trtllm(checkpoint, engine, BuildLimits())
    assert len(calls.read_text().splitlines()) == 1
    assert build_trtllm(checkpoint, engine, BuildLimits(max_batch_size=8))
    assert len(calls.read_text().splitlines()) == 2
    assert (engine / "rank0.engine").read_bytes() == b"engine"
    assert "building" in (tmp_path / "engine.build.log").read_text()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(FAILS, r"status 3; .*engine\.build\.log:\n(.|\n)*no kernel for layer lm_head", id="fails"),
        pytest.param("pass", "wrote no engine", id="forgets"),
    ],
)
def test_a_failed_build_says_why_and_leaves_no_engine(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, message: str
) -> None:
    install(tmp_path, monkeypatch, body)
    with pytest.raises(BuildError, match=message):
        build_trtllm(checkpoint, tmp_path / "engine", BuildLimits())
    assert not (tmp_path / "engine").exists()


def test_a_missing_builder_is_named_with_the_version_that_has_it(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BackendUnavailableError, match=r"trtllm-build is not on PATH.*1\.2\.1"):
        build_trtllm(checkpoint, tmp_path / "engine", BuildLimits())


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no TensorRT-LLM checkpoint"):
        build_trtllm(tmp_path, tmp_path / "engine", BuildLimits())
    with pytest.raises(LLMConfigError, match="max_num_tokens"):
        BuildLimits(max_batch_size=64, max_num_tokens=8)
