"""Golden cases of the vocoders of all families: their parts alone, and whole streams from tokens to audio."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from token2wav_service.checkpoint.loader import build_vocoder
from token2wav_service.models.causal import VocoderInput
from token2wav_service.models.config import HiFTConfig
from token2wav_service.models.vocoder.causal_hift import CausalHiFT
from token2wav_service.models.vocoder.causal_vocoder_stream import CausalStreamVocoder
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.models.vocoder.vocoder_stream import StreamVocoder, VocoderState, total_frames
from token2wav_service.replay.flow_cases import UPSTREAM_POLICY, Chunk, chunks_of, replay_block_flow, stream_flow
from token2wav_service.replay.vectors import DECODE_TOLERANCE, GoldenCase, VectorFolder, probed


def load_hift_vectors(folder: VectorFolder) -> HiFT:
    """Build the vocoder of a `*_hift` folder."""
    return folder.load(HiFT(HiFTConfig.from_mapping(folder.json("config.json"))))


def load_family_vocoder(folder: VectorFolder) -> HiFT | CausalHiFT:
    """Build the vocoder of a `cosyvoice2_unet` or `cosyvoice3_dit` folder, whose sizes have names of their own."""
    config = folder.json("config.json")
    sizes, values = config["hift"], config["vocoder_fixed"]
    values["istft_params"] = {name: values.pop(name) for name in ("n_fft", "hop_len")}
    dilations = [values["resblock_dilation_sizes"]] * len(values["resblock_kernel_sizes"])
    values |= {"resblock_dilation_sizes": dilations, "source_resblock_dilation_sizes": dilations}
    values |= {"base_channels": sizes["base_channels"], "f0_predictor": {"cond_channels": sizes["f0_channels"]}}
    return folder.load(build_vocoder(HiFTConfig.from_mapping(values)), "hift_weights.safetensors")


def replay_hift(folder: VectorFolder) -> None:
    """Step-Audio2's vocoder: its source, its decoder's stages, and whole calls."""
    hift = load_hift_vectors(folder)
    module = hift.m_source
    for case in folder.cases("source*"):
        phase, _ = module.phase(case["f0"], is_reference=True)
        case.close("f0", hift.f0_predictor(case["mel"]))
        case.close("uv", module.voiced(case["f0"]))
        case.close("sine_no_noise", module.sines(case["f0"], phase))
        case.close("source", module(case["f0"], case["noise"], phase))
    for case in folder.cases("decode*"):
        with probed(hift, _stages(hift)) as stages:
            case.close("wav", hift(case["mel"], case["source"]), tolerance=DECODE_TOLERANCE)
        case.part("stage.", ".stage").close_all(stages)
        for key, got in zip(("stft_real", "stft_imag"), hift.stft(case["source"][:, 0]).chunk(2, 1), strict=True):
            case.close(key, got)
    for call in (call for case in folder.cases("forward*") for call in case.calls()):
        source = _source(hift, hift.f0_predictor(call["mel"]), call["noise"], call.get("cache_source"))
        call.close("source", source)
        call.snr("wav", hift(call["mel"], source))
        call.close("wav", hift(call["mel"], call["source"]), " (source injected)", DECODE_TOLERANCE)


def replay_stream(folder: VectorFolder) -> None:
    """Tokens to audio, chunk by chunk, by the flow and the vocoder beside a `*_stream` folder."""
    prompt, flow = folder.case("prompt"), stream_flow(folder.beside("flow"))
    vocoder = StreamVocoder(load_hift_vectors(folder.beside("hift")), UPSTREAM_POLICY)
    prompt.close("speech_window", vocoder.window)
    silence = torch.zeros(1, vocoder.hift.m_source.harmonics)
    for case in folder.cases("*"):
        if case.name != "prompt":
            _overlapped_stream(vocoder, (chunk for chunk, *_ in chunks_of(flow, prompt, case)), silence)


def replay_family(folder: VectorFolder) -> None:
    """Everything of a `cosyvoice2_unet` or `cosyvoice3_dit` folder: its vocoder speaks the mels that our flow makes."""
    streams = replay_block_flow(folder)
    hift, block = load_family_vocoder(folder), folder.tensors("source_noise_block.safetensors")["block"]
    if isinstance(hift, CausalHiFT):
        _causal_alone(hift, folder.case("hift"), block)
        for case, chunks in streams:
            _causal_stream(hift, case, chunks, block)
    else:
        _overlapped_alone(hift, folder.case("hift"), block)
        for _, chunks in streams:
            _overlapped_stream(StreamVocoder(hift, UPSTREAM_POLICY), chunks, block)


def _stages(hift: HiFT) -> dict[str, str]:
    per_stage = len(hift.config.resblock_kernel_sizes)
    paths = {"conv_pre": "conv_pre", "conv_post": "conv_post"}
    for stage in range(len(hift.ups)):
        paths |= {f"ups{stage}": f"ups.{stage}", f"source_branch{stage}": f"source_resblocks.{stage}"}
        for block in range(per_stage):
            paths[f"stage{stage}_resblock{block}"] = f"resblocks.{stage * per_stage + block}"
    return paths


def _source(hift: HiFT, f0: Tensor, noise: Tensor, beginning: Tensor | None = None) -> Tensor:
    """Return the source [B, 1, N] of a pitch as upstream makes it; a given beginning [n] or [B, 1, n] stays."""
    phase, _ = hift.m_source.phase(f0, is_reference=True)
    source = torch.as_tensor(hift.m_source(f0, noise, phase))
    if beginning is not None:
        source[:, :, : beginning.shape[-1]] = beginning
    return source


def _noise(case: GoldenCase, block: Tensor, samples: int) -> Tensor:
    """Return noise [1, samples, H]: the given one, or the periodic block's from an offset on; zero without either."""
    if "noise" in case:
        return case["noise"]
    offset = int(case.get("source_noise_offset", torch.tensor(0)))
    return block[(offset + torch.arange(samples)) % len(block)][None] * ("source_noise_offset" in case)


