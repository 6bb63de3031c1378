"""Puts the gateway's parts together: clients, routers, voices, pipeline, readiness, and the doors beside HTTP.

config ─► open_gateway ─► Host ─► open_with_ports (gRPC, Wyoming, metrics) ─► gateway.doors.http.build_app
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from gateway.access.access import Access
from gateway.access.settings import open_access
from gateway.audio import load_codecs
from gateway.config import GatewayConfig
from gateway.dialects.openai.request import default_format
from gateway.doors.grpc import GrpcSettings, serving_grpc
from gateway.doors.wyoming import serving_wyoming
from gateway.errors import ConfigError
from gateway.host import Host, HostLimits
from gateway.lexicons import LexiconBook, load_lexicons
from gateway.lifecycle.gate import Gate, Routes
from gateway.lifecycle.readiness import Readiness, check_penalty
from gateway.lifecycle.shutdown import drain, return_memory_at_rest
from gateway.llm.client import SpeechLMClient
from gateway.llm.routed import LLMReplicaClient, RoutedSpeechLM
from gateway.llm.token_client import SCHEME, TokenStreamClient
from gateway.llm.wire import LLMWire
from gateway.processes.worker import Worker
from gateway.routing.discovery import places_of
from gateway.routing.fleet import LLM, TOKEN2WAV, Fleet
from gateway.speech.guard import GuardSettings
from gateway.speech.prosody_carry import CarryLimits
from gateway.speech.speaker import PipelineSettings, Speaker
from gateway.telemetry import exposition
from gateway.telemetry.exposition import beating
from gateway.telemetry.metrics import ReplicaMetrics
from gateway.telemetry.telemetry import Telemetry
from gateway.text import load_text_front_end
from gateway.token2wav.client import Token2WavClient
from gateway.token2wav.routed import RoutedToken2Wav
from gateway.voices.registry import VoiceRegistry
from gateway.voices.settings import open_registry
from gateway.voices.transcripts import TranscriptCheck
from llm_service.aligner import Aligner, load_aligner
from llm_service.config import LLMBackend
from llm_service.errors import CheckpointError
from llm_service.speech_bounds import SpeechBounds, load_speech_bounds
from llm_service.text_encoder import TextEncoder, load_text_encoder
from servicekit.checkpoint_file import (
    CheckpointDeclaration,
    CheckpointFileError,
    find_declaration,
    read_declaration,
)
from servicekit.clock import Clock, SystemClock
from servicekit.tasks import running_meanwhile
from servicekit.timeouts import LoopLag


@asynccontextmanager
async def open_gateway(
    config: GatewayConfig,
    access: Access | None = None,
    telemetry: Telemetry | None = None,
    worker: Worker | None = None,
) -> AsyncIterator[Host]:
    """Make clients and pipeline inside the running event loop, and close them on leaving.

    Args:
        access: holds callers to their limits; the same object guards the doors. By default one is made from `config`.
        worker: what this process shares with the others of this gateway; None: it is alone.

    Raises:
        ConfigError: the gateway can't work with a directory or value of `config`.
    """
    clock = SystemClock()
    telemetry = telemetry or Telemetry(clock)
    checkpoint = _read_checkpoint(config)
    routes = _open_routes(config, checkpoint.encoder, clock)
    telemetry.metrics.registry.register(ReplicaMetrics(routes.llm.snapshot, routes.token2wav.snapshot))
    access = access or open_access(config.access, clock)
    lexicons = load_lexicons(config.lexicons_dir, takes_phonemes=checkpoint.declaration.phonemes is not None)
    transcripts = TranscriptCheck(checkpoint.aligner, is_on=checkpoint.bounds.follows_text is not False)
    voices = _open_voices(config, routes.token2wav, access, transcripts)
    gate = Gate(routes.llm, routes.token2wav, clock)
    pipeline = _make_pipeline(config, checkpoint, lexicons, routes, voices, gate, access, telemetry, clock)
    probe = partial(check_penalty, routes.llm, config.sampling_probe)
    readiness = Readiness(pipeline, routes.llm, routes.token2wav, config.warm_up_voice, probe=probe)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(routes.close)
        stack.push_async_callback(gate.close)
        if worker is not None:
            await stack.enter_async_context(worker.serving())
        routes.start()
        await stack.enter_async_context(running_meanwhile(return_memory_at_rest(lambda: gate.speaking)))
        with ThreadPoolExecutor(thread_name_prefix="codec") as executor:
            yield Host(
                pipeline=pipeline,
                voices=voices,
                lexicons=lexicons,
                readiness=readiness,
                clock=clock,
                executor=executor,
                encode_text=checkpoint.encoder.encode,
                default_format=default_format(load_codecs()),
                limits=HostLimits(run_ahead_s=config.run_ahead_s),
                declaration=checkpoint.declaration,
                drain=partial(drain, gate, readiness, config.drain_delay_s, config.drain_timeout_s),
            )


@asynccontextmanager
async def open_with_ports(
    config: GatewayConfig,
    access: Access,
    telemetry: Telemetry,
    worker: Worker | None = None,
) -> AsyncIterator[Host]:
    """Make the gateway and open its ports beside HTTP: gRPC, Wyoming and metrics, where the config asks for them.

    Args:
        worker: see `open_gateway`; the port of metrics is the parent's then.

    Raises:
        ConfigError: the gateway can't work with a directory, port or value of `config`.
    """
    async with open_gateway(config, access, telemetry, worker) as host, AsyncExitStack() as doors:
        if (port := config.telemetry.metrics_port) is not None and worker is None:
            registry, silence_s = telemetry.metrics.registry, await doors.enter_async_context(beating(host.clock))
            doors.enter_context(exposition.metrics_port(registry, silence_s, config.host, port))
        if config.grpc_port is not None:
            tls, grace_s = config.access.tls, config.grace_s(GrpcSettings.grace_s)
            grpc = GrpcSettings(config.host, config.grpc_port, grace_s, tls=tls, shares_port=worker is not None)
            await doors.enter_async_context(serving_grpc(host, grpc, access, telemetry))
        if config.wyoming is not None:
            grace_s = config.grace_s(config.wyoming.grace_s)
            wyoming = replace(config.wyoming, grace_s=grace_s, shares_port=worker is not None)
            await doors.enter_async_context(serving_wyoming(host, wyoming, access, telemetry))
        if worker is not None:
            worker.note_opened()
        yield host


@dataclass(frozen=True)
class _Checkpoint:
    """What the gateway reads beside the LLM's weights."""

    declaration: CheckpointDeclaration
    encoder: TextEncoder
    bounds: SpeechBounds
    aligner: Aligner | None


