"""Settings of the gateway process: read once from the command line, frozen from there on."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gateway.access.settings import AccessSettings, access_settings, add_access_options
from gateway.chunking.policies import (
    DEFAULT_HOP_TOKENS,
    DEFAULT_MAX_HOP_TOKENS,
    DEFAULT_POLICY,
    POLICY_NAMES,
    ChunkSettings,
)
from gateway.delivery.pacing import DEFAULT_RUN_AHEAD_S
from gateway.dialects.wyoming.settings import WyomingSettings, add_wyoming_options, wyoming_settings
from gateway.doors.grpc import DEFAULT_GRACE_S, DEFAULT_GRPC_PORT
from gateway.host import DEFAULT_READER_TIMEOUT_S
from gateway.lexicons.book import DEFAULT_LEXICON
from gateway.lifecycle.sampling_probe import ProbeMode
from gateway.llm.client import LLMDeadlines
from gateway.llm.token_client import DEFAULT_PACE, LEAST_PACE, MOST_PACE
from gateway.llm.wire import PromptForm
from gateway.routing.options import (
    ADDRESSES,
    add_routing_options,
    llm_sources,
    routing_settings,
    token2wav_sources,
)
from gateway.routing.settings import RoutingSettings
from gateway.speech.guard import GuardMode
from gateway.speech.leading_silence import DEFAULT_KEPT_S
from gateway.speech.request import DEFAULT_MAX_TEXT_CHARACTERS
from gateway.telemetry.telemetry import TelemetrySettings, add_telemetry_options, telemetry_settings
from gateway.token2wav.client import Token2WavDeadlines
from gateway.voices.profile import DEFAULT_VOICE
from gateway.voices.settings import VoiceSettings, add_voice_options, voice_settings
from llm_service.config import LLMBackend, ServerConfig
from llm_service.prompt import LengthLimits

DEFAULT_MAX_BODY_BYTES = 1024 * 1024
DEFAULT_DRAIN_TIMEOUT_S = 60.0
HTTP_GRACE_S = 10
"""Seconds that answers may take to be sent once the doors close; `shutdown` has ended streams before."""
_UNBOUNDED = 0
_KEEP = "keep"
_AUTO = "auto"
MIN_CORES, MAX_AUTO, MAX_PROCESSES = 8, 4, 64
_MS = 1000.0
_WARN, _REFUSE, _IGNORE = "warn", "refuse", "ignore"


@dataclass(frozen=True)
class Graces:
    """Seconds that the doors give to answers under way when they close; together they take the sum at most."""

    http_s: float
    grpc_s: float
    wyoming_s: float

    @classmethod
    def within(cls, drain_timeout_s: float) -> Graces:
        """Return the usual ones, none of which is longer than what streams get before."""
        usual = (HTTP_GRACE_S, DEFAULT_GRACE_S, WyomingSettings.grace_s)
        return cls(*(min(grace_s, drain_timeout_s) for grace_s in usual))

    @property
    def all_s(self) -> float:
        """Sum of all."""
        return self.http_s + self.grpc_s + self.wyoming_s


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
    """Seconds of audio sent ahead, see `gateway.delivery.pacing.Pacer`."""
    reader_timeout_s: float = DEFAULT_READER_TIMEOUT_S
    """Seconds to wait for a reader of HTTP or gRPC, see `gateway.dialects.common.answers.sent`."""
    llm_url: str = "http://127.0.0.1:8000"
    """URL of the LLM server; one replica or several, see `gateway.routing.discovery`."""
    llm_backend: LLMBackend = LLMBackend.EMBEDDED
    llm_prompt_form: PromptForm = PromptForm.TOKENS
    llm_sampling_probe: ProbeMode | None = None
    """Action if an LLM server ignores the repetition penalty; None: see `sampling_probe`."""
    llm_model: str | None = None
    """Name of the LLM server's model; None takes the first it lists."""
    llm_max_speech_tokens: int = LengthLimits().max_speech_tokens
    """Most tokens of one answer, whatever the text's length (25 a second)."""
    llm_pace: float = DEFAULT_PACE
    """Speed of LLM answers, see `gateway.llm.token_client.TokenStreamClient`."""
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
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
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

    @property
    def graces(self) -> Graces:
        """How long the doors take to close."""
        return Graces.within(self.drain_timeout_s)

    @property
    def sampling_probe(self) -> ProbeMode:
        """What was asked for, else `refuse`; our own server is known to apply the penalty and is not asked."""
        if self.llm_sampling_probe is not None:
            return self.llm_sampling_probe
        return ProbeMode.OFF if self.llm_backend is LLMBackend.EMBEDDED else ProbeMode.REFUSE

    def __post_init__(self) -> None:
        llm_sources(self.llm_url, self.routing)
        token2wav_sources(self.token2wav_url, self.routing)
        self.access.check_host(self.host)
        self.access.wire.check_room(self.max_body_bytes, "--max-body-bytes")
        self.access.wire.check_room(self.voices.limits.max_audio_bytes, "--max-voice-bytes")


