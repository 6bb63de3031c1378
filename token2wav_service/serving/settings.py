"""The settings a model repository is assembled from: names, defaults, checks, and the config fields each one sets.

Knows the layout of config.pbtxt; knows nothing of files or of Triton at run time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from servicekit import settings
from servicekit.settings import Section
from token2wav_service.config import HELP, SETTABLE, SynthesisPolicy, Token2WavConfig
from token2wav_service.contract import (
    AUDIO_TOKENIZER_MODEL,
    DROP_IN_MODEL,
    LLM_MODEL,
    ORIGINAL_MODELS,
    SPEAKER_EMBEDDING_MODEL,
    TOKEN2WAV_MODEL,
)

ModelConfigMessage = Any
"""A `tritonclient.grpc.model_config_pb2.ModelConfig`; generated code carries no types."""

LLM_BACKENDS = ("embedded", "vllm", "trtllm")
PROMPT_FORMS = ("tokens", "chat")
CHUNK_STRATEGIES = ("exponential", "equal", "time_based", "deadline")
MIN_HOP_TOKENS = 4
"""Fewest tokens of a first chunk: with fewer the vocoder has less than it holds back for its joins."""


class RepositorySettingsError(ValueError):
    """Unknown names or values that can't be used; one line each."""


@dataclass(frozen=True)
class Parameter:
    """A string parameter, which the model reads when it starts."""

    model: str
    key: str

    def apply(self, config: ModelConfigMessage, value: str) -> None:
        config.parameters[self.key].string_value = value

    def describe(self) -> str:
        return f"parameters[{self.key}]"


@dataclass(frozen=True)
class Field:
    """A field of the configuration itself, which Triton acts upon."""

    model: str
    path: str
    write: Callable[[ModelConfigMessage, str], None]

    def apply(self, config: ModelConfigMessage, value: str) -> None:
        self.write(config, value)

    def describe(self) -> str:
        return self.path


@dataclass(frozen=True)
class RepositorySetting:
    """One name the assembler accepts."""

    name: str
    help: str
    check: Callable[[str], str]
    """Returns the value in the form that is stored; raises ValueError with what was expected."""
    targets: tuple[Parameter | Field, ...]
    default: str | None = None
    """Default value; None: unset unless given."""
    is_required: bool = False


