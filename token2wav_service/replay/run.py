"""Finds the golden folders below a directory and replays each with what fits its name.

Here are the cases of the audio front end and of a whole checkpoint directory; and `replay_exported`, which replays the
streams through exported files under ONNX Runtime: encoder, every step of the solver, vocoder.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch

from token2wav_service.checkpoint.loader import load_flow, load_hift
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
from token2wav_service.graphs.spec import Precision
from token2wav_service.models.flow.block_flow import BlockFlow, CosyVoice2Flow
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.replay import (
    block_flow_cases,
    block_vocoder_cases,
    flow_cases,
    stream_cases,
    vocoder_cases,
)
from token2wav_service.replay.report import FEATURE_TOLERANCE, FLOW_TOLERANCE, Report
from token2wav_service.replay.vectors import FAMILY_FOLDERS, VectorFolder

logger = logging.getLogger(__name__)

KINDS = ("dit", "encoder", "cfm", "flow", "hift", "stream", "features", "checkpoint", *FAMILY_FOLDERS)


def replay_directory(directory: Path) -> Report:
    """Replay every golden folder (`<letter>_<kind>`) below `directory`.

    Raises:
        CheckpointError: there is none, or a folder lacks a file that its kind needs.
    """
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is not a directory; give the folder that holds a_dit, b_encoder, ...")
    folders = {}
    for path in sorted(p for p in directory.iterdir() if p.is_dir()):
        folder = VectorFolder(path)
        if folder.kind in KINDS:
            folders[folder.kind] = folder
        else:
            logger.warning("%s is not a kind of golden folder (%s): skipped", path, ", ".join(KINDS))
    if not folders:
        raise CheckpointError(f"{directory} holds no golden folder; expected names such as a_dit or d_flow")
    report = Report()
    with torch.inference_mode():
        for kind in folders:
            _replay(kind, folders, report)
    return report


def _replay(kind: str, folders: dict[str, VectorFolder], report: Report) -> None:
    folder = folders[kind]
    simple = {
        "dit": flow_cases.replay_dit,
        "encoder": flow_cases.replay_encoder,
        "cfm": flow_cases.replay_cfm,
        "flow": stream_cases.replay_flow,
        "hift": vocoder_cases.replay_hift,
        "features": replay_features,
    }
    if kind in simple:
        simple[kind](folder, report)
    elif kind in FAMILY_FOLDERS:
        block_flow_cases.replay_block_flow(folder, report)
        block_vocoder_cases.replay_family_vocoder(folder, report)
    elif kind == "checkpoint":
        replay_checkpoint(folder, folders.get("features"), report)
    elif "flow" in folders and "hift" in folders:
        hift = stream_cases.load_hift_vectors(folders["hift"])
        stream_cases.replay_stream(folder, folders["flow"], hift, report)
    else:
        report.fail(folder.path.name, "needs the flow and hift folders beside it")


def replay_features(folder: VectorFolder, report: Report) -> None:
    """Resampling, mel banks and the three spectral features."""
    for file in folder.matching("*.safetensors"):
        v = folder.tensors(file.name)
        audio_16k, audio_24k = v["audio_16k"].numpy(), v["audio_24k"].flatten().numpy()
        outputs: dict[str, np.ndarray] = {  # type: ignore[type-arg]
            "audio_24k": resample_16k_to_24k(audio_16k),
            "mel_filters_24k": flow_mel_filters(),
            "mel_24k": flow_mel_24k(audio_24k).T,
            "s3_mel_filters": s3_mel_filters(),
            "s3_log_mel": s3_log_mel(audio_16k),
            "fbank": kaldi_fbank(audio_16k),
            "fbank_mean_sub": speaker_fbank(audio_16k),
        }
        for name, got in outputs.items():
            if name in v:
                expected = v[name].squeeze(0) if v[name].dim() > got.ndim else v[name]
                report.check_close(folder.label(file, name), torch.tensor(got), expected, FEATURE_TOLERANCE)


def replay_checkpoint(folder: VectorFolder, features: VectorFolder | None, report: Report) -> None:
    """The directory loads strictly, and its speaker encoder gives the expected embedding."""
    from onnxruntime import InferenceSession

    model_dir = folder.path / "token2wav"
    sizes = [sum(p.numel() for p in module.parameters()) for module in (load_flow(model_dir), load_hift(model_dir))]
    report.check_equal(f"{folder.path.name}/loads strictly", [size > 0 for size in sizes], [True, True])
    for file in folder.matching("campplus_expected*.safetensors") if features else ():
        fbank = features.tensors("features.safetensors")["fbank_mean_sub"] if features else None
        assert fbank is not None
        session = InferenceSession(str(model_dir / "campplus.onnx"), providers=["CPUExecutionProvider"])
        (embedding,) = session.run(None, {session.get_inputs()[0].name: fbank[None].numpy()})
        expected = folder.tensors(file.name)["embedding"]
        report.check_close(folder.label(file, "embedding"), torch.tensor(embedding), expected, FLOW_TOLERANCE)


def replay_exported(directory: Path, exported: Path, precision: Precision = Precision.FLOAT32) -> Report:
    """Replay the streams of the golden folders below `directory`: `*_flow` and `*_stream`, or the family's own folder.

    Args:
        exported: what `cosydit export` wrote from the golden checkpoint.
        precision: of the flow's files.

    Raises:
        CheckpointError: a golden folder is missing.
        ExportError: an exported file is missing, or can't be computed here.
    """
    from token2wav_service.export.onnx_models import open_flow, open_vocoder

    flow, hift = open_flow(exported, precision), open_vocoder(exported)
    if not (isinstance(flow, Flow) and isinstance(hift, HiFT)):
        assert isinstance(flow, BlockFlow)
        folder, report = _family_folder(directory, flow), Report()
        with torch.inference_mode():
            block_flow_cases.replay_block_chunks(folder, report, flow)
            block_vocoder_cases.replay_vocoder_chunks(folder, report, hift)
        return report
    return _streams(directory, flow, hift)


def replay_streams(directory: Path, device: str) -> Report:
    """Replay the streams of the golden folders `*_flow`, `*_hift` and `*_stream` below `directory` on a device.

    Raises:
        CheckpointError: a golden folder is missing.
    """
    flow = stream_cases.load_flow_vectors(_folder(directory, "flow"))
    hift = stream_cases.load_hift_vectors(_folder(directory, "hift"))
    return _streams(directory, flow.to(device).eval(), hift.to(device).eval())


@torch.inference_mode()
def _streams(directory: Path, flow: Flow, hift: HiFT) -> Report:
    report = Report()
    flow_folder = _folder(directory, "flow")
    stream_cases.replay_flow_streams(flow_folder, report, flow)
    stream_cases.replay_stream(_folder(directory, "stream"), flow_folder, hift, report, flow)
    return report


def _family_folder(directory: Path, flow: BlockFlow) -> VectorFolder:
    name = FAMILY_FOLDERS[not isinstance(flow, CosyVoice2Flow)]
    if not (directory / name).is_dir():
        raise CheckpointError(f"{directory} holds no golden folder {name}, the family's of what was exported")
    return VectorFolder(directory / name)


def _folder(directory: Path, kind: str) -> VectorFolder:
    for path in sorted(directory.glob(f"*_{kind}")):
        return VectorFolder(path)
    raise CheckpointError(
        f"{directory} holds no golden folder *_{kind}; give the folder that holds d_flow and f_stream"
    )
