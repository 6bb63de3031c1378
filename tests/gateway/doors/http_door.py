"""Serves the real HTTP application on a free port, with both services faked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

from gateway.audio import AudioFormat
from gateway.chunking.policies import ExponentialChunks
from gateway.doors.http import build_app
from gateway.host import Host, HostLimits
from gateway.lexicons import LexiconBook
from gateway.lifecycle.readiness import Readiness
from gateway.speech.speaker import PipelineSettings, Speaker
from gateway.text import TextFrontEnd, load_text_front_end
from gateway.voices.profile import NO_ALIASES, VoiceAliases
from gateway.voices.registry import NamedVoice, VoiceRegistry
from gateway.voices.store import CreatedVoices
from servicekit.checkpoint_file import CheckpointDeclaration
from servicekit.clock import SystemClock
from tests.gateway.dialects.socket_door import MAX_BODY_BYTES, Door, served_door
from tests.gateway.fakes import FakeLLM, FakeToken2Wav, ManualClock, make_host


@asynccontextmanager
async def opened_door(
    llm: FakeLLM,
    token2wav: FakeToken2Wav,
    voices: list[NamedVoice],
    store: CreatedVoices | None = None,
    default_format: AudioFormat = AudioFormat.WAV,
    aliases: VoiceAliases = NO_ALIASES,
    reader_timeout_s: float = HostLimits.reader_timeout_s,
    declaration: CheckpointDeclaration | None = None,
    settings: PipelineSettings | None = None,
    front_end: TextFrontEnd | None = None,
    lexicons: LexiconBook | None = None,
) -> AsyncIterator[Door]:
    """Start the door and stop it again; with a declaration, texts are normalised and their languages told."""
    if front_end is None and declaration is not None:
        front_end = load_text_front_end(None, declaration, None if lexicons is None else lexicons.lexicons_for)

    @asynccontextmanager
    async def open_host() -> AsyncIterator[Host]:
        registry = VoiceRegistry(token2wav, voices, store=store, aliases=aliases)
        # Chunks of known sizes: a clock that stands still measures no speed to choose them by.
        held = settings or PipelineSettings(ExponentialChunks())
        pipeline = Speaker(llm, token2wav, registry, held, ManualClock(), front_end=front_end)
        readiness = Readiness(pipeline, llm, token2wav, "default", retry_s=0.01)
        with ThreadPoolExecutor(1) as executor:
            yield make_host(
                pipeline,
                registry,
                executor,
                readiness=readiness,
                clock=SystemClock(),
                default_format=default_format,
                limits=HostLimits(reader_timeout_s=reader_timeout_s, max_body_bytes=MAX_BODY_BYTES),
                declaration=declaration,
                lexicons=lexicons,
            )

    async with served_door(build_app(open_host), llm, token2wav) as door:
        with suppress(AssertionError):  # services that are broken on purpose; else the last request is the test's
            await door.until_ready(looks=10)
        yield door
