"""Configuration of the gateway process: made once of the settings that were given, frozen from there on."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gateway.access.settings import AccessSettings, access_settings
from gateway.chunking.policies import ChunkSettings
from gateway.delivery import DEFAULT_RUN_AHEAD_S
from gateway.dialects.wyoming.settings import WyomingSettings, wyoming_settings
from gateway.doors.grpc import DEFAULT_GRACE_S, DEFAULT_GRPC_PORT
from gateway.errors import ConfigError
from gateway.lifecycle.readiness import ProbeMode
from gateway.llm.client import LLMDeadlines
from gateway.routing.discovery import places_of
from gateway.routing.fleet import LLM, TOKEN2WAV
from gateway.routing.replica import RoutingSettings
from gateway.settings import AUTO, GATEWAY, KEEP
from gateway.speech.guard import GuardMode
from gateway.speech.pauses import DEFAULT_KEPT_S
from gateway.speech.request import DEFAULT_MAX_TEXT_CHARACTERS
from gateway.telemetry.telemetry import TelemetrySettings
from gateway.token2wav.client import Token2WavDeadlines
from gateway.voices.profile import DEFAULT_VOICE
from gateway.voices.settings import VoiceSettings, voice_settings
from llm_service.config import LLMBackend, ServerConfig
from llm_service.prompt import MAX_SPEECH_TOKENS
from servicekit.logs import LogFormat
from servicekit.settings import Given, SettingsError, add_options, given_settings, read_settings

DEFAULT_DRAIN_TIMEOUT_S = 60.0
HTTP_GRACE_S = 10
"""Seconds that answers may take to be sent once the doors close; `shutdown` has ended streams before."""
MIN_CORES, MAX_AUTO = 8, 4
_REFUSE = "refuse"
_AS_GIVEN = {
    *("tokenizer_dir", "checkpoint_file", "voices_dir", "warm_up_voice", "lexicons_dir", "host", "port", "llm_model"),
    *("llm_max_speech_tokens", "llm_slots", "max_text_characters", "segment_letters", "carry_tokens"),
    *("drain_delay_s", "drain_timeout_s"),
}
"""Settings that are fields of the configuration as they are."""


@dataclass(frozen=True)
class GatewayConfig:
    """Everything the gateway needs to start."""

    tokenizer_dir: Path
    """The LLM's tokenizer directory (tokenizer.json)."""
    voices_dir: Path
    """Folder with <name>.wav and <name>.txt for each voice."""
    host: str = "127.0.0.1"
    port: int = 8080
    grpc_port: int | None = DEFAULT_GRPC_PORT
    """Port of gRPC on the same host; None: no gRPC."""
    wyoming: WyomingSettings | None = None
    """Settings of the Wyoming door; None: no Wyoming door."""
    run_ahead_s: float = DEFAULT_RUN_AHEAD_S
    """Seconds of audio sent ahead, see `gateway.delivery.Pacer`."""
    llm_url: str = "http://127.0.0.1:8000"
    """URL of the LLM server; one replica or several, see `gateway.routing.discovery`."""
    llm_backend: LLMBackend = LLMBackend.EMBEDDED
    llm_sampling_probe: ProbeMode | None = None
    """Action if an LLM server ignores the repetition penalty; None: see `sampling_probe`."""
    llm_model: str | None = None
    """Name of the LLM server's model; None takes the first it lists."""
    llm_max_speech_tokens: int = MAX_SPEECH_TOKENS
    """Most tokens of one answer, whatever the text's length (25 a second)."""
    llm_slots: int = ServerConfig.max_batch_size
    """Answers that each vLLM or trtllm-serve server makes at once."""
    token2wav_url: str = "127.0.0.1:8001"
    """Address of token2wav, in the form of `llm_url`."""
    warm_up_voice: str = DEFAULT_VOICE
    max_text_characters: int = DEFAULT_MAX_TEXT_CHARACTERS
    segment_letters: int | None = None
    """Letters that the LLM speaks at once; None: the checkpoint's bound, else the front end's own bounds."""
    carry_tokens: int | None = None
    """Most speech tokens (25 Hz) of earlier segments that the LLM goes on from; None: as above."""
    checkpoint_file: Path | None = None
    """Path of checkpoint.json; None: see `servicekit.checkpoint_file.find_declaration`, asked of `tokenizer_dir`."""
    leading_silence_s: float | None = DEFAULT_KEPT_S
    """Most seconds of silence before the first sound of a speech; None: all silence stays."""
    speech_guard: GuardMode = GuardMode.MEND
    """Action when speech leaves its text."""
    refuses_foreign: bool = False
    """Whether text in a language that the checkpoint does not declare is refused; else it is spoken with a warning."""
    refuses_styles: bool = False
    """Whether an instruction on how to speak is refused where the checkpoint takes none; else it is ignored."""
    voices: VoiceSettings = field(default_factory=VoiceSettings)
    lexicons_dir: Path | None = None
    access: AccessSettings = field(default_factory=AccessSettings)
    chunks: ChunkSettings = field(default_factory=ChunkSettings)
    llm_deadlines: LLMDeadlines = field(default_factory=LLMDeadlines)
    token2wav_deadlines: Token2WavDeadlines = field(default_factory=Token2WavDeadlines)
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    processes: int = 1
    """Number of processes that serve the ports together."""
    drain_delay_s: float = 0.0
    """Seconds after a stop signal in which requests are still taken while /readyz already says no."""
    drain_timeout_s: float = DEFAULT_DRAIN_TIMEOUT_S
    """Seconds after that in which streams under way may end."""
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)

    def grace_s(self, usual_s: float) -> float:
        """Return the seconds that a door gives to answers under way when it closes: no more than streams get before."""
        return min(usual_s, self.drain_timeout_s)

    @property
    def closing_s(self) -> float:
        """Most seconds that all doors take to close, one after the other."""
        return sum(map(self.grace_s, (HTTP_GRACE_S, DEFAULT_GRACE_S, WyomingSettings.grace_s)))

    @property
    def longest_stop_s(self) -> float:
        """Seconds from a stop signal on after which all doors are closed."""
        return self.drain_delay_s + self.drain_timeout_s + self.closing_s

    @property
    def sampling_probe(self) -> ProbeMode:
        """What was asked for, else `refuse`; our own server is known to apply the penalty and is not asked."""
        if self.llm_sampling_probe is not None:
            return self.llm_sampling_probe
        return ProbeMode.OFF if self.llm_backend is LLMBackend.EMBEDDED else ProbeMode.REFUSE

    def __post_init__(self) -> None:
        places_of(LLM, self.llm_url)
        places_of(TOKEN2WAV, self.token2wav_url)
        self.access.check_host(self.host)


