"""The Triton faces of the prompt features: `audio_tokenizer` and `speaker_embedding`, with the original's tensors.

Knows batches and tensors; the features themselves come from an extractor. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from token2wav_service.contract import PROMPT_SAMPLE_RATE_HZ
from token2wav_service.errors import InvalidPromptError, InvalidRequestError
from token2wav_service.python_backend.inputs import OneByOneModel, PbUtils, RequestInputs, Tensor
from token2wav_service.python_backend.server_process import read_parameters
from token2wav_service.types import FloatArray

if TYPE_CHECKING:
    from token2wav_service.features.prompt_models import PromptFeatureExtractor

MIN_SAMPLES = 400
"""Fewest samples: one window of the speaker encoder's spectrum, 25 ms."""
MAX_SAMPLES = 30 * PROMPT_SAMPLE_RATE_HZ
"""Most samples: the speech tokenizer's positions end there."""


def load_audio_tokenizer(pb_utils: PbUtils, model_config_json: str) -> OneByOneModel:
    """Make `audio_tokenizer` with the feature models in the `model_dir` of its config.pbtxt."""
    extractor = _load_extractor(model_config_json)
    return OneByOneModel(pb_utils, lambda inputs, _: tokenize(extractor, inputs))


def load_speaker_embedding(pb_utils: PbUtils, model_config_json: str) -> OneByOneModel:
    """Make `speaker_embedding`; see `load_audio_tokenizer`."""
    extractor = _load_extractor(model_config_json)
    return OneByOneModel(pb_utils, lambda inputs, _: embed(extractor, inputs))


def tokenize(extractor: PromptFeatureExtractor, inputs: RequestInputs) -> dict[str, Tensor]:
    """Map reference_wav FP32 [B, N] and reference_wav_len INT32 [B, 1] to prompt_speech_tokens INT32 [B, T].

    Raises:
        InvalidRequestError: a tensor is missing or wrong, or the rows have different numbers of tokens.
        InvalidPromptError: a row is too short or too long.
    """
    waves = inputs.float_rows("reference_wav")
    lengths = inputs.integers("reference_wav_len")
    rows = [extractor.tokens(_bounded(samples)) for samples in _trim_rows(waves, lengths)]
    if len({len(row) for row in rows}) > 1:
        raise InvalidRequestError(
            f"one request holds prompts of {sorted({len(row) for row in rows})} tokens, which no tensor can carry: "
            "send prompts of different lengths as requests of their own"
        )
    return {"prompt_speech_tokens": np.stack(rows).astype(np.int32)}


def embed(extractor: PromptFeatureExtractor, inputs: RequestInputs) -> dict[str, Tensor]:
    """Map reference_wav FP32 [B, N] to prompt_spk_embedding FP16 [B, C]; raises as `tokenize` does."""
    rows = [extractor.speaker_embedding(_bounded(samples)) for samples in inputs.float_rows("reference_wav")]
    return {"prompt_spk_embedding": np.stack(rows).astype(np.float16)}


def _trim_rows(waves: FloatArray, lengths: Tensor) -> Iterator[FloatArray]:
    """Yield each row of [B, N] without its padding.

    Raises:
        InvalidRequestError: a length is missing or outside 1..N.
    """
    if len(lengths) != len(waves):
        raise InvalidRequestError(f"reference_wav_len has {len(lengths)} lengths for {len(waves)} rows: send one each")
    for samples, length in zip(waves, lengths.tolist(), strict=True):
        if not 1 <= length <= len(samples):
            raise InvalidRequestError(
                f"reference_wav_len is {length}: expected 1 to {len(samples)}, the samples in reference_wav"
            )
        yield samples[:length]


def _bounded(samples: FloatArray) -> FloatArray:
    """Return samples of a length that features can be computed of.

    Raises:
        InvalidPromptError: they are too few or too many.
    """
    if not MIN_SAMPLES <= len(samples) <= MAX_SAMPLES:
        raise InvalidPromptError(
            f"the prompt has {len(samples)} samples at {PROMPT_SAMPLE_RATE_HZ} Hz, expected {MIN_SAMPLES} to "
            f"{MAX_SAMPLES}; give 3 to 10 seconds of speech"
        )
    return samples


def _load_extractor(model_config_json: str) -> PromptFeatureExtractor:
    from token2wav_service.checkpoint.family import open_features

    return open_features(Path(read_parameters(model_config_json)["model_dir"]))
