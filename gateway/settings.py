"""The gateway's settings, declared once: see `servicekit.settings`. Imports nothing heavy, so that any command may."""

from __future__ import annotations

from servicekit.logs import FORMAT_VARIABLE, LogFormat
from servicekit.settings import COUNT, PATH, PORT, SECONDS, SWITCH, TEXT, Kind, Section, Setting, number, one_of, whole
from servicekit.tracing import ENDPOINT_VARIABLE

AUTO = "auto"
KEEP = "keep"
MAX_PROCESSES = 64
_MS = 1000.0
_ADDRESSES = "several by commas or by repeating the option; dns:HOST:PORT"
_EACH_CALLER = "for a key, or for an address without keys"


def _leading_silence(text: str) -> float | None:
    if text == KEEP:
        return None
    try:
        return float(number(0, _MS).read(text)) / _MS  # type: ignore[arg-type]
    except ValueError:
        raise ValueError(f"expected 0 to {_MS:g}, or {KEEP}") from None


def _processes(text: str) -> str | int:
    try:
        return AUTO if text == AUTO else int(str(whole(1, MAX_PROCESSES).read(text)))
    except ValueError:
        raise ValueError(f"expected 1 to {MAX_PROCESSES}, or {AUTO}") from None


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
    Setting(
        "wyoming_language",
        "language listed for every voice, such as en; not given: that of each voice's transcript",
        Kind(str, "TAG"),
        repeats=True,
        in_serve=False,
    ),
    Setting("insecure_wyoming", "serve Wyoming to everyone although keys or TLS protect the other protocols", SWITCH),
    Setting("metrics_port", "port of /metrics and /livez for a network without callers; else the HTTP port", PORT),
    Setting(
        "processes",
        "processes that serve the ports together; auto: 1 on fewer than 8 cores, else a quarter of them, at most 4",
        Kind(_processes, "N"),
        "1",
        alias="--gateway-processes",
    ),
    Setting(
        "drain_delay_s", "seconds after a stop signal in which requests still come in", SECONDS, "0", in_serve=False
    ),
    Setting("drain_timeout_s", "seconds after that in which streams under way may end", SECONDS, "60"),
    Setting("admission_wait_s", "most seconds that a request waits while the services are full", SECONDS, "2"),
    Setting(
        "otlp_endpoint",
        "base URL of an OTLP/HTTP receiver of spans",
        Kind(str, "URL"),
        variable=ENDPOINT_VARIABLE,
        in_serve=False,
    ),
    Setting(
        "log_format",
        "format of the log",
        one_of(*(each.value for each in LogFormat)),
        LogFormat.TEXT.value,
        variable=FORMAT_VARIABLE,
        in_serve=False,
    ),
)
_ACCESS = (
    Setting("keys_file", "file of API keys, one a line; COSYDIT_API_KEYS may hold more", PATH),
    Setting("insecure_no_keys", "serve everyone who can reach the address, without keys", SWITCH),
    Setting("max_streams", f"most streams at once {_EACH_CALLER}", COUNT),
    Setting(
        "max_audio_s_per_hour",
        f"most seconds of audio an hour {_EACH_CALLER}",
        number(is_open=True),
        in_serve=False,
    ),
    Setting("max_audio_s_per_day", f"most seconds of audio a day {_EACH_CALLER}", number(is_open=True)),
    Setting("allowed_origin", "origin whose web pages may call; *: all", Kind(str, "ORIGIN"), repeats=True),
    Setting("allowed_host", "host name for a gateway on 127.0.0.1 without keys, beside localhost", TEXT, repeats=True),
    Setting(
        "trusted_proxy",
        "proxy whose X-Forwarded-For and -Proto are believed; *: all",
        Kind(str, "ADDRESS"),
        repeats=True,
    ),
    Setting("tls_cert", "PEM file of the server's certificate, for HTTPS and gRPC over TLS", PATH),
    Setting("tls_key", "PEM file of the certificate's private key", PATH),
)
_VOICES = (
    Setting("voices_dir", "directory with <name>.wav and <name>.txt of each voice", PATH, is_required=True),
    Setting("warm_up_voice", "voice of the warm-up synthesis", TEXT, "default", in_serve=False),
    Setting("created_voices_dir", "directory for voices that callers create; not given: they can't create any", PATH),
    Setting("share_created_voices", "let every API key use every created voice, not only its own", SWITCH),
    Setting("voice_alias", "another name for a voice", Kind(str, "ALIAS=VOICE"), repeats=True),
    Setting("no_openai_voices", "do not give the voices the names of OpenAI's and Qwen3-TTS's voices, too", SWITCH),
)
_TEXTS = (
    Setting("lexicons_dir", "directory of pronunciation dictionaries; the one named default is for every text", PATH),
    Setting("max_text_characters", "longest text accepted, in characters", COUNT, "100000", in_serve=False),
    Setting("segment_letters", "letters that the LLM speaks at once, about; not given: as the checkpoint says", COUNT),
    Setting(
        "carry_tokens",
        "most speech tokens (25 Hz) of earlier segments that the LLM goes on from; not given: as the checkpoint says",
        whole(0),
        in_serve=False,
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
        Kind(_leading_silence, "MS"),
        "20",
    ),
    Setting("speech_guard", "action if speech leaves its text; mend: say it anew", one_of("off", "mend"), "mend"),
)
_CHUNKS = (
    Setting("run_ahead_s", "seconds of audio sent ahead where interruptions can't be seen; 0: no bound", SECONDS, "2"),
    Setting(
        "dynamic_chunk_strategy",
        "how the length of chunks grows",
        one_of("exponential", "equal", "time_based", "deadline"),
        "deadline",
    ),
    Setting("token_hop_len", "tokens (25 Hz) of a chunk", COUNT, "15"),
    Setting("token_hop_len_first", "tokens of the first chunk; not given: 15; deadline chooses", COUNT, in_serve=False),
    Setting("token_hop_len_max", "most tokens of a chunk; 0: no bound", whole(0), "100", in_serve=False),
)
_SERVICES = (
    Setting("tokenizer_dir", "directory with the LLM's tokenizer.json", PATH, is_required=True, in_serve=False),
    Setting(
        "checkpoint_file",
        "checkpoint.json of the checkpoint; not given: searched beside and above tokenizer_dir",
        PATH,
        in_serve=False,
    ),
    Setting(
        "llm_url",
        f"URL of the LLM server (http://127.0.0.1:8000 by default); {_ADDRESSES}; grpc:// before any name or address",
        Kind(str, "URL"),
        repeats=True,
        in_serve=False,
    ),
    Setting("llm_backend", "kind of the LLM server", one_of("embedded", "vllm", "trtllm"), "embedded", in_serve=False),
    Setting("llm_model", "name of the LLM server's model; not given: the first that it lists", TEXT, in_serve=False),
    Setting(
        "llm_sampling_probe",
        "action if the LLM server ignores repetition_penalty (not given: refuse; off with embedded)",
        one_of("refuse", "warn", "off"),
        in_serve=False,
    ),
    Setting(
        "llm_slots",
        "answers that each vLLM or trtllm-serve server makes at once (its max_batch_size); our own says it itself",
        COUNT,
        "64",
        in_serve=False,
    ),
    Setting("llm_max_speech_tokens", "most tokens (25 Hz) of one answer", COUNT, "2048"),
    Setting(
        "token2wav_url",
        f"host:port of Triton's gRPC service (127.0.0.1:8001 by default); {_ADDRESSES}",
        Kind(str, "ADDRESS"),
        repeats=True,
        in_serve=False,
    ),
)

GATEWAY = Section("gateway", (*_DOORS, *_ACCESS, *_VOICES, *_TEXTS, *_CHUNKS, *_SERVICES))