def parse_args(argv: Sequence[str] | None = None) -> GatewayConfig:
    """Read the command line and the environment; unknown options end the process with a usage message.

    Raises:
        ConfigError: a value that can't work.
    """
    parser = argparse.ArgumentParser(
        prog="python -m gateway",
        description="HTTP door: POST /v1/audio/speech, GET /healthz, /readyz, /health; and gRPC and Wyoming beside it.",
        allow_abbrev=False,
    )
    add_options(parser, GATEWAY)
    args = parser.parse_args(argv)
    try:
        return gateway_config(given_settings(GATEWAY, args, os.environ), os.environ)
    except SettingsError as error:
        raise ConfigError(str(error)) from error


def gateway_config(given: Given, environment: Mapping[str, str]) -> GatewayConfig:
    """Make the configuration of the settings that were given.

    Raises:
        ConfigError: values that can't work.
        SettingsError: a required setting is missing.
    """
    args = read_settings(GATEWAY, given)
    access = access_settings(args, environment)
    return GatewayConfig(
        **{name: getattr(args, name) for name in _AS_GIVEN},
        grpc_port=args.grpc_port or None,
        wyoming=wyoming_settings(args, access),
        run_ahead_s=args.run_ahead_s or math.inf,
        llm_url=",".join(args.llm_url or [GatewayConfig.llm_url]),
        llm_backend=LLMBackend(args.llm_backend),
        llm_sampling_probe=ProbeMode(args.llm_sampling_probe) if args.llm_sampling_probe else None,
        token2wav_url=",".join(args.token2wav_url or [GatewayConfig.token2wav_url]),
        leading_silence_s=None if args.leading_silence_ms == KEEP else args.leading_silence_ms / 1000,
        speech_guard=GuardMode(args.speech_guard),
        refuses_foreign=args.undeclared_language == _REFUSE,
        refuses_styles=args.unsupported_style == _REFUSE,
        voices=voice_settings(args),
        access=access,
        chunks=ChunkSettings(
            args.dynamic_chunk_strategy, args.token_hop_len, args.token_hop_len_first, args.token_hop_len_max or None
        ),
        routing=RoutingSettings(admission_wait_s=args.admission_wait_s),
        processes=auto_processes(len(os.sched_getaffinity(0))) if args.processes == AUTO else args.processes,
        telemetry=TelemetrySettings(args.metrics_port, args.otlp_endpoint, LogFormat(args.log_format)),
    )


def auto_processes(cores: int) -> int:
    """Return how many processes a gateway has on so many cores, where nobody says: most cores are the services'."""
    return 1 if cores < MIN_CORES else min(MAX_AUTO, cores // 4)
