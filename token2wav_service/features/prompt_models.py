"""The features of a voice, from its prompt's samples, and the two models among what computes them.

Both models, the S3 tokenizer and the speaker encoder (CAM++), run in ONNX Runtime on a CPU, in torch on a GPU.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from servicekit.file_sums import FileSumsError, check_file
from token2wav_service.contract import PROMPT_SAMPLE_RATE_HZ, SPEECH_VOCAB_SIZE, TOKEN_RATE_HZ
from token2wav_service.errors import CheckpointError
from token2wav_service.features.audio import resample_16k_to_24k
from token2wav_service.features.mel import (
    FBANK_MEL_BINS,
    FLOW_HIGH_HZ,
    S3_MEL_BINS,
    flow_mel_24k,
    s3_log_mel,
    speaker_fbank,
)
from token2wav_service.types import FloatArray, IntArray, VoiceFeatures, VoicePrompt

logger = logging.getLogger(__name__)

SPEECH_TOKENIZER_FILE = "speech_tokenizer_v2_25hz.onnx"
SPEAKER_ENCODER_FILE = "campplus.onnx"
EMBEDDING_SIZE = 192
_ERRORS_ONLY = 3
_TRIAL_FRAMES = 233
_LEAST_EQUAL = 0.95
"""Share of a trial's answer that must be the CPU's: a value on the edge between two tokens falls to either side."""

Array = npt.NDArray[Any]


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
    try:
        check_file(path)
    except FileSumsError as err:
        raise CheckpointError(str(err)) from err
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    # ONNX Runtime has no common base for its own exceptions; all of them mean the same here.
    except Exception as err:
        raise CheckpointError(f"{path} does not load in ONNX Runtime ({err}); download or make it again") from err


def open_model(path: Path, threads: int, device: str, *trial: Array) -> Callable[..., Array]:
    """Return what maps a model's inputs, by position, to its first output.

    Args:
        threads: see `open_session`.
        device: where it runs, by torch's name.
        trial: inputs for which a model on another device than the CPU must answer as ONNX Runtime does; one that does
            not, or that can't be run there, runs on the CPU, and the log says why.

    Raises:
        CheckpointError: see `open_session`, and it has not as many inputs.
    """
    session = open_session(path, threads)
    names = [item.name for item in session.get_inputs()]
    if len(names) < len(trial):
        raise CheckpointError(f"{path} has the inputs {names}, expected {len(trial)}")

    def run(*inputs: Array) -> Array:
        return np.asarray(session.run(None, dict(zip(names, inputs, strict=False)))[0])

    if not device.startswith("cpu"):
        try:
            run = _on_device(path, device, trial, run(*trial))
        # NOTE: a graph of another layout may raise anything.
        except Exception as err:
            logger.warning("%s can't run on %s (%s: %s); it runs on the CPU", path, device, type(err).__name__, err)
        else:
            logger.info("%s runs on %s", path.name, device)
    return run


def _on_device(path: Path, device: str, trial: Sequence[Array], expected: Array) -> Callable[..., Array]:
    from token2wav_service.features.onnx_on_torch import TorchGraph

    graph = TorchGraph(path, device)
    got = graph.run(*trial)
    if got.shape != expected.shape or np.isclose(got, expected, rtol=1e-3, atol=1e-3).mean() < _LEAST_EQUAL:
        raise CheckpointError("its answers are not those of ONNX Runtime")
    return graph.run


class OnnxSpeechTokenizer:
    """The official ONNX file; inputs and outputs by position. Safe to call from several threads."""

    def __init__(self, path: Path, threads: int = 1, device: str = "cpu") -> None:
        self._run = open_model(path, threads, device, *_batch(_noise(S3_MEL_BINS, _TRIAL_FRAMES)))

    def tokenize(self, log_mel: FloatArray) -> IntArray:
        """Map [128, T] log-mel at 100 Hz to [ceil(T / 4)] int64 ids in 0..6560.

        Raises:
            CheckpointError: the model answered with an id outside the vocabulary.
        """
        ids = self._run(*_batch(log_mel)).astype(np.int64).reshape(-1)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < SPEECH_VOCAB_SIZE:
            raise CheckpointError(
                f"the speech tokenizer gave ids from {ids.min()} to {ids.max()}, expected 0..{SPEECH_VOCAB_SIZE - 1}; "
                "check that the checkpoint's speech tokenizer is one of 25 Hz"
            )
        return ids


def _batch(log_mel: FloatArray) -> tuple[Array, Array]:
    """Return the tokenizer's inputs: the log-mel [1, 128, T] and its length."""
    return log_mel[None], np.array([log_mel.shape[1]], np.int32)


