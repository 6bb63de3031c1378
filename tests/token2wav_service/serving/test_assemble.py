"""The assembler: every setting shows in the result, nothing unknown or wrong gets in, nothing half-written stays."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Any

import pytest

from token2wav_service.checkpoint.family import Family
from token2wav_service.config import Token2WavConfig
from token2wav_service.contract import (
    AUDIO_TOKENIZER_MODEL,
    DROP_IN_MODEL,
    SPEAKER_EMBEDDING_MODEL,
    TOKEN2WAV_MODEL,
)
from token2wav_service.python_backend.server_process import ENTRY_PARAMETER
from token2wav_service.serving.assemble import MODEL_FILE, TEMPLATES, assemble, count_instances, main, read_config
from token2wav_service.serving.settings import SETTINGS, RepositorySettingsError

MODELS = (TOKEN2WAV_MODEL, DROP_IN_MODEL, AUDIO_TOKENIZER_MODEL, SPEAKER_EMBEDDING_MODEL)


@pytest.fixture
def required(tmp_path: Path) -> dict[str, str]:
    for name in ("token2wav", "llm", "voices"):
        (tmp_path / name).mkdir()
    return {"model_dir": str(tmp_path / "token2wav"), "llm_tokenizer_dir": str(tmp_path / "llm")}


def configs(repository: Path) -> dict[str, Any]:
    return {model: read_config(repository / model / "config.pbtxt") for model in MODELS}


def parameters(repository: Path, model: str) -> dict[str, str]:
    """A model's own parameters: all but its entry."""
    found = configs(repository)[model].parameters
    return {name: value.string_value for name, value in found.items() if name != ENTRY_PARAMETER}


@pytest.mark.parametrize("model", MODELS)
def test_the_templates_are_complete_configurations(model: str) -> None:
    config = read_config(TEMPLATES / model / "config.pbtxt")
    assert (config.name, config.backend) == (model, "python")
    assert config.input and config.output and config.instance_group


@pytest.mark.parametrize("model", MODELS)
def test_every_model_has_the_file_that_triton_loads_and_names_code_that_is_there(
    model: str, tmp_path: Path, required: dict[str, str]
) -> None:
    assemble(tmp_path / "out", required)
    assert (tmp_path / "out" / model / "1" / "model.py").read_bytes() == MODEL_FILE.read_bytes()
    entry = configs(tmp_path / "out")[model].parameters[ENTRY_PARAMETER].string_value
    assert callable(pkgutil.resolve_name(entry))


@pytest.mark.parametrize("family", Family)
def test_the_drop_in_is_called_what_the_original_calls_it_for_the_checkpoints_family(
    family: Family, tmp_path: Path, required: dict[str, str]
) -> None:
    expected = {Family.STEP_AUDIO2: "cosyvoice2_dit", Family.COSYVOICE2: "cosyvoice2", Family.COSYVOICE3: "cosyvoice3"}
    (tmp_path / "token2wav" / family.files.description).touch()
    applied = assemble(tmp_path / "out", required | {"BLS_INSTANCE_NUM": "3"})
    assert applied["BLS_INSTANCE_NUM"] == "3"
    folders = {path.name for path in (tmp_path / "out").iterdir()}
    assert folders == {TOKEN2WAV_MODEL, expected[family], AUDIO_TOKENIZER_MODEL, SPEAKER_EMBEDDING_MODEL}
    config = read_config(tmp_path / "out" / expected[family] / "config.pbtxt")
    assert (config.name, config.instance_group[0].count) == (expected[family], 3)


@pytest.mark.parametrize(
    ("family", "names", "of_models"),
    [
        (Family.COSYVOICE2, {"token2wav", "tensorrt_llm"}, {"token2wav"}),
        (Family.COSYVOICE3, {"token2wav", "vocoder"}, {"token2wav", "vocoder"}),
    ],
)
def test_the_originals_other_models_are_those_of_one_family(
    family: Family, names: set[str], of_models: set[str], tmp_path: Path, required: dict[str, str]
) -> None:
    (tmp_path / "token2wav" / family.files.description).touch()
    asked = required | {"ORIGINAL_MODELS": "true", "device": "cuda:1"}
    assemble(tmp_path / "out", asked)
    usual = {TOKEN2WAV_MODEL, family.value, AUDIO_TOKENIZER_MODEL, SPEAKER_EMBEDDING_MODEL}
    assert {path.name for path in (tmp_path / "out").iterdir()} == usual | names
    for name in names:
        config = read_config(tmp_path / "out" / name / "config.pbtxt")
        assert callable(pkgutil.resolve_name(config.parameters[ENTRY_PARAMETER].string_value)) and config.name == name
        given = [config.parameters[key].string_value for key in ("model_dir", "device")]
        assert given == ([required["model_dir"], "cuda:1"] if name in of_models else ["", ""])


