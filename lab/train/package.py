"""Loads trained models back from a workspace's state, and writes the bundle that is shipped out of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import nn

from demo_voice.unpack import (
    ALIGNER_WEIGHTS,
    BUNDLE_FILES,
    CONTROL_TABLE,
    FLOW_FILE,
    HEAD_BIAS,
    HEAD_WEIGHT,
    HIFT_FILE,
    LLM_FILE,
    LLM_SIZES,
    SIZES_FILE,
    SPEECH_TABLE,
    SPEECH_TOKENIZER,
    TEXT_TABLE,
    TEXT_TOKENIZER_FILE,
    FloatArray,
)
from lab.train.models.aligner import AlignerNet, aligner_arrays
from lab.train.models.flow import TrainableFlow
from lab.train.models.llm import TrainableLLM
from lab.train.models.onnx_export import export_speaker_encoder, export_tokenizer
from lab.train.models.speaker import SpeakerNet
from lab.train.models.tokenizer import SpeechTokenizerNet
from lab.train.packing import packed, write_packed
from lab.train.sizes import DemoSizes, LLMSizes
from lab.train.teachers.choices import FLITE
from lab.train.trainer import StateError, load_part
from lab.train.workspace import Workspace
from llm_service.qwen2 import Qwen2Shape
from servicekit.checkpoint_file import CheckpointDeclaration, write_declaration
from token2wav_service.checkpoint.family import SPEAKER_ENCODER
from token2wav_service.checkpoint.make_random import hift_arguments
from token2wav_service.models.vocoder.hift import HiFT

DECLARATION = CheckpointDeclaration(name="demo-voice", family="step_audio2", languages=("en",), tags=())
"""Declaration of the demo voice, which was trained on English without any tags."""


def trained_tokenizer(work: Workspace, sizes: DemoSizes) -> SpeechTokenizerNet:
    """Return the speech tokenizer.

    Raises:
        StateError: it has not been trained, or with other sizes; as all of these functions.
    """
    net = SpeechTokenizerNet(sizes.tokenizer)
    _load(work, "tokenizer", "model", net, "net.")
    return net.eval().requires_grad_(False)


def trained_speaker(work: Workspace, sizes: DemoSizes) -> SpeakerNet:
    """Return the speaker encoder."""
    net = SpeakerNet(sizes.speaker)
    _load(work, "speaker", "model", net, "net.")
    return net.eval().requires_grad_(False)


def trained_flow(work: Workspace, sizes: DemoSizes) -> TrainableFlow:
    """Return the flow."""
    model = TrainableFlow(sizes.flow)
    _load(work, "flow", "model", model)
    return model.eval().requires_grad_(False)


def trained_hift(work: Workspace, sizes: DemoSizes) -> HiFT:
    """Return the vocoder."""
    hift = HiFT(sizes.hift)
    _load(work, "vocoder", "hift", hift)
    return hift.eval().requires_grad_(False)


def trained_llm(work: Workspace, sizes: DemoSizes) -> TrainableLLM:
    """Return the LLM, as it was before or behind the stage `heard`."""
    model = TrainableLLM(sizes.llm)
    _load(work, "heard" if work.weights("heard").is_file() else "llm", "model", model)
    return model.eval().requires_grad_(False)


def trained_aligner(work: Workspace, sizes: DemoSizes) -> AlignerNet:
    """Return the aligner."""
    net = AlignerNet(sizes.aligner)
    _load(work, "aligner", "model", net)
    return net.eval().requires_grad_(False)


def _load(work: Workspace, stage: str, part: str, module: nn.Module, prefix: str = "") -> None:
    path = work.weights(stage)
    if not path.is_file():
        raise StateError(f"{path} is missing; run the stage `{stage}` first")
    load_part(path, part, module, prefix)


MAX_BUNDLE_BYTES = 24_000_000
_UNUSED = "embed_tokens.weight"
"""The decoder's own table of one row; the tables above stand for it."""


