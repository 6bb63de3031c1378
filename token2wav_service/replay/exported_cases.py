"""Golden streams through exported files under ONNX Runtime: encoder, every step of the solver, vocoder."""

from __future__ import annotations

from pathlib import Path

import torch

from token2wav_service.errors import CheckpointError
from token2wav_service.export.onnx_models import OnnxFlow, OnnxHiFT
from token2wav_service.graphs.spec import Precision
from token2wav_service.replay.report import Report
from token2wav_service.replay.stream_cases import replay_flow_streams, replay_stream
from token2wav_service.replay.vectors import VectorFolder


def replay_exported(directory: Path, exported: Path, precision: Precision = Precision.FLOAT32) -> Report:
    """Replay the streams of the golden folders `*_flow` and `*_stream` below `directory`.

    Args:
        exported: what `cosydit export` wrote from the golden checkpoint.
        precision: of the flow's files.

    Raises:
        CheckpointError: a golden folder is missing.
        ExportError: an exported file is missing, or can't be computed here.
    """
    flow_folder, stream_folder = _folder(directory, "flow"), _folder(directory, "stream")
    flow, hift = OnnxFlow(exported, precision), OnnxHiFT(exported)
    report = Report()
    with torch.inference_mode():
        replay_flow_streams(flow_folder, report, flow)
        replay_stream(stream_folder, flow_folder, hift, report, flow)
    return report


def _folder(directory: Path, kind: str) -> VectorFolder:
    for path in sorted(directory.glob(f"*_{kind}")):
        return VectorFolder(path)
    raise CheckpointError(
        f"{directory} holds no golden folder *_{kind}; give the folder that holds d_flow and f_stream"
    )
