"""Golden cases of whole streams: the flow with its caches, and the vocoder behind it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from token2wav_service.config import SynthesisPolicy
from token2wav_service.models.causal import FlowInput, VocoderInput
from token2wav_service.models.config import FlowConfig, HiFTConfig
from token2wav_service.models.flow.encoder import ConformerEncoder
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.flow.flow_state import FlowState
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.models.vocoder.vocoder_stream import OVERLAP_FRAMES, StreamVocoder, VocoderState, total_frames
from token2wav_service.replay.vectors import INJECTED_TOLERANCE, SOURCE_TOLERANCE, GoldenCase, VectorFolder, probed

UPSTREAM_POLICY = SynthesisPolicy(is_reference=True)


def load_flow_vectors(folder: VectorFolder) -> Flow:
    """Build the flow of a `*_flow` folder."""
    return folder.load(Flow(FlowConfig.from_mapping(folder.json("config.json"))))


def load_hift_vectors(folder: VectorFolder) -> HiFT:
    """Build the vocoder of a `*_hift` folder."""
    return folder.load(HiFT(HiFTConfig.from_mapping(folder.json("config.json"))))


def upstream_source(hift: HiFT, f0: Tensor, noise: Tensor) -> Tensor:
    """Return the source [B, 1, N] of a pitch as upstream makes it."""
    phase, _ = hift.m_source.phase(f0, is_reference=True)
    return torch.as_tensor(hift.m_source(f0, noise, phase))


def stream_flow(folder: VectorFolder, device: str) -> StreamFlow:
    """Return the folder's flow under upstream's policies, with its noise buffer and number of solver steps.

    Whole caches tell the number; where only the first and last step were kept, config.json may, else it is the usual
    one.
    """
    cache = folder.tensors("setup_cache.safetensors").get("cache.estimator_cnn_cache")
    usual = folder.json("config.json").get("n_timesteps", SynthesisPolicy().ode_steps)
    buffer = folder.tensors("rand_noise.safetensors")["rand_noise"][0]
    steps = int(usual if cache is None else cache.shape[0])
    return StreamFlow(load_flow_vectors(folder).to(device), replace(UPSTREAM_POLICY, ode_steps=steps), buffer)


@contextmanager
def leaking_padding(encoder: ConformerEncoder) -> Iterator[None]:
    """Have the look-ahead of a batch's shorter rows read their embedded padding, as upstream's whole utterances do."""

    def leak(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        embedded, padded = seen["embedded"], inputs[0]
        return torch.cat([embedded, padded[:, embedded.shape[1] :]], 1), *inputs[1:]

    with probed(encoder, {"embedded": "embed"}) as seen, encoder.pre_lookahead_layer.register_forward_pre_hook(leak):
        yield


def replay_flow(folder: VectorFolder) -> None:
    """Whole utterances, the prompt's caches, and every stream's mel, caches and kept frames."""
    flow = load_flow_vectors(folder)
    for case in folder.cases("offline*"):
        for steps in case.numbers("n"):
            _flow_whole(flow, case, steps)
    replay_flow_streams(folder)


def replay_flow_streams(folder: VectorFolder, device: str = "cpu") -> None:
    """The prompt's caches, and every stream's mel, caches and kept frames."""
    streamed, setup = stream_flow(folder, device), folder.case("setup_cache")
    flow, voice = streamed.flow, _voice_of(streamed, setup)
    _check_caches(setup.part("cache.", ""), voice)
    labels = folder.json("truncation_labels.json").get("labels", {})
    plans = folder.json("streams.json").get("streams", {})
    for case in folder.cases("stream_*"):
        before, stream = voice, case.name.removeprefix("stream_")
        for number, (call, mel, state, _) in enumerate(_chunks(streamed, setup, voice, case)):
            call.close("mel", mel)
            _check_caches(call.part("cache_after.", ".cache_after"), state)
            if stream in labels:
                kept = (state.labels - flow.stride * state.prompt_tokens).tolist()
                case.equal(f"c{number}.kept_frames", kept, labels[stream][number])
            if stream in plans:
                made = flow.stride * (state.end_token - before.end_token)
                expected = [plans[stream][number][key] for key in ("noise_offset", "mel_frames", "att_len_after")]
                case.equal(f"c{number}.schedule", [len(before.labels), made, len(state.labels)], expected)
            before = state


def replay_stream(folder: VectorFolder, device: str = "cpu") -> None:
    """Tokens to audio, chunk by chunk: end to end, and with the golden source injected."""
    prompt, streamed = folder.case("prompt"), stream_flow(folder.beside("flow"), device)
    vocoder = StreamVocoder(load_hift_vectors(folder.beside("hift")).to(device), UPSTREAM_POLICY)
    voice = _voice_of(streamed, prompt)
    prompt.close("speech_window", vocoder.window, 1e-12)
    for case in folder.cases("*"):
        if case.name != "prompt":
            _audio_stream(vocoder, _chunks(streamed, prompt, voice, case))


def _voice_of(flow: StreamFlow, prompt: GoldenCase) -> FlowState:
    return flow.run_prompt(prompt["prompt_token"][0], prompt["prompt_mel"][0], prompt["spk"][0])


def _chunks(
    flow: StreamFlow, prompt: GoldenCase, state: FlowState, case: GoldenCase
) -> Iterator[tuple[GoldenCase, Tensor, FlowState, bool]]:
    """Yield each call's vectors, our mel [80, F] and state after it, and whether it is the last."""
    for (start, end, last), call in zip(case["schedule"].tolist(), case.calls(), strict=True):
        chunk = FlowInput(state, case["token"].flatten()[start:end].long(), prompt["spk"][0], 0, bool(last))
        (mel,), (state,) = flow.forward([chunk])
        yield call, mel, state, bool(last)


