"""Golden cases of the vocoder called alone."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from token2wav_service.config import SourcePhase
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.replay.report import DECODE_TOLERANCE, F0_TOLERANCE_HZ, SOURCE_TOLERANCE, Report
from token2wav_service.replay.stream_cases import load_hift_vectors
from token2wav_service.replay.vectors import Probe, VectorFolder, calls, probed

UV_TOLERANCE = 0.0


def replay_hift(folder: VectorFolder, report: Report) -> None:
    """Source, decoding with given sources, and the whole vocoder."""
    hift = load_hift_vectors(folder)
    for file in folder.matching("source*.safetensors"):
        _source(hift, folder, file, report)
    for file in folder.matching("decode*.safetensors"):
        _decode(hift, folder, file, report)
    for file in folder.matching("forward*.safetensors"):
        _forward(hift, folder, file, report)


def _source(hift: HiFT, folder: VectorFolder, file: Path, report: Report) -> None:
    v = folder.tensors(file.name)
    module = hift.m_source
    report.check_close(folder.label(file, "f0"), hift.f0_predictor(v["mel"]), v["f0"], F0_TOLERANCE_HZ)
    phase, _ = module.phase(v["f0"], SourcePhase.UPSTREAM)
    report.check_close(folder.label(file, "uv"), module.voiced(v["f0"]), v["uv"], UV_TOLERANCE)
    sines = module.sines(v["f0"], phase)
    report.check_close(folder.label(file, "sine_no_noise"), sines, v["sine_no_noise"], SOURCE_TOLERANCE)
    source = module(v["f0"], v["noise"], phase)
    report.check_close(folder.label(file, "source"), source, v["source"], SOURCE_TOLERANCE)


def _decode(hift: HiFT, folder: VectorFolder, file: Path, report: Report) -> None:
    v = folder.tensors(file.name)
    with probed(_stages(hift)) as stages:
        wav = hift(v["mel"], v["source"])
    report.check_close(folder.label(file, "wav"), wav, v["wav"], DECODE_TOLERANCE)
    spectrum = hift.stft(v["source"].squeeze(1))
    for part, got in zip(("stft_real", "stft_imag"), spectrum.chunk(2, 1), strict=True):
        if part in v:
            report.check_close(folder.label(file, part), got, v[part], DECODE_TOLERANCE)
    for key, expected in v.items():
        if key.startswith("stage."):
            # The vectors keep the first batch item, and few channels of long tensors.
            stage = stages[key.removeprefix("stage.")][:1, : expected.shape[1]]
            report.check_close(folder.label(file, key), stage, expected, DECODE_TOLERANCE)


def _stages(hift: HiFT) -> list[Probe]:
    per_stage = len(hift.config.resblock_kernel_sizes)
    modules: dict[str, nn.Module] = {"conv_pre": hift.conv_pre, "conv_post": hift.conv_post}
    for stage in range(len(hift.ups)):
        modules[f"ups{stage}"] = hift.ups[stage]
        modules[f"source_branch{stage}"] = hift.source_resblocks[stage]
        for block in range(per_stage):
            modules[f"stage{stage}_resblock{block}"] = hift.resblocks[stage * per_stage + block]
    return [(name, module, lambda _, output: output) for name, module in modules.items()]


def _forward(hift: HiFT, folder: VectorFolder, file: Path, report: Report) -> None:
    for number, call in enumerate(calls(folder.tensors(file.name))):
        f0 = hift.f0_predictor(call["mel"])
        phase, _ = hift.m_source.phase(f0, SourcePhase.UPSTREAM)
        source = hift.m_source(f0, call["noise"], phase)
        if "cache_source" in call:
            source[:, :, : call["cache_source"].shape[2]] = call["cache_source"]
        label = folder.label(file, f"c{number}")
        report.check_close(f"{label}.source", source, call["source"], SOURCE_TOLERANCE)
        report.check_snr(f"{label}.wav", hift(call["mel"], source), call["wav"])
        decoded = hift(call["mel"], call["source"])
        report.check_close(f"{label}.wav (source injected)", decoded, call["wav"], DECODE_TOLERANCE)