def _overlapped_alone(hift: HiFT, case: GoldenCase, block: Tensor) -> None:
    mel, cached = case["mel"], case.part("cached.", ".cached")
    samples = mel.shape[2] * hift.config.frame_samples
    f0, noise = hift.f0_predictor(mel), _noise(case, block, samples)
    source = _source(hift, case["f0"], noise)
    case.close("f0", f0)
    case.close("source", source)
    case.close("wav", hift(mel, source), " (f0 given)")
    case.snr("wav", hift(mel, _source(hift, f0, noise)))
    source = _source(hift, case["f0"], _noise(cached, block, samples), cached["cache_source"])
    cached.close("source", source)
    cached.close("wav", hift(mel, source))
    case.close("decode.wav", hift(case["decode.mel"], case["decode.source"]))


def _overlapped_stream(vocoder: StreamVocoder, chunks: Iterable[Chunk], block: Tensor) -> None:
    """Vocode a stream call by call: from our own source, and from the golden one or that of the golden pitch."""
    hift, device = vocoder.hift, vocoder.window.device
    own, given = vocoder.initial_state(), vocoder.initial_state()
    for call, mel, is_last in chunks:
        call.close("f0", hift.f0_predictor(torch.cat([own.mel_tail, mel], 1)[None]))
        row = VocoderInput(own, mel, 0, is_last)
        noise = _noise(call, block, total_frames(row) * hift.config.frame_samples).to(device)
        (wav,), (own,), source = vocoder.forward([row], noise=noise)
        call.snr("wav", wav)
        call.snr("source_out", source)
        golden, note = call.get("source_out"), " (source injected)"
        if "f0" in call:
            golden, note = _source(hift, call["f0"], noise, given.source_tail), " (f0 given)"
        if golden is not None:
            (wav,), (given,), _ = vocoder.forward([replace(row, state=given)], source=golden.to(device))
            call.close("wav", wav, note)
            for prefix in ("cache_after.", "cache_"):
                _check_caches(call.part(prefix, f".{prefix[:-1]}"), given)


