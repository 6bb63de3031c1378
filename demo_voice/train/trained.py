"""Loads trained models back from a workspace's state."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from demo_voice.train.flow.model import TrainableFlow
from demo_voice.train.llm.model import TrainableLLM
from demo_voice.train.sizes import DemoSizes
from demo_voice.train.speaker.model import MarginClassifier, SpeakerNet
from demo_voice.train.tokenizer.model import CodeDecoder, SpeechTokenizerNet
from demo_voice.train.trainer import StateError, load_state
from demo_voice.train.vocoder.discriminators import Discriminators
from demo_voice.train.voices import SPEAKERS
from demo_voice.train.workspace import Workspace
from token2wav_service.models.hift import HiFT


def trained_tokenizer(work: Workspace, sizes: DemoSizes) -> SpeechTokenizerNet:
    """Return the speech tokenizer.

    Raises:
        StateError: it has not been trained, or with other sizes; as all of these functions.
    """
    net = SpeechTokenizerNet(sizes.tokenizer)
    _load(
        work,
        "tokenizer",
        {"model": nn.ModuleDict({"net": net, "decoder": CodeDecoder(sizes.tokenizer, len(SPEAKERS))})},
    )
    return net.eval().requires_grad_(False)


def trained_speaker(work: Workspace, sizes: DemoSizes) -> SpeakerNet:
    """Return the speaker encoder."""
    net = SpeakerNet(sizes.speaker)
    _load(work, "speaker", {"model": nn.ModuleDict({"net": net, "classifier": MarginClassifier(len(SPEAKERS))})})
    return net.eval().requires_grad_(False)


def trained_flow(work: Workspace, sizes: DemoSizes) -> TrainableFlow:
    """Return the flow."""
    model = TrainableFlow(sizes.flow)
    _load(work, "flow", {"model": model})
    return model.eval().requires_grad_(False)


def trained_hift(work: Workspace, sizes: DemoSizes) -> HiFT:
    """Return the vocoder."""
    hift = HiFT(sizes.hift)
    _load(work, "vocoder", {"hift": hift, "judges": Discriminators(sizes.discriminators)})
    return hift.eval().requires_grad_(False)


def trained_llm(work: Workspace, sizes: DemoSizes) -> TrainableLLM:
    """Return the LLM."""
    model = TrainableLLM(sizes.llm)
    _load(work, "llm", {"model": model})
    return model.eval().requires_grad_(False)


def _load(work: Workspace, stage: str, parts: Mapping[str, nn.Module]) -> None:
    path = work.weights(stage)
    if not path.is_file():
        raise StateError(f"{path} is missing; run the stage `{stage}` first")
    load_state(path, parts)
