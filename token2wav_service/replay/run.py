"""Finds the golden folders below a directory and replays each with what fits its name.

Here are the cases of the audio front end and of a whole checkpoint directory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from token2wav_service.checkpoint.loader import load_flow, load_vocoder
from token2wav_service.errors import CheckpointError
from token2wav_service.features.audio import resample_16k_to_24k
from token2wav_service.features.mel import (
    flow_mel_24k,
    flow_mel_filters,
    kaldi_fbank,
    s3_log_mel,
    s3_mel_filters,
    speaker_fbank,
)
from token2wav_service.replay import block_flow_cases, block_vocoder_cases, flow_cases, stream_cases
from token2wav_service.replay.vectors import FEATURE_TOLERANCE, GoldenCase, Report, VectorFolder

Folders = dict[str, VectorFolder]
"""Golden folders by kind."""


@torch.inference_mode()
def replay_directory(directory: Path, device: str | None = None) -> Report:
    """Replay every golden folder (`<letter>_<kind>`) below `directory`.

    Args:
        directory: holds the folders.
        device: replay the streams of `*_flow` and `*_stream` alone, on this device.

    Raises:
        CheckpointError: there is none, or a folder lacks a file or a neighbour that its kind needs.
    """
    report = Report()
    found = (VectorFolder(path, report) for path in sorted(directory.glob("*")) if path.is_dir())
    folders = {folder.kind: folder for folder in found if folder.kind in _KINDS}
    if not folders:
        raise CheckpointError(f"{directory} holds no golden folder; expected names such as a_dit or d_flow")
    if device is not None:
        flow = stream_cases.load_flow_vectors(_neighbour(folders, "flow")).to(device)
        stream_cases.replay_flow_streams(folders["flow"], flow)
        _stream(_neighbour(folders, "stream"), folders, device)
        return report
    for kind, folder in folders.items():
        _KINDS[kind](folder, folders)
    return report


def _neighbour(folders: Folders, kind: str) -> VectorFolder:
    if kind not in folders:
        raise CheckpointError(f"there is no golden folder *_{kind} beside {sorted(folders)}, which need it")
    return folders[kind]


def _stream(folder: VectorFolder, folders: Folders, device: str = "cpu") -> None:
    flow = stream_cases.load_flow_vectors(_neighbour(folders, "flow")).to(device)
    hift = stream_cases.load_hift_vectors(_neighbour(folders, "hift")).to(device)
    stream_cases.replay_stream(folder, folders["flow"], hift, flow)


def _family(folder: VectorFolder, folders: Folders) -> None:
    block_flow_cases.replay_block_flow(folder)
    block_vocoder_cases.replay_family_vocoder(folder)


def _features(folder: VectorFolder, folders: Folders) -> None:
    """Resampling, mel banks and the three spectral features."""
    for case in folder.cases("*"):
        audio_16k, audio_24k = case["audio_16k"].numpy(), case["audio_24k"].flatten().numpy()
        outputs = {
            "audio_24k": resample_16k_to_24k(audio_16k),
            "mel_filters_24k": flow_mel_filters(),
            "mel_24k": flow_mel_24k(audio_24k).T,
            "s3_mel_filters": s3_mel_filters(),
            "s3_log_mel": s3_log_mel(audio_16k),
            "fbank": kaldi_fbank(audio_16k),
            "fbank_mean_sub": speaker_fbank(audio_16k),
        }
        for name, got in outputs.items():
            if name in case:
                # Some of the vectors have a batch axis of 1.
                case.close(
                    name, torch.tensor(got).reshape((1,) * (case[name].dim() - got.ndim) + got.shape), FEATURE_TOLERANCE
                )


def _checkpoint(folder: VectorFolder, folders: Folders) -> None:
    """The directory loads strictly, and its speaker encoder gives the expected embedding."""
    from onnxruntime import InferenceSession

    model_dir = folder.path / "token2wav"
    sizes = [sum(p.numel() for p in module.parameters()) for module in (load_flow(model_dir), load_vocoder(model_dir))]
    loads = GoldenCase({}, f"{folder.path.name}/loads", folder.report)
    loads.equal("strictly", [size > 0 for size in sizes], [True, True])
    if "features" in folders:
        fbank = folders["features"].tensors("features.safetensors")["fbank_mean_sub"]
        session = InferenceSession(str(model_dir / "campplus.onnx"), providers=["CPUExecutionProvider"])
        for case in folder.cases("campplus_expected*"):
            (embedding,) = session.run(None, {session.get_inputs()[0].name: fbank[None].numpy()})
            case.close("embedding", torch.tensor(embedding))


_KINDS: dict[str, Callable[[VectorFolder, Folders], None]] = {
    "dit": lambda folder, _: flow_cases.replay_dit(folder),
    "encoder": lambda folder, _: flow_cases.replay_encoder(folder),
    "cfm": lambda folder, _: flow_cases.replay_cfm(folder),
    "flow": lambda folder, _: stream_cases.replay_flow(folder),
    "hift": lambda folder, _: flow_cases.replay_hift(folder),
    "stream": _stream,
    "features": _features,
    "checkpoint": _checkpoint,
    "cosyvoice2_unet": _family,
    "cosyvoice3_dit": _family,
}
"""What replays a kind of folder; it is given the folders beside it, too."""