def test_the_llm_inside_triton_asks_the_llm_service(tmp_path: Path, required: dict[str, str]) -> None:
    (tmp_path / "token2wav" / Family.COSYVOICE2.files.description).touch()
    given = {"ORIGINAL_MODELS": "True", "llm_api_base": "http://llm:9000", "DECOUPLED_MODE": "False", "llm_model": "m"}
    assemble(tmp_path / "out", required | given | {"TRITON_MAX_BATCH_SIZE": "5"})
    config = read_config(tmp_path / "out" / "tensorrt_llm" / "config.pbtxt")
    assert (config.max_batch_size, config.model_transaction_policy.decoupled) == (5, False)
    known = {name: value.string_value for name, value in config.parameters.items() if name != ENTRY_PARAMETER}
    llm = {"llm_api_base": "http://llm:9000", "llm_backend": "embedded", "llm_model": "m"}
    assert known == llm | {"llm_tokenizer_dir": required["llm_tokenizer_dir"]}


def test_with_the_cache_of_voices_the_feature_models_are_left_out(tmp_path: Path, required: dict[str, str]) -> None:
    voices = {"created_voices_dir": str(tmp_path / "voices"), "default_voice": "001"}
    assemble(tmp_path / "out", required | voices | {"USE_SPK2INFO_CACHE": "True"})
    assert {path.name for path in (tmp_path / "out").iterdir()} == {TOKEN2WAV_MODEL, DROP_IN_MODEL}
    config = read_config(tmp_path / "out" / DROP_IN_MODEL / "config.pbtxt")
    assert {name: config.parameters[name].string_value for name in voices} == voices


def test_a_family_without_other_models_is_told_so(tmp_path: Path, required: dict[str, str]) -> None:
    with pytest.raises(
        RepositorySettingsError, match="no other models beside cosyvoice2_dit; expected a checkpoint of cosy"
    ):
        assemble(tmp_path / "out", required | {"ORIGINAL_MODELS": "True"})
    assert not (tmp_path / "out").exists()


def test_the_defaults_are_the_originals(tmp_path: Path, required: dict[str, str]) -> None:
    assemble(tmp_path / "out", required)
    made = configs(tmp_path / "out")
    assert made[DROP_IN_MODEL].instance_group[0].count == 10
    assert made[DROP_IN_MODEL].model_transaction_policy.decoupled
    assert made[AUDIO_TOKENIZER_MODEL].max_batch_size == 16
    engine = Token2WavConfig.from_mapping(parameters(tmp_path / "out", TOKEN2WAV_MODEL))
    assert engine == Token2WavConfig(model_dir=Path(required["model_dir"]))


def test_the_originals_settings_take_effect_by_their_names(tmp_path: Path, required: dict[str, str]) -> None:
    given = {
        "BLS_INSTANCE_NUM": "3",
        "TRITON_MAX_BATCH_SIZE": "5",
        "MAX_QUEUE_DELAY_MICROSECONDS": "700",
        "DECOUPLED_MODE": "false",
    }
    assemble(tmp_path / "out", required | given)
    made = configs(tmp_path / "out")
    assert made[DROP_IN_MODEL].instance_group[0].count == 3
    assert not made[DROP_IN_MODEL].model_transaction_policy.decoupled
    for model in (AUDIO_TOKENIZER_MODEL, SPEAKER_EMBEDDING_MODEL):
        assert made[model].max_batch_size == 5
        assert made[model].dynamic_batching.max_queue_delay_microseconds == 700
        assert parameters(tmp_path / "out", model)["model_dir"] == required["model_dir"]
    engine = parameters(tmp_path / "out", TOKEN2WAV_MODEL)
    assert (engine["max_batch_size"], engine["batch_window_us"]) == ("5", "700")
    assert parameters(tmp_path / "out", DROP_IN_MODEL)["llm_tokenizer_dir"] == required["llm_tokenizer_dir"]
    assert count_instances(tmp_path / "out") == 6


