"""The teacher Kokoro in torch, with small random weights: rows do not hear each other, and shards are made."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from onnx import helper, numpy_helper

from lab.tests.train.test_hibari import FakeHibari
from lab.train import stages
from lab.train.data import SpeechStreams
from lab.train.teachers import choices, hibari, kokoro
from lab.train.teachers.hibari import HibariEngine
from lab.train.teachers.kokoro import Kokoro, KokoroSpeaker, Made, batches, spoken
from lab.train.utterance import LAYOUTS
from lab.train.workspace import Workspace

VOCABULARY = {phoneme: number for number, phoneme in enumerate(" abkt.ˈ", start=1)}
STYLE, WIDE, SHARED, WORDS = kokoro.STYLE_SIZE, 16, 24, 8
MAN, WOMAN = KokoroSpeaker("man", {"man": 1.0}), KokoroSpeaker("mixed", {"man": 0.25, "woman": 0.75})


def random_weights() -> dict[str, torch.Tensor]:
    """Weights of every layer, with few channels."""
    generator = torch.Generator().manual_seed(0)
    found: dict[str, torch.Tensor] = {}

    def add(name: str, *shape: int, has_bias: bool = True, bias: int | None = None) -> None:
        found[f"{name}.weight"] = torch.randn(shape, generator=generator) / math.sqrt(math.prod(shape[1:]))
        if has_bias:
            found[f"{name}.bias"] = 0.1 * torch.randn(bias or shape[0], generator=generator)

    def lstm(name: str, inputs: int) -> None:
        for way in ("", "_reverse"):
            for kind, width in (("ih", inputs), ("hh", WIDE // 2)):
                found[f"{name}.w_{kind}{way}"] = 0.3 * torch.randn(2 * WIDE, width, generator=generator)
                found[f"{name}.b_{kind}{way}"] = torch.zeros(2 * WIDE)

    def block(name: str, inputs: int, outputs: int, is_doubled: bool = False) -> None:
        add(f"{name}.norm1.fc", 2 * inputs, STYLE)
        add(f"{name}.norm2.fc", 2 * outputs, STYLE)
        add(f"{name}.conv1", outputs, inputs, 3)
        add(f"{name}.conv2", outputs, outputs, 3)
        if inputs != outputs:
            add(f"{name}.conv1x1", outputs, inputs, 1, has_bias=False)
        if is_doubled:
            add(f"{name}.pool", inputs, 1, 3)

    def snakes(name: str, channels: int, size: int) -> None:
        for number in range(3):
            for part in "12":
                add(f"{name}.adain{part}.{number}.fc", 2 * channels, STYLE)
                add(f"{name}.convs{part}.{number}", channels, channels, size)
                found[f"{name}.alpha{part}.{number}"] = torch.ones(1, channels, 1)

    layer = "bert.encoder.albert_layer_groups.0.albert_layers.0"
    for name, rows in (("word", len(VOCABULARY) + 1), ("position", 64), ("token_type", 2)):
        add(f"bert.embeddings.{name}_embeddings", rows, WORDS, has_bias=False)
    for name, width in (
        ("bert.embeddings.LayerNorm", WORDS),
        (f"{layer}.attention.LayerNorm", SHARED),
        (f"{layer}.full_layer_layer_norm", SHARED),
    ):
        found |= {f"{name}.weight": torch.ones(width), f"{name}.bias": torch.zeros(width)}
    add("bert.encoder.embedding_hidden_mapping_in", SHARED, WORDS)
    for name in ("query", "key", "value", "dense"):
        add(f"{layer}.attention.{name}", SHARED, SHARED)
    add(f"{layer}.ffn", 2 * SHARED, SHARED)
    add(f"{layer}.ffn_output", SHARED, 2 * SHARED)
    add("bert_encoder", WIDE, SHARED)
    for number in (0, 2, 4):
        lstm(f"predictor/text_encoder/lstms.{number}", WIDE + STYLE)
        add(f"predictor.text_encoder.lstms.{number + 1}.fc", 2 * WIDE, STYLE)
    lstm("predictor/lstm", WIDE + STYLE)
    lstm("shared", WIDE + STYLE)
    add("duration_proj.linear_layer", 6, WIDE)
    for name in ("F0", "N"):
        block(f"{name}.0", WIDE, WIDE)
        block(f"{name}.1", WIDE, 8, is_doubled=True)
        block(f"{name}.2", 8, 8)
        add(f"{name}_proj", 1, 8, 1)
        add(f"{name}_conv", 1, 1, 3)
    found["F0_proj.bias"] = torch.tensor([150.0])
    add("text_encoder.embedding", len(VOCABULARY) + 1, WIDE, has_bias=False)
    for number in range(3):
        add(f"text_encoder.cnn.{number}.0", WIDE, WIDE, 5)
        found |= {
            f"text_encoder.cnn.{number}.1.gamma": torch.ones(WIDE),
            f"text_encoder.cnn.{number}.1.beta": torch.zeros(WIDE),
        }
    lstm("text_encoder/lstm", WIDE)
    add("asr_res.0", 4, WIDE, 1)
    block("encode", WIDE + 2, 12)
    for number in range(4):
        block(f"decode.{number}", 12 + 4 + 2, 8 if number == 3 else 12, is_doubled=number == 3)
    add("generator.m_source.l_linear", 1, 9)
    add("generator.noise_convs.0", 4, 22, 12)
    add("generator.noise_convs.1", 2, 22, 1)
    add("generator.ups.0", 8, 4, 20, bias=4)
    add("generator.ups.1", 4, 2, 12, bias=2)
    snakes("generator.noise_res.0", 4, 7)
    snakes("generator.noise_res.1", 2, 11)
    for number in range(6):
        snakes(f"generator.resblocks.{number}", 4 if number < 3 else 2, (3, 7, 11)[number % 3])
    add("generator.conv_post", 22, 2, 7)
    return found


@pytest.fixture(scope="module")
def teacher() -> Kokoro:
    draw = np.random.default_rng(0)
    voices = {name: draw.standard_normal((64, 2 * STYLE)).astype(np.float32) for name in ("man", "woman")}
    return Kokoro(random_weights(), VOCABULARY, voices)


def test_rows_of_a_batch_do_not_hear_each_other(teacher: Kokoro) -> None:
    sentences = [("ˈabba.", MAN), ("tabt akka batta.", WOMAN), ("k.", WOMAN)]

    together = teacher.speak(sentences)

    for sentence, made in zip(sentences, together, strict=True):
        (alone,) = teacher.speak([sentence])
        assert np.array_equal(made.lengths, alone.lengths)
        assert len(made.lengths) == len(sentence[0]) + 2
        assert made.pitch == pytest.approx(alone.pitch, abs=0.02)
        assert len(made.samples) == 600 * made.lengths.sum() == 300 * len(made.pitch)
        assert np.abs(made.samples).max() > 0 and np.isfinite(made.samples).all()


def test_a_mixture_lies_between_its_voices(teacher: Kokoro) -> None:
    man, mixed = teacher.style(MAN, 5), teacher.style(WOMAN, 5)
    woman = teacher.style(replace(MAN, shares={"woman": 1.0}), 5)

    assert mixed == pytest.approx(0.25 * man + 0.75 * woman)
    assert np.array_equal(teacher.style(MAN, 1000), teacher.style(MAN, 64))


def test_batches_hold_sentences_of_like_length_and_leave_out_what_can_t_be_spoken() -> None:
    phonemes = ["a" * n for n in (7, 0, 500, 3, *[50] * 100)]

    found = list(batches(phonemes))

    assert [len(places) for places in found] == [80, 22]
    assert found[0][:2] == [3, 0]
    assert not {1, 2} & {place for places in found for place in places}


def test_what_is_spoken_has_phones_and_pitch_at_its_own_times() -> None:
    cycles = np.arange(1, 21) * 120 / 80
    made = Made(np.full(6000, 0.1, np.float32), np.full(20, 120, np.float32), cycles, np.array([2, 3, 5]))

    audio = spoken("a", made)

    assert [segment.phone for segment in audio.segments] == ["pau", "aa", "pau"]
    assert [segment.end_s for segment in audio.segments] == pytest.approx([0.02, 0.095, 0.25])
    assert audio.pitch is not None and audio.pitch.tolist() == [120.0] * 12


def test_weights_are_read_out_of_an_int8_file() -> None:
    """The file has layers as the exporter leaves them: int8, transposed, LSTMs in ONNX's order of gates."""
    draw = np.random.default_rng(0)
    values: dict[str, npt.NDArray[Any]] = {
        "encoder.bert_encoder.bias": draw.standard_normal(3).astype(np.float32),
        "onnx::MatMul_1_quantized": np.array([[1, 2, 3], [4, 5, 6]], np.int8),
        "onnx::MatMul_1_scale": np.array([1.0, 0.5, 0.25], np.float32),
        "zero": np.zeros(3, np.int8),
        "/encoder/F0.0/Mul_output_0_quantized": np.array([[[10, 20, 30]]], np.uint8),
        "/encoder/F0.0/Mul_output_0_scale": np.array(0.1, np.float32),
        "middle": np.array(20, np.uint8),
        "lstm_w_quantized": draw.integers(-9, 9, (2, 3, 8)).astype(np.int8),
        "lstm_r_quantized": draw.integers(-9, 9, (2, 2, 8)).astype(np.int8),
        "lstm_b": draw.standard_normal((2, 16)).astype(np.float32),
        "lstm_scale": np.array([1.0, 2.0], np.float32),
        "lstm_zero": np.zeros(2, np.int8),
    }
    lstm = ["x", "lstm_w_quantized", "lstm_r_quantized", "lstm_b", "", "h", "c", ""]
    lstm += ["lstm_scale", "lstm_zero", "lstm_scale", "lstm_zero"]
    nodes = [
        ("MatMulInteger", "/encoder/bert_encoder/MatMul_quant", ["x", "onnx::MatMul_1_quantized", "z", "zero"]),
        (
            "ConvInteger",
            "/encoder/F0.0/conv1/Conv_quant",
            ["x", "/encoder/F0.0/Mul_output_0_quantized", "z", "middle"],
        ),
        ("DynamicQuantizeLSTM", "/encoder/shared/LSTM_quant", lstm),
    ]
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, [f"{name}_out"], name=name) for kind, name, inputs in nodes],
        "graph",
        [],
        [],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )

    weights = kokoro.read_weights(helper.make_model(graph).SerializeToString())

    assert weights["bert_encoder.weight"].tolist() == [[1.0, 4.0], [1.0, 2.5], [0.75, 1.5]]
    assert weights["bert_encoder.bias"].numpy() == pytest.approx(values["encoder.bert_encoder.bias"])
    assert weights["F0.0.conv1.weight"].flatten().tolist() == pytest.approx([-1.0, 0.0, 1.0])
    onnx_gates = (values["lstm_w_quantized"][1].astype(np.float32) * 2).T.reshape(4, 2, 3)
    torch_gates = weights["shared.w_ih_reverse"].numpy().reshape(4, 2, 3)
    assert np.array_equal(torch_gates, onnx_gates[[0, 2, 3, 1]])  # input, forget, cell, output of i, o, f, c
    assert weights["shared.b_hh"].shape == (8,)


