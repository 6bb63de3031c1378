"""Golden cases of the vocoders behind the block-masked flows: alone, and whole streams from tokens to audio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from token2wav_service.checkpoint.loader import build_vocoder
from token2wav_service.models.causal import VocoderInput
from token2wav_service.models.config import HiFTConfig
from token2wav_service.models.vocoder.causal_hift import CausalHiFT
from token2wav_service.models.vocoder.causal_vocoder_stream import CausalStreamVocoder
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.models.vocoder.vocoder_stream import StreamVocoder
from token2wav_service.replay.stream_cases import UPSTREAM_POLICY, check_vocoder_caches, upstream_source
from token2wav_service.replay.vectors import (
    F0_TOLERANCE_HZ,
    INJECTED_TOLERANCE,
    SOURCE_TOLERANCE,
    GoldenCase,
    VectorFolder,
)


def load_family_vocoder(folder: VectorFolder) -> HiFT | CausalHiFT:
    """Build the vocoder of a `cosyvoice2_unet` or `cosyvoice3_dit` folder."""
    config = folder.json("config.json")
    sizes, fixed = config["hift"], config["vocoder_fixed"]
    dilations = [fixed["resblock_dilation_sizes"]] * len(fixed["resblock_kernel_sizes"])
    named = {
        **{name: value for name, value in fixed.items() if name not in ("n_fft", "hop_len")},
        "base_channels": sizes["base_channels"],
        "f0_predictor": {"cond_channels": sizes["f0_channels"]},
        "istft_params": fixed,
        "resblock_dilation_sizes": dilations,
        "source_resblock_dilation_sizes": dilations,
    }
    return folder.load(build_vocoder(HiFTConfig.from_mapping(named)), "hift_weights.safetensors")


def replay_family_vocoder(folder: VectorFolder, mels: Mapping[str, Sequence[Tensor]]) -> None:
    """Everything of a folder that needs the vocoder; `mels` [1, 80, F] of the streams' calls are our own."""
    hift, noise = load_family_vocoder(folder), folder.tensors("source_noise_block.safetensors")["block"]
    alone: Any = _causal_alone if isinstance(hift, CausalHiFT) else _overlapped_alone
    stream: Any = _causal_stream if isinstance(hift, CausalHiFT) else _overlapped_stream
    alone(hift, folder.case("hift"), noise)
    for name, made in mels.items():
        stream(hift, folder.case(f"stream_{name}"), made, noise)


def _drawn(noise: Tensor, offset: Tensor | int, samples: int) -> Tensor:
    """[1, samples, H] of the periodic noise block from `offset` on."""
    return noise[(int(offset) + torch.arange(samples)) % len(noise)][None]


def _overlapped_alone(hift: HiFT, case: GoldenCase, block: Tensor) -> None:
    mel, given = case["mel"], case["f0"]
    samples = mel.shape[2] * hift.config.frame_samples
    f0, noise = hift.f0_predictor(mel), _drawn(block, case["source_noise_offset"], samples)
    source = upstream_source(hift, given, noise)
    case.close("f0", f0, F0_TOLERANCE_HZ)
    case.close("source", source, SOURCE_TOLERANCE)
    case.close("wav", hift(mel, source), INJECTED_TOLERANCE, " (f0 given)")
    case.snr("wav", hift(mel, upstream_source(hift, f0, noise)))
    cached = upstream_source(hift, given, _drawn(block, case["cached.source_noise_offset"], samples))
    cached[:, :, : case["cached.cache_source"].shape[2]] = case["cached.cache_source"]
    case.close("cached.source", cached, SOURCE_TOLERANCE)
    case.close("cached.wav", hift(mel, cached), INJECTED_TOLERANCE)
    case.close("decode.wav", hift(case["decode.mel"], case["decode.source"]), INJECTED_TOLERANCE)


def _overlapped_stream(hift: HiFT, case: GoldenCase, mels: Sequence[Tensor], block: Tensor) -> None:
    """Tokens to audio, call by call: with the golden f0, and with our own."""
    vocoder = StreamVocoder(hift, UPSTREAM_POLICY)
    own, given = vocoder.initial_state(), vocoder.initial_state()
    for number, (mel, call) in enumerate(zip(mels, case.calls(), strict=True)):
        is_last = number == len(mels) - 1
        seen = torch.cat([own.mel_tail, mel[0]], 1)[None]
        call.close("f0", hift.f0_predictor(seen), F0_TOLERANCE_HZ)
        # The noise is zero but in the stream that names an offset.
        has_noise = "source_noise_offset" in call
        offset = call["source_noise_offset"] if has_noise else 0
        noise = _drawn(block, offset, seen.shape[2] * hift.config.frame_samples) * has_noise
        source = upstream_source(hift, call["f0"], noise)
        if (tail := given.source_tail) is not None:
            source[0, 0, : len(tail)] = tail
        (got,), (given,), _ = vocoder.forward([VocoderInput(given, mel[0], 0, is_last)], source=source)
        call.close("wav", got, INJECTED_TOLERANCE, " (f0 given)")
        (got,), (own,), _ = vocoder.forward([VocoderInput(own, mel[0], 0, is_last)], noise=noise)
        call.snr("wav", got)
        check_vocoder_caches(call.part("cache_", ".cache"), given)


