"""Golden cases of a flow's parts called alone: estimators, encoders, look-ahead layers and solvers of all families."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from token2wav_service.models.causal import chunk_plan, empty_caches, relative_sinusoids
from token2wav_service.models.config import UPSTREAM_STEPS, DiTConfig, EncoderConfig, pick_fields
from token2wav_service.models.flow.any_flow import AnyFlow
from token2wav_service.models.flow.cfm import ConditionalFlowMatching, time_grid
from token2wav_service.models.flow.dit import DiT, time_features
from token2wav_service.models.flow.encoder import ConformerEncoder
from token2wav_service.models.flow.flow import CosyVoice2Flow, CosyVoice3Flow
from token2wav_service.models.flow.rotary_dit import rotation_table
from token2wav_service.models.flow.unet import UNet
from token2wav_service.replay.vectors import GoldenCase, VectorFolder, probed

_UNET_PROBES = {
    "sinusoid": "<time_mlp.linear_1",
    "time_emb": "time_mlp",
    **{f"{stage}0.resnet": f"<{stage}_blocks.0.layers.0" for stage in ("down", "mid", "up")},
    "down0.tf0": "down_blocks.0.layers.0",
    "down0.conv": "down_blocks.0.conv",
    "up0.conv": "up_blocks.0.conv",
    "final_block": "<final_proj",
}
_DIT_PROBES = {
    "sinusoid": "<time_embed.time_mlp.0",
    "time_emb": "time_embed",
    "input_proj": "input_embed.proj",
    "input_embed": "input_embed",
    "block0": "transformer_blocks.0",
    "block0.attn": "transformer_blocks.0.attn",
    "norm_out": "norm_out",
}


def replay_dit(folder: VectorFolder) -> None:
    """Step-Audio2's estimator: its time features, whole utterances and chunks."""
    dit = folder.load(DiT(pick_fields(DiTConfig, folder.json("config.json"))))
    for case in folder.cases("timestep*"):
        case.close("sinusoid", time_features(case["t"]))
        case.close("embedding", dit.t_embedder(case["t"]))
    for case in folder.cases("forward*"):
        if "chunk" in case.name:
            _chunks(dit, case)
            continue
        for key, valid in (("out", case["mask"]), ("out_full_mask", torch.ones_like(case["mask"]))):
            case.close(key, dit(*case.take("x", "mu", "spks", "cond", "t"), *_seen(valid))[0])


def replay_cfm(folder: VectorFolder) -> None:
    """Step-Audio2's solver: whole utterances and chunks."""
    config = folder.json("config.json")
    cfm = ConditionalFlowMatching(DiT(pick_fields(DiTConfig, config["estimator"])), config["inference_cfg_rate"])
    folder.load(cfm.estimator, config["weights"])
    for case in folder.cases("offline*"):
        for steps in case.numbers("n"):
            inputs = case.take(f"n{steps}.z", "mu", "spks", "cond")
            case.close(f"n{steps}.out", cfm(*inputs, *_seen(case["mask"]), steps)[0])
            case.close(f"n{steps}.t_span", time_grid(steps))
    for case in folder.cases("chunk*"):
        match = re.search(r"n(\d+)", case.name)
        _chunks(cfm, case, int(match[1]) if match else UPSTREAM_STEPS)


