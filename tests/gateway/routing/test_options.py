"""How replicas and their handling are given on the command line."""

from __future__ import annotations

import pytest

from gateway.config import GatewayConfig, parse_args
from gateway.errors import ConfigError
from gateway.routing.discovery import places_of
from gateway.routing.fleet import LLM, TOKEN2WAV
from gateway.routing.replica import RoutingSettings

REQUIRED = ["--tokenizer-dir", "t", "--voices-dir", "v"]


def _parsed(*options: str) -> GatewayConfig:
    return parse_args([*REQUIRED, *options])


def test_one_replica_of_each_is_the_default() -> None:
    config = _parsed()
    assert (config.llm_url, config.token2wav_url) == ("http://127.0.0.1:8000", "127.0.0.1:8001")
    assert config.routing == RoutingSettings()


def test_replicas_come_by_commas_and_by_repeating_the_option() -> None:
    config = _parsed("--token2wav-url", "a:1,b:2", "--token2wav-url", "c:3", "--llm-url", "http://l:1")
    assert places_of(TOKEN2WAV, config.token2wav_url).listed == ("a:1", "b:2", "c:3")
    assert places_of(LLM, config.llm_url).listed == ("http://l:1",)


def test_how_long_a_request_waits_can_be_set() -> None:
    config = _parsed("--admission-wait-s", "0", "--drain-delay-s", "3")
    assert (config.routing.admission_wait_s, config.drain_delay_s) == (0.0, 3.0)


@pytest.mark.parametrize(
    "options",
    [
        ["--llm-url", "http://a:1,127.0.0.1:2"],
        ["--token2wav-url", "a:1,dns:b"],
        ["--admission-wait-s", "-1"],
        ["--admission-wait-s", "nan"],
    ],
)
def test_what_can_t_work_is_a_config_error(options: list[str]) -> None:
    with pytest.raises(ConfigError):
        _parsed(*options)
