"""What each exported graph takes and gives: names, dtypes, axes and the sizes they may have. No torch, no model.

The sizes of a checkpoint's models say which graphs its family has. Graphs of one name do the same in every family; the
chunk forms of the block-masked flows (CosyVoice2, CosyVoice3) also take where a chunk's last complete block ends.

Axis names say what is counted. `rows` are streams twice: all conditional ones first, then all unconditional ones.
History columns may stand in any order in the estimator; in the encoder they ascend in time, aligned to the right.
A column that a validity input rules out may hold any finite value.
"""

from __future__ import annotations

from dataclasses import dataclass

from token2wav_service.graphs.shapes import Profile, ShapeSettings
from token2wav_service.graphs.spec import DerivedAxis, DType, GraphSpec, Precision, ShapeRange, TensorSpec
from token2wav_service.models.config import (
    OVERLAPPING_COLUMNS,
    AnyFlowConfig,
    CosyVoice2FlowConfig,
    CosyVoice3FlowConfig,
    FlowConfig,
    HiFTConfig,
)

__all__ = [
    "ENCODER_CHUNK",
    "ENCODER_WHOLE",
    "ESTIMATOR_CHUNK",
    "ESTIMATOR_WHOLE",
    "F0_PREDICTOR",
    "FLOW_GRAPHS",
    "GIVEN_GRAPHS",
    "SPEAKER_ENCODER",
    "SPEECH_TOKENIZER",
    "VOCODER",
    "VOCODER_GRAPHS",
    "DType",
    "DerivedAxis",
    "GraphSpec",
    "Precision",
    "ShapeRange",
    "TensorSpec",
    "describe_given",
    "describe_graphs",
]

CONVOLUTION_COLUMNS = 2
"""Frames that convolutions of 3 continue from: the DiT's, the U-Net's and the look-ahead's."""
ROTARY_COLUMNS = 30
"""Frames that the rotary DiT's position convolutions of 31 continue from."""
ROTARY_FRAMES = 32_768
"""Frames (10.9 min, prompt included) that the rotary DiT's graph knows angles of."""
UPSAMPLE_COLUMNS = 4
"""Frames that the upsampling convolution of 5 continues from."""

ESTIMATOR_CHUNK = "estimator_chunk"
ESTIMATOR_WHOLE = "estimator_whole"
ENCODER_CHUNK = "encoder_chunk"
ENCODER_WHOLE = "encoder_whole"
F0_PREDICTOR = "f0_predictor"
VOCODER = "vocoder"
SPEAKER_ENCODER = "campplus"
SPEECH_TOKENIZER = "speech_tokenizer_v2_25hz"

SPEECH_TOKENIZERS = (SPEECH_TOKENIZER, "speech_tokenizer_v2", "speech_tokenizer_v3")
"""Names of the speech tokenizer in the families' checkpoints."""

FLOW_GRAPHS = (ESTIMATOR_CHUNK, ESTIMATOR_WHOLE, ENCODER_CHUNK, ENCODER_WHOLE)
VOCODER_GRAPHS = (F0_PREDICTOR, VOCODER)
"""Graphs of the vocoder. The causal one has no pitch predictor: it is float64, which neither runtime computes."""
GIVEN_GRAPHS = (SPEAKER_ENCODER, *SPEECH_TOKENIZERS)
"""Graphs taken from the checkpoint as they are; a family has one of the speech tokenizers."""


def describe_graphs(
    flow: AnyFlowConfig,
    hift: HiFTConfig,
    precision: Precision,
    shapes: tuple[ShapeSettings, ...] = (ShapeSettings(),),
    vocoder: Precision = Precision.FLOAT32,
) -> dict[str, GraphSpec]:
    """Describe every graph that is exported of a checkpoint, by name.

    Args:
        flow, hift: sizes; their types say which family.
        precision: of the flow's graphs; the pitch predictor's is always float32.
        shapes: profiles each: of the chunk forms for streams and for voices' prompts, of the whole forms one, of the
            vocoder for chunks and for whole utterances.
        vocoder: precision of the vocoder's convolutions; its inputs and outputs are float32 in any case.
    """
    described = (
        _estimator_chunk(flow, precision, shapes),
        _estimator_whole(flow, precision, shapes),
        _encoder_chunk(flow, precision, shapes),
        _encoder_whole(flow, precision, shapes),
        *((_causal_vocoder(hift, vocoder, shapes),) if hift.is_causal else _plain_vocoder(hift, vocoder, shapes)),
    )
    return {graph.name: graph for graph in described}