def parse_args(argv: Sequence[str] | None = None) -> GatewayConfig:
    """Read the command line; unknown options end the process with a usage message.

    Raises:
        ConfigError: a value that can't work.
    """
    args = _parser().parse_args(argv)
    chunks = ChunkSettings(
        args.dynamic_chunk_strategy,
        args.token_hop_len,
        args.token_hop_len_first,
        None if args.token_hop_len_max == _UNBOUNDED else args.token_hop_len_max,
    )
    llm_deadlines = LLMDeadlines(
        args.llm_connect_timeout_s, args.llm_first_token_timeout_s, args.llm_token_timeout_s, args.llm_total_timeout_s
    )
    token2wav_deadlines = Token2WavDeadlines(
        register_s=args.token2wav_register_timeout_s, push_s=args.token2wav_chunk_timeout_s
    )
    access = access_settings(args, os.environ)
    return GatewayConfig(
        tokenizer_dir=args.tokenizer_dir,
        voices_dir=args.voices_dir,
        host=args.host,
        port=args.port,
        grpc_port=args.grpc_port or None,
        wyoming=wyoming_settings(args, access),
        reader_timeout_s=args.reader_timeout_s,
        run_ahead_s=math.inf if args.run_ahead_s == _UNBOUNDED else args.run_ahead_s,
        llm_url=",".join(args.llm_url or [GatewayConfig.llm_url]),
        llm_backend=LLMBackend(args.llm_backend),
        llm_prompt_form=PromptForm(args.llm_prompt_form),
        llm_model=args.llm_model,
        llm_sampling_probe=ProbeMode(args.llm_sampling_probe) if args.llm_sampling_probe else None,
        llm_max_speech_tokens=args.llm_max_speech_tokens,
        llm_pace=args.llm_pace,
        llm_slots=args.llm_slots,
        token2wav_url=",".join(args.token2wav_url or [GatewayConfig.token2wav_url]),
        warm_up_voice=args.warm_up_voice,
        max_text_characters=args.max_text_characters,
        segment_letters=args.segment_letters,
        carry_tokens=args.carry_tokens,
        checkpoint_file=args.checkpoint_file,
        leading_silence_s=args.leading_silence_ms,
        speech_guard=GuardMode(args.speech_guard),
        refuses_foreign=args.undeclared_language == _REFUSE,
        refuses_styles=args.unsupported_style == _REFUSE,
        max_body_bytes=args.max_body_bytes,
        voices=voice_settings(args),
        lexicons_dir=args.lexicons_dir,
        access=access,
        chunks=chunks,
        llm_deadlines=llm_deadlines,
        token2wav_deadlines=token2wav_deadlines,
        routing=routing_settings(args),
        processes=args.processes,
        drain_delay_s=args.drain_delay_s,
        drain_timeout_s=args.drain_timeout_s,
        telemetry=telemetry_settings(args, os.environ),
    )


def longest_stop_s(argv: Sequence[str]) -> float:
    """Return the seconds from a stop signal on after which a gateway with this command line has closed its doors."""
    args = _parser().parse_args(argv)
    return float(args.drain_delay_s + args.drain_timeout_s + Graces.within(args.drain_timeout_s).all_s)


