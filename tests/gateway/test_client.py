"""`cosydit client` through both doors, as a user runs it."""

from __future__ import annotations

import asyncio
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from tritonclient.grpc import service_pb2

from benchmarks.lib.paced_services import stream_response
from cosydit.cli.main import main
from gateway.voices.registry import NamedVoice
from tests.gateway.doors.http_door import opened_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, speech_deltas
from tests.gateway.token2wav.fake_triton import FakeTriton, error, read_plain, serving
from token2wav_service.contract import DROP_IN_MODEL, ErrorCode


class FakeDropIn(FakeTriton):
    """Stands for the model cosyvoice2_dit: two chunks and the empty final response, or an error."""

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        request = await anext(requests)
        self.requests.append({"model": request.model_name, **read_plain(request)})
        if self.push_error is not None:
            yield service_pb2.ModelStreamInferResponse(error_message=self.push_error)
            return
        for _ in range(2):
            yield stream_response(request.id, {"waveform": np.full(2400, 0.5, np.float32)}, is_final=False)
        yield stream_response(request.id, {})


async def cosydit_client(*argv: str) -> int:
    return await asyncio.to_thread(main, ["client", *argv])


@pytest.mark.parametrize("form", ["HOST", "http://HOST/", "http://HOST/v1"])
async def test_http_writes_a_wav_and_prints_its_timing(
    voices: list[NamedVoice], tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    out = tmp_path / "out.wav"
    async with opened_door(FakeLLM(speech_deltas(50)), FakeToken2Wav(), voices) as door:
        address = form.replace("HOST", door.url.removeprefix("http://"))
        assert await cosydit_client("http", "--url", address, "--text", "hello", "--out", str(out)) == 0
    with wave.open(str(out)) as wav:
        assert (wav.getnframes(), wav.getframerate(), wav.getnchannels()) == (50 * 960, 24000, 1)
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("first audio", "audio 2.00 s", "RTF"))


async def test_http_reports_the_gateways_error(
    voices: list[NamedVoice], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--text", "hello", "--voice", "nobody", "--out", str(tmp_path / "out.wav"))
    async with opened_door(FakeLLM(speech_deltas(5)), FakeToken2Wav(), voices) as door:
        assert await cosydit_client("http", "--url", door.url, *options) == 1
    assert await cosydit_client("http", "--url", door.url, *options) == 1
    printed = capsys.readouterr().err
    assert "expected one of ['anna', 'default']" in printed
    assert "is the gateway running" in printed
    assert not (tmp_path / "out.wav").exists() and not list(tmp_path.glob("*.part"))


async def test_grpc_sends_the_originals_tensors(tmp_path: Path) -> None:
    reference = tmp_path / "voice.wav"
    soundfile.write(reference, np.sin(np.arange(16000) / 20).astype(np.float32) * 0.5, 16000, subtype="FLOAT")
    options = ("--reference-wav", str(reference), "--reference-text", "so", "--out", str(tmp_path / "out.wav"))
    async with serving(fake := FakeDropIn()) as (url, _):
        assert await cosydit_client("grpc", "--url", url, "--text", "grün", *options) == 0
    sent = fake.requests[0]
    assert (sent["model"], sent["reference_wav_len"], np.shape(sent["reference_wav"])) == (
        DROP_IN_MODEL,
        [[16000]],
        (1, 16000),
    )
    with wave.open(str(tmp_path / "out.wav")) as wav:
        assert wav.getnframes() == 4800


async def test_grpc_reports_the_servers_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--text", "hello", "--out", str(tmp_path / "out.wav"))
    async with serving(FakeDropIn(push_error=error(ErrorCode.UNAVAILABLE, "the LLM is down"))) as (url, _):
        assert await cosydit_client("grpc", "--url", url, *options) == 1
    assert "UNAVAILABLE: the LLM is down" in capsys.readouterr().err
    assert await cosydit_client("grpc", "--url", url, "--timeout-s", "5", *options) == 1
    assert "is Triton running" in capsys.readouterr().err


async def test_grpc_refuses_a_reference_that_is_no_audio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "voice.wav").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 100)
    options = ("--text", "hello", "--reference-wav", str(tmp_path / "voice.wav"), "--out", str(tmp_path / "out.wav"))
    assert await cosydit_client("grpc", *options) == 1
    assert "voice.wav" in capsys.readouterr().err
