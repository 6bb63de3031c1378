"""Settings, backends and their command lines."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file

from llm_service.__main__ import main
from llm_service.backends import RUNNER_VARIABLE, check_backend, choose_backend, serve_options, succeeds
from llm_service.config import (
    SETTINGS,
    SPEECH_HEAD_FILE,
    LLMBackend,
    ServerConfig,
    SettingValue,
    parse_server_config,
)
from llm_service.embedded.serve import build_loop
from llm_service.errors import BackendUnavailableError, CheckpointError, LLMConfigError
from llm_service.huggingface_layout import ARCHITECTURE
from servicekit.clock import SystemClock
from servicekit.settings import SWITCH

# For every setting, a value that is not the default.
VALUES = {
    "model_dir": "other",
    "tokenizer_dir": "tok",
    "host": "10.0.0.1",
    "port": "9000",
    "in_container": "true",
    "max_batch_size": "3",
    "kv_cache_free_gpu_memory_fraction": "0.7",
    "max_num_tokens": "999",
    "max_seq_len": "777",
    "served_model_name": "voice",
    "stream_interval": "4",
    "device": "cuda:1",
    "engine": "graphs",
    "grpc_port": "9100",
    "dtype": "bfloat16",
    "num_threads": "3",
    "max_queue_size": "5",
    "ras_window": "7",
    "ras_tau": "0.3",
}


def dry_run(capsys: pytest.CaptureFixture[str], backend: str, *arguments: str) -> list[str]:
    assert main(["--backend", backend, "--model-dir", "m", *arguments, "--dry-run"]) == 0
    return shlex.split(capsys.readouterr().out)


def test_trtllm_serve_runs_as_the_original_runs_it(capsys: pytest.CaptureFixture[str]) -> None:
    expected = (
        "trtllm-serve serve m --tokenizer tok --host 127.0.0.1 --port 8000 "
        "--max_batch_size 64 --kv_cache_free_gpu_memory_fraction 0.4 --extra_llm_api_options"
    )
    *command, _ = dry_run(capsys, "trtllm", "--tokenizer-dir", "tok")
    assert command == expected.split()


def test_trtllm_serve_has_metrics_for_prometheus(capsys: pytest.CaptureFixture[str]) -> None:
    options = Path(dry_run(capsys, "trtllm")[-1])
    assert yaml.safe_load(options.read_text()) == {"return_perf_metrics": True, "enable_iter_perf_stats": True}


@pytest.mark.parametrize(
    ("version", "sampler"),
    [(None, None), ("1.0.0", None), ("1.1.0rc5", "TRTLLMSampler"), ("1.2.1", "TRTLLMSampler"), ("1.3.0", None)],
)
def test_trtllm_serve_is_asked_for_the_sampler_that_applies_penalties(version: str | None, sampler: str | None) -> None:
    options = yaml.safe_load(serve_options(None, version))
    assert options.get("sampler_type") == sampler
    assert options["return_perf_metrics"] is True
    assert yaml.safe_load(serve_options(4, version))["stream_interval"] == 4


def test_vllm_gets_the_same_settings_under_its_own_names(capsys: pytest.CaptureFixture[str]) -> None:
    command = dry_run(capsys, "vllm", "--max-num-tokens", "100", "--max-seq-len", "200")
    expected = (
        "vllm serve m --tokenizer m --host 127.0.0.1 --port 8000 --served-model-name m --max-num-seqs 64 "
        "--max-cudagraph-capture-size 512 --gpu-memory-utilization 0.4 --max-num-batched-tokens 100 --max-model-len 200"
    )
    assert command == expected.split()


@pytest.mark.parametrize("backend", list(LLMBackend))
def test_every_accepted_setting_changes_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: LLMBackend
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(RUNNER_VARIABLE, raising=False)
    for name in ("m", VALUES["model_dir"]):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"architectures": [ARCHITECTURE]}))
    plain = dry_run(capsys, backend.value)
    for setting in SETTINGS:
        flag = [f"--{setting.name.replace('_', '-')}"] + ([] if setting.kind is SWITCH else [VALUES[setting.name]])
        if backend in setting.backends:
            assert dry_run(capsys, backend.value, *flag) != plain, setting.name
        else:
            assert main(["--backend", backend.value, "--model-dir", "m", *flag, "--dry-run"]) == 2
            assert setting.name in capsys.readouterr().err


def test_the_embedded_command_can_be_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    command = dry_run(capsys, "embedded", "--ras-window", "3", "--in-container")
    assert command[:3] == [sys.executable, "-m", "llm_service"]
    assert main([*command[3:], "--dry-run"]) == 0
    assert shlex.split(capsys.readouterr().out) == command


def test_all_interfaces_are_bound_in_a_container_only() -> None:
    common = {"model_dir": "m"}
    for backend in LLMBackend:
        assert parse_server_config(backend, common).host == "127.0.0.1"
        assert parse_server_config(backend, {**common, "in_container": True}).host == "0.0.0.0"
        assert parse_server_config(backend, {**common, "in_container": True, "host": "::1"}).host == "::1"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({}, "model_dir is missing", id="no model"),
        pytest.param({"model_dir": "m", "colour": "red"}, "unknown setting 'colour'", id="unknown"),
        pytest.param({"model_dir": "m", "port": "70000"}, "0 to 65535", id="port"),
        pytest.param({"model_dir": "m", "max_batch_size": "many"}, "expected a whole number", id="type"),
        pytest.param({"model_dir": "m", "kv_cache_free_gpu_memory_fraction": 1.5}, "at most 1", id="share"),
        pytest.param({"model_dir": "m", "dtype": "int8"}, "expected float32, bfloat16 or float16", id="choice"),
        pytest.param({"model_dir": "m", "in_container": "maybe"}, "true or false", id="bool"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(LLMConfigError, match=message):
        parse_server_config(LLMBackend.EMBEDDED, settings)


def test_the_embedded_settings_are_read_and_bounded() -> None:
    given = {"model_dir": "m", "ras_tau": "0.5", "num_threads": "2"}
    assert parse_server_config(LLMBackend.EMBEDDED, given) == ServerConfig(
        Path("m"), Path("m"), "m", max_batch_size=8, ras_tau=0.5, num_threads=2
    )
    with pytest.raises(LLMConfigError, match="ras_tau"):
        parse_server_config(LLMBackend.EMBEDDED, {"model_dir": "m", "ras_tau": 0.0})


@pytest.mark.parametrize(("backend", "program"), [(LLMBackend.VLLM, "vllm"), (LLMBackend.TRTLLM, "trtllm-serve")])
def test_a_missing_program_is_named_with_how_to_get_it(
    llm_dir: Path, monkeypatch: pytest.MonkeyPatch, backend: LLMBackend, program: str
) -> None:
    monkeypatch.setenv("PATH", "")
    config = parse_server_config(backend, {"model_dir": str(llm_dir)})
    with pytest.raises(BackendUnavailableError, match=f"{program} is not on PATH; install"):
        check_backend(backend, config)


@pytest.mark.parametrize("backend", [LLMBackend.VLLM, LLMBackend.TRTLLM])
@pytest.mark.parametrize("form", ["beside", "inside", "none"])
def test_a_stock_form_with_a_head_bias_is_refused_with_the_conversion(
    backend: LLMBackend,
    form: str,
    llm_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for program in (tmp_path / "vllm", tmp_path / "trtllm-serve"):
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    stock = stock_form(llm_dir, tmp_path / "stock", form)
    config = parse_server_config(backend, {"model_dir": str(stock)})
    if form == "none":
        check_backend(backend, config)
        assert "stores no bias" in caplog.text
        return
    with pytest.raises(CheckpointError, match=f"cosydit convert-llm huggingface {stock} DIRECTORY"):
        check_backend(backend, config)


def stock_form(source: Path, directory: Path, form: str) -> Path:
    """Copy a stock LLM; its head's bias lies in a file beside the weights, among them (as official), or nowhere."""
    shutil.copytree(source, directory, copy_function=os.link)
    if form == "beside":
        return directory
    (directory / SPEECH_HEAD_FILE).unlink()
    if form == "inside":
        save_file({"lm_head.bias": torch.zeros(8)}, directory / "model-00002-of-00002.safetensors")
    return directory


