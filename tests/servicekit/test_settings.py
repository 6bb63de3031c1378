"""A setting is declared once: the same table gives options, variables, the file and the errors."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from cosydit.cli.main import build_parser
from cosydit.cli.serve import GATEWAY_SERVED
from cosydit.cli.stack_options import STACK, all_given, stack_options
from gateway.config import GatewayConfig, gateway_config, parse_args
from gateway.settings import GATEWAY
from llm_service.config import LLM
from servicekit.settings import Given, Section, SettingsError, add_options, as_options, given_settings, read_file
from token2wav_service.serving.settings import TOKEN2WAV

NEEDED: Given = {"tokenizer_dir": "t", "voices_dir": "v"}


def served(*options: str) -> dict[str, Given]:
    return all_given(build_parser().parse_args(["serve", *options]), GATEWAY_SERVED)


def written(folder: Path, text: str) -> str:
    (folder / "cosydit.toml").write_text(text)
    return str(folder / "cosydit.toml")


def test_the_command_line_wins_then_the_environment_then_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(
        tmp_path,
        'device = "cpu"\n[llm]\nport = 1\nmax_batch_size = 1\n[token2wav]\nBLS_INSTANCE_NUM = 1\nmax_streams = 1\n'
        '[gateway]\nport = 1\nhost = "::1"\nno_openai_voices = true\nvoice_alias = ["a=b", "c=d"]\n',
    )
    for name in ("COSYDIT_LLM_MAX_BATCH_SIZE", "BLS_INSTANCE_NUM", "COSYDIT_PORT", "COSYDIT_HOST"):
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv("COSYDIT_LLM_PORT", "")
    given = served("--config", file, "--host", "localhost", "--token2wav-max-streams", "3", "--gateway-port", "4")
    assert given == {
        "": {"device": "cpu"},
        "llm": {"port": "1", "max_batch_size": "2"},
        "token2wav": {"BLS_INSTANCE_NUM": "2", "max_streams": "3"},
        "gateway": {"host": "localhost", "port": "4", "no_openai_voices": "true", "voice_alias": ["a=b", "c=d"]},
    }


def test_what_serve_is_given_reaches_the_service_that_it_is_for(tmp_path: Path) -> None:
    given = served(
        *("--checkpoint", str(tmp_path), "--work-dir", str(tmp_path), "--token2wav-replicas", "2", "--llm-gpu", "0"),
        *("--token2wav-gpus", "1,2", "--port", "9", "--grpc-port", "0", "--triton-grpc-port", "7"),
        *("--llm-dtype", "float16", "--decoupled-mode", "False", "--max-streams", "5"),
    )
    for part in ("token2wav", "llm", "voices"):
        (tmp_path / part).mkdir()
    options = stack_options(given, {"DECOUPLED_MODE": "True", "max_streams": "4"})
    assert (options.ports.gateway, options.ports.gateway_grpc) == (9, 0)
    assert [ports.grpc for ports in options.tritons] == [7, 17]
    assert (options.llm_gpu, options.token2wav_gpus) == ("0", ["1", "2"])
    assert (options.llm, options.gateway) == ({"dtype": "float16"}, {"max_streams": "5"})
    assert options.settings == {"DECOUPLED_MODE": "False", "max_streams": "4"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gateway]\nport = 70000", r"got port in the file '70000'; expected a whole number from 0 to 65535"),
        ("[gateway]\ncolour = 1", r"has colour in \[gateway\]; known there are .*keys_file"),
        ("[door]\nport = 1", r"has the section \[door\]; known are llm, token2wav, gateway"),
        ("port = 1", "has port in its head; known there are checkpoint, device"),
        ("[llm]\ndevice = [", "can't read the settings of .*cosydit.toml"),
        ("[gateway]\ninsecure_no_keys = 1", "expected true or false"),
    ],
)
def test_a_file_that_says_something_wrong_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as error:
        served("--config", written(tmp_path, text))
    assert "\n" not in str(error.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="can't read the settings of"):
        read_file(tmp_path / "none.toml", STACK)


def test_the_gateway_reads_the_variables_that_serve_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSYDIT_VOICES_DIR", "v")
    monkeypatch.setenv("COSYDIT_TOKENIZER_DIR", "t")
    monkeypatch.setenv("COSYDIT_ALLOWED_HOST", "a.example,b.example")
    config = parse_args([])
    assert (config.voices_dir, config.access.allowed_hosts) == (Path("v"), ("a.example", "b.example"))


def test_the_declared_defaults_are_those_of_the_gateways_parts() -> None:
    made = GatewayConfig(tokenizer_dir=Path("t"), voices_dir=Path("v"))
    found = gateway_config(NEEDED, {})
    assert replace(found, wyoming=None) == made


def test_a_missing_setting_is_named_with_its_option_and_its_variable() -> None:
    with pytest.raises(SettingsError, match="give --voices-dir or COSYDIT_VOICES_DIR"):
        gateway_config({"tokenizer_dir": "t"}, {})


@pytest.mark.parametrize(
    ("section", "given"),
    [(GATEWAY, {**NEEDED, "voice_alias": ["a=b", "c=d"], "no_openai_voices": "true"}), (LLM, {"in_container": "true"})],
    ids=["gateway", "llm"],
)
def test_a_program_understands_what_it_is_handed_on(section: Section, given: Given) -> None:
    given |= {setting.name: setting.default for setting in section.settings if setting.default is not None}
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_options(parser, section, has_prefix=False)
    args = parser.parse_args(as_options(given))
    assert given_settings(section, args, {}, has_prefix=False) == given


def test_no_two_settings_share_an_option_or_a_variable() -> None:
    sections = (*STACK, GATEWAY_SERVED)
    options = [section.option(setting) for section in sections for setting in section.settings]
    variables = [section.variable(setting) for section in sections for setting in section.settings]
    assert len(set(options)) == len(options) and len(set(variables)) == len(variables)
    for section in (GATEWAY, LLM, TOKEN2WAV):
        names = [setting.name for setting in section.settings]
        assert len(set(names)) == len(names)
