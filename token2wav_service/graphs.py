"""What the two exported graphs take and give: names, dtypes, axes and the sizes they may have. No torch, no model.

They are the estimator's chunk form and the vocoder's convolutions, which do the same in every family. Those of the
block-masked flows (CosyVoice2, CosyVoice3) also take where a chunk's last complete block ends.

Axis names say what is counted. `rows` are streams twice: all conditional ones first, then all unconditional ones.
History columns may stand in any order. A column that a validity input rules out may hold any finite value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from token2wav_service.models.config import (
    OVERLAPPING_COLUMNS,
    AnyFlowConfig,
    CosyVoice3FlowConfig,
    FlowConfig,
    HiFTConfig,
)


@dataclass(frozen=True)
class AxisRange:
    """Sizes of one axis: what must work, and the one to be fastest at."""

    min: int
    opt: int
    max: int

    def __post_init__(self) -> None:
        if not 0 < self.min <= self.opt <= self.max:
            raise ValueError(f"got {self}, expected 0 < min <= opt <= max")

    def times(self, factor: int, offset: int = 0) -> AxisRange:
        """Return the range of `factor` times this axis plus `offset`."""
        return AxisRange(*(size * factor + offset for size in (self.min, self.opt, self.max)))


FLOAT32, INT64, BOOL = "float32", "int64", "bool"
"""Element types beside a graph's `Precision`, as numpy and torch name them."""


class Precision(str, Enum):
    """Type of a graph's products and caches. Norms, softmax, time embedding and residual sums are float32 in both."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"


Dim = int | str
"""Size of a dimension: a fixed number, or the name of an axis."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]
    meaning: str

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape at given sizes of the named axes."""
        return tuple(dim if isinstance(dim, int) else sizes[dim] for dim in self.dims)


@dataclass(frozen=True)
class ShapeRange:
    """The shapes one input may have."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


@dataclass(frozen=True)
class DerivedAxis:
    """An axis whose size follows from an input's axis."""

    axis: str
    factor: int
    offset: int

    def size(self, sizes: Mapping[str, int]) -> int:
        """Return factor times the other axis plus offset."""
        return self.factor * sizes[self.axis] + self.offset