@pytest.mark.slow
def test_kokoro_s_shards_lie_beside_the_others_and_are_not_made_again(
    monkeypatch: pytest.MonkeyPatch, teacher: Kokoro, texts: Path, tmp_path: Path
) -> None:
    speakers = [replace(WOMAN, name=name) for name in choices.KOKORO_SPEAKERS]
    monkeypatch.setattr(kokoro, "SPEAKERS", speakers)
    monkeypatch.setattr(kokoro, "BUFFER", 8)
    monkeypatch.setattr(stages, "SHARD_UTTERANCES", 8)
    monkeypatch.setattr(kokoro, "LONGEST", 40)
    monkeypatch.setattr(kokoro.Kokoro, "load", lambda _device: teacher)
    monkeypatch.setattr(hibari, "HibariEngine", lambda: HibariEngine(FakeHibari()))
    (tmp_path / "texts").symlink_to(texts)
    options = ["--work", str(tmp_path), "--teachers", "hibari+kokoro", "--utterances", "8", "--workers", "1"]

    for _ in range(2):
        assert stages.main(["kokoro", *options, "--device", "cpu"]) == 0

    work = Workspace(tmp_path)
    assert [path.name for path in work.corpus.iterdir()] == [f"shard-{kokoro.FIRST_SHARD}.npz"]
    streams = SpeechStreams(work.corpus, list(LAYOUTS), torch.device("cpu"), 0)
    made = {utterance.speaker for utterance in streams.utterances}
    assert min(made) >= len(hibari.MANNERS) and max(made) < len(choices.TEACHERS["hibari+kokoro"].speakers)
