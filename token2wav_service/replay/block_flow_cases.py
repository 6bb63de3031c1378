"""Golden cases of the block-masked flows: their parts called alone, and streams whole, by prefix and in chunks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from token2wav_service.config import SynthesisPolicy
from token2wav_service.models.causal import FlowInput, chunk_plan, relative_sinusoids
from token2wav_service.models.config import (
    CosyVoice2FlowConfig,
    CosyVoice3FlowConfig,
    EncoderConfig,
    RotaryDiTConfig,
    UNetConfig,
    pick_fields,
)
from token2wav_service.models.flow.any_flow import AnyFlow
from token2wav_service.models.flow.flow import CosyVoice2Flow, CosyVoice3Flow
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.flow.rotary_dit import TIME_FEATURES, rotation_table
from token2wav_service.models.flow.unet import UNet, time_features
from token2wav_service.models.noise import frozen_normal
from token2wav_service.replay.stream_cases import leaking_padding
from token2wav_service.replay.vectors import GoldenCase, VectorFolder, probed

STEPS = 10
STREAMING_PARTS = (("offline", False), ("streaming", True))


def load_block_flow(folder: VectorFolder) -> AnyFlow:
    """Build the flow of a `cosyvoice2_unet` or `cosyvoice3_dit` folder."""
    config = folder.json("config.json")
    values = config["flow"]
    common = {name: values[name] for name in ("spk_embed_dim", "vocab_size")}
    common["inference_cfg_rate"] = config["cfm"]["inference_cfg_rate"]
    flow = _cosyvoice2(values, common) if "unet" in values else _cosyvoice3(values, common)
    return folder.load(flow, "flow_weights.safetensors")


def _cosyvoice2(values: dict[str, Any], common: dict[str, Any]) -> CosyVoice2Flow:
    encoder, unet = values["encoder"], UNetConfig.from_mapping(values["unet"])
    width = encoder["width"]
    named = {**encoder, "input_size": width, "output_size": width, "attention_heads": encoder["heads"]}
    parts = {"block_tokens": encoder["chunk"], "encoder": pick_fields(EncoderConfig, named), "estimator": unet}
    return CosyVoice2Flow(CosyVoice2FlowConfig(**common, input_size=width, **parts))


def _cosyvoice3(values: dict[str, Any], common: dict[str, Any]) -> CosyVoice3Flow:
    dit, channels = RotaryDiTConfig.from_mapping(values["dit"]), values["pre_lookahead_channels"]
    parts = {"block_tokens": values["chunk"], "lookahead_channels": channels, "estimator": dit}
    return CosyVoice3Flow(CosyVoice3FlowConfig(**common, **parts))


def replay_block_flow(folder: VectorFolder) -> dict[str, list[Tensor]]:
    """Everything of a folder that needs no vocoder; returns the mels [1, 80, F] of each stream's calls."""
    flow = load_block_flow(folder)
    if isinstance(flow, CosyVoice2Flow):
        _encoder(flow, folder.case("encoder"))
    elif isinstance(flow, CosyVoice3Flow):
        _lookahead(flow, folder.case("pre_lookahead"))
        _rotary(flow, folder.case("rotary"))
    _estimator(flow, folder.case("estimator"))
    _solver(flow, folder.case("cfm"))
    _noise(flow, folder)
    streams = folder.json("config.json")["streams"]
    return {name: _stream(flow, folder.case(f"stream_{name}"), plan["calls"]) for name, plan in streams.items()}


def _whole_mel(flow: AnyFlow, case: GoldenCase, tokens: int, *, is_final: bool, is_masked: bool) -> Tensor:
    """Return the generated mel [1, 80, F] of one pass over the prompt and the first `tokens` tokens of a stream."""
    ids = torch.cat([case["prompt_token"], case["token"][:, :tokens]], 1).long()
    count = ids.shape[1] - (0 if is_final else flow.lookahead)
    prompt = flow.stride * case["prompt_token"].shape[1]
    cond = torch.zeros(1, flow.output_size, flow.stride * count)
    cond[:, :, :prompt] = case["prompt_feat"].transpose(1, 2)
    lengths, is_last = torch.tensor([ids.shape[1]]), torch.tensor([is_final])
    mel, _ = flow(ids, lengths, is_last, case["embedding"], case["rand_noise"], STEPS, cond=cond, is_masked=is_masked)
    return torch.as_tensor(mel[:, :, prompt:])


