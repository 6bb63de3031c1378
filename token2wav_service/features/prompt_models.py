"""The two models that read a voice's prompt: its speech tokens, and the embedding of its speaker.

The S3 tokenizer runs in ONNX Runtime, or as s3tokenizer on a GPU; the speaker encoder (CAM++) in ONNX Runtime.
"""

from __future__ import annotations

import logging
from importlib import util
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime

from servicekit.file_sums import FileSumsError, check_file
from token2wav_service.contract import PROMPT_SAMPLE_RATE_HZ, SPEECH_VOCAB_SIZE
from token2wav_service.errors import CheckpointError, InvalidPromptError
from token2wav_service.features.mel import s3_log_mel, speaker_fbank
from token2wav_service.types import FloatArray, IntArray

logger = logging.getLogger(__name__)

SPEECH_TOKENIZER_FILE = "speech_tokenizer_v2_25hz.onnx"
SPEAKER_ENCODER_FILE = "campplus.onnx"
EMBEDDING_SIZE = 192
MAX_SECONDS = 30.0
"""Longest audio in seconds: the speech tokenizer's positions end there."""
_ERRORS_ONLY = 3


def open_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """Load `path` for ONNX Runtime's CPU provider.

    Args:
        threads: CPU threads of one run, at least 1.

    Raises:
        CheckpointError: the file is missing, not the one that the checkpoint lists, or no ONNX model that this
            runtime can load.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; run `cosydit checkpoint verify` on its directory")
    check_weights(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    # ONNX Runtime has no common base for its own exceptions; all of them mean the same here.
    except Exception as err:
        raise CheckpointError(f"{path} does not load in ONNX Runtime ({err}); download or make it again") from err


def check_weights(path: Path) -> None:
    """Compare a file with the checkpoint's list.

    Raises:
        CheckpointError: it is not the file that the checkpoint lists.
    """
    try:
        check_file(path)
    except FileSumsError as err:
        raise CheckpointError(str(err)) from err


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


class SpeakerEncoder:
    """Loads campplus.onnx once; safe to call from several threads."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self._path = path
        self._session = open_session(path, threads)
        self._input = self._session.get_inputs()[0].name

    def embed(self, samples: FloatArray) -> FloatArray:
        """Map [N] samples at 16 kHz (at least 400) to the raw [192] embedding."""
        return self.embed_fbank(speaker_fbank(samples))

    def embed_fbank(self, fbank: FloatArray) -> FloatArray:
        """Map [T, 80] mean-subtracted log energies to the raw [192] embedding.

        Raises:
            CheckpointError: the model answers with another size.
        """
        (embedding,) = self._session.run(None, {self._input: fbank[None]})
        flat: FloatArray = np.asarray(embedding, np.float32).reshape(-1)
        if flat.shape != (EMBEDDING_SIZE,):
            raise CheckpointError(f"{self._path} gave {np.shape(embedding)}, expected [1, {EMBEDDING_SIZE}]: not CAM++")
        return flat
