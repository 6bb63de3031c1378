"""The offline batch, whole: a small checkpoint's token2wav in this process, a small LLM service over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from benchmarks import offline_batch
from benchmarks.lib.batch.ledger import Ledger
from benchmarks.lib.batch.pipeline import BatchPipeline, utterance_seed
from benchmarks.lib.batch.types import BatchPlan, BatchReport, BatchVoice, TokenisedUtterance
from benchmarks.lib.types import SpeechInput
from cosydit.clock import SystemClock
from gateway.core import FloatArray, Sampling, SpeechTokenDelta, Utterance
from tests.benchmarks.fake_llm import SPEECH_TOKENS, FakeLLM


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
    assert stages == {"gone": "input", "empty": "input", "row 6": "input", "png": "features", "voiceless": "features"}
    assert "FAILED png in features" in capsys.readouterr().out
    assert "LLM" in (tmp_path / "out" / "batch.log").read_text(encoding="utf-8")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert (summary["done"], set(summary["stage_busy_s"])) == (3, {"features", "llm", "token2wav", "write"})


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
    # Equal but for rounding: the first time it ran in a batch with others.
    assert np.abs(whole - again).max() < 1e-3
    assert sorted(result["utt"] for result in _results(tmp_path)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        pytest.param(["--num-workers", "4"], "--num-workers means nothing here", id="num-workers"),
        pytest.param(["--prefetch", "2"], "--prefetch means nothing here", id="prefetch"),
        pytest.param(["--backend", "hf"], "use --backend embedded", id="backend hf"),
        pytest.param(["--backend", "trtllm-serve"], "use --backend trtllm", id="backend trtllm-serve"),
        pytest.param(["--batch-size", "0"], "expected at least 1", id="batch size 0"),
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
        pytest.param(["--engine-dir", "x"], "--engine-dir is for --backend trtllm", id="engine dir"),
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


class ScriptedLLM:
    """Yields two tokens; fails for the text `fail`, says nothing for `silent`; counts who is answered at once.

    The first answers wait until `together` are asked for at once, however slowly the stage before brings them.
    """

    def __init__(self, together: int = 1) -> None:
        self.now = self.most = 0
        self._together = together
        self._are_together = asyncio.Event()

    async def generate(
        self, utterance: Utterance, sampling: Sampling, seed: int
    ) -> AsyncGenerator[SpeechTokenDelta, None]:
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now >= self._together:
            self._are_together.set()
        try:
            await asyncio.wait_for(self._are_together.wait(), 30)
            await asyncio.sleep(0.001)
            if utterance.text == "fail":
                raise RuntimeError("the LLM broke")
            yield SpeechTokenDelta(() if utterance.text == "silent" else (1, 2), "stop")
        finally:
            self.now -= 1

    async def is_ready(self) -> bool:
        return True


class ScriptedToken2Wav:
    """Gives every utterance 10 samples; fails those of the text `noise`, and whole batches for `crash`."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    async def make_voice(self, samples: FloatArray) -> BatchVoice:
        return BatchVoice(samples, (1,))

    async def speak(self, utterances: Sequence[TokenisedUtterance]) -> list[FloatArray | Exception]:
        self.batches.append(len(utterances))
        if any(each.input.text == "crash" for each in utterances):
            raise RuntimeError("token2wav crashed")
        noise = RuntimeError("no good")
        return [noise if each.input.text == "noise" else np.zeros(10, np.float32) for each in utterances]

    async def close(self) -> None:
        """Hold nothing."""


async def _run(
    tmp_path: Path, checkpoint: Path, texts: Sequence[str], plan: BatchPlan, together: int = 1
) -> tuple[ScriptedLLM, ScriptedToken2Wav, BatchReport, list[str]]:
    voice = checkpoint / "voices" / "default.wav"
    rows = [SpeechInput(f"u{index}", text, "says", voice) for index, text in enumerate(texts)]
    llm, token2wav = ScriptedLLM(together), ScriptedToken2Wav()
    settled: list[str] = []
    with Ledger(tmp_path / "out", "wav", {row.utt for row in rows}) as ledger:
        pipeline = BatchPipeline(llm, token2wav, ledger, plan, SystemClock())
        report = await pipeline.run(rows, lambda report: settled.append("row"))
    return llm, token2wav, report, settled


async def test_batch_sizes_bound_each_stage(tmp_path: Path, checkpoint: Path) -> None:
    llm, token2wav, report, settled = await _run(tmp_path, checkpoint, ["x"] * 11, BatchPlan(3, 4), together=3)
    assert llm.most == 3
    assert token2wav.batches == [4, 4, 3]
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
        pipeline = BatchPipeline(ScriptedLLM(), ScriptedToken2Wav(), ledger, BatchPlan(2, 2), SystemClock())
        ledger.append = _no_space  # type: ignore[method-assign]
        with pytest.raises(OSError, match="no space"):
            await asyncio.wait_for(pipeline.run(rows, lambda report: None), 30)


def _no_space(result: object) -> None:
    raise OSError("no space left")