def replay_encoder(folder: VectorFolder) -> None:
    """Step-Audio2's encoder: whole utterances and chunks."""
    encoder = folder.load(ConformerEncoder(pick_fields(EncoderConfig, folder.json("config.json"))))
    for case in folder.cases("offline*"):
        xs, lengths = case.take("xs", "xs_lens")
        last = torch.ones(len(lengths), dtype=torch.bool)
        with leaking_padding(encoder):
            out, frames, _ = encoder(xs, lengths, last)
        case.close("out", out)
        case.equal_lengths("out_mask", frames)
        case.close("pos_emb_T", _position_table(*xs.shape[1:]))
        clean, _, _ = encoder(xs, lengths, last)
        for row, length in enumerate(lengths.tolist()):
            one = slice(row, row + 1)
            case.close(f"single{row}.out", encoder(xs[one, :length], lengths[one], last[:1])[0])
            case.close(f"single{row}.out", clean[one, : frames[row]], " (batched)")
    for case in folder.cases("forward_chunk*"):
        caches: dict[str, Tensor] = {}
        for call in case.calls():
            xs, caches = call["xs"], caches or empty_caches(encoder.state_specs(), call["xs"])
            lengths, held = (torch.full((len(xs),), size) for size in (xs.shape[1], caches["token_kv"].shape[3]))
            out, _, own = encoder(xs, lengths, call["last_chunk"].bool().expand(len(xs)), caches, held)
            caches = {name: torch.cat([caches[name], new], 3) if "kv" in name else new for name, new in own.items()}
            call.close("out", out)
            check_encoder_caches(call, caches)


def replay_block_parts(flow: AnyFlow, folder: VectorFolder) -> None:
    """Parts of a flow of a `cosyvoice2_unet` or `cosyvoice3_dit` folder."""
    if isinstance(flow, CosyVoice2Flow):
        _block_encoder(flow, folder.case("encoder"))
    elif isinstance(flow, CosyVoice3Flow):
        _lookahead_and_angles(flow, folder)
    estimator, solver = folder.case("estimator"), folder.case("cfm")
    for name, block in (("offline", 0), ("streaming", flow.stride * flow.block_tokens)):
        _block_estimator(flow.decoder.estimator, estimator, name, block)
        inputs = (*solver.take("rand_noise", "mu", "spks", "cond"), *_seen(solver["mask"], block))
        for steps in solver.numbers(f"{name}.n"):
            solver.close(f"{name}.n{steps}.out", flow.decoder(*inputs, steps)[0])


