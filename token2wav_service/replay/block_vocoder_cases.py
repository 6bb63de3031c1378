"""Golden cases of the vocoders behind the block-masked flows: alone, and whole streams from tokens to audio."""

from __future__ import annotations

import re
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from token2wav_service.checkpoint.loader import build_vocoder, load_weights
from token2wav_service.config import SourcePhase
from token2wav_service.models.config import HiFTConfig
from token2wav_service.models.flow.block_flow import STREAMING, UNMASKED
from token2wav_service.models.streaming import VocoderInput
from token2wav_service.models.vocoder.causal_hift import CausalHiFT
from token2wav_service.models.vocoder.causal_vocoder_stream import CausalStreamVocoder
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.models.vocoder.vocoder_stream import StreamVocoder
from token2wav_service.replay.block_flow_cases import load_block_flow, whole_mel
from token2wav_service.replay.report import (
    F0_TOLERANCE_HZ,
    FLOW_TOLERANCE,
    INJECTED_TOLERANCE,
    SOURCE_TOLERANCE,
    Report,
)
from token2wav_service.replay.stream_cases import UPSTREAM_POLICY, check_vocoder_caches
from token2wav_service.replay.vectors import Tensors, VectorFolder

PARITY = SourcePhase.UPSTREAM


def load_family_vocoder(folder: VectorFolder) -> HiFT | CausalHiFT:
    """Build the vocoder of a `cosyvoice2_unet` or `cosyvoice3_dit` folder."""
    config = folder.json("config.json")
    sizes, fixed = config["hift"], config["vocoder_fixed"]
    dilations = (tuple(fixed["resblock_dilation_sizes"]),) * len(fixed["resblock_kernel_sizes"])
    hift = HiFTConfig(
        base_channels=sizes["base_channels"],
        f0_cond_channels=sizes["f0_channels"],
        upsample_rates=tuple(fixed["upsample_rates"]),
        upsample_kernel_sizes=tuple(fixed["upsample_kernel_sizes"]),
        istft_n_fft=fixed["n_fft"],
        istft_hop=fixed["hop_len"],
        resblock_kernel_sizes=tuple(fixed["resblock_kernel_sizes"]),
        resblock_dilation_sizes=dilations,
        source_resblock_kernel_sizes=tuple(fixed["source_resblock_kernel_sizes"]),
        source_resblock_dilation_sizes=dilations,
        conv_pre_look_right=fixed.get("conv_pre_look_right", 0),
    )
    return load_weights(build_vocoder(hift), folder.tensors("hift_weights.safetensors"), folder.path)


def replay_family_vocoder(folder: VectorFolder, report: Report) -> None:
    """Everything of a folder that needs the vocoder."""
    hift = load_family_vocoder(folder)
    streams = folder.json("config.json")["streams"]
    if isinstance(hift, CausalHiFT):
        _causal_alone(hift, folder, report)
    else:
        _overlapped_alone(hift, folder, report)
    flow = load_block_flow(folder)
    for name, plan in streams.items():
        v = folder.tensors(f"stream_{name}.safetensors")
        mels = []
        for call in plan["calls"]:
            mask = STREAMING if call["streaming"] else UNMASKED
            mel = whole_mel(flow, v, call["tokens_given"], is_final=call["finalize"], mask=mask)
            mels.append(mel[:, :, flow.stride * call["token_offset"] :])
        _stream(hift, folder, name, mels, report)


def replay_vocoder_chunks(folder: VectorFolder, report: Report, hift: HiFT | CausalHiFT) -> None:
    """Every stream's golden mel to audio; `hift` computes instead of the folder's weights in PyTorch."""
    for name, plan in folder.json("config.json")["streams"].items():
        v = folder.tensors(f"stream_{name}.safetensors")
        _stream(hift, folder, name, [v[f"c{number}.mel"] for number in range(len(plan["calls"]))], report)


def _stream(hift: HiFT | CausalHiFT, folder: VectorFolder, name: str, mels: list[Tensor], report: Report) -> None:
    v, label = folder.tensors(f"stream_{name}.safetensors"), f"{folder.path.name}/stream_{name}"
    if isinstance(hift, CausalHiFT):
        _causal_stream(hift, folder, v, mels, label, report)
    else:
        _overlapped_stream(hift, folder, v, mels, label, report)


def _noise(folder: VectorFolder, offset: int, samples: int) -> Tensor:
    """[1, samples, H] of the periodic noise block from `offset` on."""
    block = folder.tensors("source_noise_block.safetensors")["block"]
    return block[(offset + torch.arange(samples)) % len(block)][None]


