"""Finds the golden folders below a directory and replays each with what fits its name.

Here are the cases of the audio front end, of a whole checkpoint directory, and of parts called alone: DiT, encoder,
solver and vocoder.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from token2wav_service.checkpoint.loader import load_flow, load_vocoder
from token2wav_service.errors import CheckpointError
from token2wav_service.features import mel
from token2wav_service.features.audio import resample_16k_to_24k
from token2wav_service.models.config import DiTConfig, EncoderConfig, pick_fields
from token2wav_service.models.flow.cfm import ConditionalFlowMatching, EstimatorHistory, SolverHistory, time_grid
from token2wav_service.models.flow.dit import DiT, time_features
from token2wav_service.models.flow.encoder import ConformerEncoder
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.replay import block_flow_cases, block_vocoder_cases, stream_cases
from token2wav_service.replay.block_flow_cases import position_table, seen
from token2wav_service.replay.stream_cases import check_ends, leaking_padding, load_hift_vectors, upstream_source
from token2wav_service.replay.vectors import (
    DECODE_TOLERANCE,
    F0_TOLERANCE_HZ,
    FEATURE_TOLERANCE,
    SOURCE_TOLERANCE,
    GoldenCase,
    Row,
    VectorFolder,
    probed,
)


@torch.inference_mode()
def replay_directory(directory: Path, device: str | None = None) -> list[Row]:
    """Replay every golden folder (`<letter>_<kind>`) below `directory`.

    On a device only the streams of `*_flow` and `*_stream`.

    Raises:
        CheckpointError: there is none, or a folder lacks a file or a neighbour that its kind needs.
    """
    rows: list[Row] = []
    kinds = _KINDS if device is None else {kind: partial(_ON_DEVICES[kind], device=device) for kind in _ON_DEVICES}
    found = [VectorFolder(path, rows) for path in sorted(directory.glob("*")) if path.is_dir()]
    folders = [folder for folder in found if folder.kind in kinds]
    if not folders:
        raise CheckpointError(f"{directory} holds no golden folder; expected names such as a_dit or d_flow")
    for folder in folders:
        kinds[folder.kind](folder)
    return rows


def _family(folder: VectorFolder) -> None:
    block_vocoder_cases.replay_family_vocoder(folder, block_flow_cases.replay_block_flow(folder))


def _features(folder: VectorFolder) -> None:
    """Resampling, mel banks and the three spectral features."""
    for case in folder.cases("*"):
        audio_16k, audio_24k = case["audio_16k"].numpy(), case["audio_24k"].flatten().numpy()
        outputs = {
            "audio_24k": resample_16k_to_24k(audio_16k),
            "mel_filters_24k": mel.flow_mel_filters(),
            "mel_24k": mel.flow_mel_24k(audio_24k).T,
            "s3_mel_filters": mel.s3_mel_filters(),
            "s3_log_mel": mel.s3_log_mel(audio_16k),
            "fbank": mel.kaldi_fbank(audio_16k),
            "fbank_mean_sub": mel.speaker_fbank(audio_16k),
        }
        for name, got in outputs.items():
            case.close(name, torch.tensor(got), FEATURE_TOLERANCE)


def _checkpoint(folder: VectorFolder) -> None:
    """The directory loads strictly, and its speaker encoder gives the expected embedding."""
    from onnxruntime import InferenceSession

    model_dir = folder.path / "token2wav"
    sizes = [sum(p.numel() for p in module.parameters()) for module in (load_flow(model_dir), load_vocoder(model_dir))]
    loads = GoldenCase({}, f"{folder.path.name}/loads", folder.rows)
    loads.equal("strictly", [size > 0 for size in sizes], [True, True])
    for case in folder.cases("campplus_expected*"):
        fbank = folder.beside("features").tensors("features.safetensors")["fbank_mean_sub"]
        session = InferenceSession(str(model_dir / "campplus.onnx"), providers=["CPUExecutionProvider"])
        (embedding,) = session.run(None, {session.get_inputs()[0].name: fbank[None].numpy()})
        case.close("embedding", torch.tensor(embedding))


def _dit(folder: VectorFolder) -> None:
    dit = folder.load(DiT(pick_fields(DiTConfig, folder.json("config.json"))))
    for case in folder.cases("timestep*"):
        case.close("sinusoid", time_features(case["t"]))
        case.close("embedding", dit.t_embedder(case["t"]))
    for case in folder.cases("forward*"):
        if "chunk" in case.name:
            _dit_chunks(dit, case)
            continue
        for key, valid in (("out", case["mask"]), ("out_full_mask", torch.ones_like(case["mask"]))):
            case.close(key, dit(*case.take("x", "mu", "spks", "cond", "t"), *seen(valid))[0])


def _dit_chunks(dit: DiT, case: GoldenCase) -> None:
    history: EstimatorHistory | None = None
    for call in case.calls():
        rows, _, frames = call["x"].shape
        mask, lengths = _all_seen(rows, 0 if history is None else history.kv.shape[3], frames)
        out, own = dit(call["x"], call["mu"], case["spks"], call["cond"], call["t"], mask, lengths, history)
        history = own if history is None else EstimatorHistory(torch.cat([own.kv, history.kv], 3), own.tail)
        call.close("out", out)
        call.close("cnn_cache", history.tail)
        call.close("att_cache", history.kv)


def _all_seen(rows: int, held: int, frames: int) -> tuple[Tensor, Tensor]:
    """Return the mask of new frames that see all held ones and each other, and the rows' new lengths."""
    return torch.ones(rows, 1, 1, held + frames, dtype=torch.bool), torch.full((rows,), frames)


