"""What each exported graph takes and gives: names, dtypes, axes and the sizes they may have. No torch, no model.

Axis names say what is counted. `rows` are streams twice: all conditional ones first, then all unconditional ones.
History columns may stand in any order in the estimator; in the encoder they ascend in time, aligned to the right.
A column that a validity input rules out may hold any finite value.
"""

from __future__ import annotations

from token2wav_service.graphs.shapes import Profile, ShapeSettings
from token2wav_service.graphs.spec import DerivedAxis, DType, GraphSpec, Precision, ShapeRange, TensorSpec
from token2wav_service.models.config import FlowConfig, HiFTConfig

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
"""Frames that the DiT's and the look-ahead's convolutions of 3 continue from."""
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

FLOW_GRAPHS = (ESTIMATOR_CHUNK, ESTIMATOR_WHOLE, ENCODER_CHUNK, ENCODER_WHOLE)
VOCODER_GRAPHS = (F0_PREDICTOR, VOCODER)
GIVEN_GRAPHS = (SPEAKER_ENCODER, SPEECH_TOKENIZER)
"""Graphs taken from the checkpoint as they are."""


def describe_graphs(
    flow: FlowConfig,
    hift: HiFTConfig,
    precision: Precision,
    shapes: tuple[ShapeSettings, ...] = (ShapeSettings(),),
    vocoder: Precision = Precision.FLOAT32,
) -> dict[str, GraphSpec]:
    """Describe every graph that is exported, by name.

    Args:
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
        _f0_predictor(hift, shapes),
        _vocoder(hift, vocoder, shapes),
    )
    return {graph.name: graph for graph in described}


def describe_given(flow: FlowConfig, shapes: tuple[ShapeSettings, ...] = (ShapeSettings(),)) -> dict[str, GraphSpec]:
    """Describe the two prompt models that a checkpoint brings as ONNX files, by name.

    Their inputs count by position: the official files' own names may differ.
    """
    fbank = TensorSpec("input", DType.FLOAT32, ("voices", "fbank_frames", 80), "mean-subtracted log energies, 100 Hz")
    embedding = TensorSpec("output", DType.FLOAT32, ("voices", flow.spk_embed_dim), "raw speaker embedding")
    log_mel = TensorSpec("feats", DType.FLOAT32, (1, 128, "log_mel_frames"), "log-mel, 100 Hz")
    length = TensorSpec("feats_length", DType.INT32, (1,), "valid log-mel frames")
    ids = TensorSpec("indices", DType.INT32, (1, "prompt_tokens"), "speech tokens, 25 Hz")
    profiles = tuple(settings.prompt_profile() for settings in shapes)
    described = (
        GraphSpec(SPEAKER_ENCODER, Precision.FLOAT32, (fbank,), (embedding,), profiles),
        GraphSpec(SPEECH_TOKENIZER, Precision.FLOAT32, (log_mel, length), (ids,), profiles),
    )
    return {graph.name: graph for graph in described}


def _estimator_chunk(flow: FlowConfig, precision: Precision, shapes: tuple[ShapeSettings, ...]) -> GraphSpec:
    c, cache = flow.estimator, precision.dtype
    kv = (c.depth, "rows", c.num_heads)
    tail = (c.depth, "rows", 2 * c.hidden_size, CONVOLUTION_COLUMNS)
    inputs = (
        *_solver_inputs(flow, "chunk_frames"),
        TensorSpec("lengths", DType.INT64, ("rows",), "valid frames of the chunk, 1 or more"),
        TensorSpec(
            "prompt_kv",
            cache,
            (c.depth, "prompt_rows", c.num_heads, "prompt_frames", 2 * c.head_dim),
            "keys then values of the voices' prompts at this time; two rows a voice, conditional and not",
        ),
        TensorSpec("prompt_valid", DType.BOOL, ("prompt_rows", "prompt_frames"), "true where a prompt frame is"),
        TensorSpec("prompt_row", DType.INT64, ("rows",), "which of prompt_rows a row attends to"),
        TensorSpec(
            "window_kv",
            cache,
            (*kv, "window_frames", 2 * c.head_dim),
            "keys then values of the stream's own earlier frames at this time",
        ),
        TensorSpec("window_valid", DType.BOOL, ("rows", "window_frames"), "true where an earlier frame is"),
        TensorSpec("tail", cache, tail, "columns that the blocks' convolutions continue from, at this time"),
    )
    outputs = (
        TensorSpec("velocity", DType.FLOAT32, ("rows", c.out_channels, "chunk_frames"), "also at padded frames"),
        TensorSpec("chunk_kv", cache, (*kv, "chunk_frames", 2 * c.head_dim), "keys then values of this chunk"),
        TensorSpec("new_tail", cache, tail, "what the next chunk's convolutions continue from"),
    )
    profiles = tuple(profile for settings in shapes for profile in settings.chunk_profiles())
    return GraphSpec(ESTIMATOR_CHUNK, precision, inputs, outputs, profiles)


def _estimator_whole(flow: FlowConfig, precision: Precision, shapes: tuple[ShapeSettings, ...]) -> GraphSpec:
    inputs = (
        *_solver_inputs(flow, "whole_frames"),
        TensorSpec("lengths", DType.INT64, ("rows",), "valid frames, 1 or more"),
    )
    dims = ("rows", flow.estimator.out_channels, "whole_frames")
    outputs = (TensorSpec("velocity", DType.FLOAT32, dims, "also at padded frames"),)
    profiles = tuple(settings.whole_profile() for settings in shapes)
    return GraphSpec(ESTIMATOR_WHOLE, precision, inputs, outputs, profiles)


def _solver_inputs(flow: FlowConfig, frames: str) -> tuple[TensorSpec, ...]:
    mel = ("rows", flow.output_size, frames)
    return (
        TensorSpec("x", DType.FLOAT32, mel, "noisy mel"),
        TensorSpec("mu", DType.FLOAT32, mel, "the encoder's mu; zero in unconditional rows"),
        TensorSpec("speaker", DType.FLOAT32, ("rows", flow.output_size), "the encoder's speaker_vector, or zero"),
        TensorSpec("cond", DType.FLOAT32, mel, "conditioning mel, or zero"),
        TensorSpec("time", DType.FLOAT32, ("rows",), "0..1"),
    )


def _encoder_chunk(flow: FlowConfig, precision: Precision, shapes: tuple[ShapeSettings, ...]) -> GraphSpec:
    c, cache = flow.encoder, precision.dtype
    token_kv = (c.num_blocks, "streams", c.attention_heads)
    frame_kv = (c.num_up_blocks, "streams", c.attention_heads)
    lookahead = ("streams", c.output_size, CONVOLUTION_COLUMNS)
    upsample = ("streams", c.output_size, UPSAMPLE_COLUMNS)
    pair = 2 * c.head_dim
    inputs = (
        *_token_inputs(flow, "chunk_tokens", "valid tokens, look-ahead included; 4 or more, 1 or more where last"),
        TensorSpec(
            "is_last", DType.BOOL, ("streams",), "true where no look-ahead follows; the last 3 columns are padding"
        ),
        TensorSpec("token_kv", cache, (*token_kv, "history_tokens", pair), "keys then values of the blocks"),
        TensorSpec("token_lengths", DType.INT64, ("streams",), "valid history tokens, the right-most columns"),
        TensorSpec("frame_kv", cache, (*frame_kv, "history_frames", pair), "the same of the up-blocks"),
        TensorSpec("frame_lengths", DType.INT64, ("streams",), "valid history frames, the right-most columns"),
        TensorSpec("lookahead_tail", cache, lookahead, "columns the look-ahead layer continues from"),
        TensorSpec("upsample_tail", cache, upsample, "columns the upsampling convolution continues from"),
    )
    outputs = (
        *_condition_outputs(flow, "chunk_frames"),
        TensorSpec("chunk_token_kv", cache, (*token_kv, "spoken_tokens", pair), "of this chunk, without look-ahead"),
        TensorSpec("chunk_frame_kv", cache, (*frame_kv, "chunk_frames", pair), "of this chunk"),
        TensorSpec("new_lookahead_tail", cache, lookahead, "for the next chunk"),
        TensorSpec("new_upsample_tail", cache, upsample, "for the next chunk"),
    )
    both = (settings.chunk_profiles(c.up_stride, c.pre_lookahead_len) for settings in shapes)
    profiles = tuple(profile for pair_of in both for profile in pair_of)
    derived = {
        "spoken_tokens": DerivedAxis("chunk_tokens", 1, -c.pre_lookahead_len),
        "chunk_frames": DerivedAxis("chunk_tokens", c.up_stride, -c.up_stride * c.pre_lookahead_len),
    }
    return GraphSpec(ENCODER_CHUNK, precision, inputs, outputs, profiles, derived)


def _encoder_whole(flow: FlowConfig, precision: Precision, shapes: tuple[ShapeSettings, ...]) -> GraphSpec:
    inputs = _token_inputs(flow, "whole_tokens", "valid tokens, 1 or more")
    profiles = tuple(settings.whole_profile(flow.encoder.up_stride) for settings in shapes)
    outputs = _condition_outputs(flow, "whole_frames")
    derived = {"whole_frames": DerivedAxis("whole_tokens", flow.encoder.up_stride, 0)}
    return GraphSpec(ENCODER_WHOLE, precision, inputs, outputs, profiles, derived)


def _token_inputs(flow: FlowConfig, tokens: str, lengths: str) -> tuple[TensorSpec, ...]:
    return (
        TensorSpec("tokens", DType.INT64, ("streams", tokens), "speech token ids, padded with any valid id"),
        TensorSpec("lengths", DType.INT64, ("streams",), lengths),
        TensorSpec("speaker", DType.FLOAT32, ("streams", flow.spk_embed_dim), "raw speaker embedding"),
    )


def _condition_outputs(flow: FlowConfig, frames: str) -> tuple[TensorSpec, ...]:
    mel = flow.output_size
    return (
        TensorSpec("mu", DType.FLOAT32, ("streams", mel, frames), "the estimator's mu; two frames a spoken token"),
        TensorSpec("speaker_vector", DType.FLOAT32, ("streams", mel), "the estimator's speaker"),
    )


def _f0_predictor(hift: HiFTConfig, shapes: tuple[ShapeSettings, ...]) -> GraphSpec:
    pitch = TensorSpec("f0", DType.FLOAT32, ("streams", "mel_frames"), "Hz; without meaning beyond a row's end")
    return GraphSpec(F0_PREDICTOR, Precision.FLOAT32, _mel_inputs(hift), (pitch,), _vocoder_profiles(hift, shapes))


def _vocoder(hift: HiFTConfig, precision: Precision, shapes: tuple[ShapeSettings, ...]) -> GraphSpec:
    dims = ("streams", hift.istft_n_fft + 2, "spectrum_frames")
    mel, lengths = _mel_inputs(hift)
    inputs = (
        mel,
        TensorSpec("spectrum", DType.FLOAT32, dims, "the source's STFT: real parts, then imaginary"),
        lengths,
    )
    outputs = (TensorSpec("spectra", DType.FLOAT32, dims, "log magnitudes, then phases before their sine"),)
    derived = {"spectrum_frames": DerivedAxis("mel_frames", hift.frame_samples // hift.istft_hop, 1)}
    return GraphSpec(VOCODER, precision, inputs, outputs, _vocoder_profiles(hift, shapes), derived)


def _mel_inputs(hift: HiFTConfig) -> tuple[TensorSpec, TensorSpec]:
    return (
        TensorSpec("mel", DType.FLOAT32, ("streams", hift.in_channels, "mel_frames"), "padded with anything"),
        TensorSpec("lengths", DType.INT64, ("streams",), "valid mel frames, 1 or more"),
    )


def _vocoder_profiles(hift: HiFTConfig, shapes: tuple[ShapeSettings, ...]) -> tuple[Profile, ...]:
    columns = hift.frame_samples // hift.istft_hop
    return tuple(profile for settings in shapes for profile in settings.vocoder_profiles(columns))
