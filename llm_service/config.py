"""Settings of the LLM service: one table, read once at the process edge, frozen below it.

Every setting names the backends it means something to; given for another one it is refused rather than ignored. Knows
nothing of how a backend uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import partial
from pathlib import Path

from llm_service.errors import LLMConfigError
from servicekit.settings import PATH, PORT, SWITCH, TEXT, Section, Setting, as_options, number, one_of, whole

# In a checkpoint directory: the speech head with its bias, weight [6564, hidden] and bias [6564].
SPEECH_HEAD_FILE = "speech_head.safetensors"

LOOPBACK_HOST = "127.0.0.1"
ALL_INTERFACES_HOST = "0.0.0.0"


class LLMBackend(str, Enum):
    """The engines that can stand behind the one HTTP contract; they differ in how token ids are asked for."""

    EMBEDDED = "embedded"
    VLLM = "vllm"
    TRTLLM = "trtllm"


ALL_BACKENDS = frozenset(LLMBackend)
_EMBEDDED = frozenset({LLMBackend.EMBEDDED})
_STREAMED = frozenset({LLMBackend.VLLM, LLMBackend.TRTLLM})
_NAMED = frozenset({LLMBackend.EMBEDDED, LLMBackend.VLLM})


@dataclass(frozen=True)
class LLMSetting(Setting):
    """One setting, and the backends that it means something to."""

    backends: frozenset[LLMBackend] = ALL_BACKENDS

    @property
    def meaning(self) -> str:
        """The help text with the default and the backends."""
        names = ", ".join(sorted(each.value for each in self.backends))
        return super().meaning + ("" if self.backends == ALL_BACKENDS else f" [{names}]")


_here = partial(LLMSetting, in_serve=False)
"""Makes a setting that `cosydit serve` decides itself."""
_embedded, _embedded_here = (partial(make, backends=_EMBEDDED) for make in (LLMSetting, _here))
SETTINGS = (
    _here("model_dir", "directory of the checkpoint in Hugging Face layout", PATH),
    _here("tokenizer_dir", "directory of the tokenizer (default: model_dir)", PATH),
    _here("host", f"address to listen on (default {LOOPBACK_HOST})", TEXT),
    LLMSetting("port", "HTTP port; with embedded 0 takes any free one", PORT, "8000"),
    _here("in_container", f"listen on {ALL_INTERFACES_HOST} unless a host is given", SWITCH),
    LLMSetting(
        "max_batch_size", "most requests that run together (default 64; embedded 8, on a GPU 1024)", whole(1, 4096)
    ),
    LLMSetting(
        "kv_cache_free_gpu_memory_fraction",
        "share of free memory for keys and values (default 0.4); vllm: of all GPU memory, weights included",
        number(0.0, 1.0, is_open=True),
    ),
    _here("max_num_tokens", "most tokens of one step (default: its own; embedded 8192)", whole(1, 1 << 24)),
    _here("max_seq_len", "longest prompt plus answer (default: its own; 4096)", whole(64, 1 << 20)),
    _here(
        "served_model_name",
        "name of the model in /v1/models (default: the model directory's name)",
        TEXT,
        backends=_NAMED,
    ),
    _here("stream_interval", "tokens in an event after the first", whole(1, 1 << 10), backends=_STREAMED),
    _embedded("device", "torch device (default cpu)", TEXT),
    _embedded(
        "engine",
        "engine; eager: plain torch (formerly called transformers); graphs: CUDA graphs (default: graphs on a GPU)",
        one_of("eager", "graphs", "transformers"),
    ),
    _embedded(
        "dtype",
        "type of the computation (default float32; of graphs the checkpoint's own half type)",
        one_of("float32", "bfloat16", "float16"),
    ),
    _embedded_here("grpc_port", "gRPC port of the token stream; 0: any free one (default: none)", PORT),
    _embedded("num_threads", "number of torch threads (default: torch's choice)", whole(1, 1024)),
    _embedded_here(
        "max_queue_size", "most requests that wait for a slot; more are refused (default 64)", whole(0, 1 << 20)
    ),
    _embedded_here(
        "ras_window", "last tokens that repetition-aware sampling checks; 0: off (default 10)", whole(0, 1 << 16)
    ),
    _embedded_here(
        "ras_tau",
        "share of ras_window from which a token is drawn again (default 0.1)",
        number(0.0, 1.0, is_open=True),
    ),
)
LLM = Section("llm", SETTINGS, "llm-")
ROWS_PER_FORWARD = 8
"""Rows of a decode step of plain torch: a fixed number, so that equal seeds give equal tokens whoever else speaks."""
GRAPHS = "graphs"
EMBEDDED_MAX_BATCH_SIZE = 8
GPU_MAX_BATCH_SIZE = 1024
EMBEDDED_MAX_NUM_TOKENS = 8192
EMBEDDED_MAX_SEQ_LEN = 4096

SettingValue = str | int | float | bool


@dataclass(frozen=True)
class ServerConfig:
    """The settings of one server, in range; None is the server's own default."""

    model_dir: Path
    tokenizer_dir: Path
    served_model_name: str
    host: str = LOOPBACK_HOST
    port: int = 8000
    max_batch_size: int = 64  # requests
    kv_cache_free_gpu_memory_fraction: float = 0.4
    max_num_tokens: int | None = None  # tokens a step
    max_seq_len: int | None = None  # tokens, prompt plus answer
    stream_interval: int | None = None  # tokens an event
    # Of the embedded engine alone:
    device: str = "cpu"
    engine: str | None = None  # None: graphs on a GPU, else eager
    dtype: str | None = None  # None: of graphs on a GPU the checkpoint's own half type, else float32
    grpc_port: int | None = None
    num_threads: int | None = None
    max_queue_size: int = 64  # requests beyond those that run
    ras_window: int = 10  # tokens
    ras_tau: float = 0.1  # share of the window

    def __post_init__(self) -> None:
        if self.max_num_tokens is not None and self.max_num_tokens <= self.max_batch_size:
            raise LLMConfigError(f"max_num_tokens is {self.max_num_tokens}; expected more than {self.max_batch_size}")

    @property
    def has_graphs(self) -> bool:
        """Tell whether the engine of graphs serves."""
        return self.engine == GRAPHS if self.engine is not None else self.is_on_gpu

    @property
    def is_on_gpu(self) -> bool:
        """Tell whether the embedded engine's model runs on a GPU."""
        return _is_gpu(self.device)

    def options(self, backend: LLMBackend) -> list[str]:
        """Return the command line of `python -m llm_service` with every setting of a backend spelled out."""
        meant = {setting.name for setting in SETTINGS if backend in setting.backends}
        given = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name in meant}
        return as_options({name: str(value) for name, value in given.items() if value is not None})


