"""Golden cases of the flow's parts: DiT, encoder and solver, called alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from token2wav_service.checkpoint.loader import load_weights
from token2wav_service.models.causal import chunk_plan, relative_sinusoids
from token2wav_service.models.config import DiTConfig, EncoderConfig, pick_fields
from token2wav_service.models.flow.cfm import ConditionalFlowMatching, EstimatorHistory, SolverHistory, time_grid
from token2wav_service.models.flow.dit import DiT, time_features
from token2wav_service.models.flow.encoder import ConformerEncoder, EncoderHistory
from token2wav_service.replay.report import FLOW_TOLERANCE, Report
from token2wav_service.replay.vectors import Tensors, VectorFolder, calls, step_counts


def replay_dit(folder: VectorFolder, report: Report) -> None:
    """Whole-utterance and chunk form of the estimator, and its time embedding."""
    dit = load_weights(DiT(_dit_config(folder.json("config.json"))), folder.tensors("weights.safetensors"), folder.path)
    for file in folder.matching("timestep*.safetensors"):
        v = folder.tensors(file.name)
        report.check_close(folder.label(file, "sinusoid"), time_features(v["t"]), v["sinusoid"], FLOW_TOLERANCE)
        report.check_close(folder.label(file, "embedding"), dit.t_embedder(v["t"]), v["embedding"], FLOW_TOLERANCE)
    for file in folder.matching("forward*.safetensors"):
        if "chunk" in file.name:
            _dit_chunks(dit, folder, file, report)
        else:
            _dit_whole(dit, folder, file, report)


def replay_encoder(folder: VectorFolder, report: Report) -> None:
    """Whole-utterance and chunk form of the conformer."""
    config = pick_fields(EncoderConfig, folder.json("config.json"))
    encoder = load_weights(ConformerEncoder(config), folder.tensors("weights.safetensors"), folder.path)
    for file in folder.matching("offline*.safetensors"):
        _encoder_whole(encoder, folder, file, report)
    for file in folder.matching("forward_chunk*.safetensors"):
        _encoder_chunks(encoder, folder, file, report)


def replay_cfm(folder: VectorFolder, report: Report) -> None:
    """The solver, whole and in chunks."""
    config = folder.json("config.json")
    cfm = ConditionalFlowMatching(DiT(_dit_config(config["estimator"])), config["inference_cfg_rate"])
    weights = (folder.path / config["weights"]).resolve()
    load_weights(cfm.estimator, VectorFolder(weights.parent).tensors(weights.name), weights)
    for file in folder.matching("offline*.safetensors"):
        _cfm_whole(cfm, folder, file, report)
    for file in folder.matching("chunk*.safetensors"):
        _cfm_chunks(cfm, folder, file, report)


def solver_cache(history: SolverHistory) -> tuple[Tensor, Tensor]:
    """Return the caches in upstream's layout: [n, L, 2B, 2C, 2] and [n, L, 2B, h, t, 2d]."""
    return history.tail.flatten(2, 3), history.kv.flatten(2, 3)


def check_ends(report: Report, label: str, call: Tensors, key: str, got: Tensor) -> None:
    """Check a cache that a vector holds whole, or (suffix _t0_tlast) at the first and last solver step only."""
    if key in call:
        report.check_close(f"{label}.{key}", got, call[key], FLOW_TOLERANCE)
    if f"{key}_t0_tlast" in call:
        report.check_close(f"{label}.{key}_t0_tlast", got[[0, -1]], call[f"{key}_t0_tlast"], FLOW_TOLERANCE)


def _dit_whole(dit: DiT, folder: VectorFolder, file: Path, report: Report) -> None:
    v = folder.tensors(file.name)
    for name, mask in (("out", v["mask"]), ("out_full_mask", torch.ones_like(v["mask"]))):
        if name in v:
            lengths = mask.sum((1, 2)).long()
            out, _ = dit(v["x"], v["mu"], v["spks"], v["cond"], v["t"], mask[:, None].bool(), lengths)
            report.check_close(folder.label(file, name), out, v[name], FLOW_TOLERANCE)


def _dit_chunks(dit: DiT, folder: VectorFolder, file: Path, report: Report) -> None:
    v = folder.tensors(file.name)
    history: EstimatorHistory | None = None
    for number, call in enumerate(calls(v)):
        rows, _, frames = call["x"].shape
        held = 0 if history is None else history.kv.shape[3]
        mask = torch.ones(rows, 1, 1, held + frames, dtype=torch.bool)
        lengths = torch.full((rows,), frames)
        out, own = dit(call["x"], call["mu"], v["spks"], call["cond"], call["t"], mask, lengths, history)
        history = own if history is None else EstimatorHistory(torch.cat([own.kv, history.kv], 3), own.tail)
        report.check_close(folder.label(file, f"c{number}.out"), out, call["out"], FLOW_TOLERANCE)
        report.check_close(folder.label(file, f"c{number}.cnn_cache"), history.tail, call["cnn_cache"], FLOW_TOLERANCE)
        report.check_close(folder.label(file, f"c{number}.att_cache"), history.kv, call["att_cache"], FLOW_TOLERANCE)


