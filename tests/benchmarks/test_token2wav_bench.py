"""The benchmark of token2wav alone, on a small random checkpoint."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import token2wav
from benchmarks.lib.token2wav_bench import (
    BenchCase,
    EnginePlayer,
    Play,
    Windows,
    measure,
    random_prompt,
    random_streams,
)
from cosydit.bench.types import BenchmarkError
from gateway.chunking.chunker import TokenChunk
from servicekit.clock import SystemClock
from tests.token2wav_service.engine.factory import make_engine
from tests.workers import random_checkpoint
from token2wav_service.contract import TOKEN_RATE_HZ


class CountingPlayer:
    """Takes one second for every call and half a second more for every stream."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def play(self, streams: list[Windows]) -> Play:
        self.calls.append(len(streams))
        wall_s = 1.0 + 0.5 * len(streams)
        return Play(wall_s, [wall_s], 2.0 * len(streams))


def test_the_speed_up_compares_the_batch_with_the_same_streams_one_by_one() -> None:
    player = CountingPlayer()
    (figures,) = measure(player, [BenchCase(4, 15)], audio_s=1.0, repeats=2, warm_up=1, seed=0)  # type: ignore[arg-type]
    assert player.calls == [4, 1, 1, 1, 1] * 3
    assert (figures.batched_s, figures.one_by_one_s, figures.speed_up) == (3.0, 6.0, 2.0)
    assert (figures.audio_s, figures.rtf) == (8.0, 3.0 / 8.0)
    assert len(figures.batched_runs_s) == 2


def test_streams_hold_the_audio_asked_for_in_windows_of_the_hop() -> None:
    streams = random_streams(BenchCase(2, 15), audio_s=2.0, seed=1)
    assert len(streams) == 2 and streams[0] != streams[1]
    for windows in streams:
        assert windows[-1].end == 2 * TOKEN_RATE_HZ
        assert all(len(window.token_ids) == 18 for window in windows[:-1])


def test_a_step_smaller_than_its_case_is_an_error_and_frees_all_streams() -> None:
    engine = make_engine(max_batch_size=1)
    player = EnginePlayer(engine, random_prompt(1.0, seed=0), SystemClock())
    with pytest.raises(BenchmarkError, match="a step ran 1 of 2 streams"):
        player.play([[TokenChunk(0, 0, (1, 2, 3), True)]] * 2)
    assert engine.stats().open_streams == 0


@pytest.mark.slow
def test_the_command_measures_and_writes_its_environment(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_dir = random_checkpoint(tmp_path_factory) / "token2wav"
    arguments = ["--model-dir", str(model_dir), "--log-dir", str(tmp_path), "--stream-s", "0.8"]
    arguments += ["--batch-sizes", "1,2", "--hops", "15", "--repeats", "1", "--warm-up", "0", "--set", "ode_steps=2"]
    assert token2wav.main([*arguments, "--set", "num_threads=1"]) == 0
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert [row["case"] for row in results["figures"]] == [
        {"streams": 1, "hop_tokens": 15},
        {"streams": 2, "hop_tokens": 15},
    ]
    assert results["figures"][1]["audio_s"] == pytest.approx(1.6)
    assert results["environment"]["arguments"]["stream_s"] == 0.8
    assert "speed-up" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        pytest.param([], "needs --model-dir", id="no checkpoint"),
        pytest.param(["--model-dir", "nowhere"], "nowhere lacks", id="no such checkpoint"),
        pytest.param(["--model-dir", "x", "--set", "speed=9"], r"unknown settings \['speed'\]", id="unknown setting"),
        pytest.param(["--door", "triton", "--model-dir", "x"], "a served model has its own", id="both doors"),
    ],
)
def test_what_can_not_be_measured_is_refused(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert token2wav.main(arguments) == 2
    assert re.search(reason, capsys.readouterr().err)
