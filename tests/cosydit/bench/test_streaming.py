"""The streaming benchmark, whole, against small servers that speak the drop-in contract and the gateway's HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tritonclient.grpc import service_pb2, service_pb2_grpc

from cosydit.bench import command as streaming_grpc
from cosydit.bench.doors import HttpDoor, PreparedRequest, TritonDoor
from cosydit.bench.load import LoadPlan
from cosydit.bench.speech_bench import BenchSettings, prepare_jobs, run_bench
from cosydit.bench.types import BenchmarkError, SpeechInput
from tests.workers import listening

pytestmark = pytest.mark.slow

CHUNK = np.full(2400, 0.5, np.float32)


class DropIn(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers every text with two chunks and an empty final response; the text `fail` with an error."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            self.requests.append(request)
            if b"fail" in request.raw_input_contents[0]:
                yield service_pb2.ModelStreamInferResponse(error_message="INTERNAL: it broke")
                return
            yield service_pb2.ModelStreamInferResponse(infer_response=_answer(CHUNK, is_final=False))
            yield service_pb2.ModelStreamInferResponse(infer_response=_answer(CHUNK, is_final=False))
            yield service_pb2.ModelStreamInferResponse(infer_response=_answer(None, is_final=True))

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        return _answer(np.concatenate([CHUNK, CHUNK]), is_final=True)


def _answer(samples: Any, is_final: bool) -> Any:
    response = service_pb2.ModelInferResponse(model_name="cosyvoice2_dit")
    response.parameters["triton_final_response"].bool_param = is_final
    if samples is not None:
        response.outputs.add(name="waveform", datatype="FP32", shape=[1, len(samples)])
        response.raw_output_contents.append(samples.tobytes())
    return response


@pytest.fixture
async def drop_in() -> AsyncIterator[tuple[DropIn, str]]:
    servicer, server = DropIn(), grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield servicer, f"127.0.0.1:{port}"
    await server.stop(None)


def _settings(log_dir: Path, url: str, is_whole: bool, plan: LoadPlan) -> BenchSettings:
    open_door = partial(TritonDoor, url, 20.0, "cosyvoice2_dit", is_whole)
    return BenchSettings(open_door, "a run", 0.0, plan, log_dir)


async def test_a_run_leaves_results_samples_and_table(tmp_path: Path, drop_in: tuple[DropIn, str]) -> None:
    servicer, url = drop_in
    jobs = prepare_jobs([SpeechInput("a", "hello"), SpeechInput("b/c", "bye")])
    settings = _settings(tmp_path, url, False, LoadPlan(num_tasks=2, requests=4, warm_up=2))
    await run_bench(settings, jobs, {"python": "x"})
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert (results["summary"]["requests"], results["summary"]["ttfa_s"]["count"]) == (4, 4)
    assert results["summary"]["failures"] == 0
    assert {"p50", "p90", "p95", "p99"} < set(results["summary"]["ttfa_s"])
    assert results["environment"] == {"python": "x"} and results["warm_up"] == {"requests": 2, "failures": 0}
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [sample["is_warm_up"] for sample in samples] == [True] * 2 + [False] * 4
    assert {sample["request_id"] for sample in samples} == {request.id for request in servicer.requests}
    assert "time to first audio, ms   4" in (tmp_path / "rtf.txt").read_text(encoding="utf-8")


async def test_requests_carry_the_originals_tensors(tmp_path: Path, drop_in: tuple[DropIn, str]) -> None:
    servicer, url = drop_in
    reference = np.full(1600, 0.25, np.float32)
    job = PreparedRequest(SpeechInput("a", "héllo", "it says"), reference)
    await run_bench(_settings(tmp_path, url, False, LoadPlan()), [job], {})
    (request,) = servicer.requests
    shapes = {tensor.name: (tensor.datatype, list(tensor.shape)) for tensor in request.inputs}
    assert shapes == {
        "target_text": ("BYTES", [1, 1]),
        "reference_wav": ("FP32", [1, 1600]),
        "reference_wav_len": ("INT32", [1, 1]),
        "reference_text": ("BYTES", [1, 1]),
    }
    assert request.raw_input_contents[0] == b"\x06\x00\x00\x00" + "héllo".encode()
    assert request.raw_input_contents[1] == reference.tobytes()
    assert request.parameters["triton_enable_empty_final_response"].bool_param


async def test_the_offline_mode_takes_one_whole_waveform(tmp_path: Path, drop_in: tuple[DropIn, str]) -> None:
    _, url = drop_in
    jobs = prepare_jobs([SpeechInput("a", "hello")])
    _, result = await run_bench(_settings(tmp_path, url, True, LoadPlan()), jobs, {})
    assert [arrival.audio_s for arrival in result.records[0].arrivals] == [0.2]


async def test_failed_requests_are_counted_and_named(tmp_path: Path, drop_in: tuple[DropIn, str]) -> None:
    _, url = drop_in
    jobs = prepare_jobs([SpeechInput("a", "hello"), SpeechInput("b", "fail")])
    table, result = await run_bench(_settings(tmp_path, url, False, LoadPlan(requests=2)), jobs, {})
    assert [record.is_ok for record in result.records].count(False) == 1
    assert "FAILED b (" in table and "INTERNAL: it broke" in table


async def _speak_over_http(answer: Callable[[web.Request], Coroutine[None, None, web.StreamResponse]]) -> list[float]:
    app = web.Application()
    app.router.add_post("/v1/audio/speech", answer)
    async with TestServer(app) as server:
        async with aclosing(HttpDoor(str(server.make_url("")).rstrip("/"), 0.5, "default")) as door:
            return [each async for each in door.speak(PreparedRequest(SpeechInput("a", "hello"), None), "id-1")]


async def _begun(request: web.Request, *pieces: bytes) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
    return response


async def test_the_http_door_counts_whole_samples_however_the_body_was_cut() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.headers["x-request-id"] == "id-1"
        assert (await request.json())["voice"] == "default"
        return await _begun(request, bytes(4801), bytes(4799))

    assert sum(await _speak_over_http(answer)) == pytest.approx(0.2)


async def refuse(request: web.Request) -> web.StreamResponse:
    return web.Response(status=404, text="no such voice")


async def stall(request: web.Request) -> web.StreamResponse:
    response = await _begun(request, bytes(4800))
    await asyncio.sleep(2)
    return response


async def hang_up(request: web.Request) -> web.StreamResponse:
    response = await _begun(request, bytes(4800))
    assert request.transport is not None
    request.transport.abort()
    return response


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(refuse, "answered 404: no such voice"), (stall, r"silent for 0\.5 s"), (hang_up, "/v1/audio/speech")],
)
async def test_the_http_door_reports_what_is_no_whole_answer(answer: Any, reason: str) -> None:
    with pytest.raises(BenchmarkError, match=reason):
        await _speak_over_http(answer)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        pytest.param(["--door", "http", "--manifest-path", "x"], "by name only", id="prompts over HTTP"),
        pytest.param(["--door", "http", "--mode", "offline"], "always streams", id="offline over HTTP"),
        pytest.param(["--reference-audio", "x"], "go together", id="audio without text"),
        pytest.param(["--voice", "x"], "needs --voices-dir", id="voice by name over Triton"),
        pytest.param(["--voices-dir", "x", "--use-spk2info-cache", "True"], "sends no reference", id="two voices"),
        pytest.param(["--manifest-path", "nowhere"], "nowhere can't be read", id="no manifest"),
    ],
)
def test_what_can_not_be_combined_is_refused_before_anything_is_sent(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert streaming_grpc.main(arguments) == 2
    assert reason in capsys.readouterr().err


def test_the_command_exits_non_zero_when_requests_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with listening(BaseHTTPRequestHandler) as no_triton:
        arguments = ["--server-port", str(no_triton), "--num-requests", "1"]
        arguments += ["--warm-up", "0", "--timeout-s", "5"]
        status = streaming_grpc.main([*arguments, "--log-dir", str(tmp_path)])
    assert status == 1
    assert "failed: 1" in capsys.readouterr().out


def test_no_services_at_all_are_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert streaming_grpc.main(["--server-port", "9", "--log-dir", str(tmp_path)]) == 2
    assert "Triton does not answer at 127.0.0.1:9" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