def _read_checkpoint(config: GatewayConfig) -> _Checkpoint:
    directory, file = config.tokenizer_dir, config.checkpoint_file
    try:
        declaration = find_declaration(directory) if file is None else read_declaration(file)
        encoder = load_text_encoder(directory, declaration)
        bounds = load_speech_bounds(directory)
        asked = SpeechBounds(config.segment_letters, config.carry_tokens)
        return _Checkpoint(declaration, encoder, bounds.overridden_by(asked), load_aligner(directory))
    except (CheckpointFileError, CheckpointError) as error:
        raise ConfigError(str(error)) from error


def _open_routes(config: GatewayConfig, encoder: TextEncoder, clock: Clock) -> Routes:
    wire = LLMWire(encoder, config.llm_backend, config.llm_max_speech_tokens)

    def llm_client(address: str) -> LLMReplicaClient:
        if address.startswith(SCHEME):
            return TokenStreamClient(address, wire, config.llm_deadlines, clock, lag)
        return SpeechLMClient(address, wire, config.llm_model, config.llm_deadlines, clock, lag, llm_slots)

    def fleet(service: str) -> Fleet:
        return Fleet(service, settings, clock, stood_still_within=lag.is_recent)

    settings, lag = config.routing, LoopLag()
    llm_slots = None if config.llm_backend is LLMBackend.EMBEDDED else config.llm_slots
    token2wav_client = partial(Token2WavClient, deadlines=config.token2wav_deadlines, lag=lag)
    return Routes(
        RoutedSpeechLM(fleet(LLM), places_of(LLM, config.llm_url), llm_client, clock),
        RoutedToken2Wav(fleet(TOKEN2WAV), places_of(TOKEN2WAV, config.token2wav_url), token2wav_client, clock),
        lag,
    )


def _open_voices(
    config: GatewayConfig, token2wav: RoutedToken2Wav, access: Access, transcripts: TranscriptCheck
) -> VoiceRegistry:
    ledger, key = access.ledger, access.key_of_call
    voices = open_registry(config.voices_dir, config.voices, token2wav, ledger, key, transcripts)
    if config.warm_up_voice not in voices.names:
        raise ConfigError(f"warm-up voice {config.warm_up_voice!r} is not one of {voices.names} in {config.voices_dir}")
    return voices


def _make_pipeline(
    config: GatewayConfig,
    checkpoint: _Checkpoint,
    lexicons: LexiconBook,
    routes: Routes,
    voices: VoiceRegistry,
    gate: Gate,
    access: Access,
    telemetry: Telemetry,
    clock: Clock,
) -> Speaker:
    bounds, aligner = checkpoint.bounds, checkpoint.aligner
    guard = GuardSettings.of_checkpoint(config.speech_guard, bounds, aligner)
    settings = PipelineSettings(
        config.chunks.policy(),
        config.max_text_characters,
        CarryLimits.within(bounds),
        config.refuses_foreign,
        guard,
        leading_silence_s=config.leading_silence_s,
        aligner=aligner,
    )
    return Speaker(
        routes.llm,
        routes.token2wav,
        voices,
        settings,
        clock,
        front_end=load_text_front_end(
            bounds.segment_letters, checkpoint.declaration, lexicons.lexicons_for, config.refuses_styles
        ),
        access=access,
        admission=gate,
        observer=telemetry.observer,
    )
