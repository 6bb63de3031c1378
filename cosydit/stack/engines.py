"""Which TensorRT engines of a checkpoint are there, whether each fits this machine, and what they gain on it.

Looking loads no library; timing builds the service's engine twice.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from token2wav_service.errors import EngineUnfitError
from token2wav_service.graphs import GRAPHS
from token2wav_service.runtime.tensorrt.manifest import (
    ENGINES_FOLDER,
    MANIFEST_SUFFIX,
    GpuHost,
    Speed,
    misfits,
    probe_host,
    read_manifest,
)

if TYPE_CHECKING:
    from token2wav_service.config import Token2WavConfig

TIMED_STREAMS, TIMED_TOKENS = 8, 25
"""One chunk of a second in so many streams at once is timed."""
PROMPT_SECONDS = 5
TIMED_RUNS = 20


@dataclass(frozen=True)
class EngineReport:
    """One engine file."""

    name: str
    graph: str
    problems: tuple[str, ...]
    """Reasons why the engine can't be used here; empty if it can."""
    note: str = ""
    """Remark on an engine that fits."""


def report_engines(token2wav_dir: Path, host: GpuHost) -> list[EngineReport]:
    """Look at every engine in a checkpoint's engines folder."""
    directory = token2wav_dir / ENGINES_FOLDER
    return [_report(path, host) for path in sorted(directory.glob("*" + MANIFEST_SUFFIX))]


def next_engine_command(token2wav_dir: Path, reports: Sequence[EngineReport]) -> str | None:
    """Return the command that makes the engines that serving uses; None if fitting ones are there."""
    fitting = {report.graph for report in reports if not report.problems}
    return None if fitting.issuperset(GRAPHS) else f"cosydit build-engines {token2wav_dir}"


def _report(path: Path, host: GpuHost) -> EngineReport:
    try:
        manifest = read_manifest(path)
    except EngineUnfitError as err:
        return EngineReport(path.stem, "", (str(err).splitlines()[0],))
    problems = tuple(misfits(manifest, path.parent, host))
    if problems:
        return EngineReport(path.stem, manifest.key.graph, problems)
    speed = manifest.speed
    auto = "takes it" if speed and speed.is_faster and speed.gpu_name == host.gpu_name else "leaves it alone"
    note = f"fits, {manifest.certificate.worst_db:.0f} dB from float32 at worst; {speed or 'not timed'}"
    return EngineReport(path.stem, manifest.key.graph, (), f"{note}: runner=auto {auto}")


def main() -> int:
    """Print the library that builds engines for this machine's GPU; or, with status 1, why there is none."""
    host = probe_host()
    try:
        found = host.library(host.architecture) if host.architecture else "nvidia-smi shows no GPU"
        sys.stdout.write(f"{found}\n")
    except EngineUnfitError as err:
        sys.stdout.write(f"{err}\n")
        return 1
    return int(host.architecture is None)


def time_chunks(model_dir: Path, engines_dir: Path, dtype: str, vocoder: str) -> Speed:
    """Time one chunk of several streams with a checkpoint's engines and with the fused kernels, on this GPU.

    `dtype` is the estimator's precision and the service's, `vocoder` that of the vocoder's engine.

    Raises:
        EngineUnfitError: the engines do not run.
    """
    import torch

    from token2wav_service.config import Token2WavConfig

    settings = {"model_dir": str(model_dir), "engines_dir": str(engines_dir), "device": "cuda", "dtype": dtype}
    settings |= {"tensorrt_vocoder": vocoder, "max_batch_size": str(TIMED_STREAMS)}
    tensorrt_s, slots_s = (
        _chunk_s(Token2WavConfig.from_mapping({**settings, "runner": runner})) for runner in ("tensorrt", "slots")
    )
    return Speed(torch.cuda.get_device_name(), 1000 * tensorrt_s, 1000 * slots_s)


def _chunk_s(config: Token2WavConfig) -> float:
    """Build the service's engine; returns a chunk's median seconds."""
    import numpy as np
    import torch

    from servicekit.clock import SystemClock
    from token2wav_service.build import build_engine
    from token2wav_service.contract import PROMPT_SAMPLE_RATE_HZ
    from token2wav_service.offline import chunk_seconds
    from token2wav_service.types import VoicePrompt

    engine = build_engine(config, SystemClock())
    samples = np.random.default_rng(0).normal(0, 0.1, PROMPT_SECONDS * PROMPT_SAMPLE_RATE_HZ).astype(np.float32)
    voice = engine.voices.register(VoicePrompt(samples)).voice_id
    seconds = chunk_seconds(engine, voice, TIMED_STREAMS, TIMED_TOKENS, TIMED_RUNS)
    del engine
    gc.collect()
    torch.cuda.empty_cache()
    return float(np.median(seconds))


if __name__ == "__main__":
    raise SystemExit(main())
