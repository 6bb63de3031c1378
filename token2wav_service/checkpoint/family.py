"""Finds the family of a checkpoint directory by its description file, and the names of the family's files; reads the
values of such a file.

`voice_model_version` names a checkpoint by its content, so that a stored voice is used with the models it was made
with and no others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from servicekit.file_sums import sha256_of_file, sha256_of_json
from token2wav_service.contract import SAMPLE_RATE_HZ
from token2wav_service.errors import CheckpointError
from token2wav_service.features.mel import FLOW_HIGH_HZ
from token2wav_service.features.prompt_models import SPEAKER_ENCODER_FILE, SPEECH_TOKENIZER_FILE, PromptFeatureExtractor

FLOW_WEIGHTS = "flow.pt"
HIFT_WEIGHTS = "hift.pt"
SPEAKER_ENCODER = SPEAKER_ENCODER_FILE
FEATURE_CODE_VERSION = 1
"""Version of our own front end (resampling, mel, cutting to length); raised when its numbers for a prompt change."""


class Family(str, Enum):
    """The flows that this service runs."""

    STEP_AUDIO2 = "step_audio2"
    """Conformer encoder and DiT, as Step-Audio2's token2wav."""
    COSYVOICE2 = "cosyvoice2"
    """Conformer encoder and U-Net."""
    COSYVOICE3 = "cosyvoice3"
    """Look-ahead layer and rotary DiT, with a causal vocoder."""

    @property
    def files(self) -> FamilyFiles:
        """Return what the family's files are called."""
        return _FILES[self]


@dataclass(frozen=True)
class FamilyFiles:
    """Names in a checkpoint directory that differ between families."""

    description: str
    """Name of the YAML file with the models' sizes; it tells the family."""
    speech_tokenizer: str
    mel_high_hz: float = FLOW_HIGH_HZ
    """Upper edge of the filters of the prompt's mel."""

    @property
    def required(self) -> tuple[str, ...]:
        """Everything that the service reads."""
        return (self.description, FLOW_WEIGHTS, HIFT_WEIGHTS, SPEAKER_ENCODER, self.speech_tokenizer)

    @property
    def voice_models(self) -> tuple[str, ...]:
        """The files that make and use a voice's features; the vocoder uses none of them."""
        return (self.description, FLOW_WEIGHTS, SPEAKER_ENCODER, self.speech_tokenizer)


_FILES = {
    Family.STEP_AUDIO2: FamilyFiles("flow.yaml", SPEECH_TOKENIZER_FILE),
    Family.COSYVOICE2: FamilyFiles("cosyvoice2.yaml", "speech_tokenizer_v2.onnx"),
    Family.COSYVOICE3: FamilyFiles("cosyvoice3.yaml", "speech_tokenizer_v3.onnx", SAMPLE_RATE_HZ / 2),
}


def find_family(model_dir: Path) -> Family | None:
    """Return the family whose description file the directory holds; None where it holds none.

    Raises:
        CheckpointError: it holds several, which says nothing about flow.pt.
    """
    found = [family for family in Family if (model_dir / family.files.description).is_file()]
    if len(found) > 1:
        names = [family.files.description for family in found]
        raise CheckpointError(f"{model_dir} holds {names}: leave only the one that describes its flow.pt")
    return found[0] if found else None


def read_family(model_dir: Path) -> Family:
    """Return the directory's family.

    Raises:
        CheckpointError: it holds no description file, or several.
    """
    family = find_family(model_dir)
    if family is None:
        names = [each.files.description for each in Family]
        raise CheckpointError(f"{model_dir} holds none of {names}; download a checkpoint, or make a random one")
    return family


def missing_files(model_dir: Path) -> list[str]:
    """Return the names of required files that are not there; of Step-Audio2's where nothing tells the family."""
    family = find_family(model_dir) or Family.STEP_AUDIO2
    return [name for name in family.files.required if not (model_dir / name).is_file()]


def open_features(model_dir: Path, onnx_threads: int = 1, device: str = "cpu") -> PromptFeatureExtractor:
    """Open the models that make a voice's features, as the directory's family has them.

    Raises:
        CheckpointError: see `PromptFeatureExtractor`.
    """
    files = (find_family(model_dir) or Family.STEP_AUDIO2).files
    return PromptFeatureExtractor(model_dir, onnx_threads, device, files.speech_tokenizer, files.mel_high_hz)