OWN_SETTINGS = {
    **{"llm_api_base": "http://llm:9000", "llm_backend": "trtllm", "llm_model": "speech"},
    **{"triton_grpc_address": "127.0.0.1:9001", "default_voice": "ann", "dynamic_chunk_strategy": "time_based"},
    **{"token_hop_len": "20", "token_hop_len_first": "10", "token_hop_len_max": "0", "requests_per_instance": "1"},
    **{"voices_dir": "/", "created_voices_dir": "/", "engines_dir": "/", "device": "cuda:1", "dtype": "float16"},
    **{"max_streams": "8", "max_chunk_tokens": "300", "voice_cache_bytes": "1000", "idle_timeout_s": "2.5"},
    **{"runner": "torch", "tensorrt_vocoder": "float16", "num_threads": "1"},
    **{"estimator_recent_frames": "50", "conformer_recent_frames": "60", "ode_steps": "5"},
}


def test_each_setting_of_ours_reaches_its_model(tmp_path: Path, required: dict[str, str]) -> None:
    assemble(tmp_path / "out", required | OWN_SETTINGS)
    found = parameters(tmp_path / "out", DROP_IN_MODEL) | parameters(tmp_path / "out", TOKEN2WAV_MODEL)
    assert {name: found.get(name) for name in OWN_SETTINGS} == OWN_SETTINGS
    ours = {setting.name for setting in SETTINGS if not setting.name.isupper() and not setting.is_required}
    assert ours == OWN_SETTINGS.keys()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BLS_INSTANCE_NUM", "0"),
        ("BLS_INSTANCE_NUM", "ten"),
        ("TRITON_MAX_BATCH_SIZE", "-1"),
        ("MAX_QUEUE_DELAY_MICROSECONDS", "1.5"),
        ("DECOUPLED_MODE", "yes"),
        ("model_dir", "/does/not/exist"),
        ("llm_api_base", "localhost:8000"),
        ("llm_backend", "gpt"),
        ("triton_grpc_address", "http://localhost:8001"),
        ("token_hop_len", "3"),
        ("history", "upstream"),
        ("num_threads", "0"),
    ],
)
def test_a_bad_value_is_refused_by_name(tmp_path: Path, required: dict[str, str], name: str, value: str) -> None:
    with pytest.raises(RepositorySettingsError, match=name):
        assemble(tmp_path / "out", required | {name: value})
    assert not (tmp_path / "out").exists()


def test_an_unknown_setting_is_refused_with_the_known_ones(tmp_path: Path, required: dict[str, str]) -> None:
    with pytest.raises(RepositorySettingsError, match=r"unknown setting 'BLS_INSTANCES'; known are .*BLS_INSTANCE_NUM"):
        assemble(tmp_path / "out", required | {"BLS_INSTANCES": "3"})


def test_missing_required_settings_are_all_named(tmp_path: Path) -> None:
    with pytest.raises(RepositorySettingsError, match=r"(?s)model_dir is missing.*llm_tokenizer_dir is missing"):
        assemble(tmp_path / "out", {})


def test_assembling_again_replaces_the_repository_and_leaves_nothing_beside_it(
    tmp_path: Path, required: dict[str, str]
) -> None:
    assemble(tmp_path / "place" / "out", required | {"BLS_INSTANCE_NUM": "2"})
    assemble(tmp_path / "place" / "out", required | {"BLS_INSTANCE_NUM": "4"})
    assert configs(tmp_path / "place" / "out")[DROP_IN_MODEL].instance_group[0].count == 4
    assert [path.name for path in (tmp_path / "place").iterdir()] == ["out"]


def test_a_folder_that_is_no_repository_is_not_replaced(tmp_path: Path, required: dict[str, str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("precious")
    with pytest.raises(RepositorySettingsError, match="no model repository"):
        assemble(tmp_path / "out", required)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "precious"


def test_the_command_shows_the_settings_in_effect(
    tmp_path: Path, required: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [f"{name}={value}" for name, value in required.items()]
    assert main(["--output", str(tmp_path / "out"), *pairs, "BLS_INSTANCE_NUM=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("BLS_INSTANCE_NUM")]
    assert row.split()[1:3] == ["2", "given"]
    assert any(line.split()[:3] == ["DECOUPLED_MODE", "True", "default"] for line in lines)


@pytest.mark.parametrize("pairs", [["BLS_INSTANCE_NUM"], ["device=cpu", "device=cpu"]], ids=["no value", "twice"])
def test_the_command_refuses_what_is_no_setting(
    tmp_path: Path, pairs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--output", str(tmp_path / "out"), *pairs]) == 2
    assert pairs[0].split("=")[0] in capsys.readouterr().err