def _encoder(folder: VectorFolder) -> None:
    encoder = folder.load(ConformerEncoder(pick_fields(EncoderConfig, folder.json("config.json"))))
    for case in folder.cases("offline*"):
        _encoder_whole(encoder, case)
    for case in folder.cases("forward_chunk*"):
        _encoder_chunks(encoder, case)


def _encoder_whole(encoder: ConformerEncoder, case: GoldenCase) -> None:
    xs, lengths = case.take("xs", "xs_lens")
    last = torch.ones(len(lengths), dtype=torch.bool)
    with leaking_padding(encoder):
        out, frames, _ = encoder(xs, lengths, last)
    case.close("out", out)
    case.equal_lengths("out_mask", frames)
    case.close("pos_emb_T", position_table(*xs.shape[1:]))
    clean, _, _ = encoder(xs, lengths, last)
    for row, length in enumerate(lengths.tolist()):
        if (key := f"single{row}.out") in case:
            one = slice(row, row + 1)
            case.close(key, encoder(xs[one, :length], lengths[one], last[:1])[0])
            case.close(key, clean[one, : 2 * length], note=" (batched)")


def _encoder_chunks(encoder: ConformerEncoder, case: GoldenCase) -> None:
    kept: dict[str, Tensor] = {}
    held: Tensor | None = None
    for call in case.calls():
        rows, size, _ = call["xs"].shape
        last = call["last_chunk"].bool().expand(rows)
        out, _, own = encoder(call["xs"], torch.full((rows,), size), last, kept or None, held)
        kept = {name: torch.cat([kept[name], new], 3) if kept and "kv" in name else new for name, new in own.items()}
        held = torch.full((rows,), kept["token_kv"].shape[3])
        call.close("out", out)
        call.close("cnn_cache", torch.cat([kept["lookahead_tail"], kept["upsample_tail"]], 2))
        call.close("att_cache", torch.cat([kept["token_kv"].repeat(1, 1, 1, 2, 1), kept["frame_kv"]]))


def _cfm(folder: VectorFolder) -> None:
    config = folder.json("config.json")
    cfm = ConditionalFlowMatching(DiT(pick_fields(DiTConfig, config["estimator"])), config["inference_cfg_rate"])
    weights = (folder.path / config["weights"]).resolve()
    VectorFolder(weights.parent).load(cfm.estimator, weights.name)
    for case in folder.cases("offline*"):
        for steps in case.numbers("n"):
            inputs = case.take(f"n{steps}.z", "mu", "spks", "cond")
            case.close(f"n{steps}.out", cfm(*inputs, *seen(case["mask"]), steps)[0])
            case.close(f"n{steps}.t_span", time_grid(steps))
    for case in folder.cases("chunk*"):
        _cfm_chunks(cfm, case)


