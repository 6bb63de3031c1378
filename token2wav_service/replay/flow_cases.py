"""Golden cases of whole flows of all families: utterances, the prompt's caches, and streams in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from token2wav_service.checkpoint.loader import build_flow
from token2wav_service.config import SynthesisPolicy
from token2wav_service.models.causal import FlowInput, valid_mask
from token2wav_service.models.config import UPSTREAM_STEPS, CosyVoice2FlowConfig, CosyVoice3FlowConfig, FlowConfig
from token2wav_service.models.flow.any_flow import AnyFlow
from token2wav_service.models.flow.flow import ConformerFlow
from token2wav_service.models.flow.flow_state import FlowState
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.noise import frozen_normal
from token2wav_service.replay.part_cases import check_encoder_caches, check_ends, leaking_padding, replay_block_parts
from token2wav_service.replay.vectors import GoldenCase, VectorFolder

UPSTREAM_POLICY = SynthesisPolicy(is_reference=True)


class Chunk(NamedTuple):
    """A call of a stream: its vectors, and the mel [80, F] that our flow makes."""

    call: GoldenCase
    mel: Tensor
    is_last: bool


def stream_flow(folder: VectorFolder) -> StreamFlow:
    """Return a `*_flow` folder's flow under upstream's policies, with its noise buffer and number of solver steps.

    Whole caches tell the number; where only the first and last step were kept, config.json may, else it is the usual
    one.
    """
    config = folder.json("config.json")
    cache = folder.tensors("setup_cache.safetensors").get("cache.estimator_cnn_cache")
    steps = int(config.get("n_timesteps", UPSTREAM_STEPS) if cache is None else cache.shape[0])
    buffer = folder.tensors("rand_noise.safetensors")["rand_noise"][0]
    flow = folder.load(build_flow(FlowConfig.from_mapping(config)))
    return StreamFlow(flow, replace(UPSTREAM_POLICY, ode_steps=steps), buffer)


def load_block_flow(folder: VectorFolder) -> AnyFlow:
    """Build the flow of a `cosyvoice2_unet` or `cosyvoice3_dit` folder, whose sizes have names of their own."""
    config = folder.json("config.json")
    values, bins = config["flow"], FlowConfig.output_size
    decoder = {"cfm_params": {"content": config["cfm"]}, "estimator": values.get("unet") or values["dit"]}
    values |= {"output_size": bins, "decoder": decoder}
    if "unet" in values:
        encoder, width = values["encoder"], values["encoder"]["width"]
        encoder |= {"input_size": width, "output_size": width, "attention_heads": encoder["heads"]}
        encoder["static_chunk_size"] = encoder["chunk"]
        flow = build_flow(CosyVoice2FlowConfig.from_mapping({**values, "input_size": width}))
    else:
        decoder["estimator"]["static_chunk_size"] = CosyVoice3FlowConfig.token_mel_ratio * values["chunk"]
        values["pre_lookahead_layer"] = {"channels": values["pre_lookahead_channels"]}
        flow = build_flow(CosyVoice3FlowConfig.from_mapping({**values, "input_size": bins}))
    return folder.load(flow, "flow_weights.safetensors")


def replay_flow(folder: VectorFolder) -> None:
    """The prompt's caches, every stream's mel, caches and kept frames, and on the CPU whole utterances."""
    flow, setup = stream_flow(folder), folder.case("setup_cache")
    if folder.device == "cpu":
        for case in folder.cases("offline*"):
            for steps in case.numbers("n"):
                _utterances(flow.flow, case, steps)
    _check_caches(setup.part("cache.", ""), _voice(flow, setup))
    labels = folder.json("truncation_labels.json").get("labels", {})
    plans = folder.json("streams.json").get("streams", {})
    for case in folder.cases("stream_*"):
        stream = case.name.removeprefix("stream_")
        for number, (chunk, before, state) in enumerate(chunks_of(flow, setup, case)):
            chunk.call.close("mel", chunk.mel)
            _check_caches(chunk.call.part("cache_after.", ".cache_after"), state)
            if stream in labels:
                kept = (state.labels - flow.stride * state.prompt_tokens).tolist()
                case.equal(f"c{number}.kept_frames", kept, labels[stream][number])
            if stream in plans:
                made = flow.stride * (state.end_token - before.end_token)
                expected = [plans[stream][number][key] for key in ("noise_offset", "mel_frames", "att_len_after")]
                case.equal(f"c{number}.schedule", [len(before.labels), made, len(state.labels)], expected)


def chunks_of(flow: StreamFlow, prompt: GoldenCase, case: GoldenCase) -> Iterator[tuple[Chunk, FlowState, FlowState]]:
    """Yield each chunk of a stream, and the states before and after it."""
    state = _voice(flow, prompt)
    for (start, end, last), call in zip(case["schedule"].tolist(), case.calls(), strict=True):
        new = FlowInput(state, case["token"].flatten()[start:end].long(), prompt["spk"][0], 0, bool(last))
        (mel,), (after,) = flow.forward([new])
        yield Chunk(call, mel, bool(last)), state, after
        state = after


def replay_block_flow(folder: VectorFolder) -> list[tuple[GoldenCase, list[Chunk]]]:
    """Everything of a folder that needs no vocoder; returns every stream with its chunks."""
    flow = load_block_flow(folder)
    replay_block_parts(flow, folder)
    # The noise that this service draws for the original's policy has the original's fingerprint.
    if drawn := folder.json("official_noise_fingerprint.json").get("rand_noise"):
        noise = frozen_normal(drawn["shape"][1], flow.noise_frames)
        got = [list(noise.shape), noise[0, :8].tolist(), noise[1, :4].tolist(), noise[-1, -4:].tolist()]
        expected = [drawn["shape"][1:], drawn["first8"], drawn["row1_first4"], drawn["last4"]]
        GoldenCase({}, f"{folder.path.name}/official", folder.rows).equal("noise", got, expected)
    plans = folder.json("config.json")["streams"]
    streams = [(folder.case(f"stream_{name}"), plan["calls"]) for name, plan in plans.items()]
    return [(case, _block_stream(flow, case, calls)) for case, calls in streams]


def showing_all(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Hook of a solver: frames see all others, as in the original's exported estimators; for rows without padding."""
    return *inputs[:4], torch.ones_like(inputs[4]), *inputs[5:]