def _flow_whole(flow: Flow, case: GoldenCase, steps: int) -> None:
    token, lengths, embedding, noise = case.take("token", "token_len", "embedding", f"n{steps}.z")
    cond = torch.zeros(len(token), flow.config.output_size, 2 * token.shape[1])
    for row, length in enumerate(case["prompt_feat_len"].tolist()):
        cond[row, :, :length] = case["prompt_feat"][row, :length].T
    last = torch.ones(len(token), dtype=torch.bool)
    with leaking_padding(flow.encoder):
        mel, _ = flow(token, lengths, last, embedding, noise, steps, cond=cond)
    case.close(f"n{steps}.feat", mel.float())
    case.equal_lengths(f"n{steps}.feat_len", flow.stride * lengths)
    for row, length in enumerate(lengths.tolist()):
        if (key := f"single{row}.n{steps}.feat") in case:
            one = slice(row, row + 1)
            inputs = (token[one, :length], lengths[one], last[:1], embedding[one], noise[one], steps)
            case.close(key, flow(*inputs, cond=cond[one, :, : 2 * length])[0])


def _check_caches(case: GoldenCase, state: FlowState) -> None:
    c = state.caches
    case.close("conformer_cnn_cache", torch.cat([c["lookahead_tail"], c["upsample_tail"]], 1))
    case.close("conformer_att_cache", torch.cat([c["token_kv"].repeat(1, 1, 2, 1), c["frame_kv"]]))
    check_ends(case, "estimator_cnn_cache", c["solver_tail"])
    check_ends(case, "estimator_att_cache", c["solver_kv"])


def check_ends(case: GoldenCase, key: str, got: Tensor) -> None:
    """Check a cache that a vector holds whole, or (suffix _t0_tlast) at the first and last solver step only."""
    case.close(key, got)
    case.close(f"{key}_t0_tlast", got[[0, -1]])


def _audio_stream(vocoder: StreamVocoder, chunks: Iterator[tuple[GoldenCase, Tensor, FlowState, bool]]) -> None:
    vocoded, injected, device = vocoder.initial_state(), vocoder.initial_state(), vocoder.window.device
    for call, mel, _, is_last in chunks:
        row = VocoderInput(vocoded, mel, 0, is_last)
        silence = torch.zeros(1, total_frames(row) * vocoder.hift.config.frame_samples, vocoder.hift.m_source.harmonics)
        noise = call["noise"] if "noise" in call else silence
        (wav,), (vocoded,), source = vocoder.forward([row], noise=noise.to(device))
        call.snr("wav", wav)
        if "source_out" in call:
            call.snr("source_out", source)
            row = VocoderInput(injected, mel, 0, is_last)
            (wav,), (injected,), _ = vocoder.forward([row], source=call["source_out"].to(device))
            call.close("wav", wav, INJECTED_TOLERANCE, " (source injected)")
            check_vocoder_caches(call.part("cache_after.", ".cache_after"), injected)


def check_vocoder_caches(case: GoldenCase, state: VocoderState) -> None:
    """Compare what a vocoder keeps between chunks with the tensors `mel`, `source` and `speech`."""
    case.close("mel", state.mel_tail[:, -OVERLAP_FRAMES:])
    for name, tail, tolerance in (
        ("source", state.source_tail, SOURCE_TOLERANCE),
        ("speech", state.speech_tail, INJECTED_TOLERANCE),
    ):
        if tail is not None:
            case.close(name, tail, tolerance)