def describe_given(
    flow: AnyFlowConfig,
    shapes: tuple[ShapeSettings, ...] = (ShapeSettings(),),
    speech_tokenizer: str = SPEECH_TOKENIZER,
) -> dict[str, GraphSpec]:
    """Describe the two prompt models that a checkpoint brings as ONNX files, by name.

    Their inputs count by position: the official files' own names may differ.

    Args:
        speech_tokenizer: its name in the family's checkpoints.
    """
    fbank = TensorSpec("input", DType.FLOAT32, ("voices", "fbank_frames", 80), "mean-subtracted log energies, 100 Hz")
    embedding = TensorSpec("output", DType.FLOAT32, ("voices", flow.spk_embed_dim), "raw speaker embedding")
    log_mel = TensorSpec("feats", DType.FLOAT32, (1, 128, "log_mel_frames"), "log-mel, 100 Hz")
    length = TensorSpec("feats_length", DType.INT32, (1,), "valid log-mel frames")
    ids = TensorSpec("indices", DType.INT32, (1, "prompt_tokens"), "speech tokens, 25 Hz")
    profiles = tuple(settings.prompt_profile() for settings in shapes)
    described = (
        GraphSpec(SPEAKER_ENCODER, Precision.FLOAT32, (fbank,), (embedding,), profiles),
        GraphSpec(speech_tokenizer, Precision.FLOAT32, (log_mel, length), (ids,), profiles),
    )
    return {graph.name: graph for graph in described}


@dataclass(frozen=True)
class _History:
    """What an estimator keeps of earlier frames at one time."""

    layers: int
    heads: int
    pair: int
    """Channels of one head's keys and values together."""
    tail: tuple[int, int, int]
    """Groups, channels and columns that the convolutions continue from."""


def _history_of(flow: AnyFlowConfig) -> _History:
    if isinstance(flow, FlowConfig):
        dit = flow.estimator
        tail = (dit.depth, 2 * dit.hidden_size, CONVOLUTION_COLUMNS)
        return _History(dit.depth, dit.num_heads, 2 * dit.head_dim, tail)
    if isinstance(flow, CosyVoice2FlowConfig):
        unet = flow.estimator
        return _History(
            unet.num_layers, unet.num_heads, 2 * unet.head_dim, (1, unet.tail_channels, CONVOLUTION_COLUMNS)
        )
    rotary = flow.estimator
    return _History(rotary.depth, rotary.heads, 2 * rotary.head_dim, (1, 2 * rotary.dim, ROTARY_COLUMNS))


def _estimator_chunk(flow: AnyFlowConfig, precision: Precision, shapes: tuple[ShapeSettings, ...]) -> GraphSpec:
    kept, cache = _history_of(flow), precision.dtype
    groups, channels, columns = kept.tail
    kv, tail = (kept.layers, "rows", kept.heads), (groups, "rows", channels, columns)
    inputs = (
        *_solver_inputs(flow, "chunk_frames"),
        TensorSpec("lengths", DType.INT64, ("rows",), "valid frames of the chunk, 1 or more"),
        *_block_inputs(flow),
        TensorSpec(
            "prompt_kv",
            cache,
            (kept.layers, "prompt_rows", kept.heads, "prompt_frames", kept.pair),
            "keys then values of the voices' prompts at this time; two rows a voice, conditional and not",
        ),
        TensorSpec("prompt_valid", DType.BOOL, ("prompt_rows", "prompt_frames"), "true where a prompt frame is"),
        TensorSpec("prompt_row", DType.INT64, ("rows",), "which of prompt_rows a row attends to"),
        TensorSpec(
            "window_kv",
            cache,
            (*kv, "window_frames", kept.pair),
            "keys then values of the stream's own earlier frames at this time",
        ),
        TensorSpec("window_valid", DType.BOOL, ("rows", "window_frames"), "true where an earlier frame is"),
        TensorSpec("tail", cache, tail, "columns that the convolutions continue from, at this time"),
    )
    outputs = (
        TensorSpec(
            "velocity", DType.FLOAT32, ("rows", flow.estimator.out_channels, "chunk_frames"), "also at padded frames"
        ),
        TensorSpec("chunk_kv", cache, (*kv, "chunk_frames", kept.pair), "keys then values of this chunk"),
        TensorSpec("new_tail", cache, tail, "what the next chunk's convolutions continue from"),
    )
    profiles = tuple(profile for settings in shapes for profile in settings.chunk_profiles())
    return GraphSpec(ESTIMATOR_CHUNK, precision, inputs, outputs, profiles)


