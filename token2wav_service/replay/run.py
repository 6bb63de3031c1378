"""Finds the golden folders below a directory and replays each with what fits its name.

Here are the cases of the audio front end and of a whole checkpoint directory.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
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
from token2wav_service.replay.report import FEATURE_TOLERANCE, Report
from token2wav_service.replay.vectors import FAMILY_FOLDERS, VectorFolder

logger = logging.getLogger(__name__)

_ALONE = {
    "dit": flow_cases.replay_dit,
    "encoder": flow_cases.replay_encoder,
    "cfm": flow_cases.replay_cfm,
    "flow": stream_cases.replay_flow,
    "hift": flow_cases.replay_hift,
}
KINDS = (*_ALONE, "stream", "features", "checkpoint", *FAMILY_FOLDERS)


def replay_directory(directory: Path) -> Report:
    """Replay every golden folder (`<letter>_<kind>`) below `directory`.

    Raises:
        CheckpointError: there is none, or a folder lacks a file that its kind needs.
    """
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is not a directory; give the folder that holds a_dit, b_encoder, ...")
    report, folders = Report(), dict[str, VectorFolder]()
    for path in sorted(path for path in directory.iterdir() if path.is_dir()):
        folder = VectorFolder(path, report)
        if folder.kind in KINDS:
            folders[folder.kind] = folder
        else:
            logger.warning("%s is not a kind of golden folder (%s): skipped", path, ", ".join(KINDS))
    if not folders:
        raise CheckpointError(f"{directory} holds no golden folder; expected names such as a_dit or d_flow")
    with torch.inference_mode():
        for folder in folders.values():
            _replay(folder, folders)
    return report


def _replay(folder: VectorFolder, folders: Mapping[str, VectorFolder]) -> None:
    kind = folder.kind
    if kind in _ALONE:
        _ALONE[kind](folder)
    elif kind in FAMILY_FOLDERS:
        block_flow_cases.replay_block_flow(folder)
        block_vocoder_cases.replay_family_vocoder(folder)
    elif kind == "features":
        _features(folder)
    elif kind == "checkpoint":
        _checkpoint(folder, folders.get("features"))
    elif "flow" in folders and "hift" in folders:
        flow, hift = stream_cases.load_flow_vectors(folders["flow"]), stream_cases.load_hift_vectors(folders["hift"])
        stream_cases.replay_stream(folder, folders["flow"], hift, flow)
    else:
        folder.report.fail(folder.path.name, "needs the flow and hift folders beside it")


def _features(folder: VectorFolder) -> None:
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


def _checkpoint(folder: VectorFolder, features: VectorFolder | None) -> None:
    """The directory loads strictly, and its speaker encoder gives the expected embedding."""
    from onnxruntime import InferenceSession

    model_dir = folder.path / "token2wav"
    sizes = [sum(p.numel() for p in module.parameters()) for module in (load_flow(model_dir), load_vocoder(model_dir))]
    folder.report.check_equal(f"{folder.path.name}/loads strictly", [size > 0 for size in sizes], [True, True])
    if features is not None:
        fbank = features.tensors("features.safetensors")["fbank_mean_sub"]
        session = InferenceSession(str(model_dir / "campplus.onnx"), providers=["CPUExecutionProvider"])
        for case in folder.cases("campplus_expected*"):
            (embedding,) = session.run(None, {session.get_inputs()[0].name: fbank[None].numpy()})
            case.close("embedding", torch.tensor(embedding))


@torch.inference_mode()
def replay_streams(directory: Path, device: str) -> Report:
    """Replay the streams of the golden folders `*_flow`, `*_hift` and `*_stream` below `directory` on a device.

    Raises:
        CheckpointError: a golden folder is missing.
    """
    flow = stream_cases.load_flow_vectors(_folder(directory, "*_flow"))
    hift = stream_cases.load_hift_vectors(_folder(directory, "*_hift"))
    folder = _folder(directory, "*_flow")
    stream_cases.replay_flow_streams(folder, flow.to(device).eval())
    streams = VectorFolder(_folder(directory, "*_stream").path, folder.report)
    stream_cases.replay_stream(streams, folder, hift.to(device).eval(), flow)
    return folder.report


def _folder(directory: Path, pattern: str) -> VectorFolder:
    for path in sorted(directory.glob(pattern)):
        return VectorFolder(path)
    raise CheckpointError(f"{directory} holds no golden folder {pattern}")
