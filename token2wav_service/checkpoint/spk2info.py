"""Reads the original runtime's spk2info.pt: voices whose features were computed before. It runs no code found in it.

Two layouts are in use. The Triton runtime's entries hold `speech_token`, `speech_feat`, `embedding` and `prompt_text`
as a string; those that the Python runtime saves hold `flow_prompt_speech_token`, `prompt_speech_feat`,
`flow_embedding` and `prompt_text` as text token ids. Entries of older models hold an embedding alone, from which this
token2wav can't speak.

Source: FunAudioLLM/CosyVoice, runtime/triton_trtllm/model_repo/cosyvoice2/1/model.py and cosyvoice/cli/frontend.py
(facts of the layout).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from servicekit.logs import first_line
from token2wav_service.contract import LOOKAHEAD_TOKENS, MAX_PROMPT_SECONDS, SPEECH_VOCAB_SIZE, TOKEN_RATE_HZ
from token2wav_service.errors import CheckpointError
from token2wav_service.voice_file import FRAMES_PER_TOKEN

MEL_BINS = 80
SPEAKER_DIMENSIONS = 192

_TOKENS = ("flow_prompt_speech_token", "speech_token")
_MEL = ("prompt_speech_feat", "speech_feat")
_EMBEDDING = ("flow_embedding", "embedding")
_TEXT = "prompt_text"


@dataclass(frozen=True)
class OriginalVoice:
    """A voice of the original, in our shapes."""

    name: str
    prompt_tokens: npt.NDArray[np.int32]
    """[T] speech tokens, 25 Hz."""
    prompt_mel: npt.NDArray[np.float32]
    """[2T, 80] log-mel, 50 Hz, cut to the tokens' length as the original does when it first uses a voice."""
    speaker_embedding: npt.NDArray[np.float32]
    """[192]."""
    transcript: str | None
    """Text of the prompt; None if only its token ids are known."""
    transcript_ids: tuple[int, ...]
    """Transcript in the LLM's text tokens, if the file has nothing else."""


@dataclass(frozen=True)
class UnusableVoice:
    """An entry that can't be taken over."""

    name: str
    reason: str


def read_spk2info(path: Path) -> list[OriginalVoice | UnusableVoice]:
    """Read every entry, in the file's order.

    Raises:
        CheckpointError: the file is missing, damaged, asks for code to be run, or is no mapping of voices.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; name the original's spk2info.pt")
    try:
        entries = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as err:  # torch.load raises many kinds, among them what refuses pickled code
        raise CheckpointError(
            f"{path} can't be read as tensors, texts and numbers alone ({first_line(err)}); a file that needs code to "
            "be read is never run: save it again with torch.save from plain dicts of tensors"
        ) from err
    if not isinstance(entries, Mapping) or not all(isinstance(entry, Mapping) for entry in entries.values()):
        raise CheckpointError(f"{path}: expected a mapping of names to voices, got {type(entries).__name__}")
    return list(_read_entries(entries))


def _read_entries(entries: Mapping[Any, Mapping[str, Any]]) -> Iterator[OriginalVoice | UnusableVoice]:
    for name, entry in entries.items():
        try:
            yield _read_entry(str(name), entry)
        except ValueError as err:
            yield UnusableVoice(str(name), str(err))


def _read_entry(name: str, entry: Mapping[str, Any]) -> OriginalVoice:
    tokens = _tensor(entry, _TOKENS).reshape(-1)
    mel = _tensor(entry, _MEL)
    embedding = _tensor(entry, _EMBEDDING).reshape(-1).to(torch.float32)
    if mel.shape[-1] != MEL_BINS or len(embedding) != SPEAKER_DIMENSIONS:
        raise ValueError(
            f"it has {mel.shape[-1]} mel bins and an embedding of {len(embedding)}, expected {MEL_BINS} and "
            f"{SPEAKER_DIMENSIONS}: it is another model's"
        )
    mel = mel.reshape(-1, MEL_BINS).to(torch.float32)
    length = min(len(mel) // FRAMES_PER_TOKEN, len(tokens))
    _check(tokens, mel, embedding, length)
    text = entry.get(_TEXT, "")
    return OriginalVoice(
        name,
        tokens[:length].to(torch.int32).numpy(),
        mel[: FRAMES_PER_TOKEN * length].numpy(),
        embedding.numpy(),
        text if isinstance(text, str) else None,
        tuple(int(token) for token in text.reshape(-1)) if isinstance(text, Tensor) else (),
    )


def _check(tokens: Tensor, mel: Tensor, embedding: Tensor, length: int) -> None:
    longest = int(MAX_PROMPT_SECONDS * TOKEN_RATE_HZ)
    if not LOOKAHEAD_TOKENS <= length <= longest:
        raise ValueError(f"its prompt has {length} tokens, expected {LOOKAHEAD_TOKENS} to {longest}")
    if tokens.is_floating_point() or not (0 <= int(tokens.min()) and int(tokens.max()) < SPEECH_VOCAB_SIZE):
        raise ValueError(f"its prompt holds speech tokens outside 0..{SPEECH_VOCAB_SIZE - 1}")
    if not bool(torch.isfinite(mel).all() and torch.isfinite(embedding).all()):
        raise ValueError("its features hold NaN or infinity")


def _tensor(entry: Mapping[str, Any], names: tuple[str, ...]) -> Tensor:
    for name in names:
        found = entry.get(name)
        if isinstance(found, Tensor) and found.dim():
            return found.detach()
    raise ValueError(f"it lacks a tensor {' or '.join(names)}, so nothing can be spoken in it; it has {sorted(entry)}")