def _cfm_chunks(cfm: ConditionalFlowMatching[DiT], case: GoldenCase) -> None:
    match = re.search(r"n(\d+)", case.name)
    steps = int(match[1]) if match else 10
    history: SolverHistory | None = None
    for call in case.calls():
        rows, _, frames = call["mu"].shape
        held = 0 if history is None else history.kv.shape[5]
        noise = case["rand_noise"][:, :, held : held + frames].expand(rows, -1, -1)
        mask, lengths = _all_seen(rows, held, frames)
        out, own = cfm(noise, call["mu"], case["spks"], call["cond"], mask, lengths, steps, history)
        history = own if history is None else SolverHistory(torch.cat([own.kv, history.kv], 5), own.tail)
        call.close("out", out)
        # Upstream's layout: [n, L, 2B, 2C, 2] and [n, L, 2B, h, t, 2d].
        check_ends(call, "cnn_cache", history.tail.flatten(2, 3))
        check_ends(call, "att_cache", history.kv.flatten(2, 3))


def _hift(folder: VectorFolder) -> None:
    hift = load_hift_vectors(folder)
    module = hift.m_source
    for case in folder.cases("source*"):
        f0 = case["f0"]
        phase, _ = module.phase(f0, is_reference=True)
        case.close("f0", hift.f0_predictor(case["mel"]), F0_TOLERANCE_HZ)
        case.close("uv", module.voiced(f0), 0.0)
        case.close("sine_no_noise", module.sines(f0, phase), SOURCE_TOLERANCE)
        case.close("source", module(f0, case["noise"], phase), SOURCE_TOLERANCE)
    for case in folder.cases("decode*"):
        _decode(hift, case)
    for case in folder.cases("forward*"):
        for call in case.calls():
            f0 = hift.f0_predictor(call["mel"])
            source = upstream_source(hift, f0, call["noise"])
            if "cache_source" in call:
                source[:, :, : call["cache_source"].shape[2]] = call["cache_source"]
            call.close("source", source, SOURCE_TOLERANCE)
            call.snr("wav", hift(call["mel"], source))
            call.close("wav", hift(call["mel"], call["source"]), DECODE_TOLERANCE, " (source injected)")


def _decode(hift: HiFT, case: GoldenCase) -> None:
    with probed(hift, _stages(hift)) as stages:
        case.close("wav", hift(case["mel"], case["source"]), DECODE_TOLERANCE)
    spectrum = hift.stft(case["source"].squeeze(1)).chunk(2, 1)
    for key, got in zip(("stft_real", "stft_imag"), spectrum, strict=True):
        case.close(key, got, DECODE_TOLERANCE)
    case.part("stage.", ".stage").close_all(stages, DECODE_TOLERANCE)


def _stages(hift: HiFT) -> dict[str, str]:
    per_stage = len(hift.config.resblock_kernel_sizes)
    paths = {"conv_pre": "conv_pre", "conv_post": "conv_post"}
    for stage in range(len(hift.ups)):
        paths |= {f"ups{stage}": f"ups.{stage}", f"source_branch{stage}": f"source_resblocks.{stage}"}
        for block in range(per_stage):
            paths[f"stage{stage}_resblock{block}"] = f"resblocks.{stage * per_stage + block}"
    return paths


_KINDS: dict[str, Callable[[VectorFolder], None]] = {
    "dit": _dit,
    "encoder": _encoder,
    "cfm": _cfm,
    "flow": stream_cases.replay_flow,
    "hift": _hift,
    "stream": stream_cases.replay_stream,
    "features": _features,
    "checkpoint": _checkpoint,
    "cosyvoice2_unet": _family,
    "cosyvoice3_dit": _family,
}
_ON_DEVICES = {"flow": stream_cases.replay_flow_streams, "stream": stream_cases.replay_stream}
