"""Speech tokens of a prompt: the S3 tokenizer through ONNX Runtime, or s3tokenizer on a GPU."""

from __future__ import annotations

import logging
from importlib import util
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from token2wav_service.contract import PROMPT_SAMPLE_RATE_HZ, SPEECH_VOCAB_SIZE
from token2wav_service.errors import CheckpointError, InvalidPromptError
from token2wav_service.features.mel import s3_log_mel
from token2wav_service.features.onnx_session import check_weights, open_session
from token2wav_service.types import FloatArray, IntArray

logger = logging.getLogger(__name__)

FILE_NAME = "speech_tokenizer_v2_25hz.onnx"
MAX_SECONDS = 30.0
"""The model's positions end here."""


class SpeechTokenizer(Protocol):
    """Anything that turns a log-mel into token ids."""

    def tokenize(self, log_mel: FloatArray) -> IntArray:
        """Map [128, T] log-mel at 100 Hz to [ceil(T / 4)] ids."""
        ...


class OnnxSpeechTokenizer:
    """The official ONNX file; inputs and outputs by position. Safe to call from several threads."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self._session = open_session(path, threads)
        logger.info("speech tokenizer: ONNX Runtime on the CPU")
        names = [item.name for item in self._session.get_inputs()]
        if len(names) < 2:
            raise CheckpointError(f"{path} has the inputs {names}, expected a log-mel and its length")
        self._log_mel, self._length = names[:2]
        self._output = self._session.get_outputs()[0].name

    def tokenize(self, log_mel: FloatArray) -> IntArray:
        """Map [128, T] log-mel at 100 Hz to [ceil(T / 4)] int64 ids."""
        feeds = {self._log_mel: log_mel[None], self._length: np.array([log_mel.shape[1]], np.int32)}
        (ids,) = self._session.run([self._output], feeds)
        return np.asarray(ids, np.int64).reshape(-1)


class GpuSpeechTokenizer:
    """The same weights in PyTorch, read from the ONNX file by the s3tokenizer package."""

    def __init__(self, path: Path, device: str) -> None:
        import s3tokenizer

        check_weights(path)
        self._package = s3tokenizer
        self._device = device
        self._model: Any = s3tokenizer.load_model(str(path)).to(device).eval()

    def tokenize(self, log_mel: FloatArray) -> IntArray:
        """Map [128, T] log-mel at 100 Hz to [ceil(T / 4)] int64 ids."""
        import torch

        with torch.inference_mode():
            batch, lengths = self._package.padding([torch.from_numpy(log_mel)])
            ids, id_lengths = self._model.quantize(batch.to(self._device), lengths.to(self._device))
        return np.asarray(ids[0, : int(id_lengths[0])].cpu().numpy(), np.int64)


def open_speech_tokenizer(path: Path, device: str, threads: int = 1) -> SpeechTokenizer:
    """Choose the GPU tokenizer where one is asked for and possible, ONNX Runtime on the CPU otherwise."""
    if device.startswith("cpu") or util.find_spec("s3tokenizer") is None:
        return OnnxSpeechTokenizer(path, threads)
    try:
        tokenizer = GpuSpeechTokenizer(path, device)
    # What importing it raises with libraries that do not fit each other (torchaudio and torch, say), and what it raises
    # on a graph that is not the official one (a small stand-in, say).
    except (ImportError, OSError, AssertionError, AttributeError, LookupError, RuntimeError, ValueError) as err:
        logger.warning("s3tokenizer can't load %s (%s); using ONNX Runtime on the CPU", path, err)
        return OnnxSpeechTokenizer(path, threads)
    logger.info("speech tokenizer: s3tokenizer on %s", device)
    return tokenizer


def tokenize_samples(tokenizer: SpeechTokenizer, samples: FloatArray) -> IntArray:
    """Map [N] samples at 16 kHz, at most 30 s, to [ceil(N // 160 / 4)] ids in 0..6560.

    Raises:
        InvalidPromptError: the audio is longer than the tokenizer can take.
        CheckpointError: the tokenizer answered with an id outside the vocabulary.
    """
    if len(samples) > MAX_SECONDS * PROMPT_SAMPLE_RATE_HZ:
        raise InvalidPromptError(
            f"the audio is {len(samples) / PROMPT_SAMPLE_RATE_HZ:.2f} s long, the speech tokenizer takes at most "
            f"{MAX_SECONDS:.0f} s; cut it"
        )
    ids = tokenizer.tokenize(s3_log_mel(samples))
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < SPEECH_VOCAB_SIZE:
        raise CheckpointError(
            f"the speech tokenizer gave ids from {ids.min()} to {ids.max()}, expected 0..{SPEECH_VOCAB_SIZE - 1}; "
            "check that the checkpoint's speech tokenizer is one of 25 Hz"
        )
    return ids
