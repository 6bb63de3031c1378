"""Golden cases of the block-masked flows: their parts called alone, and streams whole, by prefix and in chunks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from token2wav_service.checkpoint.loader import load_weights
from token2wav_service.config import NoiseSource, SynthesisPolicy
from token2wav_service.models.causal import chunk_plan, relative_sinusoids
from token2wav_service.models.config import (
    CosyVoice2FlowConfig,
    CosyVoice3FlowConfig,
    EncoderConfig,
    RotaryDiTConfig,
    UNetConfig,
)
from token2wav_service.models.flow.block_flow import (
    STREAMING,
    UNMASKED,
    UNMASKED_ESTIMATOR,
    BlockFlow,
    BlockMask,
    CosyVoice2Flow,
    CosyVoice3Flow,
)
from token2wav_service.models.flow.block_stream import BlockStreamFlow, upstream_noise
from token2wav_service.models.flow.encoder import EncoderPlans
from token2wav_service.models.flow.rotary_dit import TIME_FEATURES, RotaryDiT, rotation_table
from token2wav_service.models.flow.unet import UNet, time_features
from token2wav_service.models.streaming import FlowInput
from token2wav_service.replay.report import FLOW_TOLERANCE, Report
from token2wav_service.replay.vectors import Probe, Tensors, VectorFolder, probed, step_counts

STEPS = 10
STREAMING_PARTS = (("offline", False), ("streaming", True))


def load_block_flow(folder: VectorFolder) -> BlockFlow:
    """Build the flow of a `cosyvoice2_unet` or `cosyvoice3_dit` folder."""
    config = folder.json("config.json")
    values, rate = config["flow"], config["cfm"]["inference_cfg_rate"]
    flow = _cosyvoice2(values, rate) if "unet" in values else _cosyvoice3(values, rate)
    return load_weights(flow, folder.tensors("flow_weights.safetensors"), folder.path)


def replay_block_flow(folder: VectorFolder, report: Report) -> None:
    """Everything of a folder that needs no vocoder."""
    flow = load_block_flow(folder)
    if isinstance(flow, CosyVoice2Flow):
        _encoder(flow, folder, report)
    elif isinstance(flow, CosyVoice3Flow):
        _lookahead(flow, folder, report)
        _rotary(flow, folder, report)
    _estimator(flow, folder, report)
    _solver(flow, folder, report)
    _noise(folder, report)
    for name, plan in folder.json("config.json")["streams"].items():
        _stream(flow, folder, name, plan["calls"], report)


def whole_mel(flow: BlockFlow, v: Tensors, tokens: int, *, is_final: bool, mask: BlockMask) -> Tensor:
    """Return the generated mel [1, 80, F] of one pass over the prompt and the first `tokens` tokens of a stream."""
    ids = torch.cat([v["prompt_token"], v["token"][:, :tokens]], 1).long()
    count = ids.shape[1] - (0 if is_final else flow.lookahead)
    prompt = flow.stride * v["prompt_token"].shape[1]
    cond = torch.zeros(1, flow.output_size, flow.stride * count)
    cond[:, :, :prompt] = v["prompt_feat"].transpose(1, 2)
    lengths, is_last = torch.tensor([ids.shape[1]]), torch.tensor([is_final])
    mel, _ = flow(ids, lengths, is_last, v["embedding"], v["rand_noise"], STEPS, cond=cond, mask=mask)
    return torch.as_tensor(mel[:, :, prompt:])


def _cosyvoice2(values: dict[str, Any], rate: float) -> CosyVoice2Flow:
    encoder, unet = values["encoder"], values["unet"]
    width = encoder["width"]
    sizes = EncoderConfig(
        input_size=width,
        output_size=width,
        num_blocks=encoder["num_blocks"],
        num_up_blocks=encoder["num_up_blocks"],
        attention_heads=encoder["heads"],
        linear_units=encoder["linear_units"],
    )
    return CosyVoice2Flow(
        CosyVoice2FlowConfig(
            input_size=width,
            spk_embed_dim=values["spk_embed_dim"],
            vocab_size=values["vocab_size"],
            inference_cfg_rate=rate,
            block_tokens=encoder["chunk"],
            encoder=sizes,
            estimator=UNetConfig.from_mapping(unet),
        )
    )


def _cosyvoice3(values: dict[str, Any], rate: float) -> CosyVoice3Flow:
    return CosyVoice3Flow(
        CosyVoice3FlowConfig(
            spk_embed_dim=values["spk_embed_dim"],
            vocab_size=values["vocab_size"],
            inference_cfg_rate=rate,
            block_tokens=values["chunk"],
            lookahead_channels=values["pre_lookahead_channels"],
            estimator=RotaryDiTConfig.from_mapping(values["dit"]),
        )
    )


def _encoder(flow: CosyVoice2Flow, folder: VectorFolder, report: Report) -> None:
    v = folder.tensors("encoder.safetensors")
    rows, single = v["xs"], v["xs"][:1]
    with_context = torch.cat([single, v["context"]], 1)
    sizes = {key: torch.tensor([x.shape[1]]) for key, x in (("single.", single), ("context.", with_context))}
    cases = {
        "": (rows, v["xs_lens"], True),
        "single.": (single, sizes["single."], True),
        "context.": (with_context, sizes["context."], False),
    }
    for name, is_masked in STREAMING_PARTS:
        for prefix, (x, lengths, is_last) in cases.items():
            key = f"{prefix}{name}.out"
            if key in v:
                out, frames = _encode(flow, x, lengths, is_last=is_last, is_masked=is_masked)
                report.check_close(f"{folder.path.name}/encoder.{key}", out, v[key], FLOW_TOLERANCE)
                if f"{prefix}{name}.mask" in v:
                    held = v[f"{prefix}{name}.mask"].sum((1, 2))
                    report.check_equal(f"{folder.path.name}/encoder.{prefix}{name}.mask", frames, held.tolist())
    _encoder_layers(flow, folder, v, report)


def _encode(
    flow: CosyVoice2Flow, x: Tensor, lengths: Tensor, *, is_last: bool, is_masked: bool
) -> tuple[Tensor, list[int]]:
    """Run the encoder whole; a shorter row's look-ahead reads its padding, as in the original's batches.

    Returns the hidden frames and how many each row has.
    """
    ahead = 0 if is_last else flow.lookahead
    rows, size = x.shape[0], x.shape[1] - ahead
    spoken, none = lengths - ahead, torch.zeros(rows, dtype=torch.long)
    block = flow.block_tokens if is_masked else None
    stride = flow.stride
    plans = EncoderPlans(
        chunk_plan(none, 0, spoken, size, block),
        chunk_plan(none, 0, spoken * stride, size * stride, None if block is None else block * stride),
    )
    last = torch.full((rows,), is_last)
    out, frames, _ = flow.encoder(x, lengths, last, plans=plans, upstream_padding_leak=True)
    return out, frames.tolist()


def _encoder_layers(flow: CosyVoice2Flow, folder: VectorFolder, v: Tensors, report: Report) -> None:
    encoder, single = flow.encoder, v["xs"][:1]
    size, width = single.shape[1:]
    embedded = encoder.embed(single)
    silence = torch.zeros(1, flow.lookahead, width)
    lengths, tail = torch.tensor([size]), torch.zeros(1, width, 2)
    layer = encoder.pre_lookahead_layer
    plan = chunk_plan(torch.zeros(1, dtype=torch.long), 0, lengths, size)
    got = {
        "single.embed.out": embedded,
        "single.pos_emb": relative_sinusoids(plan, width, torch.float32).flip(0)[None],
        "single.pre_lookahead.out": layer(torch.cat([embedded, silence], 1), size, lengths, tail)[0],
        "context.pre_lookahead.out": layer(torch.cat([embedded, encoder.embed(v["context"])], 1), size, lengths, tail)[
            0
        ],
    }
    for key, value in got.items():
        report.check_close(f"{folder.path.name}/encoder.{key}", value, v[key], FLOW_TOLERANCE)


def _lookahead(flow: CosyVoice3Flow, folder: VectorFolder, report: Report) -> None:
    v = folder.tensors("pre_lookahead.safetensors")
    rows, size, channels = v["inputs"].shape
    tail = torch.zeros(rows, flow.config.lookahead_channels, 2)
    ahead = {"context.out": v["context"], "final.out": torch.zeros(rows, flow.lookahead, channels)}
    for key, rest in ahead.items():
        x = torch.cat([v["inputs"], rest], 1)
        out, _ = flow.pre_lookahead_layer(x, size, torch.full((rows,), size), tail)
        report.check_close(f"{folder.path.name}/pre_lookahead.{key}", out, v[key], FLOW_TOLERANCE)


def _rotary(flow: CosyVoice3Flow, folder: VectorFolder, report: Report) -> None:
    freqs = folder.tensors("rotary.safetensors")["freqs"]
    table = rotation_table(None, freqs.shape[1], flow.config.estimator.head_dim, like=freqs)
    for name, angles, got in zip(("cos", "sin"), (freqs.cos(), freqs.sin()), table.unbind(-1), strict=True):
        twice = got.repeat_interleave(2, dim=2)
        report.check_close(f"{folder.path.name}/rotary.{name}", twice, angles, FLOW_TOLERANCE)


def _estimator(flow: BlockFlow, folder: VectorFolder, report: Report) -> None:
    v = folder.tensors("estimator.safetensors")
    estimator, rows, frames = flow.decoder.estimator, v["x"].shape[0], v["x"].shape[2]
    none, every = torch.zeros(rows, dtype=torch.long), torch.ones_like(v["mask"])
    inputs = (v["x"], v["mu"], v["spks"], v["cond"], v["t"])
    for name, is_masked in STREAMING_PARTS:
        block = flow.block_tokens * flow.stride if is_masked else None
        for key, frame_mask in ((f"{name}.out", every), (f"{name}.masked.out", v["mask"])):
            lengths = frame_mask.sum((1, 2)).long()
            mask = chunk_plan(none, 0, lengths, frames, block).mask
            with probed(_probes(estimator)) as inner:
                out, _ = estimator(*inputs, mask, lengths, valid=frame_mask[:, 0] > 0)
            report.check_close(f"{folder.path.name}/estimator.{key}", out, v[key], FLOW_TOLERANCE)
            if key == "offline.out":
                _check_inner(folder, v, inner | _time_probes(estimator, v["t"]), report)


def _check_inner(folder: VectorFolder, v: Tensors, inner: Tensors, report: Report) -> None:
    for key in (key for key in v if key.startswith("inner.")):
        name = f"{folder.path.name}/estimator.{key}"
        report.check_close(name, inner[key.removeprefix("inner.")], v[key], FLOW_TOLERANCE)


def _time_probes(estimator: nn.Module, time: Tensor) -> Tensors:
    if isinstance(estimator, UNet):
        features = time_features(time, estimator.config.in_channels)
        return {"sinusoid": features, "time_emb": estimator.time_mlp(time)}
    assert isinstance(estimator, RotaryDiT)
    return {"sinusoid": time_features(time, TIME_FEATURES), "time_emb": estimator.time_embed(time)}


def _probes(estimator: nn.Module) -> list[Probe]:
    return _unet_probes(estimator) if isinstance(estimator, UNet) else _dit_probes(estimator)


def _unet_probes(unet: UNet) -> list[Probe]:
    def stage_probes(name: str, stage: Any) -> list[Probe]:
        return [(f"{name}.resnet", stage.layers[0], lambda inputs, _: inputs[0].transpose(1, 2))]

    down: Any = unet.down_blocks[0]
    up: Any = unet.up_blocks[0]
    return [
        *stage_probes("down0", down),
        *stage_probes("mid0", unet.mid_blocks[0]),
        *stage_probes("up0", up),
        ("down0.tf0", down.layers[0], lambda _, output: output[0]),
        ("down0.conv", down.conv, lambda _, output: output),
        ("up0.conv", up.conv, lambda _, output: output),
        ("final_block", unet.final_proj, lambda inputs, _: inputs[0]),
    ]


def _dit_probes(dit: Any) -> list[Probe]:
    block = dit.transformer_blocks[0]
    return [
        ("input_proj", dit.input_embed.proj, lambda _, output: output),
        ("input_embed", dit.input_embed, lambda _, output: output[0]),
        ("block0", block, lambda _, output: output[0]),
        ("block0.attn", block.attn, lambda _, output: output[0]),
        ("norm_out", dit.norm_out, lambda _, output: output),
    ]


def _solver(flow: BlockFlow, folder: VectorFolder, report: Report) -> None:
    v = folder.tensors("cfm.safetensors")
    rows, frames = v["mu"].shape[0], v["mu"].shape[2]
    lengths, none = v["mask"].sum((1, 2)).long(), torch.zeros(rows, dtype=torch.long)
    for name, is_masked in STREAMING_PARTS:
        mask = chunk_plan(none, 0, lengths, frames, flow.block_tokens * flow.stride if is_masked else None).mask
        for steps in step_counts({key.removeprefix(f"{name}."): value for key, value in v.items()}):
            out, _ = flow.decoder(v["rand_noise"], v["mu"], v["spks"], v["cond"], mask, lengths, steps)
            key = f"{name}.n{steps}.out"
            report.check_close(f"{folder.path.name}/cfm.{key}", out, v[key], FLOW_TOLERANCE)


def _noise(folder: VectorFolder, report: Report) -> None:
    """The noise that this service draws for the original's policy has the original's fingerprint."""
    print_ = folder.optional_json("official_noise_fingerprint.json").get("rand_noise")
    if print_ is None:
        return
    noise = upstream_noise(print_["shape"][1])
    got = [list(noise.shape), noise[0, :8].tolist(), noise[1, :4].tolist(), noise[-1, -4:].tolist()]
    expected = [print_["shape"][1:], print_["first8"], print_["row1_first4"], print_["last4"]]
    report.check_equal(f"{folder.path.name}/official_noise", got, expected)


def _stream(flow: BlockFlow, folder: VectorFolder, name: str, plan: list[dict[str, Any]], report: Report) -> None:
    v = folder.tensors(f"stream_{name}.safetensors")
    label, every = f"{folder.path.name}/stream_{name}", v["token"].shape[1]
    wholes = (("offline", True, UNMASKED), ("offline_not_final", False, UNMASKED), ("streaming_whole", True, STREAMING))
    for key, is_final, mask in wholes:
        mel = whole_mel(flow, v, every, is_final=is_final, mask=mask)
        report.check_close(f"{label}.{key}.mel", mel, v[f"{key}.mel"], FLOW_TOLERANCE)
    for call in plan:
        _check_prefix(flow, v, call, label, report)
    _chunks(flow, v, plan, label, report)


def replay_block_chunks(folder: VectorFolder, report: Report, flow: BlockFlow) -> None:
    """Every stream's mel, chunk by chunk; `flow` computes instead of the folder's weights in PyTorch."""
    for name, plan in folder.json("config.json")["streams"].items():
        v = folder.tensors(f"stream_{name}.safetensors")
        _chunks(flow, v, plan["calls"], f"{folder.path.name}/stream_{name}", report)


def _chunks(flow: BlockFlow, v: Tensors, plan: list[dict[str, Any]], label: str, report: Report) -> None:
    """Compute the calls under the block mask one after another, each from what the one before left."""
    policy = SynthesisPolicy(noise=NoiseSource.UPSTREAM, ode_steps=STEPS)
    streamed = BlockStreamFlow(flow, policy, v["rand_noise"][0])
    speaker = v["embedding"][0]
    state = streamed.run_prompt(v["prompt_token"][0].long(), v["prompt_feat"][0], speaker)
    for call in plan:
        if call["streaming"]:
            ids = v["token"][0, call["token_offset"] : call["tokens_given"]].long()
            (mel,), (state,) = streamed.forward([FlowInput(state, ids, speaker, 0, call["finalize"])])
            key = f"c{call['call']}.mel"
            report.check_close(f"{label}.{key} (incremental)", mel[None], v[key], FLOW_TOLERANCE)


def _check_prefix(flow: BlockFlow, v: Tensors, call: dict[str, Any], label: str, report: Report) -> None:
    """Compute a call as the original does: from all tokens so far."""
    number, given, is_final = call["call"], call["tokens_given"], call["finalize"]
    first = flow.stride * call["token_offset"]
    mel = whole_mel(flow, v, given, is_final=is_final, mask=STREAMING if call["streaming"] else UNMASKED)
    if f"c{number}.mel_whole_prefix" in v:
        key = f"c{number}.mel_whole_prefix"
        report.check_close(f"{label}.{key}", mel, v[key], FLOW_TOLERANCE)
    report.check_close(f"{label}.c{number}.mel", mel[:, :, first:], v[f"c{number}.mel"], FLOW_TOLERANCE)
    key = f"c{number}.mel_unmasked_estimator"
    if key in v:
        unmasked = whole_mel(flow, v, given, is_final=is_final, mask=UNMASKED_ESTIMATOR)
        report.check_close(f"{label}.{key}", unmasked[:, :, first:], v[key], FLOW_TOLERANCE)
