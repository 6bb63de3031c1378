"""The settings a model repository is assembled from: names, defaults, checks, and the config fields each one sets.

Knows the layout of config.pbtxt; knows nothing of files or of Triton at run time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from servicekit.settings import Kind, Section, Setting, one_of, whole
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
MIN_HOP_TOKENS = 4
"""Fewest tokens of a first chunk: with fewer the vocoder has less than it holds back for its joins."""
ORIGINAL_MODELS_SETTING = "ORIGINAL_MODELS"
SPK2INFO_SETTING = "USE_SPK2INFO_CACHE"
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
_COMPUTING_MODELS = tuple(
    template for templates in ORIGINAL_MODELS.values() for template in templates if template != LLM_MODEL
)
"""Models beside token2wav_dit that load the checkpoint's models."""
_FEATURE_MODELS = (AUDIO_TOKENIZER_MODEL, SPEAKER_EMBEDDING_MODEL)
_MAX_INSTANCES = 256
"""Most processes of a model: more than any host serves, so that a slip of the keyboard is caught."""


class RepositorySettingsError(ValueError):
    """Unknown names or values that can't be used; one line each."""


@dataclass(frozen=True)
class ConfigPlace:
    """A place in a model's config.pbtxt: a parameter, which the model reads when it starts, or a field of Triton's."""

    model: str
    place: str
    """Such as `parameters[device]` or `instance_group[0].count`."""

    def apply(self, config: ModelConfigMessage, value: str) -> None:
        """Write a value there."""
        key = self.place.removeprefix("parameters[").rstrip("]")
        if key != self.place:
            config.parameters[key].string_value = value
            return
        holder, _, name = self.place.rpartition(".")
        for part in filter(None, holder.split(".")):
            config = config.instance_group[0] if part == "instance_group[0]" else getattr(config, part)
        setattr(config, name, value == "True" if isinstance(getattr(config, name), bool) else int(value))


@dataclass(frozen=True)
class RepositorySetting(Setting):
    """One name the assembler accepts; its kind reads a text into the form that is stored."""

    targets: tuple[ConfigPlace, ...] = ()


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
            resolved[setting.name] = str(setting.kind.read(raw))
        except ValueError as err:
            problems.append(f"{setting.name}={raw!r}: {err}")
    if problems:
        raise RepositorySettingsError("\n".join(problems))
    return resolved


def _boolean(text: str) -> str:
    if text.lower() not in ("true", "false"):
        raise ValueError("expected True or False")
    return text.capitalize()


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise ValueError("expected an existing folder (stage 0 of the run script makes a checkpoint)")
    return Path(text).resolve()


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


_BOOLEAN, _FOLDER, _TEXT = Kind(_boolean, "True|False"), Kind(_folder, "DIR"), Kind(_text, "NAME")
_HOP = whole(MIN_HOP_TOKENS)
_HOP_BOUND = Kind(lambda text: text if text == "0" else _HOP.read(text), "N")


def _setting(
    name: str, meaning: str, kind: Kind, default: str | None, targets: Mapping[str, tuple[str, ...]]
) -> RepositorySetting:
    """Return a setting with its targets: places, and the models that have each."""
    places = tuple(ConfigPlace(model, place) for place, models in targets.items() for model in models)
    is_required = name in ("model_dir", "llm_tokenizer_dir")
    return RepositorySetting(
        name, meaning, kind, default, is_required=is_required, in_serve=name in SERVED, targets=places
    )


def _parameter(
    name: str, meaning: str, kind: Kind, default: str | None = None, models: tuple[str, ...] = (DROP_IN_MODEL,)
) -> RepositorySetting:
    """Return a setting that is a parameter of the same name in so many models."""
    return _setting(name, meaning, kind, default, {f"parameters[{name}]": models})


_of_llm = partial(_parameter, models=(DROP_IN_MODEL, LLM_MODEL))
"""Makes a parameter of the models that ask the LLM."""


def _engine_settings() -> tuple[RepositorySetting, ...]:
    """Every field of the engine's own configuration that has no name of the original's."""
    of_models = {"device", "dtype", "num_threads", "ode_steps"}
    named = SETTABLE.keys() - {"model_dir", "max_batch_size", "batch_window_us"}
    fields = [*dataclasses.fields(Token2WavConfig), *dataclasses.fields(SynthesisPolicy)]
    return tuple(
        _parameter(
            field.name,
            field.metadata[HELP],
            _FOLDER if field.name.endswith("_dir") else _engine_kind(field.name),
            _as_text(field.default),
            (TOKEN2WAV_MODEL, *(_COMPUTING_MODELS if field.name in of_models else ())),
        )
        for field in fields
        if field.name in named
    )


