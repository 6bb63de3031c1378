"""The benchmark of the engine on a GPU: what its figures are called, and what a failure says. No GPU is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import engine_gpu
from token2wav_service.checkpoint.family import Family
from token2wav_service.checkpoint.make_random import OFFICIAL_SIZES
from token2wav_service.errors import ProgramCaptureError

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