def _check_caches(case: GoldenCase, state: VocoderState) -> None:
    assert state.source_tail is not None and state.speech_tail is not None
    case.close("mel", state.mel_tail)
    case.close("source", state.source_tail)
    case.close("speech", state.speech_tail)


def _causal_alone(hift: CausalHiFT, case: GoldenCase, block: Tensor) -> None:
    mel, prefixes = case["mel"], case.numbers("prefix")
    for key, got in _causal_whole(hift, mel, block).items():
        case.close(key, got)
        for name in (f"prefix{frames}.{key}" for frames in prefixes):
            # What the original makes of a prefix is the beginning of the whole.
            case.close(name, got[..., : case[name].shape[-1]])
    total = mel.shape[2]
    inner = {frames for prefix in prefixes for frames in (prefix, prefix + 1) if frames < total}  # also pieces of 1
    pieces = [mel[0, :, start:end] for start, end in pairwise([0, *sorted(inner), total])]
    case.close("wav", _in_pieces(hift, pieces, block), " (incremental)")
    mel, source = case["decode.mel"], case["decode.source"][:, 0]
    rows, _, frames = mel.shape
    state = hift.initial_state(rows)
    for key, given, count, is_last in (
        ("decode.final.wav", functional.pad(mel, (0, hift.lookahead)), frames, True),
        ("decode.notfinal.wav", mel, frames - hift.lookahead, False),
    ):
        wav, _ = hift.decode(given, source, torch.full((rows,), count), torch.full((rows,), is_last), state)
        # The original holds back a whole frame where the last 4 samples are enough.
        case.close(key, wav[:, hift.held_samples :][:, : case[key].shape[1]])


def _causal_whole(hift: CausalHiFT, mel: Tensor, block: Tensor) -> dict[str, Tensor]:
    """Return f0 [1, T], source [1, 1, 480 T] and samples [480 T] of a whole mel [1, 80, T], by name."""
    frames = mel.shape[2]
    with probed(hift, {"f0": "f0_predictor", "source": "m_source"}) as made:
        wav = _in_pieces(hift, mel, block)
    source = made["source"][:, :, : frames * hift.config.frame_samples]
    return {"f0": made["f0"][:, :frames].float(), "source": source, "wav": wav}


def _in_pieces(hift: CausalHiFT, mels: Sequence[Tensor] | Tensor, block: Tensor) -> Tensor:
    """Return the samples [N] of a stream whose calls have these mels [80, F]."""
    vocoder = CausalStreamVocoder(hift, UPSTREAM_POLICY, block)
    state, made = vocoder.initial_state(), []
    for number, mel in enumerate(mels):
        (samples,), (state,) = vocoder.vocode([VocoderInput(state, mel, 0, number == len(mels) - 1)])
        made.append(samples)
    return torch.cat(made)


def _causal_stream(hift: CausalHiFT, case: GoldenCase, chunks: Sequence[Chunk], block: Tensor) -> None:
    """Tokens to audio: the whole stream, and piece by piece, from the golden mel and from our own."""
    calls, mels, _ = zip(*chunks, strict=True)
    case.close("accumulated_mel", torch.cat(mels, 1))
    whole, start = _causal_whole(hift, case["accumulated_mel"], block), 0
    for key, got in whole.items():
        case.close(key, got)
    incremental, own = _in_pieces(hift, [call["mel"][0] for call in calls], block), _in_pieces(hift, mels, block)
    for call in calls:
        window = slice(start, start := start + call["wav"].shape[1])
        call.close("wav", whole["wav"][window])
        call.close("wav", incremental[window], " (incremental)")
        call.snr("wav", own[window], " (own mel)")
    case.equal("samples", [len(incremental), len(own)], [start, start])