def _encoder(flow: CosyVoice2Flow, case: GoldenCase) -> None:
    encoder, single = flow.encoder, case["xs"][:1]
    with_context = torch.cat([single, case["context"]], 1)
    inputs = {
        "": (case["xs"], case["xs_lens"], True),
        "single.": (single, torch.tensor([single.shape[1]]), True),
        "context.": (with_context, torch.tensor([with_context.shape[1]]), False),
    }
    for name, is_masked in STREAMING_PARTS:
        for prefix, (x, lengths, is_last) in inputs.items():
            last, block = torch.full((len(x),), is_last), flow.block_tokens if is_masked else None
            with leaking_padding(encoder):
                out, frames, _ = encoder(x, lengths, last, block=block)
            case.close(f"{prefix}{name}.out", out)
            case.equal_lengths(f"{prefix}{name}.mask", frames)
    embedded, (size, width) = encoder.embed(single), single.shape[1:]
    lengths, tail, layer = torch.tensor([size]), torch.zeros(1, width, 2), encoder.pre_lookahead_layer
    case.close("single.embed.out", embedded)
    case.close("single.pos_emb", position_table(size, width))
    for key, ahead in (("single", torch.zeros(1, flow.lookahead, width)), ("context", encoder.embed(case["context"]))):
        case.close(f"{key}.pre_lookahead.out", layer(torch.cat([embedded, ahead], 1), size, lengths, tail)[0])


def position_table(size: int, width: int) -> Tensor:
    """Return [1, 2 size - 1, width], the encodings of an encoder's distances in the original's order."""
    none = torch.zeros(1, dtype=torch.long)
    return relative_sinusoids(chunk_plan(none, 0, none + size, size), width, torch.float32).flip(0)[None]


def seen(valid: Tensor, block: int | None = None) -> tuple[Tensor, Tensor]:
    """Return an estimator's mask [B, 1, 1 or T, T] and the rows' lengths [B] for frames that are `valid` [B, 1, T].

    Frames see all others, or those up to the end of their own `block`.
    """
    lengths = valid.sum((1, 2)).long()
    return chunk_plan(torch.zeros_like(lengths), 0, lengths, valid.shape[2], block).mask, lengths


def _lookahead(flow: CosyVoice3Flow, case: GoldenCase) -> None:
    rows, size, channels = case["inputs"].shape
    tail, lengths = torch.zeros(rows, flow.config.lookahead_channels, 2), torch.full((rows,), size)
    for key, ahead in (("context", case["context"]), ("final", torch.zeros(rows, flow.lookahead, channels))):
        out, _ = flow.pre_lookahead_layer(torch.cat([case["inputs"], ahead], 1), size, lengths, tail)
        case.close(f"{key}.out", out)


def _rotary(flow: CosyVoice3Flow, case: GoldenCase) -> None:
    freqs = case["freqs"]
    table = rotation_table(None, freqs.shape[1], flow.config.estimator.head_dim, like=freqs)
    expected = GoldenCase({"cos": freqs.cos(), "sin": freqs.sin()}, case.label, case.rows)
    for name, got in zip(("cos", "sin"), table.unbind(-1), strict=True):
        expected.close(name, got.repeat_interleave(2, dim=2))


def _block(flow: AnyFlow, is_masked: bool) -> int | None:
    """Return how many frames see each other, in a masked estimator; None: all."""
    return flow.block_tokens * flow.stride if is_masked else None


def _estimator(flow: AnyFlow, case: GoldenCase) -> None:
    estimator: Any = flow.decoder.estimator
    is_unet = isinstance(estimator, UNet)
    for name, is_masked in STREAMING_PARTS:
        for key, valid in ((f"{name}.out", torch.ones_like(case["mask"])), (f"{name}.masked.out", case["mask"])):
            inputs = (*case.take("x", "mu", "spks", "cond", "t"), *seen(valid, _block(flow, is_masked)))
            with probed(estimator, _UNET_PROBES if is_unet else _DIT_PROBES) as inner:
                out, _ = estimator(*inputs)
            if key in case:
                # What the original makes of padding has no meaning.
                case.close(key, torch.where(valid > 0, out, case[key]))
            if key == "offline.out":
                inner |= {name: value.mT for name, value in inner.items() if name.endswith("resnet")}
                inner["sinusoid"] = time_features(case["t"], estimator.config.in_channels if is_unet else TIME_FEATURES)
                inner["time_emb"] = (estimator.time_mlp if is_unet else estimator.time_embed)(case["t"])
                case.part("inner.", ".inner").close_all(inner)


