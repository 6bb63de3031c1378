"""Golden cases of the audio front end and of a whole checkpoint directory."""

from __future__ import annotations

import numpy as np
import torch

from token2wav_service.checkpoint.loader import load_flow, load_hift
from token2wav_service.features.audio import resample_16k_to_24k
from token2wav_service.features.mel import (
    flow_mel_24k,
    flow_mel_filters,
    kaldi_fbank,
    s3_log_mel,
    s3_mel_filters,
    speaker_fbank,
)
from token2wav_service.replay.report import FEATURE_TOLERANCE, FLOW_TOLERANCE, Report
from token2wav_service.replay.vectors import VectorFolder


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