def _is_gpu(device: object) -> bool:
    return str(device).startswith("cuda")


def parse_server_config(backend: LLMBackend, values: Mapping[str, SettingValue]) -> ServerConfig:
    """Make the config out of settings that were given (names as in `SETTINGS`).

    Raises:
        LLMConfigError: a setting is unknown, means nothing to the backend, is missing or out of range.
    """
    given = _checked(backend, values)
    if "model_dir" not in given:
        raise LLMConfigError("model_dir is missing; give the LLM's checkpoint directory")
    in_container = given.pop("in_container", False)
    given.setdefault("host", ALL_INTERFACES_HOST if in_container else LOOPBACK_HOST)
    given.setdefault("tokenizer_dir", given["model_dir"])
    given.setdefault("served_model_name", Path(str(given["model_dir"])).resolve().name)
    if backend is LLMBackend.EMBEDDED:
        most = GPU_MAX_BATCH_SIZE if _is_gpu(given.get("device")) else EMBEDDED_MAX_BATCH_SIZE
        given.setdefault("max_batch_size", most)
    elif given.get("port") == 0:
        raise LLMConfigError(f"port 0 is possible with the embedded backend only; give {backend.value} a port")
    return ServerConfig(**given)  # type: ignore[arg-type]


def _checked(backend: LLMBackend, values: Mapping[str, SettingValue]) -> dict[str, object]:
    """Return the values, text converted to each setting's type."""
    known = {setting.name: setting for setting in SETTINGS}
    checked: dict[str, object] = {}
    for name, value in values.items():
        setting = known.get(name)
        if setting is None:
            raise LLMConfigError(f"unknown setting {name!r}; known: {', '.join(sorted(known))}")
        if backend not in setting.backends:
            usable = ", ".join(sorted(entry.value for entry in setting.backends))
            raise LLMConfigError(f"setting {name!r} means nothing to backend {backend.value}; it is for {usable}")
        try:
            checked[name] = setting.kind.read(str(value))
        except ValueError as err:
            raise LLMConfigError(f"{name} is {value!r}; {err}") from err
    return checked