def test_a_missing_directory_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["--model-dir", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["--model-dir", str(tmp_path)]) == 2
    assert "tokenizer.json is missing" in capsys.readouterr().err


def test_the_share_of_memory_bounds_the_slots(llm_dir: Path) -> None:
    common: dict[str, SettingValue] = {
        "model_dir": str(llm_dir),
        "max_batch_size": 2,
        "max_seq_len": 64,
        "num_threads": 1,
    }
    tiny_share: dict[str, SettingValue] = {**common, "kv_cache_free_gpu_memory_fraction": 1e-12}
    with pytest.raises(LLMConfigError, match="one slot"):
        build_loop(parse_server_config(LLMBackend.EMBEDDED, tiny_share), SystemClock())
    loop = build_loop(parse_server_config(LLMBackend.EMBEDDED, common), SystemClock())
    loop.stop()
    assert loop.stats().slots == 2


def test_sequences_longer_than_the_model_allows_are_refused(llm_dir: Path) -> None:
    config = parse_server_config(LLMBackend.EMBEDDED, {"model_dir": str(llm_dir), "max_seq_len": 40000})
    with pytest.raises(CheckpointError, match="32768"):
        build_loop(config, SystemClock())


def test_auto_takes_trtllm_only_where_it_works_and_loses_nothing(llm_dir: Path, tmp_path: Path) -> None:
    converted = tmp_path / "converted"
    converted.mkdir()
    (converted / "config.json").write_text('{"architectures": ["SpeechQwen2ForCausalLM"]}')
    assert choose_backend(converted, True, lambda _: True) is LLMBackend.TRTLLM
    assert choose_backend(converted, True, lambda _: False) is LLMBackend.EMBEDDED
    assert choose_backend(llm_dir, True, lambda _: True) is LLMBackend.EMBEDDED
    assert choose_backend(llm_dir, True, lambda _: True, can_convert=True) is LLMBackend.TRTLLM
    assert choose_backend(converted, False, lambda _: True) is LLMBackend.EMBEDDED


