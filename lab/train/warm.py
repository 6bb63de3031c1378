"""States of every stage out of a bundle, so that training begins where an earlier voice ended.

The LLM and the flow know what a token means, so a retrained tokenizer should mean the same: the bundled aligner's
answers anchor it (`bundled_anchor`). What a bundle does not hold begins anew: the tokenizer's heads, the speaker
classifier and the vocoder's judges. Two things come back by fitting. The tables of 6561 tokens were computed from
digits by small networks, so networks are fitted to them. Convolutions have their batch norms folded in, and a norm in
training mode knows its batch alone: each gets the mean and the spread that its inputs have on the corpus, and gain
and offset that undo them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional

from demo_voice.unpack import (
    ALIGNER_WEIGHTS,
    BUNDLE,
    CONTROL_TABLE,
    FLOW_FILE,
    HEAD_BIAS,
    HEAD_WEIGHT,
    HIFT_FILE,
    LLM_FILE,
    SPEECH_TABLE,
    SPEECH_TOKENIZER,
    TEXT_TABLE,
    TEXT_TOKENIZER_FILE,
    FloatArray,
    read_packed,
)
from lab.train.data import SpeechStreams
from lab.train.models.aligner import AlignerNet
from lab.train.models.excitation import make_loud
from lab.train.models.flow import TrainableFlow
from lab.train.models.llm import TrainableLLM
from lab.train.models.speaker import ConvUnit, MarginClassifier, SpeakerNet
from lab.train.models.tokenizer import Anchor, CodeDecoder, CodeTable, SpeechTokenizerNet
from lab.train.models.vocoder_losses import Discriminators
from lab.train.sizes import DEMO, DemoSizes
from lab.train.trainer import StateError, save_state
from lab.train.workspace import Workspace
from token2wav_service.checkpoint.family import SPEAKER_ENCODER
from token2wav_service.models.vocoder.hift import HiFT

FEATURES = ("log_mel", "fbank")
"""Columns of the corpus that the norms are set on."""
_WINDOWS, _WINDOW_TOKENS = 128, 75
_FIT_RATE = 3e-3
_FLOW_TABLE = "input_embedding.weight"


def begin_from_bundle(
    work: Workspace,
    sizes: DemoSizes,
    speakers: int,
    streams: SpeechStreams,
    began_s: dict[str, float],
    fit_steps: int,
) -> dict[str, float]:
    """Write the states that a workspace lacks out of a bundle; returns how far each fitted table is off, relatively.

    Args:
        work: the workspace.
        sizes: must be the bundle's.
        speakers: of the new corpus.
        streams: the new corpus with FEATURES, on the device that fits.
        began_s: by stage, seconds of its plan that count as done.
        fit_steps: of each table.

    Raises:
        StateError: the bundle is of other sizes.
    """
    device = streams.device
    if not work.text_tokenizer.exists():
        work.text_tokenizer.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(BUNDLE / TEXT_TOKENIZER_FILE, work.text_tokenizer)
    errors: dict[str, float] = {}
    if not work.weights("tokenizer").exists():
        net = SpeechTokenizerNet(sizes.tokenizer)
        _unfold(net, BUNDLE / SPEECH_TOKENIZER)
        set_norms(net.to(device), _inputs(streams, "log_mel"))
        model = nn.ModuleDict({"net": net, "decoder": CodeDecoder(sizes.tokenizer, speakers)})
        save_state(work.weights("tokenizer"), {"model": model}, 0, began_s["tokenizer"])
    if not work.weights("speaker").exists():
        encoder = SpeakerNet(sizes.speaker)
        weight, bias = _unfold(encoder, BUNDLE / SPEAKER_ENCODER)[0]
        _put(encoder.embed, {"weight": weight, "bias": bias})
        set_norms(encoder.to(device), _inputs(streams, "fbank"))
        model = nn.ModuleDict({"net": encoder, "classifier": MarginClassifier(speakers)})
        save_state(work.weights("speaker"), {"model": model}, 0, began_s["speaker"])
    if not work.weights("vocoder").exists():
        hift = HiFT(sizes.hift)
        _put(hift, read_packed(BUNDLE / HIFT_FILE))
        make_loud(hift.m_source)
        judges = Discriminators(sizes.discriminators)
        save_state(work.weights("vocoder"), {"hift": hift, "judges": judges}, 0, began_s["vocoder"])
    if not work.weights("flow").exists():
        arrays = read_packed(BUNDLE / FLOW_FILE)
        flow = TrainableFlow(sizes.flow)
        errors["flow"] = fit_table(flow.codes.to(device), arrays.pop(_FLOW_TABLE), fit_steps)
        _put(flow.flow, arrays)
        save_state(work.weights("flow"), {"model": flow}, 0, began_s["flow"])
    if not work.weights("llm").exists():
        arrays = read_packed(BUNDLE / LLM_FILE)
        llm = TrainableLLM(sizes.llm)
        errors["llm"] = fit_table(llm.codes.to(device), arrays.pop(SPEECH_TABLE), fit_steps)
        _put(llm.text_embedding, {"weight": arrays.pop(TEXT_TABLE)})
        _put(llm.control_embedding, {"weight": arrays.pop(CONTROL_TABLE)})
        _put(llm.head, {"weight": arrays.pop(HEAD_WEIGHT), "bias": arrays.pop(HEAD_BIAS)})
        own = {name: value for name, value in llm.decoder.state_dict().items() if name not in arrays}
        _put(llm.decoder, {**arrays, **{name: value.numpy() for name, value in own.items()}})
        save_state(work.weights("llm"), {"model": llm}, 0, began_s["llm"])
    return errors


def bundled_anchor(device: torch.device) -> Anchor:
    """Return what the bundled aligner hears in tokens; it stays as it is."""
    net = AlignerNet(DEMO.aligner)
    _put(net, read_packed(BUNDLE / ALIGNER_WEIGHTS))
    return net.to(device).eval().requires_grad_(False).tokens.read


def fit_table(codes: CodeTable, table: FloatArray, steps: int) -> float:
    """Fit a network to a table; returns the remaining error as a share of the table's spread."""
    wanted = torch.from_numpy(table).to(codes.outer.weight.device)
    scale = wanted.std()
    optimiser = torch.optim.Adam(codes.parameters(), _FIT_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad(set_to_none=True)
        (functional.mse_loss(codes(), wanted) / scale**2).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        hidden = functional.gelu(codes.inner(codes.digits))
        hidden = torch.cat([hidden, torch.ones_like(hidden[:, :1])], 1).double()
        # The last layer's best values need no descent. The ridge keeps columns that are nearly alike small.
        square = hidden.T @ hidden + 1e-4 * torch.eye(hidden.shape[1], device=hidden.device, dtype=hidden.dtype)
        solved = torch.linalg.solve(square, hidden.T @ wanted.double()).float()
        codes.outer.weight.copy_(solved[:-1].T)
        codes.outer.bias.copy_(solved[-1])
        return float((codes() - wanted).std() / scale)


@torch.no_grad()
def set_norms(net: nn.Module, inputs: Tensor) -> None:
    """Give every norm of a net the statistics of its inputs; the net computes the same as before.

    Args:
        net: its units have norms that change nothing but add a bias, as `_unfold` leaves them; in eval mode afterwards.
        inputs: [B, ...] of the net.
    """
    seen: dict[ConvUnit, tuple[Tensor, Tensor]] = {}

    def listen(unit: ConvUnit) -> torch.utils.hooks.RemovableHandle:
        def keep(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen[unit] = (output.mean((0, 2)), output.var((0, 2), unbiased=False))

        return unit.conv.register_forward_hook(keep)

    handles = [listen(unit) for unit in _units(net)]
    net.eval()(inputs)
    for handle in handles:
        handle.remove()
    for unit, (mean, variance) in seen.items():
        norm = unit.norm
        assert norm.running_mean is not None and norm.running_var is not None
        norm.bias.add_(mean)
        norm.weight.copy_(torch.sqrt(variance + norm.eps))
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)


def _units(net: nn.Module) -> Iterator[ConvUnit]:
    return (module for module in net.modules() if isinstance(module, ConvUnit))


@torch.no_grad()
def _unfold(net: nn.Module, path: Path) -> list[tuple[FloatArray, FloatArray]]:
    """Put an exported file's convolutions into a net's units, in order; returns weight and bias of other layers."""
    graph = onnx.load(path).graph
    values = {value.name: numpy_helper.to_array(value) for value in graph.initializer}
    for node in graph.node:
        if node.op_type == "DequantizeLinear":
            rows, scales = (values[name] for name in node.input[:2])
            values[node.output[0]] = rows.astype(np.float32) * scales.reshape(-1, *[1] * (rows.ndim - 1))
    layers = {
        kind: [(values[node.input[1]], values[node.input[2]]) for node in graph.node if node.op_type == kind]
        for kind in ("Conv", "Gemm")
    }
    units = list(_units(net))
    if len(units) != len(layers["Conv"]):
        raise StateError(f"{path} has {len(layers['Conv'])} convolutions, expected {len(units)}; train with its sizes")
    for unit, (weight, bias) in zip(units, layers["Conv"], strict=True):
        _put(unit.conv, {"weight": weight})
        norm = unit.norm
        assert norm.running_var is not None
        norm.running_var.fill_(1.0 - norm.eps)
        _put_one(norm.bias, bias, f"{path}: bias")
    return layers["Gemm"]


def _put(module: nn.Module, arrays: dict[str, FloatArray]) -> None:
    own = module.state_dict()
    if own.keys() != arrays.keys():
        raise StateError(f"the bundle differs in {sorted(own.keys() ^ arrays.keys())[:4]}; train with its sizes")
    for name, value in own.items():
        _put_one(value, arrays[name], name)


@torch.no_grad()
def _put_one(value: Tensor, array: FloatArray, name: str) -> None:
    if value.shape != array.shape:
        raise StateError(f"{name}: the bundle has {array.shape}, expected {tuple(value.shape)}; train with its sizes")
    value.copy_(torch.from_numpy(np.array(array)))


def _inputs(streams: SpeechStreams, name: str) -> Tensor:
    windows = streams.draw(_WINDOWS, _WINDOW_TOKENS)
    values = streams.window(name, windows.starts, _WINDOW_TOKENS).float()
    return values.transpose(1, 2) if name == "log_mel" else values - values.mean(1, keepdim=True)
