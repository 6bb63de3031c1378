"""The parts of an offline batch: batches of like length, voices once a prompt, whole answers, figures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from benchmarks.offline_batch import RAW_COLUMNS, compute_figures, raw_samples
from cosydit.batch.ledger import Ledger
from cosydit.batch.llm import WholeAnswerClient
from cosydit.batch.pipeline import BatchPipeline, take_alike
from cosydit.batch.types import BatchPlan, BatchReport
from cosydit.bench.types import BenchmarkError, SpeechInput
from gateway import errors
from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.llm.wire import LLMWire
from llm_service.config import LLMBackend
from llm_service.text_encoder import load_text_encoder
from llm_service.vocab import COSYVOICE2
from servicekit.clock import SystemClock
from tests.cosydit.batch.scripted_stages import ScriptedLLM, ScriptedToken2Wav


@pytest.mark.parametrize(
    ("lengths", "taken"),
    [
        pytest.param([50, 200, 52, 190, 48], [50, 52, 48], id="the closest to the oldest"),
        pytest.param([200, 50, 52, 190, 48], [200, 190, 52], id="the oldest goes, whatever it costs"),
        pytest.param([10, 20], [10, 20], id="no more than there are"),
        pytest.param([7, 7, 7, 7], [7, 7, 7], id="equal lengths"),
    ],
)
def test_a_batch_is_of_like_length_and_holds_the_oldest(lengths: list[int], taken: list[int]) -> None:
    chosen = take_alike(lengths, 3)
    assert 0 in chosen and sorted(chosen.values()) == sorted(taken)


async def _run(rows: list[SpeechInput], out: Path, plan: BatchPlan) -> tuple[ScriptedToken2Wav, BatchReport]:
    token2wav, report = ScriptedToken2Wav(), BatchReport(len(rows))
    with Ledger(out, "wav", {row.utt for row in rows}) as ledger:
        await BatchPipeline(ScriptedLLM().complete, token2wav, ledger, plan, report, SystemClock()).run(rows)
    return token2wav, report


async def test_a_prompt_is_made_ready_once_however_many_rows_have_it(tmp_path: Path, checkpoint: Path) -> None:
    default, second = sorted((checkpoint / "voices").glob("*.wav"))[:2]
    prompts: list[Path | bytes] = [default, default, second, second.read_bytes(), second.read_bytes()]
    rows = [SpeechInput(f"u{index}", "5", "says", prompt) for index, prompt in enumerate(prompts)]
    token2wav, report = await _run(rows, tmp_path / "out", BatchPlan(2, 2))
    assert (token2wav.voices, report.voices, report.done) == (3, 3, 5)


async def test_a_warm_up_is_neither_written_nor_counted(tmp_path: Path, checkpoint: Path) -> None:
    voice = checkpoint / "voices" / "default.wav"
    rows = [SpeechInput(f"u{index}", "5", "says", voice) for index in range(4)]
    token2wav, report = await _run(rows, tmp_path / "out", BatchPlan(4, 4, warm_up=3))
    assert token2wav.batches == [[5, 5, 5], [5, 5, 5, 5]]
    assert report.done == 4 and len((tmp_path / "out" / "results.jsonl").read_text().splitlines()) == 4


@asynccontextmanager
async def _client(
    checkpoint: Path, answer: Callable[[dict[str, Any]], web.Response]
) -> AsyncIterator[WholeAnswerClient]:
    async def complete(request: web.Request) -> web.Response:
        return answer(await request.json())

    app = web.Application()
    app.add_routes([web.post("/v1/completions", complete)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    wire = LLMWire(load_text_encoder(checkpoint / "llm"), LLMBackend.VLLM)
    client = WholeAnswerClient(f"http://127.0.0.1:{runner.addresses[0][1]}", wire, "the model", 30.0, SystemClock())
    try:
        yield client
    finally:
        await client.close()
        await runner.cleanup()


async def _complete(client: WholeAnswerClient) -> SpeechTokenDelta:
    return await asyncio.wait_for(client.complete(Utterance("hello", "", ()), Sampling(), 7), 30)


def _choice(**fields: Any) -> web.Response:
    return web.json_response({"choices": [{"index": 0, **fields}]})


async def test_answers_are_asked_for_whole(checkpoint: Path) -> None:
    bodies: list[dict[str, Any]] = []

    def answer(body: dict[str, Any]) -> web.Response:
        bodies.append(body)
        return _choice(token_ids=[COSYVOICE2.llm_id(5)], text="", finish_reason="length")

    async with _client(checkpoint, answer) as client:
        assert await _complete(client) == SpeechTokenDelta((5,), "length")
    assert (bodies[0]["stream"], bodies[0]["seed"], bodies[0]["model"]) == (False, 7, "the model")


async def test_a_full_service_is_asked_again(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosydit.batch.llm.RETRY_AFTER_S", 0.01)
    answers = [web.json_response({}, status=429), web.json_response({}, status=503)]
    answers += [_choice(token_ids=[COSYVOICE2.llm_id(5)], finish_reason="stop")]
    async with _client(checkpoint, lambda body: answers.pop(0)) as client:
        assert (await _complete(client)).token_ids == (5,)


@pytest.mark.parametrize(
    ("response", "error"),
    [
        pytest.param({"status": 500, "text": "broken"}, errors.LLMFailedError, id="server error"),
        pytest.param({"text": "<html>"}, errors.LLMProtocolError, id="not JSON"),
        pytest.param({"text": '{"choices": [{"token_ids": []}]}'}, errors.LLMInterruptedError, id="no end"),
        pytest.param({"text": '{"choices": [{"message": 1}]}'}, errors.LLMInterruptedError, id="another form"),
    ],
)
async def test_what_is_no_answer_says_why(checkpoint: Path, response: dict[str, Any], error: type[Exception]) -> None:
    async with _client(checkpoint, lambda body: web.Response(**response)) as client:
        with pytest.raises(error):
            await _complete(client)


def test_figures_are_computed_from_the_rows() -> None:
    rows = {name: [0.0, 0.0] for name in RAW_COLUMNS}
    rows |= {"audio_s": [8.0, 12.0], "llm_began_s": [0.5, 0.0], "written_s": [1.5, 2.0]}
    busy = {"llm": 1.0, "token2wav": 1.2, "write": 0.1}
    computed = compute_figures({"rows": rows, "voices": 2, "voices_s": 9.0, "stage_busy_s": busy})
    assert (computed["rtf"], computed["times_real_time"], computed["utterances"]) == (0.1, 10.0, 2)
    assert (computed["voices_s"], computed["token2wav_busy_s"]) == (9.0, 1.2)


@pytest.mark.parametrize("change", [{"done_before": 1}, {"done": 0}], ids=["resumed", "nothing spoken"])
def test_a_run_that_did_not_speak_every_row_gives_no_figures(tmp_path: Path, change: dict[str, int]) -> None:
    report = BatchReport(rows=2, done=2)
    for name, value in change.items():
        setattr(report, name, value)
    with pytest.raises(BenchmarkError, match="speaks every row"):
        raw_samples(tmp_path / "results.jsonl", report)
