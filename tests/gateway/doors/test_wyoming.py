"""The Wyoming port: when it opens, who may reach it, and how it closes."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from wyoming.tts import Synthesize

from gateway.config import HTTP_GRACE_S, GatewayConfig, parse_args
from gateway.dialects.wyoming.settings import WyomingSettings
from gateway.doors.grpc import DEFAULT_GRACE_S
from gateway.errors import ConfigError
from gateway.voices.registry import NamedVoice
from tests.gateway.doors.wyoming_door import ANY_PORT, ask, listen, opened_wyoming
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas

Voices = list[NamedVoice]


def config(*options: str) -> GatewayConfig:
    return parse_args(["--tokenizer-dir", "llm", "--voices-dir", "voices", *options])


def settings(*options: str) -> WyomingSettings:
    wyoming = config(*options).wyoming
    assert wyoming is not None
    return wyoming


@pytest.fixture
def keys(tmp_path: Path) -> str:
    (tmp_path / "keys.txt").write_text("")
    return str(tmp_path / "keys.txt")


def test_the_door_opens_to_this_machine_unless_told_otherwise() -> None:
    default = settings()
    assert (default.host, default.port, default.shut_because) == ("127.0.0.1", 10200, None)
    assert not default.is_port_asked_for
    assert config("--wyoming-port", "0").wyoming is None


def test_with_keys_the_door_stays_shut_unless_told_otherwise(keys: str) -> None:
    assert "Wyoming has no keys" in (settings("--keys-file", keys).shut_because or "")
    with pytest.raises(ConfigError, match="--insecure-wyoming"):
        config("--keys-file", keys, "--wyoming-port", "10200")
    opened = settings("--keys-file", keys, "--host", "0.0.0.0", "--insecure-wyoming")
    assert (opened.host, opened.shut_because) == ("0.0.0.0", None)


def test_another_address_is_listened_on_only_where_anyone_may_speak() -> None:
    with pytest.raises(ConfigError, match=r"let anyone speak who reaches 0\.0\.0\.0"):
        config("--wyoming-host", "0.0.0.0")
    assert settings("--wyoming-host", "0.0.0.0", "--insecure-wyoming").host == "0.0.0.0"
    assert settings("--host", "0.0.0.0", "--insecure-no-keys").shut_because is None
    tls = ("--tls-cert", "a.pem", "--tls-key", "b.pem")
    assert "no encryption" in (settings("--host", "0.0.0.0", "--insecure-no-keys", *tls).shut_because or "")


def test_languages_are_checked() -> None:
    assert settings("--wyoming-language", "en", "--wyoming-language", "zh-CN").languages == ("en", "zh-CN")
    with pytest.raises(ConfigError, match="--wyoming-language"):
        config("--wyoming-language", "?")


@pytest.mark.parametrize(
    ("drain_s", "expected_s"),
    [(0.0, 0.0), (30.0, 30.0 + HTTP_GRACE_S + DEFAULT_GRACE_S + WyomingSettings.grace_s)],
)
def test_the_longest_stop_counts_what_each_door_waits_after_streams_had_their_time(
    drain_s: float, expected_s: float
) -> None:
    assert config("--drain-timeout-s", f"{drain_s}").longest_stop_s == expected_s


async def test_why_a_door_stays_shut_is_logged(voices: Voices, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(AssertionError):
        async with opened_wyoming(FakeLLM([]), FakeToken2Wav(), voices, replace(ANY_PORT, shut_because="keys are set")):
            pass
    assert "Wyoming is off: keys are set; --insecure-wyoming" in caplog.text


async def test_a_port_in_use_is_an_error_only_where_it_was_asked_for(
    voices: Voices, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened_wyoming(FakeLLM([]), FakeToken2Wav(), voices) as door:
        taken = WyomingSettings(port=door.port)
        with pytest.raises(ConfigError, match="another --wyoming-port"):
            async with opened_wyoming(FakeLLM([]), FakeToken2Wav(), voices, taken):
                pass
        with pytest.raises(AssertionError):
            async with opened_wyoming(FakeLLM([]), FakeToken2Wav(), voices, replace(taken, is_port_asked_for=False)):
                pass
    assert f"Wyoming is off: can't listen on 127.0.0.1:{door.port}" in caplog.text


async def test_a_connection_that_says_nothing_costs_no_task(voices: Voices) -> None:
    async with opened_wyoming(FakeLLM([]), FakeToken2Wav(), voices) as door:
        before = len(asyncio.all_tasks())
        silent = [await asyncio.open_connection("127.0.0.1", door.port) for _ in range(20)]
        await asyncio.sleep(0.1)
        assert len(asyncio.all_tasks()) == before
        for _, writer in silent:
            writer.close()


async def test_speech_under_way_ends_well_when_the_door_closes(voices: Voices) -> None:
    gate = asyncio.Event()
    door_context = opened_wyoming(FakeLLM(speech_deltas(60), gate=gate, ungated=30), FakeToken2Wav(), voices)
    door = await door_context.__aenter__()
    async with door.client() as client, door.client():
        await ask(client, Synthesize("Hello."))
        first = await listen(client, "audio-chunk")
        closing = asyncio.create_task(door_context.__aexit__(None, None, None))
        await asyncio.sleep(0)
        gate.set()
        rest = await listen(client)
        await closing
    assert len(first.pcm + rest.pcm) == 60 * 960 * 2 and rest.kinds[-1] == "audio-stop"


async def test_speech_that_takes_too_long_to_end_is_broken_off(voices: Voices) -> None:
    llm = FakeLLM(speech_deltas(60), gate=asyncio.Event(), ungated=30)
    door_context = opened_wyoming(llm, FakeToken2Wav(), voices, replace(ANY_PORT, grace_s=0.05))
    door = await door_context.__aenter__()
    async with door.client() as client:
        await ask(client, Synthesize("Hello."))
        await listen(client, "audio-chunk")
        await door_context.__aexit__(None, None, None)
        assert (await listen(client)).kinds in ([], ["audio-chunk"])
