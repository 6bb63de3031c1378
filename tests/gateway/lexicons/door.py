"""Serves every door of a gateway with pronunciation dictionaries, behind API keys, with both services faked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import httpx
from riva.proto import riva_tts_pb2_grpc
from tts_api.tts.v1 import tts_service_pb2_grpc
from websockets.asyncio.client import connect

from gateway.access.http_middleware import guarded
from gateway.access.settings import AccessSettings, http_rules, open_access
from gateway.doors.grpc import GrpcSettings, serving_grpc
from gateway.lexicons import load_lexicons
from gateway.speech.speaker import Speaker
from gateway.text import TextFrontEnd, load_text_front_end
from gateway.voices.registry import NamedVoice, VoiceRegistry
from servicekit.checkpoint_file import CheckpointDeclaration
from servicekit.clock import SystemClock
from tests.gateway.access.door import KEY, keys
from tests.gateway.dialects.socket_door import Client, served
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, app_of, make_host, speech_deltas

ANNA = {"xi-api-key": KEY}
GRPC_ANNA = (("authorization", f"Bearer {KEY}"),)
TOKENS = 30


@dataclass
class Door:
    """Running doors and the LLM behind them."""

    url: str
    http: httpx.AsyncClient
    channel: grpc.aio.Channel
    llm: FakeLLM

    @property
    def tts(self) -> Any:
        return tts_service_pb2_grpc.TextToSpeechServiceStub(self.channel)

    @property
    def riva(self) -> Any:
        return riva_tts_pb2_grpc.RivaSpeechSynthesisStub(self.channel)

    @asynccontextmanager
    async def client(self, path: str) -> AsyncIterator[Client]:
        url = f"ws{self.url.removeprefix('http')}{path}"
        async with connect(url, proxy=None, additional_headers=ANNA) as connection:
            yield Client(connection)

    def spoken(self) -> list[str]:
        """Return what the LLM was asked to speak since the last call."""
        texts = [utterance.text.strip() for utterance in self.llm.utterances]
        self.llm.utterances.clear()
        return texts


@asynccontextmanager
async def opened_door(
    voices: list[NamedVoice], directory: Path, declaration: CheckpointDeclaration | None = None
) -> AsyncIterator[Door]:
    """Start the doors and stop them again; without a declaration texts are not normalised."""
    clock, llm, token2wav = SystemClock(), FakeLLM(speech_deltas(TOKENS)), FakeToken2Wav()
    access_settings = AccessSettings(fixed_keys=keys())
    access = open_access(access_settings, clock)
    takes_phonemes = declaration is not None and declaration.phonemes is not None
    lexicons = load_lexicons(directory, takes_phonemes=takes_phonemes)
    front_end = TextFrontEnd({}, lambda text: None, lexicons=lexicons.lexicons_for)
    if declaration is not None:
        front_end = load_text_front_end(None, declaration, lexicons.lexicons_for)
    registry = VoiceRegistry(token2wav, voices)
    pipeline = Speaker(llm, token2wav, registry, clock=clock, front_end=front_end)
    with ThreadPoolExecutor(1) as executor:
        host = replace(make_host(pipeline, registry, executor, clock=clock), lexicons=lexicons)
        async with (
            served(guarded(app_of(host), access, http_rules(access_settings, "127.0.0.1"))) as url,
            serving_grpc(host, GrpcSettings(port=0), access) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
            httpx.AsyncClient(base_url=url, timeout=5, trust_env=False, verify=False, headers=ANNA) as http,
        ):
            yield Door(url, http, channel, llm)


def lexicons_dir(path: Path) -> Path:
    """Write a default dictionary and one named tech."""
    (path / "default.json").write_text('{"rules": {"GNU": "guh noo"}}')
    rules = [
        {"string_to_replace": "Xiaomi", "alias": "show me"},
        {"string_to_replace": "sql", "alias": "sequel", "case_sensitive": False},
    ]
    (path / "tech.json").write_text(json.dumps({"rules": rules}))
    return path
