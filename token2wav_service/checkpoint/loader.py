"""Reads a token2wav checkpoint directory of the official layout. It runs no code found in it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from servicekit.file_sums import FileSumsError, check_file
from token2wav_service.checkpoint.family import (
    FLOW_WEIGHTS,
    HIFT_WEIGHTS,
    Family,
    read_description,
    read_family,
)
from token2wav_service.errors import CheckpointError
from token2wav_service.models.config import (
    AnyFlowConfig,
    CosyVoice2FlowConfig,
    CosyVoice3FlowConfig,
    FlowConfig,
    HiFTConfig,
)
from token2wav_service.models.flow.any_flow import AnyFlow
from token2wav_service.models.flow.flow import CosyVoice2Flow, CosyVoice3Flow, Flow
from token2wav_service.models.vocoder.causal_hift import CausalHiFT
from token2wav_service.models.vocoder.hift import HiFT

M = TypeVar("M", bound=nn.Module)

HIFT_CONFIG = "hift_config.json"
"""Sizes of Step-Audio2's vocoder, beside hift.pt or one level up; the official checkpoint has no such file."""
_FLOWS: dict[Family, type[FlowConfig] | type[CosyVoice2FlowConfig] | type[CosyVoice3FlowConfig]] = {
    Family.STEP_AUDIO2: FlowConfig,
    Family.COSYVOICE2: CosyVoice2FlowConfig,
    Family.COSYVOICE3: CosyVoice3FlowConfig,
}
CAUSAL_LOOKAHEAD_FRAMES = 4
"""Frames that CosyVoice3's vocoder looks ahead if its description does not say."""


@dataclass(frozen=True)
class CheckpointConfig:
    """The sizes of a checkpoint's models."""

    family: Family
    flow: AnyFlowConfig
    hift: HiFTConfig


@dataclass(frozen=True)
class LoadedModels:
    """A checkpoint's models, of any family."""

    config: CheckpointConfig
    flow: AnyFlow
    vocoder: HiFT | CausalHiFT


def read_config(model_dir: Path) -> CheckpointConfig:
    """Read the sizes of a checkpoint of any family.

    Raises:
        CheckpointError: no description file, several, or values no model can be built from.
    """
    family = read_family(model_dir)
    path = model_dir / family.files.description
    is_alone = family is Family.STEP_AUDIO2
    trees = read_description(path, ("flow",) if is_alone else ("flow", "hift"))
    kind = _FLOWS[family]
    try:
        flow = kind.from_mapping(trees["flow"])
        hift = _read_hift_config(model_dir) if is_alone else _hift_config(family, trees["hift"])
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise CheckpointError(
            f"{path}: no {family.value} flow and vocoder can be built from it: {err!r}; expected the official nesting"
        ) from err
    return CheckpointConfig(family, flow, hift)


def load_models(model_dir: Path) -> LoadedModels:
    """Build what the directory describes and load flow.pt and hift.pt, strictly; eval mode, on the CPU.

    All in float32, but for the causal vocoder's pitch predictor in float64.

    Raises:
        CheckpointError: a file is missing, unreadable, or its keys or shapes differ.
    """
    return LoadedModels(read_config(model_dir), load_flow(model_dir), load_vocoder(model_dir))


def load_flow(model_dir: Path) -> AnyFlow:
    """Return the flow alone; see `load_models`."""
    path = model_dir / FLOW_WEIGHTS
    return load_weights(build_flow(read_config(model_dir).flow), read_state_dict(path), path)


def load_vocoder(model_dir: Path) -> HiFT | CausalHiFT:
    """Return the vocoder alone; see `load_models`."""
    path = model_dir / HIFT_WEIGHTS
    state = {key.replace("generator.", ""): value for key, value in read_state_dict(path).items()}
    return load_weights(build_vocoder(read_config(model_dir).hift), state, path)


def build_flow(config: AnyFlowConfig) -> AnyFlow:
    """Return the flow of these sizes, not initialised."""
    if isinstance(config, FlowConfig):
        return Flow(config)
    return CosyVoice2Flow(config) if isinstance(config, CosyVoice2FlowConfig) else CosyVoice3Flow(config)


