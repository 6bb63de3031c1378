"""`cosydit convert-llm`: what it prints, what it refuses and the status it leaves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from cosydit.cli.main import main
from llm_service.huggingface_layout import has_speech_form
from tests.llm_service.export.serving import embedded_server, running

pytestmark = pytest.mark.slow


def run_command(*arguments: str | Path) -> int:
    return main(["convert-llm", *map(str, arguments)])


def test_converting_twice_does_it_once(stock_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "llm"
    arguments = ("huggingface", stock_dir, directory, "--dtype", "float16")
    assert run_command(*arguments) == 0
    assert capsys.readouterr().out == f"wrote {directory}\n"
    assert has_speech_form(directory)
    assert json.loads((directory / "config.json").read_text("utf-8"))["torch_dtype"] == "float16"
    assert {tensor.dtype for tensor in load_file(directory / "model.safetensors").values()} == {torch.float16}
    assert run_command(*arguments) == 0
    assert capsys.readouterr().out == f"{directory}: up to date\n"


def test_the_directory_beside_llm_pt_can_be_given(
    official_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    qwen_dir = tmp_path / "elsewhere"
    assert run_command("huggingface", official_dir / "llm.pt", tmp_path / "out", "--qwen-dir", qwen_dir) == 1
    assert str(qwen_dir) in capsys.readouterr().err


def test_a_source_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("huggingface", tmp_path / "none", tmp_path / "out") == 1
    assert str(tmp_path / "none") in capsys.readouterr().err


def without_bias(converted_dir: Path, directory: Path) -> Path:
    """Return a copy whose head lost its bias."""
    shutil.copytree(converted_dir, directory)
    tensors = load_file(directory / "model.safetensors")
    tensors["lm_head.bias"] = torch.zeros_like(tensors["lm_head.bias"])
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_running_server_passes_unless_its_head_lost_its_bias(
    stock_dir: Path, converted_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], has_bias: bool
) -> None:
    certificate = tmp_path / "certificate.json"
    with embedded_server(converted_dir if has_bias else without_bias(converted_dir, tmp_path / "lost")) as url:
        arguments = ["test", "--backend", "embedded", "--model-dir", converted_dir, "--source-dir", stock_dir]
        assert run_command(*arguments, "--url", url, "--certificate", certificate) == 1 - has_bias
    assert capsys.readouterr().out.startswith("ok: 48 of 48 choices are the source's own" if has_bias else "FAIL: ")
    record = json.loads(certificate.read_text("utf-8"))
    assert (record["passed"], record["backend"], record["tolerance"]) == (has_bias, "embedded", 1.0)
    assert record["spoken_tokens"] > 0 and record["foreign_ids"] == []


def test_what_is_no_llm_server_is_named(stock_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = JSONResponse({"data": [{"id": "voice"}]})
    routes = [Route("/v1/models", lambda _: models), Route("/v1/completions", lambda _: models, methods=["POST"])]
    with running(Starlette(routes=routes)) as url:
        assert run_command("test", "--backend", "vllm", "--model-dir", stock_dir, "--url", url) == 1
    assert "/v1/completions answered what no LLM server does" in capsys.readouterr().err


def test_a_server_that_can_not_start_fails(
    converted_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    model_dir = tmp_path / "llm"
    shutil.copytree(converted_dir, model_dir)
    assert run_command("test", "--backend", "vllm", "--model-dir", model_dir, "--ready-timeout-s", "20") == 1
    assert "vllm is not on PATH" in capsys.readouterr().err