def _voice(flow: StreamFlow, prompt: GoldenCase) -> FlowState:
    return flow.run_prompt(prompt["prompt_token"][0], prompt["prompt_mel"][0], prompt["spk"][0])


def _utterances(flow: AnyFlow, case: GoldenCase, steps: int) -> None:
    assert isinstance(flow, ConformerFlow)
    token, lengths, embedding, noise = case.take("token", "token_len", "embedding", f"n{steps}.z")
    prompt, frames = case["prompt_feat"].mT, flow.stride * token.shape[1]
    shown = valid_mask(case["prompt_feat_len"], frames)[:, None]
    cond = functional.pad(prompt, (0, frames - prompt.shape[2])) * shown
    last = torch.ones(len(token), dtype=torch.bool)
    with leaking_padding(flow.encoder):
        mel, _ = flow(token, lengths, last, embedding, noise, steps, cond=cond)
    case.close(f"n{steps}.feat", mel.float())
    case.equal_lengths(f"n{steps}.feat_len", flow.stride * lengths)
    for row, length in enumerate(lengths.tolist()):
        one = slice(row, row + 1)
        inputs = (token[one, :length], lengths[one], last[:1], embedding[one], noise[one], steps)
        case.close(f"single{row}.n{steps}.feat", flow(*inputs, cond=cond[one, :, : flow.stride * length])[0])


def _check_caches(case: GoldenCase, state: FlowState) -> None:
    check_encoder_caches(case, state.caches, "conformer_")
    check_ends(case, "estimator_cnn_cache", state.caches["solver_tail"])
    check_ends(case, "estimator_att_cache", state.caches["solver_kv"])


def _block_stream(flow: AnyFlow, case: GoldenCase, plans: list[dict[str, Any]]) -> list[Chunk]:
    """Compare whole streams, and each call's mel: from all tokens so far, as the original's, and from what is new."""
    whole, every, speaker = partial(_whole_mel, flow, case), case["token"].shape[1], case["embedding"][0]
    case.close("offline.mel", whole(every, is_final=True, is_masked=False))
    case.close("offline_not_final.mel", whole(every, is_final=False, is_masked=False))
    case.close("streaming_whole.mel", whole(every, is_final=True, is_masked=True))
    streamed = StreamFlow(flow, UPSTREAM_POLICY, case["rand_noise"][0])
    state = streamed.run_prompt(case["prompt_token"][0].long(), case["prompt_feat"][0], speaker)
    chunks = []
    for plan, call in zip(plans, case.calls(), strict=True):
        first, given, is_final = plan["token_offset"], plan["tokens_given"], plan["finalize"]
        mel = whole(given, is_final=is_final, is_masked=plan["streaming"])
        call.close("mel_whole_prefix", mel)
        chunks.append(Chunk(call, mel[0, :, flow.stride * first :], is_final))
        call.close("mel", chunks[-1].mel)
        with flow.decoder.register_forward_pre_hook(showing_all):
            unmasked = whole(given, is_final=is_final, is_masked=True)
        call.close("mel_unmasked_estimator", unmasked[:, :, flow.stride * first :])
        if plan["streaming"]:
            new = FlowInput(state, case["token"][0, first:given].long(), speaker, 0, is_final)
            (mel,), (state,) = streamed.forward([new])
            call.close("mel", mel, " (incremental)")
    return chunks


def _whole_mel(flow: AnyFlow, case: GoldenCase, tokens: int, *, is_final: bool, is_masked: bool) -> Tensor:
    """Return the generated mel [1, 80, F] of one pass over the prompt and the first `tokens` tokens of a stream."""
    ids = torch.cat([case["prompt_token"], case["token"][:, :tokens]], 1).long()
    frames = flow.stride * (ids.shape[1] - (0 if is_final else flow.lookahead))
    prompt = case["prompt_feat"].mT
    cond = functional.pad(prompt, (0, frames - prompt.shape[2]))
    inputs = (ids, torch.tensor([ids.shape[1]]), torch.tensor([is_final]), case["embedding"], case["rand_noise"])
    mel, _ = flow(*inputs, UPSTREAM_STEPS, cond=cond, is_masked=is_masked)
    return torch.as_tensor(mel[:, :, prompt.shape[2] :])
