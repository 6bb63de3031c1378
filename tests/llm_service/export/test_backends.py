"""Each backend serves the converted form with what it needs for it, and says what a stock form loses."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from llm_service.__main__ import main
from llm_service.adapters import TRTLLM_MODULE_DIR, VLLM_PLUGIN_DIR
from llm_service.backends import RUNNER_VARIABLE, check_backend, command_of
from llm_service.config import LLMBackend, ServerConfig, parse_server_config
from llm_service.errors import CheckpointError


def config_for(backend: LLMBackend, model_dir: Path, tokenizer_dir: Path, **settings: str) -> ServerConfig:
    return parse_server_config(backend, {"model_dir": str(model_dir), "tokenizer_dir": str(tokenizer_dir), **settings})


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of the engines' names."""
    for name in ("vllm", "trtllm-serve"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize("earlier", ["", "/somewhere/else"])
def test_vllm_finds_the_plugin_of_the_converted_form(
    converted_dir: Path, monkeypatch: pytest.MonkeyPatch, earlier: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", earlier)
    command = command_of(LLMBackend.VLLM, config_for(LLMBackend.VLLM, converted_dir, converted_dir))
    expected = f"{VLLM_PLUGIN_DIR}:{earlier}" if earlier else str(VLLM_PLUGIN_DIR)
    assert command[:5] == ["env", f"PYTHONPATH={expected}", "vllm", "serve", str(converted_dir)]


def test_tensorrt_llm_loads_the_module_of_the_converted_form(converted_dir: Path) -> None:
    command = command_of(LLMBackend.TRTLLM, config_for(LLMBackend.TRTLLM, converted_dir, converted_dir))
    assert command[command.index("--custom_module_dirs") + 1] == str(TRTLLM_MODULE_DIR)


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("backend", [LLMBackend.VLLM, LLMBackend.TRTLLM])
def test_only_a_stock_form_is_refused_for_its_bias(
    backend: LLMBackend,
    stock_dir: Path,
    converted_dir: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        check_backend(backend, config_for(backend, converted_dir, converted_dir))
        assert not caplog.text
    with pytest.raises(CheckpointError, match=f"cosydit convert-llm huggingface {stock_dir}"):
        check_backend(backend, config_for(backend, stock_dir, stock_dir))


@pytest.fixture
def started(programs: None, monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], str | None]]:
    """Commands that the launcher became, each with the runner that vLLM reads from the environment."""
    found: list[tuple[list[str], str | None]] = []
    monkeypatch.setattr(os, "execvp", lambda _, command: found.append((command, os.environ.get(RUNNER_VARIABLE))))
    monkeypatch.delenv(RUNNER_VARIABLE, raising=False)
    return found


def serve(model_dir: Path, *flags: str) -> None:
    assert main(["--backend", "vllm", "--model-dir", str(model_dir), *flags]) == 0


@pytest.mark.parametrize(("given", "taken"), [(None, "1"), ("0", "0")])
def test_vllm_runs_the_newer_runner_unless_told(
    converted_dir: Path,
    started: list[tuple[list[str], str | None]],
    monkeypatch: pytest.MonkeyPatch,
    given: str | None,
    taken: str,
) -> None:
    if given is not None:
        monkeypatch.setenv(RUNNER_VARIABLE, given)
    serve(converted_dir)
    assert started[-1][1] == taken
