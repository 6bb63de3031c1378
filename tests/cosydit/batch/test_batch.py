"""The offline batch, whole: a small checkpoint's token2wav in this process, a small LLM service over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from benchmarks import offline_batch, offline_input
from cosydit.batch.command import add_options, read_rows
from cosydit.batch.ledger import Ledger
from cosydit.batch.llm import SegmentedLM
from cosydit.batch.pipeline import BatchPipeline, utterance_seed
from cosydit.batch.types import BatchPlan, BatchReport
from cosydit.bench.inputs import read_list, require_all_good
from cosydit.bench.types import SpeechInput
from cosydit.cli import main as cli
from cosydit.stack.checkpoint.make_checkpoint import make_random_checkpoint
from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.errors import InvalidTextError
from gateway.speech.prosody_carry import CarryLimits
from gateway.text import Normalization, TextOptions, load_text_front_end
from llm_service.prompt import MAX_SPEECH_PER_TEXT_TOKEN
from llm_service.text_encoder import load_text_encoder
from servicekit.clock import SystemClock
from tests.cosydit.batch.fake_llm import SPEECH_TOKENS, FakeLLM
from tests.cosydit.batch.scripted_stages import ScriptedLLM, ScriptedToken2Wav
from token2wav_service.checkpoint.family import Family
from token2wav_service.runtime.cpu.packed_solver import product_type

pytestmark = pytest.mark.slow


def _manifest(tmp_path: Path, checkpoint: Path, utts: Sequence[str], *bad: str) -> Path:
    voice = checkpoint / "voices" / "default.wav"
    lines = [f"{utt}|what it says|{voice}|say something" for utt in utts]
    path = tmp_path / "list.txt"
    path.write_text("\n".join([*lines, *bad]), encoding="utf-8")
    return path


def _command(tmp_path: Path, checkpoint: Path, manifest: Path, *more: str) -> list[str]:
    return [
        *("--manifest-path", str(manifest), "--output-dir", str(tmp_path / "out")),
        *("--llm-model-name-or-path", str(checkpoint / "llm"), "--token2wav-path", str(checkpoint / "token2wav")),
        *("--token2wav-set", "ode_steps=2", "--token2wav-set", "num_threads=1", *more),
    ]


def _results(tmp_path: Path) -> list[dict[str, Any]]:
    lines = (tmp_path / "out" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_a_batch_speaks_what_it_can_and_lists_what_it_can_not(
    tmp_path: Path, checkpoint: Path, llm: FakeLLM, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = ["gone|x|gone.wav|hello", f"empty|x|{checkpoint}/voices/default.wav| ", "short|row"]
    (tmp_path / "image.wav").write_bytes(b"\x89PNG\r\n")
    manifest = _manifest(tmp_path, checkpoint, ["a", "b", "c"], *bad, "png|x|image.wav|hello", "voiceless|||hello")
    status = offline_batch.main(_command(tmp_path, checkpoint, manifest, "--llm-url", llm.url + "/v1/completions"))
    assert status == 1
    assert {result["utt"] for result in _results(tmp_path)} == {"a", "b", "c"}
    for result in _results(tmp_path):
        samples, rate_hz = soundfile.read(tmp_path / "out" / result["audio"])
        assert (rate_hz, len(samples)) == (24_000, SPEECH_TOKENS * 960)
        assert result["speech_tokens"] == SPEECH_TOKENS and result["seed"] == utterance_seed(0, result["utt"])
    failures = (tmp_path / "out" / "failures.jsonl").read_text(encoding="utf-8").splitlines()
    stages = {failure["utt"]: failure["stage"] for failure in map(json.loads, failures)}
    assert stages == {"gone": "input", "empty": "input", "row 6": "input", "png": "voices", "voiceless": "voices"}
    assert "FAILED png in voices" in capsys.readouterr().out
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert (summary["done"], set(summary["stage_busy_s"])) == (3, {"llm", "token2wav", "write"})


def test_a_batch_goes_on_where_it_stopped(tmp_path: Path, checkpoint: Path, llm: FakeLLM) -> None:
    manifest = _manifest(tmp_path, checkpoint, ["a", "b", "c"])
    command = _command(tmp_path, checkpoint, manifest, "--llm-url", llm.url, "--format", "flac")
    assert offline_batch.main(command) == 0
    whole, _ = soundfile.read(tmp_path / "out" / "b.flac")
    (tmp_path / "out" / "b.flac").unlink()
    llm.bodies.clear()
    assert offline_batch.main(command) == 0
    assert len(llm.bodies) == 1
    again, _ = soundfile.read(tmp_path / "out" / "b.flac")
    # Equal but for rounding, coarser with AMX: the first time it ran in a batch with others.
    assert np.abs(whole - again).max() < (1e-3 if product_type().itemsize > 2 else 5e-3)
    assert sorted(result["utt"] for result in _results(tmp_path)) == ["a", "b", "c"]


def test_parts_for_several_machines_are_the_whole_list_and_share_nothing(tmp_path: Path, checkpoint: Path) -> None:
    manifest = _manifest(tmp_path, checkpoint, ["a", "b", "c", "d", "e"])
    spoken = []
    for part in ("1/2", "2/2"):
        args = argparse.ArgumentParser()
        add_options(args)
        args.set_defaults(voices_dir=None)
        spoken.append(
            [row.utt for row in read_rows(args.parse_args(["--manifest-path", str(manifest), "--part", part]))]
        )
    assert spoken == [["a", "c", "e"], ["b", "d"]]


def test_figures_come_from_a_run_that_speaks_every_row(tmp_path: Path, checkpoint: Path, llm: FakeLLM) -> None:
    figures = tmp_path / "figures.json"
    options = ("--llm-url", llm.url, "--figures", str(figures), "--setting", '{"gpus": 0}', "--warm-up", "1")
    command = _command(tmp_path, checkpoint, _manifest(tmp_path, checkpoint, ["a", "b"]), *options)
    assert offline_batch.main(command) == 0
    content = json.loads(figures.read_text(encoding="utf-8"))
    assert content["setting"] == {"gpus": 0} and content["environment"]["arguments"]["batch_size"] == 8
    assert content["figures"]["audio_s"] == pytest.approx(2 * SPEECH_TOKENS / 25)
    assert content["figures"]["rtf"] == pytest.approx(content["figures"]["wall_s"] / content["figures"]["audio_s"])
    figures.unlink()
    assert offline_batch.main(command) == 2
    assert not figures.exists()


def test_made_rows_have_texts_whose_speech_is_about_as_long_as_asked_for(tmp_path: Path, checkpoint: Path) -> None:
    out = tmp_path / "list.jsonl"
    paths = ("--llm-model-name-or-path", str(checkpoint / "llm"), "--voices-dir", str(checkpoint / "voices"))
    assert offline_input.main([*paths, "--voices", "2", "--rows", "50", "--seconds", "8", "--out", str(out)]) == 0
    rows = require_all_good(read_list(out))
    encoder = load_text_encoder(checkpoint / "llm")
    bounds_s = [MAX_SPEECH_PER_TEXT_TOKEN * len(encoder.encode(row.text)) / 25 for row in rows]
    assert (min(bounds_s), max(bounds_s)) == (6.4, 9.6)
    assert len(rows) == 50 and len({row.prompt for row in rows}) == 2


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        pytest.param(["--backend", "hf"], "invalid choice: 'hf'", id="backend hf"),
        pytest.param(["--part", "3/2"], "expected K/N such as 1/4", id="part 3 of 2"),
        pytest.param(["--batch-size", "0"], "expected a whole number of at least 1", id="batch size 0"),
    ],
)
def test_options_that_mean_nothing_are_usage_errors(
    tmp_path: Path, more: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        offline_batch.main(_command(tmp_path, tmp_path, tmp_path / "list", *more))
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        pytest.param(
            ["--llm-url", "http://h:1", "--kv-cache-free-gpu-memory-fraction", "0.3"], "started here", id="kv cache"
        ),
        pytest.param(["--llm-url", "http://h:1", "--llm-set", "device=cpu"], "started here", id="LLM setting"),
        pytest.param(["--prompt-text", "x"], "go together", id="prompt text alone"),
        pytest.param(["--llm-url", "http://127.0.0.1:9"], "no LLM service answers", id="LLM down"),
    ],
)
def test_a_batch_that_can_not_run_says_why(
    tmp_path: Path, checkpoint: Path, more: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = _manifest(tmp_path, checkpoint, ["a"])
    assert offline_batch.main(_command(tmp_path, checkpoint, manifest, *more)) == 2
    assert reason in capsys.readouterr().err


def test_a_bare_list_is_spoken_in_the_checkpoints_voices_with_one_line_and_one_summary(
    tmp_path: Path, checkpoint: Path, llm: FakeLLM, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "list.csv"
    lines.write_text("text,voice\nIt costs $3,\nHello **there**,second\nhi,nobody\n", encoding="utf-8")
    (other,) = [path.stem for path in (checkpoint / "voices").glob("*.wav") if path.stem != "default"]
    lines.write_text(lines.read_text().replace("second", other), encoding="utf-8")
    options = ("--checkpoint", str(checkpoint), "--output-dir", str(tmp_path / "out"), "--llm-url", llm.url)
    settings = ("--token2wav-set", "ode_steps=2", "--token2wav-set", "num_threads=1")
    assert cli.main(["batch", str(lines), *options, *settings]) == 1
    assert {result["utt"] for result in _results(tmp_path)} == {"0001", "0002"}
    shown = capfd.readouterr()
    assert shown.out.count("rows: 3") == 1 and "FAILED 0003 in input: got the voice 'nobody'" in shown.out
    others = [line for line in shown.err.split("\n") if line and "text/s" not in line]
    assert others == [], "nothing but the line of progress"


@pytest.mark.servers
def test_a_family_is_spoken_with_its_own_llm(tmp_path: Path) -> None:
    make_random_checkpoint(tmp_path / "checkpoint", 0, family=Family.COSYVOICE3)
    lines, out = tmp_path / "texts.txt", tmp_path / "out"
    lines.write_text("Hello.\nOne more.\n", encoding="utf-8")
    paths = ["--checkpoint", str(tmp_path / "checkpoint"), "--output-dir", str(out)]
    assert cli.main(["batch", str(lines), *paths, "--device", "cpu", "--llm-max-speech-tokens", "60"]) == 0
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 2 and all(row["audio_s"] == pytest.approx(row["speech_tokens"] / 25) for row in rows)


def test_texts_are_cleaned_and_cut_as_the_gateway_does() -> None:
    async def spoken(text: str, normalization: Normalization) -> list[Utterance]:
        asked: list[Utterance] = []

        class LLM:
            async def complete(self, utterance: Utterance, sampling: Sampling, seed: int) -> SpeechTokenDelta:
                asked.append(utterance)
                return SpeechTokenDelta((len(asked),), "stop")

        front_end = load_text_front_end(30)
        llm = SegmentedLM(LLM().complete, front_end, TextOptions("en", normalization), CarryLimits())
        answer = await llm.complete(Utterance(text, "I am.", (9,)), Sampling(), 0)
        assert answer == SpeechTokenDelta(tuple(range(1, len(asked) + 1)), "stop")
        return asked

    cleaned = asyncio.run(spoken("It costs **$3**. The library closes at six on Fridays.", Normalization.ON))
    assert [each.text.strip() for each in cleaned] == [
        "It costs three dollars.",
        "The library closes at six on Fridays.",
    ]
    assert cleaned[1].reference_tokens == (9, 1) and cleaned[1].reference_text.startswith("I am.It costs three")
    (written,) = asyncio.run(spoken("It costs $3", Normalization.OFF))
    assert written.text == "It costs $3."
    with pytest.raises(InvalidTextError, match="nothing to say"):
        asyncio.run(spoken("...", Normalization.ON))


async def _run(
    tmp_path: Path, checkpoint: Path, texts: Sequence[str], plan: BatchPlan, together: int = 1
) -> tuple[ScriptedLLM, ScriptedToken2Wav, BatchReport, list[str]]:
    voice = checkpoint / "voices" / "default.wav"
    rows = [SpeechInput(f"u{index}", text, "says", voice) for index, text in enumerate(texts)]
    llm, token2wav = ScriptedLLM(together), ScriptedToken2Wav()
    settled: list[str] = []
    report = BatchReport(len(rows), lambda report: settled.append("row"))
    with Ledger(tmp_path / "out", "wav", {row.utt for row in rows}) as ledger:
        await BatchPipeline(llm.complete, token2wav, ledger, plan, report, SystemClock()).run(rows)
    return llm, token2wav, report, settled


async def test_batch_sizes_bound_each_stage(tmp_path: Path, checkpoint: Path) -> None:
    llm, token2wav, report, settled = await _run(tmp_path, checkpoint, ["x"] * 11, BatchPlan(3, 4), together=3)
    assert llm.most == 3
    assert [len(batch) for batch in token2wav.batches] == [4, 4, 3]
    assert (report.done, report.failures, len(settled)) == (11, [], 11)


async def test_a_failure_in_any_stage_costs_its_own_row_only(tmp_path: Path, checkpoint: Path) -> None:
    texts = ["x", "fail", "silent", "noise", "crash", "x"]
    _, _, report, settled = await _run(tmp_path, checkpoint, texts, BatchPlan(2, 1))
    assert {failure.utt: failure.stage for failure in report.failures} == {
        "u1": "llm",
        "u2": "llm",
        "u3": "token2wav",
        "u4": "token2wav",
    }
    assert (report.done, len(settled)) == (2, 6)


async def test_a_directory_that_can_not_be_written_ends_the_batch(tmp_path: Path, checkpoint: Path) -> None:
    voice = checkpoint / "voices" / "default.wav"
    rows = [SpeechInput(f"u{index}", "x", "says", voice) for index in range(40)]
    with Ledger(tmp_path / "out", "wav", set()) as ledger:
        stages, report = (ScriptedLLM().complete, ScriptedToken2Wav()), BatchReport(len(rows))
        pipeline = BatchPipeline(*stages, ledger, BatchPlan(2, 2), report, SystemClock())
        ledger.append = _no_space  # type: ignore[method-assign]
        with pytest.raises(OSError, match="no space"):
            await asyncio.wait_for(pipeline.run(rows), 30)


def _no_space(result: object) -> None:
    raise OSError("no space left")