def _noise(*shape: int) -> FloatArray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


class SpeakerEncoder:
    """Loads campplus.onnx once; safe to call from several threads."""

    def __init__(self, path: Path, threads: int = 1, device: str = "cpu") -> None:
        self._path = path
        self._run = open_model(path, threads, device, _noise(1, _TRIAL_FRAMES, FBANK_MEL_BINS))

    def embed(self, samples: FloatArray) -> FloatArray:
        """Map [N] samples at 16 kHz (at least 400) to the raw [192] embedding."""
        return self.embed_fbank(speaker_fbank(samples))

    def embed_fbank(self, fbank: FloatArray) -> FloatArray:
        """Map [T, 80] mean-subtracted log energies to the raw [192] embedding.

        Raises:
            CheckpointError: the model answers with another size.
        """
        embedding = self._run(fbank[None])
        flat: FloatArray = embedding.astype(np.float32).reshape(-1)
        if flat.shape != (EMBEDDING_SIZE,):
            raise CheckpointError(f"{self._path} gave {np.shape(embedding)}, expected [1, {EMBEDDING_SIZE}]: not CAM++")
        return flat


FRAMES_PER_TOKEN = 2
SAMPLES_PER_TOKEN = PROMPT_SAMPLE_RATE_HZ // TOKEN_RATE_HZ

OnTokens = Callable[[IntArray], None]
"""Takes a prompt's speech tokens, cut to its mel."""


class PromptFeatureExtractor:
    """Loads the two prompt models once; safe to call from several threads."""

    def __init__(
        self,
        model_dir: Path,
        onnx_threads: int = 1,
        device: str = "cpu",
        tokenizer_file: str = SPEECH_TOKENIZER_FILE,
        mel_high_hz: float = FLOW_HIGH_HZ,
    ) -> None:
        """Open the models.

        Args:
            model_dir: holds campplus.onnx and the speech tokenizer.
            onnx_threads: CPU threads of one run.
            device: where the models run, by torch's name.
            tokenizer_file: name of the speech tokenizer's file.
            mel_high_hz: upper edge of the flow's mel filters.

        Raises:
            CheckpointError: a file is missing or does not load.
        """
        self._speaker_encoder = SpeakerEncoder(model_dir / SPEAKER_ENCODER_FILE, onnx_threads, device)
        self._tokenizer = OnnxSpeechTokenizer(model_dir / tokenizer_file, onnx_threads, device)
        self._mel_high_hz = mel_high_hz
        self._beside = ThreadPoolExecutor(2, thread_name_prefix="voice-features")
        """Computes tokens and embedding, beside the mel. Its threads are as patient as the one that asks first."""

    def extract(self, prompt: VoicePrompt, on_tokens: OnTokens = lambda tokens: None) -> VoiceFeatures:
        """Compute a voice's features; tokens and mel are cut to the same time.

        Args:
            prompt: a voice that passed `validate_prompt`.
            on_tokens: called as soon as the tokens are known, beside the rest of the work: an LLM needs nothing else.
        """
        samples = prompt.samples
        hearing = self._beside.submit(lambda: self.tokens(samples)[: len(samples) // SAMPLES_PER_TOKEN])
        hearing.add_done_callback(lambda done: None if done.exception() else on_tokens(done.result()))
        embedding = self._beside.submit(self.speaker_embedding, samples)
        mel = flow_mel_24k(resample_16k_to_24k(samples), self._mel_high_hz)  # takes longest
        voice_id = voice_id_of(samples)
        tokens = hearing.result()
        return VoiceFeatures(voice_id, tokens, mel[: FRAMES_PER_TOKEN * len(tokens)], embedding.result())

    def tokens(self, samples: FloatArray) -> IntArray:
        """Map [N] samples at 16 kHz, at most 30 s, to [T] speech tokens at 25 Hz."""
        return self._tokenizer.tokenize(s3_log_mel(samples))

    def speaker_embedding(self, samples: FloatArray) -> FloatArray:
        """Map [N] samples at 16 kHz to the raw [192] speaker embedding."""
        return self._speaker_encoder.embed(samples)


def voice_id_of(samples: FloatArray) -> str:
    """Return the SHA-256 of the samples as little-endian float32: equal audio is the same voice, whatever was said."""
    return hashlib.sha256(np.ascontiguousarray(samples, "<f4").tobytes()).hexdigest()