def metrics_port(argv: Sequence[str]) -> int | None:
    """Return the port that a gateway with this command line has for its metrics alone; None: its HTTP door has them."""
    port: int | None = _parser().parse_args(argv).metrics_port
    return port


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gateway",
        description="HTTP door: POST /v1/audio/speech, GET /healthz, /readyz, /health; and gRPC and Wyoming beside it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8080, help="port to listen on")
    parser.add_argument("--grpc-port", type=int, default=DEFAULT_GRPC_PORT, help="port of gRPC; 0: no gRPC")
    ahead = "seconds of audio sent ahead of playback where the server can't see interruptions; 0: no bound"
    parser.add_argument("--run-ahead-s", type=_duration, default=DEFAULT_RUN_AHEAD_S, help=ahead)
    reader = "seconds to wait for a client of HTTP or gRPC that stops reading; then its answer ends"
    parser.add_argument("--reader-timeout-s", type=_positive_float, default=DEFAULT_READER_TIMEOUT_S, help=reader)
    parser.add_argument(
        "--voices-dir", type=Path, required=True, help="directory with <name>.wav and <name>.txt of each voice"
    )
    parser.add_argument("--warm-up-voice", default=DEFAULT_VOICE, help="voice of the warm-up synthesis")
    parser.add_argument(
        "--max-text-characters",
        type=_positive_int,
        default=DEFAULT_MAX_TEXT_CHARACTERS,
        help="longest text accepted, in characters",
    )
    segment = "about how many letters the LLM speaks at once; for models trained on short texts"
    parser.add_argument("--segment-letters", type=_positive_int, default=None, help=segment)
    carry = "most speech tokens (25 Hz) of earlier segments that the LLM goes on from; 0: none"
    parser.add_argument("--carry-tokens", type=_non_negative_int, default=None, help=carry)
    declared = "file that says what the checkpoint can do; None: searched beside and above --tokenizer-dir"
    parser.add_argument("--checkpoint-file", type=Path, metavar="CHECKPOINT.JSON", default=None, help=declared)
    foreign = "speak text in a language that the checkpoint does not declare with a warning, or refuse it"
    parser.add_argument("--undeclared-language", choices=(_WARN, _REFUSE), default=_WARN, help=foreign)
    style = "ignore and report instructions and styles that the checkpoint does not take, or refuse them"
    parser.add_argument("--unsupported-style", choices=(_IGNORE, _REFUSE), default=_IGNORE, help=style)
    silence = "most milliseconds of silence before the first sound of a speech; keep: all of it (default %(default)s)"
    parser.add_argument(
        "--leading-silence-ms", type=_leading_silence, metavar="MS", default=f"{_MS * DEFAULT_KEPT_S:g}", help=silence
    )
    guard = "what to do if speech loops, falls silent or is too short or long for its text: nothing, warn, speak again"
    modes = [mode.value for mode in GuardMode]
    parser.add_argument("--speech-guard", choices=modes, default=GatewayConfig.speech_guard.value, help=guard)
    parser.add_argument(
        "--max-body-bytes",
        type=_positive_int,
        default=DEFAULT_MAX_BODY_BYTES,
        help="largest request body accepted, in bytes",
    )
    processes = (
        "number of processes that serve the ports together, each with its own event loop; "
        f"{_AUTO}: 1 on less than {MIN_CORES} cores, else a quarter of them, {MAX_AUTO} at most (default %(default)s)"
    )
    parser.add_argument("--processes", type=_processes, default="1", metavar="N", help=processes)
    delay = "seconds after a stop signal in which requests are still taken, while /readyz says no"
    parser.add_argument("--drain-delay-s", type=_duration, default=GatewayConfig.drain_delay_s, help=delay)
    drain = "seconds after --drain-delay-s in which streams under way may end"
    parser.add_argument("--drain-timeout-s", type=_duration, default=DEFAULT_DRAIN_TIMEOUT_S, help=drain)
    add_voice_options(parser)
    lexicons = (
        f"directory of pronunciation dictionaries <name>.json and <name>.pls; {DEFAULT_LEXICON} is for every text"
    )
    parser.add_argument("--lexicons-dir", type=Path, default=None, help=lexicons)
    add_access_options(parser)
    add_wyoming_options(parser)
    add_telemetry_options(parser)
    _add_llm_options(parser)
    _add_token2wav_options(parser)
    add_routing_options(parser)
    return parser