def test_a_probe_tells_whether_a_program_works() -> None:
    assert succeeds(["true"])
    assert not succeeds(["false"]) and not succeeds(["no-such-program-anywhere"])


def test_auto_without_a_gpu_is_our_own_engine_on_the_cpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    command = dry_run(capsys, "auto")
    assert command[command.index("--backend") + 1] == "embedded" and command[command.index("--device") + 1] == "cpu"


@pytest.mark.parametrize(("told", "expected"), [(None, "1"), ("0", "0")])
def test_our_own_engine_stands_behind_token2wav_under_mps(
    llm_dir: Path, monkeypatch: pytest.MonkeyPatch, told: str | None, expected: str
) -> None:
    """CUDA reads the variable when the process first uses a GPU, so it must stand before the engine is built."""
    seen: list[str | None] = []
    monkeypatch.setenv("CUDA_MPS_CLIENT_PRIORITY", told or "")  # so that it is as before in the end
    if told is None:
        monkeypatch.delenv("CUDA_MPS_CLIENT_PRIORITY")
    monkeypatch.setattr(
        "llm_service.embedded.serve.serve", lambda *_: seen.append(os.environ.get("CUDA_MPS_CLIENT_PRIORITY"))
    )
    assert main(["--model-dir", str(llm_dir), "--tokenizer-dir", str(llm_dir)]) == 0
    assert seen == [expected]
