"""A voice as one safetensors file: what the models need of its prompt, and whatever its keeper wrote beside it.

Part of the wire contract: token2wav writes and reads such files, and clients keep them, so it needs no torch. Whether
a voice fits a checkpoint is for token2wav to say; here a file is only checked against its own format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
from safetensors.numpy import save

FORMAT = "cosydit.voice"
FORMAT_VERSION = "1"
FRAMES_PER_TOKEN = 2
"""Mel frames (50 Hz) for each speech token (25 Hz)."""

_HEADER_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_OWN_KEYS = frozenset({"format", "format_version", "model_version"})
_AUDIO = "audio"
_DTYPES = {"prompt_tokens": "I32", "prompt_mel": "F32", "speaker_embedding": "F32", _AUDIO: "U8"}
_DIMENSIONS = {"prompt_tokens": 1, "prompt_mel": 2, "speaker_embedding": 1, _AUDIO: 1}
_NUMPY_DTYPES = {"I32": "<i4", "F32": "<f4", "U8": "u1"}


class VoiceFormatError(ValueError):
    """The bytes are no voice file of this format."""


@dataclass(frozen=True)
class VoiceFile:
    """Everything in such a file."""

    model_version: str
    """Version of the checkpoint whose feature models made the voice."""
    prompt_tokens: npt.NDArray[np.int32]
    """[T] speech tokens of the prompt, 25 Hz."""
    prompt_mel: npt.NDArray[np.float32]
    """[2T, C] log-mel, 50 Hz."""
    speaker_embedding: npt.NDArray[np.float32]
    """[E] raw speaker embedding."""
    audio: bytes = b""
    """The recording as it was uploaded, to make the voice again for another model; empty if it was not kept."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Further entries of the header, for whoever keeps the file."""


def encode_voice_file(voice: VoiceFile) -> bytes:
    """Write a voice file."""
    tensors: dict[str, Any] = {
        "prompt_tokens": np.ascontiguousarray(voice.prompt_tokens, "<i4"),
        "prompt_mel": np.ascontiguousarray(voice.prompt_mel, "<f4"),
        "speaker_embedding": np.ascontiguousarray(voice.speaker_embedding, "<f4"),
    }
    if voice.audio:
        tensors[_AUDIO] = np.frombuffer(voice.audio, np.uint8)
    own = {"format": FORMAT, "format_version": FORMAT_VERSION, "model_version": voice.model_version}
    return bytes(save(tensors, metadata={**voice.notes, **own}))


def decode_voice_file(data: bytes) -> VoiceFile:
    """Read a voice file; no byte of it is executed.

    Raises:
        VoiceFormatError: not such a file, of another format version, or with tensors that can't be a voice's.
    """
    try:
        found = dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as err:
        raise VoiceFormatError(f"the voice file is no safetensors file, or damaged ({err}); make it again") from err
    notes = _read_metadata(data)
    _check_format(notes)
    tensors = {name: _tensor(name, description) for name, description in found.items()}
    missing = sorted(_DTYPES.keys() - tensors.keys() - {_AUDIO})
    if missing:
        raise VoiceFormatError(f"the voice file lacks the tensors {missing}; make it again")
    _check_features(tensors)
    return VoiceFile(
        notes["model_version"],
        tensors["prompt_tokens"],
        tensors["prompt_mel"],
        tensors["speaker_embedding"],
        tensors[_AUDIO].tobytes() if _AUDIO in tensors else b"",
        {key: value for key, value in notes.items() if key not in _OWN_KEYS},
    )


def _read_metadata(data: bytes) -> dict[str, str]:
    length = int.from_bytes(data[:_HEADER_LENGTH_BYTES], "little")
    header = json.loads(data[_HEADER_LENGTH_BYTES : _HEADER_LENGTH_BYTES + length])
    return dict(header.get(_METADATA) or {})


def _check_format(notes: Mapping[str, str]) -> None:
    got = (notes.get("format"), notes.get("format_version"))
    if got != (FORMAT, FORMAT_VERSION) or "model_version" not in notes:
        raise VoiceFormatError(
            f"the file says format {got[0]!r}, version {got[1]!r}; expected {FORMAT!r}, version {FORMAT_VERSION!r}, "
            "with a model_version; make the voice again with this release"
        )


def _tensor(name: str, description: Mapping[str, Any]) -> npt.NDArray[Any]:
    dtype, shape = description["dtype"], list(description["shape"])
    if name not in _DTYPES:
        raise VoiceFormatError(f"the voice file holds an unknown tensor {name!r}; expected {sorted(_DTYPES)}")
    if dtype != _DTYPES[name] or len(shape) != _DIMENSIONS[name]:
        expected = f"{_DTYPES[name]} of {_DIMENSIONS[name]} dimensions"
        raise VoiceFormatError(f"{name} is {dtype} of shape {shape}; expected {expected}; make the voice again")
    return np.frombuffer(description["data"], _NUMPY_DTYPES[dtype]).reshape(shape)


def _check_features(tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    tokens, frames = len(tensors["prompt_tokens"]), len(tensors["prompt_mel"])
    if frames != FRAMES_PER_TOKEN * tokens:
        raise VoiceFormatError(
            f"the voice has {tokens} tokens and {frames} mel frames; expected {FRAMES_PER_TOKEN} frames a token; "
            "make the voice again"
        )
    for name in ("prompt_mel", "speaker_embedding"):
        if not bool(np.isfinite(tensors[name]).all()):
            raise VoiceFormatError(f"{name} holds NaN or infinity; make the voice again")