def _encoder_whole(encoder: ConformerEncoder, folder: VectorFolder, file: Path, report: Report) -> None:
    v = folder.tensors(file.name)
    last = torch.ones(len(v["xs_lens"]), dtype=torch.bool)
    out, frames, _ = encoder(v["xs"], v["xs_lens"], last, upstream_padding_leak=True)
    report.check_close(folder.label(file, "out"), out, v["out"], FLOW_TOLERANCE)
    report.check_equal(folder.label(file, "out_mask"), frames.tolist(), v["out_mask"].sum((1, 2)).tolist())
    if "pos_emb_T" in v:
        size, width = v["xs"].shape[1:]
        nothing = torch.zeros(1, dtype=torch.long)
        sinusoids = relative_sinusoids(chunk_plan(nothing, 0, nothing + size, size), width, torch.float32)
        report.check_close(folder.label(file, "pos_emb_T"), sinusoids.flip(0)[None], v["pos_emb_T"], FLOW_TOLERANCE)
    clean, _, _ = encoder(v["xs"], v["xs_lens"], last)
    for row, length in enumerate(v["xs_lens"].tolist()):
        key = f"single{row}.out"
        if key in v:
            alone, _, _ = encoder(v["xs"][row : row + 1, :length], v["xs_lens"][row : row + 1], last[:1])
            report.check_close(folder.label(file, key), alone, v[key], FLOW_TOLERANCE)
            batched = clean[row : row + 1, : 2 * length]
            report.check_close(folder.label(file, f"{key} (batched)"), batched, v[key], FLOW_TOLERANCE)


def _encoder_chunks(encoder: ConformerEncoder, folder: VectorFolder, file: Path, report: Report) -> None:
    history: EncoderHistory | None = None
    for number, call in enumerate(calls(folder.tensors(file.name))):
        rows, size, _ = call["xs"].shape
        last = call["last_chunk"].bool().expand(rows)
        history = history or encoder.empty_history(call["xs"])
        out, _, own = encoder(call["xs"], torch.full((rows,), size), last, history)
        token_kv = torch.cat([history.token_kv, own.token_kv], 3)
        frame_kv = torch.cat([history.frame_kv, own.frame_kv], 3)
        tokens, frames = (torch.full((rows,), kv.shape[3]) for kv in (token_kv, frame_kv))
        history = EncoderHistory(token_kv, frame_kv, tokens, frames, own.lookahead_tail, own.upsample_tail)
        label = folder.label(file, f"c{number}")
        report.check_close(f"{label}.out", out, call["out"], FLOW_TOLERANCE)
        if "cnn_cache" in call:
            tails = torch.cat([history.lookahead_tail, history.upsample_tail], 2)
            report.check_close(f"{label}.cnn_cache", tails, call["cnn_cache"], FLOW_TOLERANCE)
        if "att_cache" in call:
            cache = torch.cat([token_kv.repeat(1, 1, 1, 2, 1), frame_kv])
            report.check_close(f"{label}.att_cache", cache, call["att_cache"], FLOW_TOLERANCE)


def _cfm_whole(cfm: ConditionalFlowMatching[DiT], folder: VectorFolder, file: Path, report: Report) -> None:
    v = folder.tensors(file.name)
    mask = v["mask"][:, None].bool()
    lengths = v["mask"].sum((1, 2)).long()
    for steps in step_counts(v):
        out, _ = cfm(v[f"n{steps}.z"], v["mu"], v["spks"], v["cond"], mask, lengths, steps)
        report.check_close(folder.label(file, f"n{steps}.out"), out, v[f"n{steps}.out"], FLOW_TOLERANCE)
        if f"n{steps}.t_span" in v:
            report.check_close(
                folder.label(file, f"n{steps}.t_span"), time_grid(steps), v[f"n{steps}.t_span"], FLOW_TOLERANCE
            )


def _cfm_chunks(cfm: ConditionalFlowMatching[DiT], folder: VectorFolder, file: Path, report: Report) -> None:
    v = folder.tensors(file.name)
    match = re.search(r"n(\d+)", file.stem)
    steps = int(match[1]) if match else 10
    history: SolverHistory | None = None
    for number, call in enumerate(calls(v)):
        rows, _, frames = call["mu"].shape
        held = 0 if history is None else history.kv.shape[5]
        noise = v["rand_noise"][:, :, held : held + frames].expand(rows, -1, -1)
        mask = torch.ones(rows, 1, 1, held + frames, dtype=torch.bool)
        lengths = torch.full((rows,), frames)
        out, own = cfm(noise, call["mu"], v["spks"], call["cond"], mask, lengths, steps, history)
        history = own if history is None else SolverHistory(torch.cat([own.kv, history.kv], 5), own.tail)
        label = folder.label(file, f"c{number}")
        report.check_close(f"{label}.out", out, call["out"], FLOW_TOLERANCE)
        tails, kv = solver_cache(history)
        check_ends(report, label, call, "cnn_cache", tails)
        check_ends(report, label, call, "att_cache", kv)


def _dit_config(values: dict[str, Any]) -> DiTConfig:
    return pick_fields(DiTConfig, values)
