"""Finds the golden folders below a directory and replays each with what fits its name."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from token2wav_service.errors import CheckpointError
from token2wav_service.replay import (
    block_flow_cases,
    block_vocoder_cases,
    feature_cases,
    flow_cases,
    stream_cases,
    vocoder_cases,
)
from token2wav_service.replay.report import Report
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
        "features": feature_cases.replay_features,
    }
    if kind in simple:
        simple[kind](folder, report)
    elif kind in FAMILY_FOLDERS:
        block_flow_cases.replay_block_flow(folder, report)
        block_vocoder_cases.replay_family_vocoder(folder, report)
    elif kind == "checkpoint":
        feature_cases.replay_checkpoint(folder, folders.get("features"), report)
    elif "flow" in folders and "hift" in folders:
        hift = stream_cases.load_hift_vectors(folders["hift"])
        stream_cases.replay_stream(folder, folders["flow"], hift, report)
    else:
        report.fail(folder.path.name, "needs the flow and hift folders beside it")