def resolve_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return every set setting, checked and completed with defaults, in the order of `SETTINGS`.

    Raises:
        RepositorySettingsError: unknown names, missing ones, or bad values (all of them at once).
    """
    unknown = sorted(set(given) - {setting.name for setting in SETTINGS})
    problems = [f"unknown setting {name!r}; known are {', '.join(s.name for s in SETTINGS)}" for name in unknown]
    resolved: dict[str, str] = {}
    for setting in SETTINGS:
        raw = given.get(setting.name, setting.default)
        if raw is None:
            if setting.is_required:
                problems.append(f"{setting.name} is missing: {setting.help}")
            continue
        try:
            resolved[setting.name] = setting.check(raw)
        except ValueError as err:
            problems.append(f"{setting.name}={raw!r}: {err}")
    if problems:
        raise RepositorySettingsError("\n".join(problems))
    return resolved


def _integer(minimum: int, maximum: int | None = None) -> Callable[[str], str]:
    expected = f"an integer of at least {minimum}" + (f" and at most {maximum}" if maximum is not None else "")

    def check(text: str) -> str:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"expected {expected}") from None
        if value < minimum or (maximum is not None and value > maximum):
            raise ValueError(f"expected {expected}")
        return str(value)

    return check


def _one_of(*choices: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text

    return check


def _boolean(text: str) -> str:
    if text.lower() not in ("true", "false"):
        raise ValueError("expected True or False")
    return text.capitalize()


def _folder(text: str) -> str:
    if not Path(text).is_dir():
        raise ValueError("expected an existing folder (stage 0 of the run script makes a checkpoint)")
    return str(Path(text).resolve())


def _hop_bound(text: str) -> str:
    return text if text == "0" else _integer(MIN_HOP_TOKENS)(text)


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("expected a name, not an empty value")
    return text


def _http_url(text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError("expected a URL such as http://localhost:8000")
    return text.rstrip("/")


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or "/" in text or not port.isdecimal():
        raise ValueError("expected host:port such as localhost:8001")
    return text


def _engine_value(name: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        Token2WavConfig.from_mapping({"model_dir": ".", name: text})
        return text

    return check


def _set_max_batch_size(config: ModelConfigMessage, value: str) -> None:
    config.max_batch_size = int(value)


def _set_queue_delay(config: ModelConfigMessage, value: str) -> None:
    config.dynamic_batching.max_queue_delay_microseconds = int(value)


def _set_instance_count(config: ModelConfigMessage, value: str) -> None:
    config.instance_group[0].count = int(value)


def _set_decoupled(config: ModelConfigMessage, value: str) -> None:
    config.model_transaction_policy.decoupled = value == "True"


def _engine_settings() -> tuple[RepositorySetting, ...]:
    """Every field of the engine's own configuration that has no name of the original's."""
    of_models = {"device", "dtype", "num_threads", "ode_steps"}
    renamed = {"model_dir", "max_batch_size", "batch_window_us"}
    fields = [*dataclasses.fields(Token2WavConfig), *dataclasses.fields(SynthesisPolicy)]
    return tuple(
        RepositorySetting(
            field.name,
            field.metadata[HELP],
            _folder if field.name.endswith("_dir") else _engine_value(field.name),
            tuple(
                Parameter(model, field.name)
                for model in (TOKEN2WAV_MODEL, *(_ORIGINAL_MODELS if field.name in of_models else ()))
            ),
            default=_as_text(field.default),
        )
        for field in fields
        if field.name in SETTABLE.keys() - renamed
    )


def _as_text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value.value) if isinstance(value, Enum) else str(value)


_ORIGINAL_MODELS = tuple(
    template for templates in ORIGINAL_MODELS.values() for template in templates if template != LLM_MODEL
)
"""Models that load the checkpoint's models."""
_FEATURE_MODELS = (AUDIO_TOKENIZER_MODEL, SPEAKER_EMBEDDING_MODEL)
_MAX_INSTANCES = 256
"""Most processes of a model: more than any host serves, so that a slip of the keyboard is caught."""

_ORIGINAL_SETTINGS: tuple[RepositorySetting, ...] = (
    RepositorySetting(
        "model_dir",
        "folder with flow.yaml, flow.pt, hift.pt and the two ONNX files",
        _folder,
        tuple(Parameter(model, "model_dir") for model in (TOKEN2WAV_MODEL, *_FEATURE_MODELS, *_ORIGINAL_MODELS)),
        is_required=True,
    ),
    RepositorySetting(
        "llm_tokenizer_dir",
        "Hugging Face folder of the LLM's tokenizer",
        _folder,
        tuple(Parameter(model, "llm_tokenizer_dir") for model in (DROP_IN_MODEL, LLM_MODEL)),
        is_required=True,
    ),
    RepositorySetting(
        "BLS_INSTANCE_NUM",
        "number of processes of cosyvoice2_dit",
        _integer(1, _MAX_INSTANCES),
        (Field(DROP_IN_MODEL, "instance_group[0].count", _set_instance_count),),
        default="10",
    ),
    RepositorySetting(
        "TRITON_MAX_BATCH_SIZE",
        "most streams in one token2wav step, and most requests in one batch of the feature models",
        _integer(1),
        (
            Parameter(TOKEN2WAV_MODEL, "max_batch_size"),
            *(Field(model, "max_batch_size", _set_max_batch_size) for model in (*_FEATURE_MODELS, LLM_MODEL)),
        ),
        default="16",
    ),
    RepositorySetting(
        "MAX_QUEUE_DELAY_MICROSECONDS",
        "microseconds that a step or batch waits for more streams or requests",
        _integer(0),
        (
            Parameter(TOKEN2WAV_MODEL, "batch_window_us"),
            *(
                Field(model, "dynamic_batching.max_queue_delay_microseconds", _set_queue_delay)
                for model in (*_FEATURE_MODELS, LLM_MODEL)
            ),
        ),
        default="0",
    ),
    RepositorySetting(
        "DECOUPLED_MODE",
        "True: cosyvoice2_dit streams chunks (and tensorrt_llm tokens); False: each answers once, with everything",
        _boolean,
        tuple(
            Field(model, "model_transaction_policy.decoupled", _set_decoupled) for model in (DROP_IN_MODEL, LLM_MODEL)
        ),
        default="True",
    ),
)


