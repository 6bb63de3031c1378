"""The package's edges: settings, imports, samples to bytes, wire codes, and what callers are told of the services."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gateway import __main__ as gateway_program
from gateway import errors, serving
from gateway.audio.codecs import to_pcm16
from gateway.chunking.policies import DeadlineChunks, ExponentialChunks, TimeBasedChunks
from gateway.config import parse_args
from gateway.routing.replica import Replica, RoutingSettings
from gateway.voices.registry import VoiceAliases
from gateway.voices.settings import VoiceSettings
from gateway.voices.store import VoiceLimits
from llm_service.config import LLMBackend
from servicekit.tasks import running_ahead
from tests.virtual_time import ManualClock
from token2wav_service.contract import ErrorCode

REQUIRED = ["--tokenizer-dir", "tok", "--voices-dir", "voices"]


@pytest.mark.slow
@pytest.mark.parametrize("module", ["gateway.app", "gateway.__main__", "gateway.client", "gateway.speech.speaker"])
def test_the_gateway_loads_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'onnxruntime')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_event_loop_shares_its_matrices_with_no_other_thread() -> None:
    code = "import gateway.__main__, numpy, os; print(len(os.listdir('/proc/self/task')))"
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout == "1\n"


def test_once_warm_the_process_spares_the_garbage_collector_what_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    class Built(Exception):
        pass

    def build_app(*parts: object, on_warm: Callable[[], None]) -> None:
        on_warm()
        raise Built

    monkeypatch.setattr(sys, "argv", ["gateway", *REQUIRED])
    monkeypatch.setattr(gateway_program, "_log", lambda log_format, process: None)
    monkeypatch.setattr(serving, "build_app", build_app)
    try:
        with pytest.raises(Built):
            gateway_program.main()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_settings_come_from_the_command_line() -> None:
    unbounded = ("--dynamic-chunk-strategy", "exponential", "--token-hop-len-max", "0")
    config = parse_args([*REQUIRED, "--llm-backend", "trtllm", *unbounded, "--port", "9"])
    assert (config.llm_backend, config.port, config.voices_dir) == (LLMBackend.TRTLLM, 9, Path("voices"))
    assert config.chunks.policy() == ExponentialChunks(15, None)


def test_the_chunk_strategy_is_a_setting() -> None:
    config = parse_args([*REQUIRED, "--dynamic-chunk-strategy", "time_based", "--token-hop-len-first", "20"])
    assert config.chunks.policy() == TimeBasedChunks(15, 20, 100)
    assert parse_args([*REQUIRED, "--dynamic-chunk-strategy", "deadline"]).chunks.policy() == DeadlineChunks()


def test_what_concerns_voices_is_a_setting() -> None:
    given = ["--created-voices-dir", "made", "--voice-alias", "alloy=anna", "--voice-alias", "boss = mia"]
    settings = parse_args([*REQUIRED, *given, "--no-openai-voices"]).voices
    aliases = VoiceAliases({"alloy": "anna", "boss": "mia"}, has_openai_names=False)
    assert settings == VoiceSettings(Path("made"), aliases=aliases)
    assert parse_args(REQUIRED).voices == VoiceSettings(None, VoiceLimits(), VoiceAliases({}, has_openai_names=True))


@pytest.mark.parametrize(
    "option",
    [
        ["--llm-backend", "x"],
        ["--max-text-characters", "0"],
        ["--llm-url", "127.0.0.1:8000"],
        ["--token2wav-url", "http://x:1"],
        ["--token-hop-len", "1"],
        *(["--run-ahead-s", given] for given in ("-1", "nan", "soon")),
        ["--voice-alias", "alloy"],
        ["--voice-alias", "=anna"],
        ["--voice-alias", "a=b", "--voice-alias", "a=c"],
    ],
)
def test_values_that_cannot_work_are_config_errors(option: list[str]) -> None:
    with pytest.raises(errors.ConfigError):
        parse_args([*REQUIRED, *option])


def test_samples_are_clipped_scaled_and_truncated() -> None:
    samples = np.array([0, 1, -1, 2, -2, 0.5, -0.5], np.float32)
    assert np.frombuffer(to_pcm16(samples), "<i2").tolist() == [0, 32767, -32767, 32767, -32767, 16383, -16383]


def test_every_error_has_its_own_row_in_the_table() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.GatewayError)]
    assert {kind for kind in kinds if kind not in errors._WIRE} == {errors.LaterError}
    assert errors.wire_status(ValueError()).http == 500


CALLERS_CAN_CURE = {
    errors.OverloadedError,
    errors.StalledReaderError,
    errors.Token2WavBusyError,
    errors.VoiceStoreFullError,
    errors.VoiceRateError,
    errors.VoiceOutdatedError,
}


def test_callers_mistakes_are_4xx_and_the_services_failures_are_not() -> None:
    for kind, status in errors._WIRE.items():
        is_callers = issubclass(kind, (errors.InvalidRequestError, errors.AccessError)) or kind in CALLERS_CAN_CURE
        assert (400 <= status.http < 500) == is_callers
        assert isinstance(status.triton, ErrorCode)


async def counting(limit: int, log: list[str]) -> AsyncGenerator[int]:
    try:
        for number in range(limit):
            log.append(str(number))
            yield number
        raise ValueError("the source broke")
    finally:
        log.append("closed")


async def test_running_ahead_keeps_order_and_raises_the_sources_error_last() -> None:
    got = []
    with pytest.raises(ValueError, match="broke"):
        async with running_ahead(counting(5, []), most=2) as ahead:
            while True:
                got += await ahead.take()
    assert got == [0, 1, 2, 3, 4]


async def test_running_ahead_stops_at_its_most_and_closes_the_source() -> None:
    log: list[str] = []
    async with running_ahead(counting(100, log), most=3) as ahead:
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(log) == 4, "three kept, one waiting to be kept"
        assert await ahead.take() == [0, 1, 2]
    assert log[-1] == "closed"


async def test_a_reader_of_what_runs_ahead_sleeps_until_what_it_needs_is_there() -> None:
    async def told() -> AsyncGenerator[str]:
        for piece in ("a", "bc", "", "def"):
            yield piece
            await asyncio.sleep(0)

    async with running_ahead(told(), 100, len) as ahead:
        assert await ahead.take(3) == ["a", "bc"]
        assert await ahead.take(9) == ["", "def"], "the end wakes it too"
        assert await ahead.take() == []


SECRET = "LLM at http://10.0.0.7:8000 can't be reached (ClientConnectorError: token2wav at 10.0.0.8:8001)"
TOLD_WHOLE = (errors.EmptySpeechError,)


def below(base: type[errors.GatewayError]) -> Iterator[type[errors.GatewayError]]:
    yield base
    for each in base.__subclasses__():
        yield from below(each)


@pytest.mark.parametrize("kind", [*below(errors.LLMError), *below(errors.Token2WavError)])
def test_no_error_of_a_service_tells_more_than_what_to_do(kind: type[errors.GatewayError]) -> None:
    if kind not in TOLD_WHOLE:
        assert "10.0.0" not in errors.public_text(kind(SECRET))


def test_what_callers_did_wrong_is_told_in_full() -> None:
    assert errors.public_text(errors.InvalidTextError("the text is empty")) == "the text is empty"
    assert errors.public_text(errors.OverloadedError("all full", retry_after_s=1.0)) == "all full"


def test_what_nobody_foresaw_tells_nothing() -> None:
    assert errors.public_text(ValueError(SECRET)) == errors.public_text(errors.GatewayError(SECRET))
    assert "10.0.0" not in errors.public_text(ValueError(SECRET))


def test_the_reason_of_a_failure_does_not_grow_with_those_before_it() -> None:
    health = Replica("llm", "a", RoutingSettings(), ManualClock())
    for _ in range(50):
        health.failed(f"it was ejected ({health.last_failure}); see its log")
    assert len(health.last_failure) <= 300