def _causal_alone(hift: CausalHiFT, case: GoldenCase, block: Tensor) -> None:
    mel = case["mel"]
    f0, source, wav = _causal_whole(hift, mel, block)
    prefixes = case.numbers("prefix")
    tolerances = (F0_TOLERANCE_HZ, SOURCE_TOLERANCE, INJECTED_TOLERANCE)
    for key, got, tolerance in zip(("f0", "source", "wav"), (f0, source, wav), tolerances, strict=True):
        case.close(key, got, tolerance)
        for name in (f"prefix{frames}.{key}" for frames in prefixes):
            # What the original makes of a prefix is the beginning of the whole.
            case.close(name, got[..., : case[name].shape[-1]], tolerance)
    total = mel.shape[2]
    inner = {frames for prefix in prefixes for frames in (prefix, prefix + 1) if frames < total}  # also pieces of 1
    pieces = [mel[:, :, start:end] for start, end in pairwise([0, *sorted(inner), total])]
    case.close("wav", torch.cat(_in_pieces(hift, pieces, block))[None], INJECTED_TOLERANCE, " (incremental)")
    _causal_decode(hift, case)


def _causal_decode(hift: CausalHiFT, case: GoldenCase) -> None:
    mel, source = case["decode.mel"], case["decode.source"][:, 0]
    rows, _, frames = mel.shape
    state = hift.initial_state(rows)
    for key, given, count, is_last in (
        ("decode.final.wav", functional.pad(mel, (0, hift.lookahead)), frames, True),
        ("decode.notfinal.wav", mel, frames - hift.lookahead, False),
    ):
        wav, _ = hift.decode(given, source, torch.full((rows,), count), torch.full((rows,), is_last), state)
        # The original holds back a whole frame where the last 4 samples are enough.
        case.close(key, wav[:, hift.held_samples :][:, : case[key].shape[1]], INJECTED_TOLERANCE)


def _causal_whole(hift: CausalHiFT, mel: Tensor, block: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return f0 [1, T], source [1, 480 T] and samples [1, 480 T] of a whole mel."""
    frames, samples = mel.shape[2], mel.shape[2] * hift.config.frame_samples
    padded, count = functional.pad(mel, (0, hift.lookahead)), torch.tensor([frames])
    state, noise = hift.initial_state(1), _drawn(block, 0, samples + hift.config.frame_samples)
    f0, source, _ = hift.excite(padded, count, state, noise, is_reference=True)
    wav, _ = hift(padded, count, torch.tensor([True]), state, noise, is_reference=True)
    return f0[:, :frames], source[:, :samples], wav[:, hift.held_samples :]


def _in_pieces(hift: CausalHiFT, mels: Sequence[Tensor], block: Tensor) -> list[Tensor]:
    """Return the samples of every piece, the last one ending the stream."""
    vocoder = CausalStreamVocoder(hift, UPSTREAM_POLICY, block)
    state, made = vocoder.initial_state(), []
    for number, mel in enumerate(mels):
        (samples,), (state,) = vocoder.vocode([VocoderInput(state, mel[0], 0, number == len(mels) - 1)])
        made.append(samples)
    return made


def _causal_stream(hift: CausalHiFT, case: GoldenCase, mels: Sequence[Tensor], block: Tensor) -> None:
    """Tokens to audio: the whole stream, and piece by piece, from the golden mel and from our own."""
    calls, start = case.calls(), 0
    case.close("accumulated_mel", torch.cat([*mels], 2))
    f0, source, whole = _causal_whole(hift, case["accumulated_mel"], block)
    case.close("f0", f0, F0_TOLERANCE_HZ)
    case.close("source", source, SOURCE_TOLERANCE)
    incremental = torch.cat(_in_pieces(hift, [call["mel"] for call in calls], block))[None]
    own = torch.cat(_in_pieces(hift, mels, block))[None]
    for call in calls:
        window = slice(start, start := start + call["wav"].shape[1])
        call.close("wav", whole[:, window], INJECTED_TOLERANCE)
        call.close("wav", incremental[:, window], INJECTED_TOLERANCE, " (incremental)")
        call.snr("wav", own[:, window], " (own mel)")
    case.equal("samples", [incremental.shape[1], own.shape[1]], [start, start])