def _engine_kind(name: str) -> Kind:
    def read(text: str) -> str:
        SETTABLE[name](text)
        return text

    return Kind(read, "VALUE")


def _as_text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value.value) if isinstance(value, Enum) else str(value)


SETTINGS: tuple[RepositorySetting, ...] = (
    _parameter(
        "model_dir",
        "folder with flow.yaml, flow.pt, hift.pt and the two ONNX files",
        _FOLDER,
        models=(TOKEN2WAV_MODEL, *_FEATURE_MODELS, *_COMPUTING_MODELS),
    ),
    _of_llm("llm_tokenizer_dir", "Hugging Face folder of the LLM's tokenizer", _FOLDER),
    _setting(
        "BLS_INSTANCE_NUM",
        "number of processes of cosyvoice2_dit",
        whole(1, _MAX_INSTANCES),
        "10",
        {"instance_group[0].count": (DROP_IN_MODEL,)},
    ),
    _setting(
        "TRITON_MAX_BATCH_SIZE",
        "most streams in one token2wav step, and most requests in one batch of the feature models",
        whole(1),
        "16",
        {"parameters[max_batch_size]": (TOKEN2WAV_MODEL,), "max_batch_size": (*_FEATURE_MODELS, LLM_MODEL)},
    ),
    _setting(
        "MAX_QUEUE_DELAY_MICROSECONDS",
        "microseconds that a step or batch waits for more streams or requests",
        whole(0),
        "0",
        {
            "parameters[batch_window_us]": (TOKEN2WAV_MODEL,),
            "dynamic_batching.max_queue_delay_microseconds": (*_FEATURE_MODELS, LLM_MODEL),
        },
    ),
    _setting(
        "DECOUPLED_MODE",
        "True: cosyvoice2_dit streams chunks (and tensorrt_llm tokens); False: each answers once, with everything",
        _BOOLEAN,
        "True",
        {"model_transaction_policy.decoupled": (DROP_IN_MODEL, LLM_MODEL)},
    ),
    _setting(
        ORIGINAL_MODELS_SETTING,
        "True: also offer token2wav, vocoder and tensorrt_llm of the original's run.sh or run_cosyvoice3.sh",
        _BOOLEAN,
        "False",
        {},
    ),
    _setting(
        SPK2INFO_SETTING,
        "True: leave out audio_tokenizer and speaker_embedding; requests bring no reference and get default_voice",
        _BOOLEAN,
        "False",
        {},
    ),
    _of_llm("llm_api_base", "URL of the LLM service", Kind(_http_url, "URL"), "http://localhost:8000"),
    _of_llm("llm_backend", "kind of the LLM service: " + ", ".join(LLM_BACKENDS), one_of(*LLM_BACKENDS), "embedded"),
    _of_llm("llm_model", "name of the LLM service's model; unset: the first that it lists", _TEXT),
    _parameter(
        "triton_grpc_address", "gRPC address of this Triton, host:port", Kind(_address, "ADDRESS"), "localhost:8001"
    ),
    _parameter(
        "voices_dir",
        "folder with <name>.wav and <name>.txt of each voice, for requests that bring no voice",
        _FOLDER,
    ),
    _parameter(
        "created_voices_dir",
        "folder of voice files that `cosydit import-voices` wrote, for such requests, too",
        _FOLDER,
    ),
    _parameter("default_voice", "name of the voice in these folders for such requests", _TEXT, "default"),
    _parameter(
        "dynamic_chunk_strategy",
        "how the length of chunks grows: exponential, equal, time_based, deadline",
        one_of("exponential", "equal", "time_based", "deadline"),
        "deadline",
    ),
    _parameter("token_hop_len", "tokens (25 Hz) of a chunk", _HOP, "15"),
    _parameter("token_hop_len_first", "tokens (25 Hz) of the first chunk; unset: 15, but deadline chooses", _HOP),
    _parameter("token_hop_len_max", "most tokens (25 Hz) of a chunk; 0: no bound", _HOP_BOUND, "100"),
    _parameter("requests_per_instance", "requests that one process of cosyvoice2_dit serves at once", whole(1), "4"),
    *_engine_settings(),
)
"""Everything the assembler accepts, the original's names first."""
TOKEN2WAV = Section("token2wav", SETTINGS, "token2wav-")
"""The same as a section of settings."""