def _source_from(hift: HiFT, f0: Tensor, noise: Tensor) -> Tensor:
    phase, _ = hift.m_source.phase(f0, PARITY)
    return torch.as_tensor(hift.m_source(f0, noise, phase))


def _overlapped_alone(hift: HiFT, folder: VectorFolder, report: Report) -> None:
    v, label = folder.tensors("hift.safetensors"), f"{folder.path.name}/hift"
    samples = v["mel"].shape[2] * hift.config.frame_samples
    f0 = hift.f0_predictor(v["mel"])
    report.check_close(f"{label}.f0", f0, v["f0"], F0_TOLERANCE_HZ)
    noise = _noise(folder, int(v["source_noise_offset"]), samples)
    source = _source_from(hift, v["f0"], noise)
    report.check_close(f"{label}.source", source, v["source"], SOURCE_TOLERANCE)
    report.check_close(f"{label}.wav (f0 given)", hift(v["mel"], source), v["wav"], INJECTED_TOLERANCE)
    report.check_snr(f"{label}.wav", hift(v["mel"], _source_from(hift, f0, noise)), v["wav"])
    cached = _source_from(hift, v["f0"], _noise(folder, int(v["cached.source_noise_offset"]), samples))
    cached[:, :, : v["cached.cache_source"].shape[2]] = v["cached.cache_source"]
    report.check_close(f"{label}.cached.source", cached, v["cached.source"], SOURCE_TOLERANCE)
    report.check_close(f"{label}.cached.wav", hift(v["mel"], cached), v["cached.wav"], INJECTED_TOLERANCE)
    decoded = hift(v["decode.mel"], v["decode.source"])
    report.check_close(f"{label}.decode.wav", decoded, v["decode.wav"], INJECTED_TOLERANCE)


def _overlapped_stream(
    hift: HiFT, folder: VectorFolder, v: Tensors, mels: list[Tensor], label: str, report: Report
) -> None:
    """Tokens to audio, call by call: with the golden f0, and with our own."""
    vocoder = StreamVocoder(hift, UPSTREAM_POLICY)
    own, given = vocoder.initial_state(), vocoder.initial_state()
    for number, mel in enumerate(mels):
        is_last = number == len(mels) - 1
        seen = torch.cat([own.mel_tail, mel[0]], 1)[None]
        report.check_close(f"{label}.c{number}.f0", hift.f0_predictor(seen), v[f"c{number}.f0"], F0_TOLERANCE_HZ)
        noise = _stream_noise(folder, v, number, seen.shape[2] * hift.config.frame_samples)
        source = _source_from(hift, v[f"c{number}.f0"], noise)
        if given.source_tail is not None:
            source[0, 0, : len(given.source_tail)] = given.source_tail
        wav = v[f"c{number}.wav"]
        (got,), (given,), _ = vocoder.forward([VocoderInput(given, mel[0], 0, is_last)], source=source)
        report.check_close(f"{label}.c{number}.wav (f0 given)", got[None], wav, INJECTED_TOLERANCE)
        (got,), (own,), _ = vocoder.forward([VocoderInput(own, mel[0], 0, is_last)], noise=noise)
        report.check_snr(f"{label}.c{number}.wav", got[None], wav)
        check_vocoder_caches(report, f"{label}.c{number}.cache_", v, f"c{number}.cache_", given)


def _stream_noise(folder: VectorFolder, v: Tensors, number: int, samples: int) -> Tensor:
    """The call's source noise: zero but in the stream that names an offset."""
    offset = v.get(f"c{number}.source_noise_offset")
    noise = _noise(folder, 0 if offset is None else int(offset), samples)
    return torch.zeros_like(noise) if offset is None else noise