def voice_model_version(model_dir: Path) -> str:
    """Return a SHA-256 over the files that make and use voices; the same files elsewhere have the same version.

    Reads every byte of them, which takes its time with a full-size checkpoint.

    Raises:
        CheckpointError: a file is missing or can't be read.
    """
    files = (find_family(model_dir) or Family.STEP_AUDIO2).files
    try:
        hashes = {name: sha256_of_file(model_dir / name) for name in files.voice_models}
    except OSError as err:
        raise CheckpointError(
            f"{err.filename} can't be read ({err.strerror}); `cosydit checkpoint verify` lists what a checkpoint needs"
        ) from err
    return sha256_of_json({"feature_code": FEATURE_CODE_VERSION, "files": hashes})


_REFERENCE = re.compile(r"<([^<>]+)>")
_MAX_DEPTH = 20
"""Most references that lead to further references."""


@dataclass(frozen=True)
class _Reference:
    """The text behind `!ref`."""

    text: str


def read_description(path: Path, trees: tuple[str, ...]) -> dict[str, Any]:
    """Read those of a HyperPyYAML file's top-level trees that are asked for, references resolved.

    It constructs nothing by tag: `!new:`, `!name:` and `!apply:` are read as the plain values that they tag. `!ref
    <key>` is the value of that key, with `<key[inner]>` for nested ones; `!ref <a> * <b>` is a product of numbers.

    Args:
        path: flow.yaml, cosyvoice2.yaml or cosyvoice3.yaml.
        trees: names of top-level keys; each must be there.

    Raises:
        CheckpointError: missing, not YAML, too deep, another kind of tag, a tree is not there or refers to nothing.
    """
    try:
        values = yaml.load(_read_bytes(path), Loader=_ValuesOnlyLoader)  # noqa: S506  # a SafeLoader
        return {name: _resolve(values[name], values, 0) for name in trees}
    except RecursionError as err:
        raise CheckpointError(f"{path} is nested too deeply to be a model's description; download it again") from err
    except (yaml.YAMLError, KeyError, TypeError, ValueError, ArithmeticError) as err:
        raise CheckpointError(
            f"{path}: expected the keys {list(trees)} in the official nesting, got {err!r}; "
            "download the file again, or write the sizes as plain numbers"
        ) from err


def _resolve(value: Any, root: Mapping[str, Any], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError("references that lead back to themselves, or nesting beyond 20 levels")
    if isinstance(value, _Reference):
        return _look_up(value.text, root, depth + 1)
    if isinstance(value, Mapping):
        return {key: _resolve(inner, root, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_resolve(inner, root, depth + 1) for inner in value]
    return value


def _look_up(text: str, root: Mapping[str, Any], depth: int) -> Any:
    paths = [_REFERENCE.fullmatch(part.strip()) for part in text.split("*")]
    values = [_resolve(_at_path(path[1], root), root, depth) for path in paths if path is not None]
    if len(values) < len(paths):
        raise ValueError(f"`!ref {text}` is no reference and no product of references")
    if len(values) == 1:
        return values[0]
    if wrong := [value for value in values if isinstance(value, bool) or not isinstance(value, int | float)]:
        raise ValueError(f"`!ref {text}` multiplies {wrong[0]!r}, which is no number")
    return math.prod(values)


def _at_path(path: str, root: Any) -> Any:
    for key in re.split(r"[\[\].]+", path.rstrip("]")):
        if not isinstance(root, Mapping) or key not in root:
            raise ValueError(f"`!ref <{path}>` refers to nothing in the file")
        root = root[key]
    return root


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as err:
        raise CheckpointError(f"{path} can't be read: {err.strerror}") from err


class _ValuesOnlyLoader(yaml.SafeLoader):
    """A safe loader that reads tagged values as plain ones."""


def _construct_tagged(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    assert isinstance(node, yaml.ScalarNode)
    return loader.construct_scalar(node)


def _construct_reference(loader: yaml.SafeLoader, node: yaml.Node) -> _Reference:
    if not isinstance(node, yaml.ScalarNode):
        raise yaml.YAMLError("!ref must stand before a text such as <key>")
    return _Reference(str(loader.construct_scalar(node)))


for _prefix in ("!new:", "!name:", "!apply:"):
    _ValuesOnlyLoader.add_multi_constructor(_prefix, _construct_tagged)
for _tag in ("!ref", "!copy"):
    _ValuesOnlyLoader.add_constructor(_tag, _construct_reference)