class BundleTooLargeError(Exception):
    """The bundle passes its limit."""


def write_bundle(work: Workspace, sizes: DemoSizes, teachers: str = FLITE) -> dict[str, int]:
    """Write the workspace's bundle and return its files' sizes in bytes.

    Args:
        work: has all states.
        sizes: of the models.
        teachers: name in `TEACHERS`.

    Raises:
        StateError: a stage has not been trained.
        BundleTooLargeError: it would pass 24 MB.
    """
    directory = work.bundle
    directory.mkdir(parents=True, exist_ok=True)
    write_packed(directory / FLOW_FILE, packed(arrays_of(trained_flow(work, sizes).finished())))
    write_packed(directory / HIFT_FILE, packed(arrays_of(trained_hift(work, sizes))))
    write_packed(directory / LLM_FILE, packed(llm_arrays(trained_llm(work, sizes))))
    write_aligner(work, sizes)
    export_tokenizer(trained_tokenizer(work, sizes), directory / SPEECH_TOKENIZER)
    export_speaker_encoder(trained_speaker(work, sizes), directory / SPEAKER_ENCODER)
    shutil.copyfile(work.text_tokenizer, directory / TEXT_TOKENIZER_FILE)
    bounds = sizes.bounds
    if work.silent_tokens.is_file():
        bounds = replace(bounds, silent_tokens=tuple(json.loads(work.silent_tokens.read_text("utf-8"))))
    described = {
        "flow": asdict(sizes.flow),
        "hift": hift_arguments(sizes.hift),
        "llm": {name: getattr(sizes.llm, field) for name, field in LLM_SIZES.items()},
        "bounds": asdict(bounds),
        "teachers": teachers,
    }
    (directory / SIZES_FILE).write_text(json.dumps(described, indent=1) + "\n", "utf-8")
    write_declaration(directory, DECLARATION)
    return _checked_sizes(directory)


def write_aligner(work: Workspace, sizes: DemoSizes) -> int:
    """Write the bundle's aligner alone; returns its size in bytes.

    Raises:
        StateError: it has not been trained.
    """
    work.bundle.mkdir(parents=True, exist_ok=True)
    write_packed(work.bundle / ALIGNER_WEIGHTS, packed(aligner_arrays(trained_aligner(work, sizes))))
    return (work.bundle / ALIGNER_WEIGHTS).stat().st_size


def arrays_of(module: nn.Module) -> dict[str, FloatArray]:
    """Return a module's state as float32 arrays."""
    return {name: value.float().cpu().numpy() for name, value in module.state_dict().items()}


@torch.no_grad()
def llm_arrays(model: TrainableLLM) -> dict[str, FloatArray]:
    """Return the LLM's tables, decoder and head under the names of `write_llm`."""
    decoder = {name: value for name, value in arrays_of(model.decoder).items() if name != _UNUSED}
    tables = {
        TEXT_TABLE: model.text_embedding.weight,
        SPEECH_TABLE: model.codes(),
        CONTROL_TABLE: model.control_embedding.weight,
        HEAD_WEIGHT: model.head.weight,
        HEAD_BIAS: model.head.bias,
    }
    return {**decoder, **{name: value.float().cpu().numpy() for name, value in tables.items()}}


def llm_shape(sizes: LLMSizes) -> Qwen2Shape:
    """Return the sizes in the LLM service's own words."""
    return Qwen2Shape(**{field: getattr(sizes, field) for field in LLM_SIZES.values()})


def _checked_sizes(directory: Path) -> dict[str, int]:
    sizes = {name: (directory / name).stat().st_size for name in BUNDLE_FILES}
    if sum(sizes.values()) > MAX_BUNDLE_BYTES:
        raise BundleTooLargeError(
            f"the bundle has {sum(sizes.values())} bytes, expected at most {MAX_BUNDLE_BYTES}: {sizes}"
        )
    return sizes