def _block_inputs(flow: AnyFlowConfig) -> tuple[TensorSpec, ...]:
    """Return what the estimators of block-masked flows take beside the others' inputs."""
    if isinstance(flow, FlowConfig):
        return ()
    committed = TensorSpec(
        "committed", DType.INT64, ("rows",), "frames after which new_tail is taken: to the last complete block, or 0"
    )
    first = TensorSpec(
        "first_frames",
        DType.INT64,
        ("rows",),
        f"frames before the chunk, prompt included; with the chunk's, {ROTARY_FRAMES} at most",
    )
    return (committed, first) if isinstance(flow, CosyVoice3FlowConfig) else (committed,)


def _estimator_whole(flow: AnyFlowConfig, precision: Precision, shapes: tuple[ShapeSettings, ...]) -> GraphSpec:
    inputs = (
        *_solver_inputs(flow, "whole_frames"),
        TensorSpec("lengths", DType.INT64, ("rows",), "valid frames, 1 or more"),
    )
    dims = ("rows", flow.estimator.out_channels, "whole_frames")
    outputs = (TensorSpec("velocity", DType.FLOAT32, dims, "also at padded frames"),)
    profiles = tuple(settings.whole_profile() for settings in shapes)
    return GraphSpec(ESTIMATOR_WHOLE, precision, inputs, outputs, profiles)


def _solver_inputs(flow: AnyFlowConfig, frames: str) -> tuple[TensorSpec, ...]:
    mel = ("rows", flow.output_size, frames)
    return (
        TensorSpec("x", DType.FLOAT32, mel, "noisy mel"),
        TensorSpec("mu", DType.FLOAT32, mel, "the encoder's mu; zero in unconditional rows"),
        TensorSpec("speaker", DType.FLOAT32, ("rows", flow.output_size), "the encoder's speaker_vector, or zero"),
        TensorSpec("cond", DType.FLOAT32, mel, "conditioning mel, or zero"),
        TensorSpec("time", DType.FLOAT32, ("rows",), "0..1"),
    )


def _encoder_chunk(flow: AnyFlowConfig, precision: Precision, shapes: tuple[ShapeSettings, ...]) -> GraphSpec:
    stride, lookahead = _rate_of(flow)
    kept, made = _encoder_state(flow, precision)
    inputs = (
        *_token_inputs(flow, "chunk_tokens", "valid tokens, look-ahead included; 4 or more, 1 or more where last"),
        TensorSpec(
            "is_last", DType.BOOL, ("streams",), "true where no look-ahead follows; the last 3 columns are padding"
        ),
        *kept,
    )
    both = (settings.chunk_profiles(stride, lookahead) for settings in shapes)
    profiles = tuple(profile for pair_of in both for profile in pair_of)
    derived = {
        "spoken_tokens": DerivedAxis("chunk_tokens", 1, -lookahead),
        "chunk_frames": DerivedAxis("chunk_tokens", stride, -stride * lookahead),
    }
    if isinstance(flow, CosyVoice2FlowConfig):
        # One length counts both histories.
        derived["history_frames"] = DerivedAxis("history_tokens", stride, 0)
        profiles = tuple(
            profile.with_axis("history_frames", profile["history_tokens"].times(stride)) for profile in profiles
        )
    return GraphSpec(
        ENCODER_CHUNK, precision, inputs, (*_condition_outputs(flow, "chunk_frames"), *made), profiles, derived
    )


