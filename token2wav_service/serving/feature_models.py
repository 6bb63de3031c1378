"""The Triton faces of the prompt features: `audio_tokenizer` and `speaker_embedding`, with the original's tensors.

Knows batches and tensors; the features themselves come from an extractor. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from token2wav_service.contract import PROMPT_SAMPLE_RATE_HZ
from token2wav_service.errors import InvalidPromptError, InvalidRequestError, StreamAbortedError
from token2wav_service.python_backend.inputs import RequestInputs
from token2wav_service.python_backend.responder import PbUtils, Tensor, error_response, error_text, make_response
from token2wav_service.python_backend.server_process import read_parameters
from token2wav_service.types import FloatArray, IntArray

MIN_SAMPLES = 400
"""Fewest samples: one window of the speaker encoder's spectrum, 25 ms."""
MAX_SAMPLES = 30 * PROMPT_SAMPLE_RATE_HZ
"""Most samples: the speech tokenizer's positions end there."""


class BatchFeatureExtractor(Protocol):
    """What the models need of `PromptFeatureExtractor`."""

    def tokens(self, samples: FloatArray) -> IntArray:
        """Map [N] samples at 16 kHz to [T] speech tokens."""
        ...

    def speaker_embedding(self, samples: FloatArray) -> FloatArray:
        """Map [N] samples at 16 kHz to the speaker embedding [C]."""
        ...


class AudioTokenizerModel:
    """reference_wav FP32 [B, N], reference_wav_len INT32 [B, 1] -> prompt_speech_tokens INT32 [B, T]."""

    def __init__(self, pb_utils: PbUtils, extractor: BatchFeatureExtractor) -> None:
        self._pb_utils = pb_utils
        self._extractor = extractor

    @classmethod
    def load(cls, pb_utils: PbUtils, model_config_json: str) -> AudioTokenizerModel:
        """Open the extractor in the `model_dir` of the model's config.pbtxt."""
        return cls(pb_utils, _load_extractor(model_config_json))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request of a batch, an error included."""
        return [_answer(self._pb_utils, request, self._tokenize) for request in requests]

    def finalize(self) -> None:
        """End: nothing is open."""

    def _tokenize(self, inputs: RequestInputs) -> dict[str, Tensor]:
        waves = inputs.float_rows("reference_wav")
        lengths = inputs.integers("reference_wav_len")
        rows = [self._extractor.tokens(_bounded(samples)) for samples in trim_rows(waves, lengths)]
        if len({len(row) for row in rows}) > 1:
            raise InvalidRequestError(
                f"one request holds prompts of {sorted({len(row) for row in rows})} tokens, which no tensor can carry: "
                "send prompts of different lengths as requests of their own"
            )
        return {"prompt_speech_tokens": np.stack(rows).astype(np.int32)}


class SpeakerEmbeddingModel:
    """reference_wav FP32 [B, N] -> prompt_spk_embedding FP16 [B, C]."""

    def __init__(self, pb_utils: PbUtils, extractor: BatchFeatureExtractor) -> None:
        self._pb_utils = pb_utils
        self._extractor = extractor

    @classmethod
    def load(cls, pb_utils: PbUtils, model_config_json: str) -> SpeakerEmbeddingModel:
        """Open the extractor in the `model_dir` of the model's config.pbtxt."""
        return cls(pb_utils, _load_extractor(model_config_json))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request of a batch, an error included."""
        return [_answer(self._pb_utils, request, self._embed) for request in requests]

    def finalize(self) -> None:
        """End: nothing is open."""

    def _embed(self, inputs: RequestInputs) -> dict[str, Tensor]:
        waves = inputs.float_rows("reference_wav")
        rows = [self._extractor.speaker_embedding(_bounded(samples)) for samples in waves]
        return {"prompt_spk_embedding": np.stack(rows).astype(np.float16)}


def trim_rows(waves: FloatArray, lengths: Tensor) -> Iterator[FloatArray]:
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


def _load_extractor(model_config_json: str) -> BatchFeatureExtractor:
    from token2wav_service.checkpoint.family import open_features

    return open_features(Path(read_parameters(model_config_json)["model_dir"]))


def _answer(pb_utils: PbUtils, request: Any, compute: Callable[[RequestInputs], dict[str, Tensor]]) -> Any:
    try:
        if request.is_cancelled():
            raise StreamAbortedError("the request was cancelled before it was served")
        return make_response(pb_utils, compute(RequestInputs(pb_utils, request)))
    except Exception as err:
        return error_response(pb_utils, error_text(err))
