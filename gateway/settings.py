"""The gateway's settings, declared once: see `servicekit.settings`. Imports nothing heavy, so that any command may."""

from __future__ import annotations

from typing import Any

from servicekit.logs import FORMAT_VARIABLE, LogFormat
from servicekit.settings import COUNT, PATH, PORT, SECONDS, SWITCH, TEXT, Kind, Section, Setting, number, one_of, whole
from servicekit.tracing import ENDPOINT_VARIABLE

AUTO = "auto"
KEEP = "keep"
MAX_PROCESSES = 64
_ADDRESSES = "several by commas or by repeating the option; dns:HOST:PORT"
_EACH_CALLER = "for a key, or for an address without keys"


def _or(word: str, kind: Kind, shown: str) -> Kind:
    """Return a kind of values instead of which a word may stand."""

    def read(text: str) -> object:
        try:
            return text if text == word else kind.read(text)
        except ValueError as error:
            raise ValueError(f"{error}, or {word}") from None

    return Kind(read, shown)


def _own(name: str, meaning: str, kind: Kind, default: str | None = None, **more: Any) -> Setting:
    """Return a setting that `cosydit serve` does not have."""
    return Setting(name, meaning, kind, default, in_serve=False, **more)


_URL, _ADDRESS, _ORIGIN = Kind(str, "URL"), Kind(str, "ADDRESS"), Kind(str, "ORIGIN")
_ANY_PORT = whole(1, 65535)
_GROWTH = one_of("exponential", "equal", "time_based", "deadline")
_LOG_FORMATS = one_of(*(each.value for each in LogFormat))
_DOORS = (
    Setting("host", "address to listen on; beyond 127.0.0.1 it takes keys_file or insecure_no_keys", TEXT, "127.0.0.1"),
    Setting("port", "HTTP port", PORT, "8080", alias="--gateway-port"),
    Setting("grpc_port", "gRPC port; 0: no gRPC", PORT, "50051", alias="--gateway-grpc-port"),
    Setting(
        "wyoming_port",
        "port of Wyoming (Home Assistant); 0: no Wyoming; not given: 10200 if it is free and no keys are set",
        PORT,
        alias="--gateway-wyoming-port",
    ),
    Setting("wyoming_host", "address that Wyoming listens on; not given: host", TEXT),
    _own(
        "wyoming_language",
        "language listed for every voice; not given: its transcript's",
        Kind(str, "TAG"),
        repeats=True,
    ),
    Setting("insecure_wyoming", "serve Wyoming to everyone although keys or TLS protect the other protocols", SWITCH),
    Setting("metrics_port", "port of /metrics and /livez for a network without callers; else the HTTP port", _ANY_PORT),
    Setting(
        "processes",
        "processes that serve the ports together; auto: 1 on fewer than 8 cores, else a quarter of them, at most 4",
        _or(AUTO, whole(1, MAX_PROCESSES), "N"),
        "1",
        alias="--gateway-processes",
    ),
    _own("drain_delay_s", "seconds after a stop signal in which requests still come in", SECONDS, "0"),
    Setting("drain_timeout_s", "seconds after that in which streams under way may end", SECONDS, "60"),
    Setting("admission_wait_s", "most seconds that a request waits while the services are full", SECONDS, "1"),
    _own("otlp_endpoint", "base URL of an OTLP/HTTP receiver of spans", _URL, variable=ENDPOINT_VARIABLE),
    _own("log_format", "format of the log", _LOG_FORMATS, LogFormat.TEXT.value, variable=FORMAT_VARIABLE),
)
_ACCESS = (
    Setting("keys_file", "file of API keys, one a line; COSYDIT_API_KEYS may hold more", PATH),
    Setting("insecure_no_keys", "serve everyone who can reach the address, without keys", SWITCH),
    Setting("max_streams", f"most streams at once {_EACH_CALLER}", COUNT),
    _own("max_audio_s_per_hour", f"most seconds of audio an hour {_EACH_CALLER}", number(is_open=True)),
    Setting("max_audio_s_per_day", f"most seconds of audio a day {_EACH_CALLER}", number(is_open=True)),
    Setting("allowed_origin", "origin whose web pages may call; *: all", _ORIGIN, repeats=True),
    Setting("allowed_host", "host name for a gateway on 127.0.0.1 without keys, beside localhost", TEXT, repeats=True),
    Setting("trusted_proxy", "proxy whose X-Forwarded-For and -Proto are believed; *: all", _ADDRESS, repeats=True),
    Setting("tls_cert", "PEM file of the server's certificate, for HTTPS and gRPC over TLS", PATH),
    Setting("tls_key", "PEM file of the certificate's private key", PATH),
)
_VOICES = (
    Setting("voices_dir", "directory with <name>.wav and <name>.txt of each voice", PATH, is_required=True),
    _own("warm_up_voice", "voice of the warm-up synthesis", TEXT, "default"),
    Setting("created_voices_dir", "directory for voices that callers create; not given: they can't create any", PATH),
    Setting("share_created_voices", "let every API key use every created voice, not only its own", SWITCH),
    Setting("voice_alias", "another name for a voice", Kind(str, "ALIAS=VOICE"), repeats=True),
    Setting("no_openai_voices", "do not give the voices the names of OpenAI's and Qwen3-TTS's voices, too", SWITCH),
)
_TEXTS = (
    Setting("lexicons_dir", "directory of pronunciation dictionaries; the one named default is for every text", PATH),
    _own("max_text_characters", "longest text accepted, in characters", COUNT, "100000"),
    Setting("segment_letters", "letters that the LLM speaks at once, about; not given: as the checkpoint says", COUNT),
    _own(
        "carry_tokens",
        "most speech tokens (25 Hz) of earlier segments that the LLM goes on from; not given: as the checkpoint says",
        whole(0),
    ),
    Setting(
        "undeclared_language",
        "text in a language that the checkpoint does not declare",
        one_of("warn", "refuse"),
        "warn",
    ),
    Setting(
        "unsupported_style",
        "instructions and styles that the checkpoint does not take",
        one_of("ignore", "refuse"),
        "ignore",
    ),
    Setting(
        "leading_silence_ms",
        "most milliseconds of silence before speech; keep: all",
        _or(KEEP, number(0, 1000), "MS"),
        "17",
    ),
    Setting("speech_guard", "action if speech leaves its text; mend: say it anew", one_of("off", "mend"), "mend"),
)
_CHUNKS = (
    Setting("run_ahead_s", "seconds of audio sent ahead where interruptions can't be seen; 0: no bound", SECONDS, "2"),
    Setting("dynamic_chunk_strategy", "how the length of chunks grows", _GROWTH, "deadline"),
    Setting("token_hop_len", "tokens (25 Hz) of a chunk", COUNT, "15"),
    _own("token_hop_len_first", "tokens of the first chunk; not given: 15; deadline chooses", COUNT),
    _own("token_hop_len_max", "most tokens of a chunk; 0: no bound", whole(0), "100"),
)
_SERVICES = (
    _own("tokenizer_dir", "directory with the LLM's tokenizer.json", PATH, is_required=True),
    _own("checkpoint_file", "checkpoint.json; not given: searched beside and above tokenizer_dir", PATH),
    _own(
        "llm_url",
        f"URL of the LLM server (http://127.0.0.1:8000 by default); {_ADDRESSES}; grpc:// before any name or address",
        _URL,
        repeats=True,
    ),
    _own("llm_backend", "kind of the LLM server", one_of("embedded", "vllm", "trtllm"), "embedded"),
    _own("llm_model", "name of the LLM server's model; not given: the first that it lists", TEXT),
    _own(
        "llm_sampling_probe",
        "action if the LLM server ignores repetition_penalty (not given: refuse; off with embedded)",
        one_of("refuse", "warn", "off"),
    ),
    _own(
        "llm_slots",
        "answers that each vLLM or trtllm-serve server makes at once (its max_batch_size); our own says it itself",
        COUNT,
        "64",
    ),
    Setting("llm_max_speech_tokens", "most tokens (25 Hz) of one answer", COUNT, "2048"),
    _own(
        "token2wav_url",
        f"host:port of Triton's gRPC service (127.0.0.1:8001 by default); {_ADDRESSES}",
        _ADDRESS,
        repeats=True,
    ),
)
GATEWAY = Section("gateway", (*_DOORS, *_ACCESS, *_VOICES, *_TEXTS, *_CHUNKS, *_SERVICES))
