"""The benchmark of the engine on a GPU: what its figures are called, and what a failure says. No GPU is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from benchmarks import engine_gpu
from lab.simulate.engine import ModelledExtractor, ModelledRunner, ModelledState
from token2wav_service.checkpoint.family import Family
from token2wav_service.checkpoint.make_random import OFFICIAL_SIZES
from token2wav_service.config import Token2WavConfig
from token2wav_service.contract import TOKEN_RATE_HZ
from token2wav_service.engine.engine import Token2WavEngine
from token2wav_service.engine.runner import ChunkWork, Finish
from token2wav_service.engine.voices import VoiceModel, VoiceStore
from token2wav_service.errors import ProgramCaptureError
from token2wav_service.runtime.slots.step_shapes import StepShapes
from token2wav_service.types import TokenChunk

RAW = {
    "new_voice_s": [0.03, 0.04, 0.05],
    "first_chunk_s": {"1": [0.02, 0.01, 0.03], "32": [0.06]},
    "chunk_cost_s": [0.01] * 9 + [0.02],
    "listeners": [{"listeners": 100, "underruns": 0}, {"listeners": 200, "underruns": 3}],
}


def test_figures_carry_the_family_and_leave_out_what_was_not_tried() -> None:
    figures = engine_gpu.compute_figures(RAW, "cosyvoice3_")
    assert figures == {
        "cosyvoice3_new_voice_ms": pytest.approx(40),
        "cosyvoice3_first_chunk_1_ms": pytest.approx(20),
        "cosyvoice3_first_chunk_32_last_ms": pytest.approx(60),
        "cosyvoice3_chunk_cost_last_over_first": pytest.approx(1),
        "cosyvoice3_realtime_streams": 100,
    }
    assert "realtime_streams" not in engine_gpu.compute_figures({**RAW, "listeners": []})


def test_a_failed_capture_ends_with_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: object) -> None:
        raise ProgramCaptureError("the program of 1 streams could not be captured")

    monkeypatch.setattr(engine_gpu, "measure", fail)
    out = tmp_path / "figures.json"
    assert engine_gpu.main(["--out", str(out), "--family", "cosyvoice2", "--quick"]) == 1
    assert capsys.readouterr().err == "engine_gpu: the program of 1 streams could not be captured\n"
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.parametrize("family", Family)
def test_the_floor_counts_what_every_step_multiplies(family: Family) -> None:
    """Step-Audio2's as published; the others' as their estimators are, less what is a table."""
    expected = {Family.STEP_AUDIO2: 76_207_696, Family.COSYVOICE2: 66_250_576, Family.COSYVOICE3: 189_183_056}
    assert engine_gpu.estimator_weights(OFFICIAL_SIZES[family][0]) == expected[family]


class WorkedClock:
    """Goes on by what steps take, and a little at every look."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> float:
        """See `Clock.now`."""
        self.time_s += 5e-6
        return self.time_s


class MeasuredRunner(ModelledRunner):
    """CosyVoice3's programs with the times of an H200: a first hop of a block computes a second one, of the prompt."""

    MOST_STREAMS = 16  # the largest batch of two blocks that was measured as one step
    # By streams and tokens, commit 65740c9: 18 tokens compute 10 of the prompt beside their 15, 28 tokens 25 of it.
    SECONDS: ClassVar = {
        (1, 18): 0.01439, (4, 18): 0.01884, (16, 18): 0.04179, (1, 28): 0.01557, (4, 28): 0.02481, (16, 28): 0.07236,
    }  # fmt: skip

    def __init__(self, clock: WorkedClock, streams: int) -> None:
        super().__init__(streams, StepShapes(token_buckets=(TOKEN_RATE_HZ, 2 * TOKEN_RATE_HZ)))
        self._clock = clock

    def bucket(self, chunk: TokenChunk, state: ModelledState) -> int:
        """See `Runner.bucket`."""
        return TOKEN_RATE_HZ if state.has_speech else 2 * TOKEN_RATE_HZ

    def launch(self, works: Sequence[ChunkWork], *, beside: bool = False) -> Finish:
        """See `Runner.launch`."""
        tokens = 18 if works[0].state.has_speech else 28
        streams = next((size for size in (1, 4, self.MOST_STREAMS) if size >= len(works)), 2 * self.MOST_STREAMS)
        steps = streams / self.MOST_STREAMS if streams > self.MOST_STREAMS else 1.0
        self._clock.time_s += steps * self.SECONDS[min(streams, self.MOST_STREAMS), tokens]
        return super().launch(works)


def test_listeners_who_come_one_after_another_keep_those_who_listen_from_no_chunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """150 listeners of CosyVoice3 on an H200: newcomers went first, a few at a time, and 21 chunks were late."""
    clock, listeners = WorkedClock(), 150
    monkeypatch.setattr(engine_gpu, "CLOCK", clock)
    runner = MeasuredRunner(clock, listeners)
    voices = VoiceStore(ModelledExtractor(), runner, 8 * 1024**3, VoiceModel(lambda: "modelled"))
    config = Token2WavConfig(Path(), max_batch_size=64, max_streams=listeners)
    engine = Token2WavEngine(config, voices, runner, clock)
    voice = voices.register(engine_gpu._prompt()).voice_id
    heard = engine_gpu.listen(engine, voice, listeners, 2.0)
    assert (heard["underruns"], heard["worst_s"]) == (0, 0.0)
    assert heard["chunks"] > 3 * listeners