def _causal_alone(hift: CausalHiFT, folder: VectorFolder, report: Report) -> None:
    v, label = folder.tensors("hift.safetensors"), f"{folder.path.name}/hift"
    f0, source, wav = _causal_whole(hift, folder, v["mel"])
    prefixes = sorted({int(match[1]) for key in v if (match := re.match(r"prefix(\d+)\.", key))})
    for key, got, tolerance in (
        ("f0", f0, F0_TOLERANCE_HZ),
        ("source", source[None], SOURCE_TOLERANCE),
        ("wav", wav, INJECTED_TOLERANCE),
    ):
        report.check_close(f"{label}.{key}", got, v[key], tolerance)
        for frames in prefixes:
            # What the original makes of a prefix is the beginning of the whole.
            expected = v[f"prefix{frames}.{key}"]
            report.check_close(f"{label}.prefix{frames}.{key}", got[..., : expected.shape[-1]], expected, tolerance)
    total = v["mel"].shape[2]
    inner = {frames for prefix in prefixes for frames in (prefix, prefix + 1) if frames < total}  # also pieces of 1
    pieces = _in_pieces(
        hift, folder, [v["mel"][:, :, start:end] for start, end in pairwise([0, *sorted(inner), total])]
    )
    report.check_close(f"{label}.wav (incremental)", torch.cat(pieces)[None], v["wav"], INJECTED_TOLERANCE)
    _causal_decode(hift, v, label, report)


def _causal_decode(hift: CausalHiFT, v: Tensors, label: str, report: Report) -> None:
    rows, _, frames = v["decode.mel"].shape
    source, state = v["decode.source"][:, 0], hift.initial_state(rows)
    for key, mel, count, is_last in (
        ("decode.final.wav", functional.pad(v["decode.mel"], (0, hift.lookahead)), frames, True),
        ("decode.notfinal.wav", v["decode.mel"], frames - hift.lookahead, False),
    ):
        wav, _ = hift.decode(mel, source, torch.full((rows,), count), torch.full((rows,), is_last), state)
        # The original holds back a whole frame where the last 4 samples are enough.
        got = wav[:, hift.held_samples :][:, : v[key].shape[1]]
        report.check_close(f"{label}.{key}", got, v[key], INJECTED_TOLERANCE)


def _causal_whole(hift: CausalHiFT, folder: VectorFolder, mel: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return f0 [1, T], source [1, 480 T] and samples [1, 480 T] of a whole mel."""
    frames, samples = mel.shape[2], mel.shape[2] * hift.config.frame_samples
    padded, count = functional.pad(mel, (0, hift.lookahead)), torch.tensor([frames])
    state, noise = hift.initial_state(1), _noise(folder, 0, samples + hift.config.frame_samples)
    f0, source, _ = hift.excite(padded, count, state, noise, PARITY)
    wav, _ = hift(padded, count, torch.tensor([True]), state, noise, PARITY)
    return f0[:, :frames], source[:, :samples], wav[:, hift.held_samples :]


def _in_pieces(hift: CausalHiFT, folder: VectorFolder, mels: list[Tensor]) -> list[Tensor]:
    """Return the samples of every piece, the last one ending the stream."""
    block = folder.tensors("source_noise_block.safetensors")["block"]
    vocoder = CausalStreamVocoder(hift, UPSTREAM_POLICY, block)
    state, made = vocoder.initial_state(), []
    for number, mel in enumerate(mels):
        row = VocoderInput(state, mel[0], 0, number == len(mels) - 1)
        (samples,), (state,) = vocoder.vocode([row])
        made.append(samples)
    return made


def _causal_stream(
    hift: CausalHiFT, folder: VectorFolder, v: Tensors, mels: list[Tensor], label: str, report: Report
) -> None:
    """Tokens to audio: the whole stream, and piece by piece, from the golden mel and from our own."""
    golden = [v[f"c{number}.mel"] for number in range(len(mels))]
    report.check_close(f"{label}.accumulated_mel", torch.cat(mels, 2), v["accumulated_mel"], FLOW_TOLERANCE)
    f0, source, whole = _causal_whole(hift, folder, v["accumulated_mel"])
    report.check_close(f"{label}.f0", f0, v["f0"], F0_TOLERANCE_HZ)
    report.check_close(f"{label}.source", source[None], v["source"], SOURCE_TOLERANCE)
    incremental = torch.cat(_in_pieces(hift, folder, golden))[None]
    own = torch.cat(_in_pieces(hift, folder, mels))[None]
    start = 0
    for number in range(len(mels)):
        wav = v[f"c{number}.wav"]
        window = slice(start, start + wav.shape[1])
        start = window.stop
        report.check_close(f"{label}.c{number}.wav", whole[:, window], wav, INJECTED_TOLERANCE)
        report.check_close(f"{label}.c{number}.wav (incremental)", incremental[:, window], wav, INJECTED_TOLERANCE)
        report.check_snr(f"{label}.c{number}.wav (own mel)", own[:, window], wav)
    report.check_equal(f"{label}.samples", [incremental.shape[1], own.shape[1]], [start, start])