def _add_llm_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("LLM service")
    default = GatewayConfig.llm_url
    group.add_argument(
        "--llm-url", action="append", metavar="URL", help=f"URL of the LLM server ({default} by default); {ADDRESSES}"
    )
    group.add_argument(
        "--llm-backend", choices=[b.value for b in LLMBackend], default="embedded", help="kind of the LLM server"
    )
    group.add_argument("--tokenizer-dir", type=Path, required=True, help="directory with the LLM's tokenizer.json")
    form = "form of prompts; chat: for servers that take no token ids"
    group.add_argument("--llm-prompt-form", choices=[f.value for f in PromptForm], default="tokens", help=form)
    model = "name of the server's model; by default the first that it lists"
    group.add_argument("--llm-model", default=None, help=model)
    group.add_argument(
        "--llm-sampling-probe",
        choices=[mode.value for mode in ProbeMode],
        default=None,
        help="never become ready with a server that ignores repetition_penalty, warn, or do not test it (default: "
        "refuse; off with embedded)",
    )
    limit = LengthLimits().max_speech_tokens
    group.add_argument(
        "--llm-max-speech-tokens", type=_positive_int, default=limit, help="most tokens (25 Hz) of one answer"
    )
    group.add_argument(
        "--llm-pace",
        type=_pace,
        default=DEFAULT_PACE,
        help="speed of our own engine on a GPU after an answer's first chunk, in times the speed of speech; a lower "
        "speed leaves more of the GPU to token2wav; 0: as fast as possible (default %(default)s)",
    )
    slots = "answers that each vLLM or trtllm-serve server makes at once (its max_batch_size); our own says it itself"
    group.add_argument("--llm-slots", type=_positive_int, default=GatewayConfig.llm_slots, help=slots)
    limits = LLMDeadlines()
    for name, seconds, meaning in (
        ("--llm-connect-timeout-s", limits.connect_s, "seconds to connect to the LLM server"),
        ("--llm-first-token-timeout-s", limits.first_token_s, "seconds from a request to its first token"),
        ("--llm-token-timeout-s", limits.between_tokens_s, "seconds between two messages of tokens"),
        ("--llm-total-timeout-s", limits.total_s, "seconds for one answer"),
    ):
        group.add_argument(name, type=_positive_float, default=seconds, help=meaning)


def _add_token2wav_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("token2wav service")
    where = f"host:port of Triton's gRPC service ({GatewayConfig.token2wav_url} by default)"
    group.add_argument("--token2wav-url", action="append", metavar="ADDRESS", help=f"{where}; {ADDRESSES}")
    deadlines = Token2WavDeadlines()
    group.add_argument(
        "--token2wav-register-timeout-s",
        type=_positive_float,
        default=deadlines.register_s,
        help="seconds to make a voice",
    )
    group.add_argument(
        "--token2wav-chunk-timeout-s",
        type=_positive_float,
        default=deadlines.push_s,
        help="seconds from a chunk of tokens to its audio",
    )
    group.add_argument(
        "--dynamic-chunk-strategy",
        choices=POLICY_NAMES,
        default=DEFAULT_POLICY,
        help="how the length of chunks grows (default %(default)s)",
    )
    group.add_argument("--token-hop-len", type=int, default=DEFAULT_HOP_TOKENS, help="tokens (25 Hz) of a chunk")
    group.add_argument(
        "--token-hop-len-first",
        type=int,
        default=None,
        help="tokens (25 Hz) of the first chunk; None: 15, but the strategy deadline chooses",
    )
    group.add_argument(
        "--token-hop-len-max",
        type=int,
        default=DEFAULT_MAX_HOP_TOKENS,
        help="most tokens (25 Hz) of a chunk; 0: no bound",
    )


def auto_processes(cores: int) -> int:
    """Return how many processes a gateway has on so many cores, where nobody says: most cores are the services'."""
    return 1 if cores < MIN_CORES else min(MAX_AUTO, cores // 4)


def _processes(text: str) -> int:
    if text == _AUTO:
        return auto_processes(len(os.sched_getaffinity(0)))
    value = int(text)
    if not 1 <= value <= MAX_PROCESSES:
        raise argparse.ArgumentTypeError(f"got {value}, expected 1 to {MAX_PROCESSES}, or {_AUTO}")
    return value


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"got {value}, expected at least 1")
    return value


def _non_negative_int(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"got {value}, expected 0 or more")
    return value


def _duration(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"got {value}, expected 0 or more")
    return value


def _leading_silence(text: str) -> float | None:
    if text == _KEEP:
        return None
    milliseconds = float(text)
    if not 0 <= milliseconds <= _MS:
        raise argparse.ArgumentTypeError(f"got {text}, expected 0 to 1000, or {_KEEP}")
    return milliseconds / _MS


def _pace(text: str) -> float:
    value = float(text)
    if not (value == 0 or LEAST_PACE <= value <= MOST_PACE):
        raise argparse.ArgumentTypeError(f"got {value}, expected 0 or {LEAST_PACE:g} to {MOST_PACE:g}")
    return value


def _positive_float(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"got {value}, expected more than 0")
    return value
