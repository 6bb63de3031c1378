"""Golden cases of whole streams: the flow with its caches, and the vocoder behind it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from token2wav_service.checkpoint.loader import load_weights
from token2wav_service.config import Crossfade, HistoryPolicy, NoiseSource, SourcePhase, SynthesisPolicy
from token2wav_service.models.config import FlowConfig, HiFTConfig
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.flow.flow_state import FlowState
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.streaming import FlowInput, VocoderInput
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.models.vocoder.vocoder_stream import OVERLAP_FRAMES, StreamVocoder, VocoderState, total_frames
from token2wav_service.replay.flow_cases import check_ends
from token2wav_service.replay.report import FLOW_TOLERANCE, INJECTED_TOLERANCE, SOURCE_TOLERANCE, Report
from token2wav_service.replay.vectors import Tensors, VectorFolder, calls, step_counts

INJECTED = ".wav (source injected)"
"""End of the names of the waves that were made from the golden source."""
UPSTREAM_POLICY = SynthesisPolicy(
    history=HistoryPolicy.UPSTREAM,
    noise=NoiseSource.UPSTREAM,
    crossfade=Crossfade.UPSTREAM,
    source_phase=SourcePhase.UPSTREAM,
)


def load_flow_vectors(folder: VectorFolder) -> Flow:
    """Build the flow of a `*_flow` folder."""
    config = FlowConfig.from_mapping(folder.json("config.json"))
    return load_weights(Flow(config), folder.tensors("weights.safetensors"), folder.path)


def load_hift_vectors(folder: VectorFolder) -> HiFT:
    """Build the vocoder of a `*_hift` folder."""
    config = HiFTConfig.from_mapping(folder.json("config.json"))
    return load_weights(HiFT(config), folder.tensors("weights.safetensors"), folder.path)


def stream_flow(folder: VectorFolder, steps: int, flow: Flow | None = None) -> StreamFlow:
    """Return the flow of a `*_flow` folder under upstream's policies, with the folder's noise buffer.

    Args:
        flow: what computes instead of the folder's weights in PyTorch.
    """
    buffer = folder.tensors("rand_noise.safetensors")["rand_noise"][0]
    return StreamFlow(flow or load_flow_vectors(folder), replace(UPSTREAM_POLICY, ode_steps=steps), buffer)


def _solver_steps(folder: VectorFolder, setup: Tensors) -> int:
    """Return how many solver steps a flow folder was made with.

    Its whole caches tell; where only the first and last step were kept, config.json may, else it is the usual number.
    """
    cache = setup.get("cache.estimator_cnn_cache")
    if cache is not None:
        return int(cache.shape[0])
    return int(folder.json("config.json").get("n_timesteps", SynthesisPolicy().ode_steps))


def replay_flow(folder: VectorFolder, report: Report) -> None:
    """Whole utterances, the prompt's caches, and every stream's mel, caches and kept frames."""
    flow = load_flow_vectors(folder)
    for file in folder.matching("offline*.safetensors"):
        _flow_whole(flow, folder, file, report)
    replay_flow_streams(folder, report)


def replay_flow_streams(folder: VectorFolder, report: Report, flow: Flow | None = None) -> None:
    """The prompt's caches, and every stream's mel, caches and kept frames; `flow` as in `stream_flow`."""
    setup = folder.tensors("setup_cache.safetensors")
    streamed = stream_flow(folder, _solver_steps(folder, setup), flow)
    voice = streamed.prepare_voice(setup["prompt_token"][0], setup["prompt_mel"][0], setup["spk"][0])
    cached = {key.removeprefix("cache."): value for key, value in setup.items() if key.startswith("cache.")}
    _check_caches(report, f"{folder.path.name}/setup_cache", cached, voice)
    labels = folder.optional_json("truncation_labels.json").get("labels", {})
    plans = folder.optional_json("streams.json").get("streams", {})
    for file in folder.matching("stream_*.safetensors"):
        name = file.stem.removeprefix("stream_")
        states = _flow_stream(streamed, voice, setup["spk"][0], folder, file, report)
        _check_kept(report, f"{folder.path.name}/{file.stem}", states, labels.get(name), plans.get(name))


def replay_stream(
    folder: VectorFolder, flow_folder: VectorFolder, hift: HiFT, report: Report, flow: Flow | None = None
) -> None:
    """Tokens to audio, chunk by chunk: end to end, and with the golden source injected; `flow` as in `stream_flow`."""
    prompt = folder.tensors("prompt.safetensors")
    setup = flow_folder.tensors("setup_cache.safetensors")
    streamed = stream_flow(flow_folder, _solver_steps(flow_folder, setup), flow)
    voice = streamed.prepare_voice(prompt["prompt_token"][0], prompt["prompt_mel"][0], prompt["spk"][0])
    vocoder = StreamVocoder(hift, UPSTREAM_POLICY)
    if "speech_window" in prompt:
        window = vocoder.window
        report.check_close(f"{folder.path.name}/prompt.speech_window", window, prompt["speech_window"], 1e-12)
    for file in folder.matching("*.safetensors"):
        if file.stem != "prompt":
            _audio_stream(streamed, vocoder, voice, prompt["spk"][0], folder, file, report)


def _flow_whole(flow: Flow, folder: VectorFolder, file: Path, report: Report) -> None:
    v = folder.tensors(file.name)
    rows, size = v["token"].shape
    cond = torch.zeros(rows, flow.config.output_size, 2 * size)
    for row, length in enumerate(v["prompt_feat_len"].tolist()):
        cond[row, :, :length] = v["prompt_feat"][row, :length].T
    last = torch.ones(rows, dtype=torch.bool)
    for steps in step_counts(v):
        noise = v[f"n{steps}.z"]
        mel, update = flow(
            v["token"], v["token_len"], last, v["embedding"], noise, steps, cond=cond, upstream_padding_leak=True
        )
        report.check_close(folder.label(file, f"n{steps}.feat"), mel.float(), v[f"n{steps}.feat"], FLOW_TOLERANCE)
        report.check_equal(
            folder.label(file, f"n{steps}.feat_len"), update.frame_lengths.tolist(), v[f"n{steps}.feat_len"].tolist()
        )
        for row, length in enumerate(v["token_len"].tolist()):
            key = f"single{row}.n{steps}.feat"
            if key in v:
                one = slice(row, row + 1)
                alone, _ = flow(
                    v["token"][one, :length],
                    v["token_len"][one],
                    last[:1],
                    v["embedding"][one],
                    noise[one],
                    steps,
                    cond=cond[one, :, : 2 * length],
                )
                report.check_close(folder.label(file, key), alone, v[key], FLOW_TOLERANCE)


def _flow_stream(
    flow: StreamFlow,
    voice: FlowState,
    speaker: Tensor,
    folder: VectorFolder,
    file: Path,
    report: Report,
) -> list[FlowState]:
    v = folder.tensors(file.name)
    states = [voice]
    for number, ((start, end, last), call) in enumerate(zip(v["schedule"].tolist(), calls(v), strict=True)):
        chunk = FlowInput(states[-1], v["token"].flatten()[start:end].long(), speaker, seed=0, is_last=bool(last))
        (mel,), (state,) = flow.forward([chunk])
        states.append(state)
        label = folder.label(file, f"c{number}")
        report.check_close(f"{label}.mel", mel[None], call["mel"], FLOW_TOLERANCE)
        caches = {k.removeprefix("cache_after."): t for k, t in call.items() if k.startswith("cache_after.")}
        _check_caches(report, f"{label}.cache_after", caches, state)
    return states


def _check_kept(
    report: Report,
    label: str,
    states: list[FlowState],
    kept: list[list[int]] | None,
    plan: list[dict[str, Any]] | None,
) -> None:
    """Check which frames stay after each chunk, and from which noise column each chunk starts."""
    for number, state in enumerate(states[1:]):
        if kept is not None:
            frames = (state.solver_labels - state.prompt_frames).tolist()
            report.check_equal(f"{label}.c{number}.kept_frames", frames, kept[number])
        if plan is not None:
            got = [states[number].solver_length, state.frames - states[number].frames, state.solver_length]
            expected = [plan[number][key] for key in ("noise_offset", "mel_frames", "att_len_after")]
            report.check_equal(f"{label}.c{number}.schedule", got, expected)


def _check_caches(report: Report, label: str, expected: Tensors, state: FlowState) -> None:
    if "conformer_cnn_cache" in expected:
        tails = torch.cat([state.lookahead_tail, state.upsample_tail], 1)[None]
        report.check_close(f"{label}.conformer_cnn_cache", tails, expected["conformer_cnn_cache"], FLOW_TOLERANCE)
    if "conformer_att_cache" in expected:
        kv = torch.cat([state.token_kv.repeat(1, 1, 2, 1), state.frame_kv])[:, None]
        report.check_close(f"{label}.conformer_att_cache", kv, expected["conformer_att_cache"], FLOW_TOLERANCE)
    check_ends(report, label, expected, "estimator_cnn_cache", state.solver_tail)
    check_ends(report, label, expected, "estimator_att_cache", state.solver_kv)


def _audio_stream(
    flow: StreamFlow,
    vocoder: StreamVocoder,
    voice: FlowState,
    speaker: Tensor,
    folder: VectorFolder,
    file: Path,
    report: Report,
) -> None:
    v = folder.tensors(file.name)
    state, vocoded, injected = voice, vocoder.initial_state(), vocoder.initial_state()
    device = vocoder.window.device
    has_sources = all("source_out" in call for call in calls(v))
    for number, ((start, end, last), call) in enumerate(zip(v["schedule"].tolist(), calls(v), strict=True)):
        chunk = FlowInput(state, v["token"].flatten()[start:end].long(), speaker, seed=0, is_last=bool(last))
        (mel,), (state,) = flow.forward([chunk])
        label = folder.label(file, f"c{number}")
        row = VocoderInput(vocoded, mel, seed=0, is_last=bool(last))
        noise = call.get("noise", _silence(vocoder, row)).to(device)
        (wav,), (vocoded,), source = vocoder.forward([row], noise=noise)
        report.check_snr(f"{label}.wav", wav[None], call["wav"])
        if not has_sources:
            continue
        report.check_snr(f"{label}.source_out", source, call["source_out"])
        row = VocoderInput(injected, mel, seed=0, is_last=bool(last))
        (wav,), (injected,), _ = vocoder.forward([row], source=call["source_out"].to(device))
        report.check_close(f"{label}{INJECTED}", wav[None], call["wav"], INJECTED_TOLERANCE)
        check_vocoder_caches(report, f"{label}.cache_after.", call, "cache_after.", injected)


def check_vocoder_caches(report: Report, label: str, v: Tensors, prefix: str, state: VocoderState) -> None:
    """Compare what a vocoder keeps between chunks with the tensors `<prefix>mel`, `source` and `speech`, if there."""
    held = {
        "mel": (state.mel_tail[:, -OVERLAP_FRAMES:], FLOW_TOLERANCE),
        "source": (state.source_tail, SOURCE_TOLERANCE),
        "speech": (state.speech_tail, INJECTED_TOLERANCE),
    }
    for name, (tensor, tolerance) in held.items():
        expected = v.get(f"{prefix}{name}")
        if expected is not None and tensor is not None:
            got = tensor.reshape(expected.shape) if tensor.numel() == expected.numel() else tensor
            report.check_close(f"{label}{name}", got, expected, tolerance)


def _silence(vocoder: StreamVocoder, row: VocoderInput[VocoderState]) -> Tensor:
    samples = total_frames(row) * vocoder.hift.config.frame_samples
    assert total_frames(row) >= OVERLAP_FRAMES or row.is_last
    return torch.zeros(1, samples, vocoder.hift.m_source.harmonics)