def _encoder_state(flow: AnyFlowConfig, precision: Precision) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return what an encoder takes of earlier chunks, and what it adds."""
    cache = precision.dtype
    committed = TensorSpec(
        "committed", DType.INT64, ("streams",), "tokens after which new columns are taken: to the last complete block"
    )
    if isinstance(flow, CosyVoice3FlowConfig):
        dims = ("streams", flow.lookahead_channels, CONVOLUTION_COLUMNS)
        tail = TensorSpec("lookahead_tail", cache, dims, "columns the look-ahead layer continues from")
        return (committed, tail), (TensorSpec("new_lookahead_tail", cache, dims, "for the next chunk"),)
    c = flow.encoder
    token_kv = (c.num_blocks, "streams", c.attention_heads)
    frame_kv = (c.num_up_blocks, "streams", c.attention_heads)
    lookahead = ("streams", c.output_size, CONVOLUTION_COLUMNS)
    upsample = ("streams", c.output_size, UPSAMPLE_COLUMNS)
    pair = 2 * c.head_dim
    frame_lengths = TensorSpec(
        "frame_lengths", DType.INT64, ("streams",), "valid history frames, the right-most columns"
    )
    is_block_masked = isinstance(flow, CosyVoice2FlowConfig)
    kept = (
        *((committed,) if is_block_masked else ()),
        TensorSpec("token_kv", cache, (*token_kv, "history_tokens", pair), "keys then values of the blocks"),
        TensorSpec("token_lengths", DType.INT64, ("streams",), "valid history tokens, the right-most columns"),
        TensorSpec("frame_kv", cache, (*frame_kv, "history_frames", pair), "the same of the up-blocks"),
        *(() if is_block_masked else (frame_lengths,)),
        TensorSpec("lookahead_tail", cache, lookahead, "columns the look-ahead layer continues from"),
        TensorSpec("upsample_tail", cache, upsample, "columns the upsampling convolution continues from"),
    )
    made = (
        TensorSpec("chunk_token_kv", cache, (*token_kv, "spoken_tokens", pair), "of this chunk, without look-ahead"),
        TensorSpec("chunk_frame_kv", cache, (*frame_kv, "chunk_frames", pair), "of this chunk"),
        TensorSpec("new_lookahead_tail", cache, lookahead, "for the next chunk"),
        TensorSpec("new_upsample_tail", cache, upsample, "for the next chunk"),
    )
    return kept, made


def _rate_of(flow: AnyFlowConfig) -> tuple[int, int]:
    """Return mel frames for every token, and the tokens that a chunk looks ahead."""
    if isinstance(flow, CosyVoice3FlowConfig):
        return flow.token_mel_ratio, flow.pre_lookahead_len
    return flow.encoder.up_stride, flow.encoder.pre_lookahead_len


def _encoder_whole(flow: AnyFlowConfig, precision: Precision, shapes: tuple[ShapeSettings, ...]) -> GraphSpec:
    stride, _ = _rate_of(flow)
    inputs = _token_inputs(flow, "whole_tokens", "valid tokens, 1 or more")
    profiles = tuple(settings.whole_profile(stride) for settings in shapes)
    outputs = _condition_outputs(flow, "whole_frames")
    derived = {"whole_frames": DerivedAxis("whole_tokens", stride, 0)}
    return GraphSpec(ENCODER_WHOLE, precision, inputs, outputs, profiles, derived)


def _token_inputs(flow: AnyFlowConfig, tokens: str, lengths: str) -> tuple[TensorSpec, ...]:
    return (
        TensorSpec("tokens", DType.INT64, ("streams", tokens), "speech token ids, padded with any valid id"),
        TensorSpec("lengths", DType.INT64, ("streams",), lengths),
        TensorSpec("speaker", DType.FLOAT32, ("streams", flow.spk_embed_dim), "raw speaker embedding"),
    )


def _condition_outputs(flow: AnyFlowConfig, frames: str) -> tuple[TensorSpec, ...]:
    mel = flow.output_size
    return (
        TensorSpec("mu", DType.FLOAT32, ("streams", mel, frames), "the estimator's mu; two frames a spoken token"),
        TensorSpec("speaker_vector", DType.FLOAT32, ("streams", mel), "the estimator's speaker"),
    )


def _plain_vocoder(
    hift: HiFTConfig, precision: Precision, shapes: tuple[ShapeSettings, ...]
) -> tuple[GraphSpec, GraphSpec]:
    """Describe the pitch predictor, and the convolutions of the vocoder that sees its whole input."""
    pitch = TensorSpec("f0", DType.FLOAT32, ("streams", "mel_frames"), "Hz; without meaning beyond a row's end")
    profiles = _vocoder_profiles(hift, shapes)
    predictor = GraphSpec(F0_PREDICTOR, Precision.FLOAT32, _mel_inputs(hift), (pitch,), profiles)
    dims = ("streams", hift.istft_n_fft + 2, "spectrum_frames")
    mel, lengths = _mel_inputs(hift)
    inputs = (
        mel,
        TensorSpec("spectrum", DType.FLOAT32, dims, "the source's STFT: real parts, then imaginary"),
        lengths,
    )
    outputs = (TensorSpec("spectra", DType.FLOAT32, dims, "log magnitudes, then phases before their sine"),)
    derived = {"spectrum_frames": DerivedAxis("mel_frames", hift.frame_samples // hift.istft_hop, 1)}
    return predictor, GraphSpec(VOCODER, precision, inputs, outputs, profiles, derived)


def _causal_vocoder(hift: HiFTConfig, precision: Precision, shapes: tuple[ShapeSettings, ...]) -> GraphSpec:
    """Describe the convolutions of the vocoder that looks back, in pieces of any size."""
    bins, ahead, rate = hift.istft_n_fft + 2, hift.conv_pre_look_right, hift.frame_samples // hift.istft_hop
    context = ("streams", hift.causal_context)
    half = hift.istft_n_fft // 2
    inputs = (
        TensorSpec(
            "mel",
            DType.FLOAT32,
            ("streams", hift.in_channels, "mel_columns"),
            f"frames to decode and the {ahead} behind them, which come again; zeros behind a stream's end",
        ),
        TensorSpec(
            "spectrum",
            DType.FLOAT32,
            ("streams", bins, "spectrum_frames"),
            f"STFT of the source with {half} samples before and behind it: real parts, then imaginary",
        ),
        TensorSpec("lengths", DType.INT64, ("streams",), "frames to decode, 1 or more"),
        TensorSpec("is_first", DType.BOOL, ("streams",), "true in a stream's first piece"),
        TensorSpec("context", DType.FLOAT32, context, "what the piece before left; zeros in a first piece"),
    )
    spectra = TensorSpec(
        "spectra",
        DType.FLOAT32,
        ("streams", bins, "spectra_frames"),
        f"log magnitudes, then phases before their sine; {OVERLAPPING_COLUMNS} columns of the piece before come first",
    )
    derived = {
        "mel_frames": DerivedAxis("mel_columns", 1, -ahead),
        "spectrum_frames": DerivedAxis("mel_columns", rate, 1 - rate * ahead),
        "spectra_frames": DerivedAxis("mel_columns", rate, 1 - rate * ahead + OVERLAPPING_COLUMNS),
    }
    profiles = tuple(
        profile.with_axis("mel_columns", profile["mel_frames"].times(1, ahead))
        for profile in _vocoder_profiles(hift, shapes)
    )
    outputs = (spectra, TensorSpec("new_context", DType.FLOAT32, context, "for the next piece"))
    return GraphSpec(VOCODER, precision, inputs, outputs, profiles, derived)


def _mel_inputs(hift: HiFTConfig) -> tuple[TensorSpec, TensorSpec]:
    return (
        TensorSpec("mel", DType.FLOAT32, ("streams", hift.in_channels, "mel_frames"), "padded with anything"),
        TensorSpec("lengths", DType.INT64, ("streams",), "valid mel frames, 1 or more"),
    )


def _vocoder_profiles(hift: HiFTConfig, shapes: tuple[ShapeSettings, ...]) -> tuple[Profile, ...]:
    columns = hift.frame_samples // hift.istft_hop
    return tuple(profile for settings in shapes for profile in settings.vocoder_profiles(columns))