@contextmanager
def leaking_padding(encoder: ConformerEncoder) -> Iterator[None]:
    """Have the look-ahead of a batch's shorter rows read their embedded padding, as upstream's whole utterances do."""
    layer = encoder.pre_lookahead_layer

    def leak(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return functional.pad(seen["embedded"], (0, 0, 0, layer.lookahead)), *inputs[1:]

    with probed(encoder, {"embedded": "embed"}) as seen, layer.register_forward_pre_hook(leak):
        yield


def check_encoder_caches(case: GoldenCase, caches: Mapping[str, Tensor], prefix: str = "") -> None:
    """Compare an encoder's caches as upstream lays them out: a token's keys and values stand for two frames."""
    tokens = caches["token_kv"]
    case.close(f"{prefix}cnn_cache", torch.cat([caches["lookahead_tail"], caches["upsample_tail"]], -1))
    case.close(f"{prefix}att_cache", torch.cat([torch.cat([tokens, tokens], -2), caches["frame_kv"]]))


def check_ends(case: GoldenCase, key: str, got: Tensor) -> None:
    """Check a cache that a vector holds whole, or (suffix _t0_tlast) at the first and last solver step only."""
    case.close(key, got)
    case.close(f"{key}_t0_tlast", got[[0, -1]])


def _seen(valid: Tensor, block: int = 0, held: int = 0) -> tuple[Tensor, Tensor]:
    """Return an estimator's mask [B, 1, 1 or T, S + T] and the rows' lengths [B] for frames `valid` [B, 1, T].

    Frames see S `held` ones and all others, or those up to the end of their own `block` (0: none).
    """
    lengths = valid.sum((1, 2)).long()
    return chunk_plan(torch.full_like(lengths, held), held, lengths, valid.shape[2], block).mask, lengths


def _chunks(model: nn.Module, case: GoldenCase, *steps: int) -> None:
    """Compare every call of an estimator, or of a solver of so many steps, which goes on from those before it."""
    history: Any = None
    for call in case.calls():
        given, held = case | call, 0 if history is None else history.kv.shape[-2]
        if steps:
            given["x"] = case["rand_noise"][:, :, held : held + call["mu"].shape[2]].expand_as(call["mu"])
        inputs = [given[key] for key in ("x", "mu", "spks", "cond", *(() if steps else ("t",)))]
        out, own = model(*inputs, *_seen(torch.ones_like(call["mu"][:, :1]), held=held), *steps, history)
        history = own if history is None else replace(own, kv=torch.cat([own.kv, history.kv], -2))
        call.close("out", out)
        for key, cache in (("cnn_cache", history.tail), ("att_cache", history.kv)):
            # Upstream has a solver's streams and its two guesses of each on one axis.
            check_ends(call, key, cache.flatten(2, 3) if steps else cache)


def _block_encoder(flow: CosyVoice2Flow, case: GoldenCase) -> None:
    encoder, single = flow.encoder, case["xs"][:1]
    with_context = torch.cat([single, case["context"]], 1)
    inputs = {
        "": (case["xs"], case["xs_lens"], True),
        "single.": (single, torch.tensor([single.shape[1]]), True),
        "context.": (with_context, torch.tensor([with_context.shape[1]]), False),
    }
    for prefix, (x, lengths, is_last) in inputs.items():
        last = torch.full((len(x),), is_last)
        for name, block in (("offline", 0), ("streaming", flow.block_tokens)):
            with leaking_padding(encoder), probed(encoder, {"embed": "embed", "ahead": "pre_lookahead_layer"}) as inner:
                out, frames, _ = encoder(x, lengths, last, block=block)
            case.close(f"{prefix}{name}.out", out)
            case.equal_lengths(f"{prefix}{name}.mask", frames)
        case.close(f"{prefix}embed.out", inner["embed"])
        case.close(f"{prefix}pre_lookahead.out", inner["ahead"])
    case.close("single.pos_emb", _position_table(*single.shape[1:]))


def _position_table(size: int, width: int) -> Tensor:
    """Return [1, 2 size - 1, width], the encodings of an encoder's distances in the original's order."""
    none = torch.zeros(1, dtype=torch.long)
    return relative_sinusoids(chunk_plan(none, 0, none + size, size), width, torch.float32).flip(0)[None]


def _lookahead_and_angles(flow: CosyVoice3Flow, folder: VectorFolder) -> None:
    case, angles = folder.case("pre_lookahead"), folder.case("rotary")
    rows, size, _ = case["inputs"].shape
    tail, lengths = torch.zeros(rows, flow.config.lookahead_channels, 2), torch.full((rows,), size)
    for key, ahead in (("context", case["context"]), ("final", torch.zeros_like(case["context"]))):
        out, _ = flow.pre_lookahead_layer(torch.cat([case["inputs"], ahead], 1), size, lengths, tail)
        case.close(f"{key}.out", out)
    freqs = angles["freqs"]
    table = rotation_table(None, freqs.shape[1], flow.config.estimator.head_dim, like=freqs)
    cos, sin = table.repeat_interleave(2, dim=2).unbind(-1)
    expected = GoldenCase({"cos": freqs.cos(), "sin": freqs.sin()}, angles.label, angles.rows)
    expected.close_all({"cos": cos, "sin": sin})


def _block_estimator(estimator: nn.Module, case: GoldenCase, name: str, block: int) -> None:
    for key, valid in ((f"{name}.out", torch.ones_like(case["mask"])), (f"{name}.masked.out", case["mask"])):
        with probed(estimator, _UNET_PROBES if isinstance(estimator, UNet) else _DIT_PROBES) as inner:
            out, _ = estimator(*case.take("x", "mu", "spks", "cond", "t"), *_seen(valid, block))
        if key in case:
            # What the original makes of padding has no meaning.
            case.close(key, torch.where(valid > 0, out, case[key]))
        if key == "offline.out":
            inner |= {name: value.mT for name, value in inner.items() if name.endswith("resnet")}
            case.part("inner.", ".inner").close_all(inner)
