"""Finds the golden folders below a directory and replays each with what fits its name.

Here are the cases of the audio front end and of a whole checkpoint directory.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch

from token2wav_service.checkpoint.loader import load_flow, load_vocoder
from token2wav_service.errors import CheckpointError
from token2wav_service.features import mel
from token2wav_service.features.audio import resample_16k_to_24k
from token2wav_service.features.prompt_models import SPEAKER_ENCODER_FILE, SpeakerEncoder
from token2wav_service.replay import flow_cases, part_cases, vocoder_cases
from token2wav_service.replay.vectors import GoldenCase, Row, VectorFolder

FEATURE_TOLERANCE = 1e-3


@torch.inference_mode()
def replay_directory(directory: Path, device: str = "cpu") -> list[Row]:
    """Replay every golden folder (`<letter>_<kind>`) below `directory`.

    On a GPU only the streams of `*_flow` and `*_stream`.

    Raises:
        CheckpointError: there is none, or a folder lacks a file or a neighbour that its kind needs.
    """
    rows: list[Row] = []
    kinds = _KINDS if device == "cpu" else {kind: _KINDS[kind] for kind in ("flow", "stream")}
    found = {path: re.sub("^[a-z]_", "", path.name) for path in sorted(directory.glob("*")) if path.is_dir()}
    folders = {path: kinds[kind] for path, kind in found.items() if kind in kinds}
    if not folders:
        raise CheckpointError(f"{directory} holds no golden folder; expected names such as a_dit or d_flow")
    for path, replay in folders.items():
        replay(VectorFolder(path, rows, device))
    return rows


def _features(folder: VectorFolder) -> None:
    """Resampling, mel banks and the three spectral features."""
    for case in folder.cases("*"):
        audio_16k, audio_24k = case["audio_16k"].numpy(), case["audio_24k"].flatten().numpy()
        outputs = {
            "audio_24k": resample_16k_to_24k(audio_16k),
            "mel_filters_24k": mel.flow_mel_filters(),
            "mel_24k": mel.flow_mel_24k(audio_24k).T,
            "s3_mel_filters": mel.s3_mel_filters(),
            "s3_log_mel": mel.s3_log_mel(audio_16k),
            "fbank": mel.kaldi_fbank(audio_16k),
            "fbank_mean_sub": mel.speaker_fbank(audio_16k),
        }
        for name, got in outputs.items():
            case.close(name, torch.tensor(got), tolerance=FEATURE_TOLERANCE)


def _checkpoint(folder: VectorFolder) -> None:
    """The directory loads strictly, and its speaker encoder gives the expected embedding."""
    model_dir = folder.path / "token2wav"
    loaded = [any(True for _ in load(model_dir).parameters()) for load in (load_flow, load_vocoder)]
    GoldenCase({}, f"{folder.path.name}/loads", folder.rows).equal("strictly", loaded, [True, True])
    for case in folder.cases("campplus_expected*"):
        fbank = folder.beside("features").tensors("features.safetensors")["fbank_mean_sub"]
        encoder = SpeakerEncoder(model_dir / SPEAKER_ENCODER_FILE)
        case.close("embedding", torch.from_numpy(encoder.embed_fbank(fbank.numpy())))


_KINDS: dict[str, Callable[[VectorFolder], None]] = {
    "dit": part_cases.replay_dit,
    "encoder": part_cases.replay_encoder,
    "cfm": part_cases.replay_cfm,
    "flow": flow_cases.replay_flow,
    "hift": vocoder_cases.replay_hift,
    "stream": vocoder_cases.replay_stream,
    "features": _features,
    "checkpoint": _checkpoint,
    "cosyvoice2_unet": vocoder_cases.replay_family,
    "cosyvoice3_dit": vocoder_cases.replay_family,
}