ORIGINAL_MODELS_SETTING = "ORIGINAL_MODELS"
SPK2INFO_SETTING = "USE_SPK2INFO_CACHE"
_ROUTE_SETTINGS = (
    RepositorySetting(
        ORIGINAL_MODELS_SETTING,
        "True: also offer token2wav, vocoder and tensorrt_llm of the original's run.sh or run_cosyvoice3.sh",
        _boolean,
        (),
        default="False",
    ),
    RepositorySetting(
        SPK2INFO_SETTING,
        "True: leave out audio_tokenizer and speaker_embedding; requests bring no reference and get default_voice",
        _boolean,
        (),
        default="False",
    ),
)


def _drop_in(
    name: str, help_text: str, check: Callable[[str], str], default: str | None = None, *more_models: str
) -> RepositorySetting:
    return RepositorySetting(
        name, help_text, check, tuple(Parameter(model, name) for model in (DROP_IN_MODEL, *more_models)), default
    )


_DROP_IN_SETTINGS: tuple[RepositorySetting, ...] = (
    _drop_in("llm_api_base", "URL of the LLM service", _http_url, "http://localhost:8000", LLM_MODEL),
    _drop_in(
        "llm_backend",
        "kind of the LLM service: " + ", ".join(LLM_BACKENDS),
        _one_of(*LLM_BACKENDS),
        "embedded",
        LLM_MODEL,
    ),
    _drop_in(
        "llm_prompt_form",
        "form of prompts: tokens, or chat for servers that take no token ids",
        _one_of(*PROMPT_FORMS),
        "tokens",
    ),
    _drop_in("llm_model", "name of the LLM service's model; unset: the first that it lists", _text, None, LLM_MODEL),
    _drop_in("triton_grpc_address", "gRPC address of this Triton, host:port", _address, "localhost:8001"),
    _drop_in(
        "voices_dir", "folder with <name>.wav and <name>.txt of each voice, for requests that bring no voice", _folder
    ),
    _drop_in(
        "created_voices_dir",
        "folder of voice files that `cosydit import-voices` wrote, for such requests, too",
        _folder,
    ),
    _drop_in("default_voice", "name of the voice in these folders for such requests", _text, "default"),
    _drop_in(
        "dynamic_chunk_strategy",
        "how the length of chunks grows: " + ", ".join(CHUNK_STRATEGIES),
        _one_of(*CHUNK_STRATEGIES),
        "deadline",
    ),
    _drop_in("token_hop_len", "tokens (25 Hz) of a chunk", _integer(MIN_HOP_TOKENS), "15"),
    _drop_in(
        "token_hop_len_first",
        "tokens (25 Hz) of the first chunk; unset: 15, but deadline chooses",
        _integer(MIN_HOP_TOKENS),
    ),
    _drop_in("token_hop_len_max", "most tokens (25 Hz) of a chunk; 0: no bound", _hop_bound, "100"),
    _drop_in("requests_per_instance", "requests that one process of cosyvoice2_dit serves at once", _integer(1), "4"),
)

SETTINGS: tuple[RepositorySetting, ...] = (
    *_ORIGINAL_SETTINGS,
    *_ROUTE_SETTINGS,
    *_DROP_IN_SETTINGS,
    *_engine_settings(),
)
"""Everything the assembler accepts, the original's names first."""
SERVED = (
    "BLS_INSTANCE_NUM",
    "TRITON_MAX_BATCH_SIZE",
    "MAX_QUEUE_DELAY_MICROSECONDS",
    "DECOUPLED_MODE",
    "ORIGINAL_MODELS",
    "USE_SPK2INFO_CACHE",
    "device",
    "dtype",
    "max_streams",
    "voice_cache_bytes",
    "runner",
    "tensorrt_vocoder",
    "num_threads",
    "ode_steps",
)
"""Settings that `cosydit serve` has."""
TOKEN2WAV = Section(
    "token2wav",
    tuple(
        settings.Setting(
            each.name, each.help, settings.Kind(each.check, "VALUE"), each.default, in_serve=each.name in SERVED
        )
        for each in SETTINGS
    ),
    "token2wav-",
)
"""The same as a section of settings."""