_UNET_PROBES = {
    **{f"{stage}0.resnet": f"<{stage}_blocks.0.layers.0" for stage in ("down", "mid", "up")},
    "down0.tf0": "down_blocks.0.layers.0",
    "down0.conv": "down_blocks.0.conv",
    "up0.conv": "up_blocks.0.conv",
    "final_block": "<final_proj",
}
_DIT_PROBES = {
    "input_proj": "input_embed.proj",
    "input_embed": "input_embed",
    "block0": "transformer_blocks.0",
    "block0.attn": "transformer_blocks.0.attn",
    "norm_out": "norm_out",
}


def _solver(flow: AnyFlow, case: GoldenCase) -> None:
    for name, is_masked in STREAMING_PARTS:
        inputs = (*case.take("rand_noise", "mu", "spks", "cond"), *seen(case["mask"], _block(flow, is_masked)))
        for steps in case.numbers(f"{name}.n"):
            case.close(f"{name}.n{steps}.out", flow.decoder(*inputs, steps)[0])


def _noise(flow: AnyFlow, folder: VectorFolder) -> None:
    """The noise that this service draws for the original's policy has the original's fingerprint."""
    print_ = folder.json("official_noise_fingerprint.json").get("rand_noise")
    if print_ is not None:
        noise = frozen_normal(print_["shape"][1], flow.noise_frames)
        got = [list(noise.shape), noise[0, :8].tolist(), noise[1, :4].tolist(), noise[-1, -4:].tolist()]
        expected = [print_["shape"][1:], print_["first8"], print_["row1_first4"], print_["last4"]]
        GoldenCase({}, f"{folder.path.name}/official", folder.rows).equal("noise", got, expected)


def showing_all(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Hook of a solver: frames see all others, as in the original's exported estimators; for rows without padding."""
    return *inputs[:4], torch.ones_like(inputs[4]), *inputs[5:]


def _stream(flow: AnyFlow, case: GoldenCase, plan: list[dict[str, Any]]) -> list[Tensor]:
    every = case["token"].shape[1]
    wholes = (("offline", True, False), ("offline_not_final", False, False), ("streaming_whole", True, True))
    for key, is_final, is_masked in wholes:
        case.close(f"{key}.mel", _whole_mel(flow, case, every, is_final=is_final, is_masked=is_masked))
    mels = [_of_prefix(flow, case, call) for call in plan]
    _chunks(flow, case, plan)
    return mels


def _of_prefix(flow: AnyFlow, case: GoldenCase, call: dict[str, Any]) -> Tensor:
    """Compute a call's mel as the original does: from all tokens so far."""
    label, given, is_final = f"c{call['call']}", call["tokens_given"], call["finalize"]
    first = flow.stride * call["token_offset"]
    mel = _whole_mel(flow, case, given, is_final=is_final, is_masked=call["streaming"])
    case.close(f"{label}.mel_whole_prefix", mel)
    case.close(f"{label}.mel", mel[:, :, first:])
    with flow.decoder.register_forward_pre_hook(showing_all):
        unmasked = _whole_mel(flow, case, given, is_final=is_final, is_masked=True)
    case.close(f"{label}.mel_unmasked_estimator", unmasked[:, :, first:])
    return mel[:, :, first:]


def _chunks(flow: AnyFlow, case: GoldenCase, plan: list[dict[str, Any]]) -> None:
    """Compute the calls under the block mask one after another, each from what the one before left."""
    policy = SynthesisPolicy(is_reference=True, ode_steps=STEPS)
    streamed, speaker = StreamFlow(flow, policy, case["rand_noise"][0]), case["embedding"][0]
    state = streamed.run_prompt(case["prompt_token"][0].long(), case["prompt_feat"][0], speaker)
    for call in plan:
        if call["streaming"]:
            ids = case["token"][0, call["token_offset"] : call["tokens_given"]].long()
            (mel,), (state,) = streamed.forward([FlowInput(state, ids, speaker, 0, call["finalize"])])
            case.close(f"c{call['call']}.mel", mel[None], note=" (incremental)")