def build_vocoder(config: HiFTConfig) -> HiFT | CausalHiFT:
    """Return the vocoder of these sizes, not initialised."""
    return CausalHiFT(config) if config.is_causal else HiFT(config)


def flow_files(model_dir: Path) -> list[Path]:
    """Return the files that the flow is read from.

    Raises:
        CheckpointError: no description file, or several.
    """
    return [model_dir / read_family(model_dir).files.description, model_dir / FLOW_WEIGHTS]


def hift_files(model_dir: Path) -> list[Path]:
    """Return the files that the vocoder is read from: its weights, and its sizes where they are given.

    Raises:
        CheckpointError: no description file, or several.
    """
    family = read_family(model_dir)
    if family is not Family.STEP_AUDIO2:
        return [model_dir / HIFT_WEIGHTS, model_dir / family.files.description]
    return [model_dir / HIFT_WEIGHTS, *_hift_sizes(model_dir)]


def _hift_sizes(model_dir: Path) -> list[Path]:
    """Return hift_config.json, if it is there."""
    return [path for path in (model_dir / HIFT_CONFIG, model_dir.parent / HIFT_CONFIG) if path.is_file()][:1]


def _read_hift_config(model_dir: Path) -> HiFTConfig:
    """Return hift_config.json's sizes, or the official ones where there is no such file."""
    for path in _hift_sizes(model_dir):
        try:
            return HiFTConfig.from_mapping(json.loads(path.read_text("utf-8")))
        except (ValueError, TypeError) as err:
            raise CheckpointError(f"{path}: not the vocoder's constructor arguments as JSON: {err}") from err
    return HiFTConfig()


def _hift_config(family: Family, values: Mapping[str, Any]) -> HiFTConfig:
    """Read the `hift` tree of a description; what only training uses is left away."""
    names = {f.name for f in dataclasses.fields(HiFTConfig)} | {"istft_params", "f0_predictor"}
    known = {key: value for key, value in values.items() if key in names}
    ahead = {"conv_pre_look_right": CAUSAL_LOOKAHEAD_FRAMES} if family is Family.COSYVOICE3 else {}
    return HiFTConfig.from_mapping(ahead | known)


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a flat state dict (torch.save, or safetensors by its suffix) without executing pickled code.

    Raises:
        CheckpointError: missing, unreadable, damaged, not the file that the checkpoint lists, or not flat.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; `cosydit checkpoint verify` lists what a checkpoint needs")
    try:
        check_file(path)
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileSumsError as err:
        raise CheckpointError(str(err)) from err
    except Exception as err:  # torch.load raises many kinds for a damaged file
        raise CheckpointError(f"{path} can't be read as a state dict: {err}") from err
    if not isinstance(state, Mapping) or not all(isinstance(v, Tensor) for v in state.values()):
        raise CheckpointError(f"{path}: expected a flat mapping of tensors, got {type(state).__name__}")
    return dict(state)


def load_weights(module: M, state: Mapping[str, Tensor], origin: Path) -> M:
    """Load a state dict strictly and cast it to float32.

    Raises:
        CheckpointError: keys or shapes differ, or weights are not finite; the first few are named.
    """
    expected = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    got = {key: tuple(value.shape) for key, value in state.items()}
    if expected != got:
        raise CheckpointError(f"{origin}: {_difference(expected, got)}")
    bad = sorted(key for key, value in state.items() if not _is_finite(value))
    if bad:
        raise CheckpointError(
            f"{origin}: {len(bad)} weights hold NaN or infinity, e.g. {bad[:3]}; download or make it again"
        )
    module.load_state_dict({key: value.float() for key, value in state.items()}, strict=True)
    return module.eval().requires_grad_(False)


def _is_finite(value: Tensor) -> bool:
    """Tell whether a tensor holds neither NaN nor infinity; far cheaper than a look at each value."""
    return value.numel() == 0 or all(math.isfinite(bound) for bound in torch.aminmax(value.detach()))  # NaN if any is


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