@dataclass(frozen=True)
class GraphSpec:
    """One exported graph."""

    name: str
    precision: Precision
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    ranges: Mapping[str, AxisRange]
    """Sizes of the inputs' axes; others are not promised to work."""
    derived: Mapping[str, DerivedAxis] = field(default_factory=dict)
    """Axes whose sizes follow from the others'."""

    @property
    def file_name(self) -> str:
        """Name of the ONNX file."""
        return f"{self.name}.{self.precision.value}.onnx"

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the dynamic axes of the inputs, in order of first use."""
        return tuple(dict.fromkeys(dim for tensor in self.inputs for dim in tensor.dims if isinstance(dim, str)))

    def shape_ranges(self) -> dict[str, ShapeRange]:
        """Return every input's smallest, expected and largest shape, by name."""
        sizes = [self.sizes(end) for end in ("min", "opt", "max")]
        return {tensor.name: ShapeRange(*(tensor.shape(at) for at in sizes)) for tensor in self.inputs}

    def sizes(self, end: Literal["min", "opt", "max"]) -> dict[str, int]:
        """Return the smallest, expected or largest size of every axis."""
        return self.complete({axis: getattr(self.ranges[axis], end) for axis in self.axes})

    def complete(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return sizes of the independent axes with those of the derived ones."""
        return {**sizes, **{name: derived.size(sizes) for name, derived in self.derived.items()}}


ROTARY_FRAMES = 32_768
"""Frames (10.9 min, prompt included) that the rotary DiT's graph knows angles of."""

STREAMS = AxisRange(1, 16, 64)
"""Streams in one batch. These sizes hold every program that a runner prepares; frames are mel frames (50 Hz)."""
CHUNK_FRAMES = AxisRange(2, 50, 256)
"""Frames that a chunk computes; a block-masked flow computes the last incomplete blocks again."""
HISTORY_FRAMES = {"prompt_frames": AxisRange(1, 300, 900), "window_frames": AxisRange(1, 100, 100)}
"""Frames that the prompts of a batch are padded to (the longest has 18 s), and earlier ones of the stream itself that
the estimator sees."""
VOCODER_OVERLAP_FRAMES = 8
"""Most mel frames of earlier chunks, and of padding, that a vocoder call has beside its chunk's."""

ESTIMATOR_CHUNK = "estimator_chunk"
VOCODER = "vocoder"
GRAPHS = (ESTIMATOR_CHUNK, VOCODER)


def describe_graph(name: str, flow: AnyFlowConfig, hift: HiFTConfig, precision: Precision) -> GraphSpec:
    """Describe a graph of a checkpoint.

    Args:
        name: one of `GRAPHS`.
        flow, hift: sizes; their types say which family.
        precision: of its products; the vocoder's inputs and outputs are float32 in any case.
    """
    if name == ESTIMATOR_CHUNK:
        return _estimator_chunk(flow, precision)
    return _causal_vocoder(hift, precision) if hift.is_causal else _plain_vocoder(hift, precision)


def _estimator_chunk(flow: AnyFlowConfig, precision: Precision) -> GraphSpec:
    kept, cache = flow.estimator.past, precision.value
    groups, channels, columns = kept.tail
    kv, tail = (kept.layers, "rows", kept.heads), (groups, "rows", channels, columns)
    mel = ("rows", flow.output_size, "chunk_frames")
    inputs = (
        TensorSpec("x", FLOAT32, mel, "noisy mel"),
        TensorSpec("mu", FLOAT32, mel, "the encoder's mu; zero in unconditional rows"),
        TensorSpec("speaker", FLOAT32, ("rows", flow.output_size), "the projected speaker vector, or zero"),
        TensorSpec("cond", FLOAT32, mel, "conditioning mel, or zero"),
        TensorSpec("time", FLOAT32, ("rows",), "0..1"),
        TensorSpec("lengths", INT64, ("rows",), "valid frames of the chunk, 1 or more"),
        *_block_inputs(flow),
        TensorSpec(
            "prompt_kv",
            cache,
            (kept.layers, "prompt_rows", kept.heads, "prompt_frames", kept.pair),
            "keys then values of the voices' prompts at this time; two rows a voice, conditional and not",
        ),
        TensorSpec("prompt_valid", BOOL, ("prompt_rows", "prompt_frames"), "true where a prompt frame is"),
        TensorSpec("prompt_row", INT64, ("rows",), "which of prompt_rows a row attends to"),
        TensorSpec(
            "window_kv",
            cache,
            (*kv, "window_frames", kept.pair),
            "keys then values of the stream's own earlier frames at this time",
        ),
        TensorSpec("window_valid", BOOL, ("rows", "window_frames"), "true where an earlier frame is"),
        TensorSpec("tail", cache, tail, "columns that the convolutions continue from, at this time"),
    )
    outputs = (
        TensorSpec("velocity", FLOAT32, ("rows", flow.estimator.out_channels, "chunk_frames"), "also at padded frames"),
        TensorSpec("chunk_kv", cache, (*kv, "chunk_frames", kept.pair), "keys then values of this chunk"),
        TensorSpec("new_tail", cache, tail, "what the next chunk's convolutions continue from"),
    )
    rows = STREAMS.times(2)
    ranges = {"rows": rows, "prompt_rows": rows, **HISTORY_FRAMES, "chunk_frames": CHUNK_FRAMES}
    return GraphSpec(ESTIMATOR_CHUNK, precision, inputs, outputs, ranges)


def _vocoder_ranges(spectrum_columns: int, ahead: int) -> dict[str, AxisRange]:
    """Return the sizes of the vocoder's axes: so many STFT frames a mel frame, and frames to look ahead."""
    frames = AxisRange(1, *(n + VOCODER_OVERLAP_FRAMES for n in (CHUNK_FRAMES.opt, CHUNK_FRAMES.max)))
    spectrum = frames.times(spectrum_columns, 1)
    columns = frames.times(1, ahead)
    return {"streams": STREAMS, "mel_frames": frames, "mel_columns": columns, "spectrum_frames": spectrum}


def _block_inputs(flow: AnyFlowConfig) -> tuple[TensorSpec, ...]:
    """Return what the estimators of block-masked flows take beside the others' inputs."""
    if isinstance(flow, FlowConfig):
        return ()
    committed = TensorSpec(
        "committed", INT64, ("rows",), "frames after which new_tail is taken: to the last complete block, or 0"
    )
    first = TensorSpec(
        "first_frames",
        INT64,
        ("rows",),
        f"frames before the chunk, prompt included; with the chunk's, {ROTARY_FRAMES} at most",
    )
    return (committed, first) if isinstance(flow, CosyVoice3FlowConfig) else (committed,)


def _plain_vocoder(hift: HiFTConfig, precision: Precision) -> GraphSpec:
    """Describe the convolutions of the vocoder that sees its whole input."""
    dims = ("streams", hift.istft_n_fft + 2, "spectrum_frames")
    rate = hift.frame_samples // hift.istft_hop
    inputs = (
        TensorSpec("mel", FLOAT32, ("streams", hift.in_channels, "mel_frames"), "padded with anything"),
        TensorSpec("spectrum", FLOAT32, dims, "the source's STFT: real parts, then imaginary"),
        TensorSpec("lengths", INT64, ("streams",), "valid mel frames, 1 or more"),
    )
    outputs = (TensorSpec("spectra", FLOAT32, dims, "log magnitudes, then phases before their sine"),)
    derived = {"spectrum_frames": DerivedAxis("mel_frames", rate, 1)}
    return GraphSpec(VOCODER, precision, inputs, outputs, _vocoder_ranges(rate, 0), derived)


def _causal_vocoder(hift: HiFTConfig, precision: Precision) -> GraphSpec:
    """Describe the convolutions of the vocoder that looks back, in pieces of any size."""
    bins, ahead, rate = hift.istft_n_fft + 2, hift.conv_pre_look_right, hift.frame_samples // hift.istft_hop
    context = ("streams", hift.causal_context)
    half = hift.istft_n_fft // 2
    inputs = (
        TensorSpec(
            "mel",
            FLOAT32,
            ("streams", hift.in_channels, "mel_columns"),
            f"frames to decode and the {ahead} behind them, which come again; zeros behind a stream's end",
        ),
        TensorSpec(
            "spectrum",
            FLOAT32,
            ("streams", bins, "spectrum_frames"),
            f"STFT of the source with {half} samples before and behind it: real parts, then imaginary",
        ),
        TensorSpec("lengths", INT64, ("streams",), "frames to decode, 1 or more"),
        TensorSpec("is_first", BOOL, ("streams",), "true in a stream's first piece"),
        TensorSpec("context", FLOAT32, context, "what the piece before left; zeros in a first piece"),
    )
    spectra = TensorSpec(
        "spectra",
        FLOAT32,
        ("streams", bins, "spectra_frames"),
        f"log magnitudes, then phases before their sine; {OVERLAPPING_COLUMNS} columns of the piece before come first",
    )
    derived = {
        "mel_frames": DerivedAxis("mel_columns", 1, -ahead),
        "spectrum_frames": DerivedAxis("mel_columns", rate, 1 - rate * ahead),
        "spectra_frames": DerivedAxis("mel_columns", rate, 1 - rate * ahead + OVERLAPPING_COLUMNS),
    }
    outputs = (spectra, TensorSpec("new_context", FLOAT32, context, "for the next piece"))
    return GraphSpec(VOCODER, precision, inputs, outputs, _vocoder_ranges(rate, ahead), derived)
