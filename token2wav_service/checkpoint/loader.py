"""Reads a token2wav checkpoint directory of the official layout. It runs no code found in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
import yaml
from torch import Tensor, nn

from token2wav_service.errors import CheckpointError
from token2wav_service.features import speaker_encoder, speech_tokenizer
from token2wav_service.models.config import FlowConfig, HiFTConfig
from token2wav_service.models.flow import Flow
from token2wav_service.models.hift import HiFT

M = TypeVar("M", bound=nn.Module)

FLOW_YAML = "flow.yaml"
FLOW_WEIGHTS = "flow.pt"
HIFT_WEIGHTS = "hift.pt"
HIFT_CONFIG = "hift_config.json"
SPEAKER_ENCODER = speaker_encoder.FILE_NAME
SPEECH_TOKENIZER = speech_tokenizer.FILE_NAME
REQUIRED_FILES = (FLOW_YAML, FLOW_WEIGHTS, HIFT_WEIGHTS, SPEAKER_ENCODER, SPEECH_TOKENIZER)


def missing_files(model_dir: Path) -> list[str]:
    """Return the names of required files that are not there."""
    return [name for name in REQUIRED_FILES if not (model_dir / name).is_file()]


def load_flow(model_dir: Path) -> Flow:
    """Build the flow that flow.yaml describes and load flow.pt into it, strictly; float32, eval mode, on the CPU.

    Raises:
        CheckpointError: a file is missing, unreadable, or its keys or shapes differ.
    """
    config = read_flow_config(model_dir / FLOW_YAML)
    return load_weights(Flow(config), read_state_dict(model_dir / FLOW_WEIGHTS), model_dir / FLOW_WEIGHTS)


def load_hift(model_dir: Path) -> HiFT:
    """Build the vocoder and load hift.pt into it, strictly; float32, eval mode, on the CPU.

    The official checkpoint has no sizes file; a small one carries hift_config.json beside hift.pt or one level up.

    Raises:
        CheckpointError: a file is missing, unreadable, or its keys or shapes differ.
    """
    path = model_dir / HIFT_WEIGHTS
    state = {key.replace("generator.", ""): value for key, value in read_state_dict(path).items()}
    return load_weights(HiFT(read_hift_config(model_dir)), state, path)


def read_flow_config(path: Path) -> FlowConfig:
    """Read flow.yaml's values; its `!new:` tags are taken as plain mappings and never executed.

    Raises:
        CheckpointError: missing, not YAML, another tag, or values no flow can be built from.
    """
    try:
        values = yaml.load(_read_bytes(path), Loader=_ValuesOnlyLoader)
        return FlowConfig.from_mapping(values["flow"])
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as err:
        raise CheckpointError(f"{path}: expected one key `flow` in the official nesting, got {err!r}") from err


def read_hift_config(model_dir: Path) -> HiFTConfig:
    """Return hift_config.json's sizes, or the official ones where there is no such file."""
    for path in (model_dir / HIFT_CONFIG, model_dir.parent / HIFT_CONFIG):
        if path.is_file():
            try:
                return HiFTConfig.from_mapping(json.loads(path.read_text("utf-8")))
            except (ValueError, TypeError) as err:
                raise CheckpointError(f"{path}: not the vocoder's constructor arguments as JSON: {err}") from err
    return HiFTConfig()


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a flat state dict (torch.save, or safetensors by its suffix) without executing pickled code.

    Raises:
        CheckpointError: missing, unreadable or not flat.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; `cosydit checkpoint verify` lists what a checkpoint needs")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as err:  # torch.load raises many kinds for a damaged file
        raise CheckpointError(f"{path} can't be read as a state dict: {err}") from err
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise CheckpointError(f"{path}: expected a flat mapping of tensors, got {type(state).__name__}")
    return dict(state)


def load_weights(module: M, state: Mapping[str, Tensor], origin: Path) -> M:
    """Load a state dict strictly and cast it to float32.

    Raises:
        CheckpointError: keys or shapes differ; the first few are named.
    """
    expected = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    got = {key: tuple(value.shape) for key, value in state.items()}
    if expected != got:
        raise CheckpointError(f"{origin}: {_difference(expected, got)}")
    module.load_state_dict({key: value.float() for key, value in state.items()}, strict=True)
    return module.eval().requires_grad_(False)


def _difference(expected: Mapping[str, Any], got: Mapping[str, Any]) -> str:
    missing = sorted(expected.keys() - got.keys())
    extra = sorted(got.keys() - expected.keys())
    shapes = [
        f"{k}: got {got[k]}, expected {expected[k]}"
        for k in sorted(expected.keys() & got.keys())
        if got[k] != expected[k]
    ]
    parts = [("missing keys", missing), ("unknown keys", extra), ("shapes", shapes)]
    return "; ".join(f"{len(found)} {name}, e.g. {found[:3]}" for name, found in parts if found)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as err:
        raise CheckpointError(f"{path} can't be read: {err.strerror}") from err


class _ValuesOnlyLoader(yaml.SafeLoader):
    """A safe loader that reads `!new:package.Class` mappings as plain ones."""


def _construct_new(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> dict[Any, Any]:
    if not isinstance(node, yaml.MappingNode):
        raise yaml.YAMLError(f"!new:{suffix} must tag a mapping")
    return loader.construct_mapping(node, deep=True)


_ValuesOnlyLoader.add_multi_constructor("!new:", _construct_new)
