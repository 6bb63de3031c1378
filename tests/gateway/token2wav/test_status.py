"""How the client asks a token2wav server how busy it is."""

from __future__ import annotations

import pytest

from gateway import errors
from gateway.routing.replica import LoadReport
from gateway.token2wav.client import Token2WavClient
from gateway.token2wav.replica import Token2WavReplica, VoiceFileCache
from tests.gateway.token2wav.fake_triton import FakeTriton, error, serving
from token2wav_service.contract import ErrorCode, ServerStatus

STATUS = ServerStatus(8, 3, 100, 0.02, is_draining=True, next_end_s=0.4)


async def _probe(fake: FakeTriton) -> LoadReport:
    async with serving(fake) as (url, _):
        replica = Token2WavReplica(Token2WavClient(url), VoiceFileCache(1))
        try:
            return await replica.probe()
        finally:
            await replica.close()


async def test_the_status_becomes_a_report() -> None:
    report = await _probe(FakeTriton(status=STATUS.to_json()))
    assert report == LoadReport(True, slots=8, open_streams=3, step_s=0.02, steps=100, next_end_s=0.4)


async def test_a_server_that_stops_is_draining() -> None:
    assert await _probe(FakeTriton(status_error=error(ErrorCode.UNAVAILABLE, "stopping"))) == LoadReport(True)


async def test_a_status_of_another_form_is_a_protocol_error() -> None:
    with pytest.raises(errors.Token2WavProtocolError):
        await _probe(FakeTriton(status="[]"))


async def test_a_server_that_is_gone_is_unavailable() -> None:
    replica = Token2WavReplica(Token2WavClient("127.0.0.1:1"), VoiceFileCache(1))
    with pytest.raises(errors.Token2WavUnavailableError):
        await replica.probe()
    await replica.close()
