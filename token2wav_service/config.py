"""Settings of the token2wav service: frozen inside, read once at the process edge."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from servicekit.settings import number, one_of, whole

MIB = 1024 * 1024
HELP, READ = "help", "read"
"""Keys of a field's metadata: its meaning, for help texts and pages, and what reads its text."""
_T = TypeVar("_T")


def described(default: _T, meaning: str, read: Callable[[str], object] | None = None) -> _T:
    """Return a dataclass's field with a default, its meaning, and what reads it where it can be set."""
    return dataclasses.field(default=default, metadata={HELP: meaning, READ: read})


class HistoryPolicy(str, Enum):
    """Which earlier frames a chunk may attend to."""

    AUTO = "auto"
    """As the original runtime truncates history, until 100 s of prompt and audio; then `prompt_and_recent`."""
    PROMPT_AND_RECENT = "prompt_and_recent"
    """The whole prompt and the newest frames: constant memory and cost for any length."""


class RunnerKind(str, Enum):
    """What computes the engine's batches."""

    AUTO = "auto"
    """`slots` on a CUDA device, with engines where they fit and were timed to be faster; `packed` on a CPU for
    Step-Audio2's family, else `torch`."""
    TORCH = "torch"
    """Plain modules, on any device and under every policy."""
    PACKED = "packed"
    """Arithmetic of the plain modules for CPU cores, without padding, with each stream's keys and values in place."""
    SLOTS = "slots"
    """Fused kernels and CUDA graphs over a fixed pool; history `prompt_and_recent`."""
    TENSORRT = "tensorrt"
    """`slots` with estimator and vocoder in TensorRT engines that were built beforehand; never run where this is
    developed."""


@dataclass(frozen=True)
class SynthesisPolicy:
    """Settings that change the audio. `is_reference` reproduces the original's numbers."""

    history: HistoryPolicy = described(
        HistoryPolicy.AUTO,
        "Earlier frames that a chunk sees: auto or prompt_and_recent.",
    )
    estimator_recent_frames: int = described(
        100,
        "Newest mel frames (50 Hz) the DiT keeps beside the prompt; of a block-masked flow, rounded up to "
        "whole blocks.",
        whole(0).read,
    )
    conformer_recent_frames: int = described(
        250,
        "Newest mel frames (50 Hz) the conformer keeps beside the prompt; at least 2, one token's.",
        whole(2).read,
    )
    is_reference: bool = described(False, "Whether noise, window of the joins and source phase are the original's.")
    """The original's noise is one frozen buffer for all streams, indexed by the attention cache's length; ours is a
    function of (seed, absolute frame). The halves of the original's window (Hamming) sum to 1.08, ours to 1. The
    original's source restarts its phase at zero in every vocoder call; ours goes on where the previous call ended."""
    ode_steps: int | None = described(
        None, "Euler steps of the flow's solver (default: the checkpoint's, mostly 10).", whole(1).read
    )


@dataclass(frozen=True)
class Token2WavConfig:
    """Everything the engine needs to start."""

    model_dir: Path
    """Directory with flow.yaml, flow.pt, hift.pt and the two ONNX files."""
    device: str = described("cpu", "Device that computes, such as cpu or cuda.", str)
    dtype: str = described(
        "float32", "dtype of the flow; of the vocoder, only products are ever smaller than float32.", str
    )
    max_batch_size: int = described(16, "Most streams in one step.", whole(1).read)
    batch_window_us: int = described(0, "Microseconds a step waits for more streams to join it.", whole(0).read)
    max_streams: int = described(64, "Most open streams; one more is refused.", whole(1).read)
    max_chunk_tokens: int = described(1500, "Most tokens (25 Hz) in one chunk: a minute of audio.", whole(4).read)
    voice_cache_bytes: int = described(
        512 * MIB,
        "Most bytes of cached voices; the one used longest ago is dropped first.",
        whole(1).read,
    )
    idle_timeout_s: float = described(
        60.0,
        "Seconds without a chunk after which an open stream is aborted; above 0, finite.",
        number(is_open=True).read,
    )
    runner: RunnerKind = described(
        RunnerKind.AUTO,
        "Program that computes batches: auto, torch, packed, slots or tensorrt.",
        lambda text: RunnerKind(one_of(*(kind.value for kind in RunnerKind)).read(text)),
    )
    engines_dir: Path | None = described(
        None,
        "Folder of TensorRT engines, for runner `tensorrt`; None is `engines` in model_dir.",
        Path,
    )
    tensorrt_vocoder: str = described(
        "float32",
        "Precision of the vocoder's engine, float32 (with TF32 products) or float16; without such an engine, "
        "fused kernels run the vocoder.",
        one_of("float32", "float16").read,
    )
    num_threads: int | None = described(None, "CPU threads for torch; None leaves torch's choice.", whole(1).read)
    synthesis: SynthesisPolicy = SynthesisPolicy()

    @classmethod
    def from_mapping(cls, settings: Mapping[str, str]) -> Token2WavConfig:
        """Read flat string settings: names of `SETTABLE`, fields of this class and of `SynthesisPolicy`.

        Raises:
            ValueError: an unknown name, a missing model_dir, or a value that does not parse.
        """
        unknown = sorted(set(settings) - SETTABLE.keys())
        if unknown:
            raise ValueError(f"unknown settings {unknown}; known are {sorted(SETTABLE)}")
        if "model_dir" not in settings:
            raise ValueError("model_dir is missing: give the directory that holds flow.yaml and flow.pt")
        values: dict[str, Any] = {name: _read(name, text) for name, text in settings.items()}
        policy = {field.name: values.pop(field.name) for field in _POLICY if field.name in values}
        return cls(**values, synthesis=SynthesisPolicy(**policy))


_POLICY = dataclasses.fields(SynthesisPolicy)
SETTABLE: dict[str, Callable[[str], object]] = {"model_dir": Path} | {
    field.name: field.metadata[READ]
    for field in (*dataclasses.fields(Token2WavConfig), *_POLICY)
    if field.metadata.get(READ) is not None
}
"""Settings, and what reads each. The rest of `SynthesisPolicy` is for tests and replays of the original's numbers."""


def _read(name: str, text: str) -> object:
    try:
        return SETTABLE[name](text)
    except ValueError as err:
        raise ValueError(f"{name}: got {text!r}, {err}") from err
