"""Voices as the engine holds them: features, and the models' state after the prompt, shared by all streams.

The threads that make voices stand here too.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np

from token2wav_service.contract import MAX_PROMPT_SECONDS, PROMPT_SAMPLE_RATE_HZ, TOKEN_RATE_HZ
from token2wav_service.engine.runner import Runner
from token2wav_service.engine.voice_cache import VoiceCache
from token2wav_service.errors import CapacityError, InvalidVoiceFileError, VoiceModelMismatchError
from token2wav_service.features.audio import validate_prompt, without_long_silence
from token2wav_service.features.prompt_models import PromptFeatureExtractor, voice_id_of
from token2wav_service.types import IntArray, VoiceFeatures, VoicePrompt
from token2wav_service.voice_file import VoiceFile, VoiceFormatError, decode_voice_file, encode_voice_file

VOICE_NICENESS = 10
"""Of the threads that make voices, on Linux: audio gets nine tenths of a CPU that both want. Not more, as a thread that
hardly runs would hold the interpreter's lock for long."""
STOP_TIMEOUT_S = 30.0
"""Seconds to wait for a thread that is told to end; one that hangs is left behind, and its process ends."""
MAX_VOICE_FILE_BYTES = 1024 * 1024
"""Three times what the longest prompt's features need."""


@dataclass(frozen=True)
class VoiceModel:
    """What a voice file must fit."""

    version: Callable[[], str]
    """Names the feature models and the flow; asked for with the first file."""
    mel_bins: int = 80
    speaker_dimensions: int = 192


@dataclass(frozen=True)
class Voice:
    """A voice ready for streams."""

    features: VoiceFeatures
    state: Any
    """The models after the prompt; streams start from it and never change it."""

    @property
    def num_bytes(self) -> int:
        """Bytes the voice holds."""
        arrays = (self.features.prompt_tokens, self.features.prompt_mel, self.features.speaker_embedding)
        return int(self.state.num_bytes) + sum(array.nbytes for array in arrays)


OnHeard = Callable[[str, IntArray, float], None]
"""Takes a voice's id, its prompt's speech tokens [T] and the seconds of silence that were cut, before it is ready."""


class VoiceStore:
    """Makes voices once and remembers them under a byte budget; thread-safe."""

    def __init__(self, extractor: PromptFeatureExtractor, runner: Runner, budget_bytes: int, model: VoiceModel) -> None:
        self._extractor = extractor
        self._runner = runner
        self._model = model
        self._model_version = cache(self._model.version)
        self.cache: VoiceCache[Voice] = VoiceCache(budget_bytes)

    def register(self, prompt: VoicePrompt, on_heard: OnHeard = lambda *told: None) -> VoiceFeatures:
        """Return the prompt's voice, made without its long silences, unless it is cached.

        Args:
            on_heard: called as soon as its tokens are known, if this call makes it.

        Raises:
            InvalidPromptError: the prompt can't be used; nothing is kept.
            CapacityError: the cache can't hold it beside the voices in use.
        """
        validate_prompt(prompt.samples)
        spoken = without_long_silence(prompt.samples)
        voice_id, cut_s = voice_id_of(spoken), (len(prompt.samples) - len(spoken)) / PROMPT_SAMPLE_RATE_HZ

        def on_tokens(tokens: IntArray) -> None:
            on_heard(voice_id, tokens, cut_s)

        features = self._cached(voice_id, lambda: self._extractor.extract(VoicePrompt(spoken), on_tokens))
        return replace(features, silence_cut_s=cut_s) if cut_s else features

    def export_file(self, voice_id: str) -> bytes:
        """Return a cached voice as a file that `import_file` takes, here or in another process of the same checkpoint.

        Raises:
            VoiceNotFoundError: it is not cached.
        """
        features = self.cache.acquire(voice_id).features
        self.cache.release(voice_id)
        tokens = features.prompt_tokens.astype(np.int32)
        return encode_voice_file(
            VoiceFile(self._model_version(), tokens, features.prompt_mel, features.speaker_embedding)
        )

    def import_file(self, data: bytes) -> VoiceFeatures:
        """Return a file's voice, made without the feature models unless it is cached.

        Its id is a hash of the features: a file can't pass for the voice of a prompt that somebody else sends.

        Raises:
            InvalidVoiceFileError: not a voice file, or no voice that these models can speak in; nothing is kept.
            VoiceModelMismatchError: another checkpoint made it.
            CapacityError: see `register`.
        """
        file = _decoded(data)
        if file.model_version != self._model_version():
            raise VoiceModelMismatchError(
                f"the voice was made with model {file.model_version}, this is model {self._model_version()}; "
                "make it again from its recording"
            )
        self._check_fit(file)
        features = VoiceFeatures(
            _features_id(file), file.prompt_tokens.astype(np.int64), file.prompt_mel, file.speaker_embedding
        )
        return self._cached(features.voice_id, lambda: features)

    def _cached(self, voice_id: str, make: Callable[[], VoiceFeatures]) -> VoiceFeatures:
        def prepare() -> Voice:
            features = make()
            return Voice(features, self._runner.prepare_voice(features))

        return self.cache.get_or_compute(voice_id, prepare, lambda voice: voice.num_bytes).features

    def _check_fit(self, file: VoiceFile) -> None:
        facts = self._runner.facts
        tokens, longest = len(file.prompt_tokens), int(MAX_PROMPT_SECONDS * TOKEN_RATE_HZ)
        if not facts.lookahead_tokens <= tokens <= longest:
            raise InvalidVoiceFileError(
                f"the voice's prompt has {tokens} tokens ({TOKEN_RATE_HZ} a second), expected "
                f"{facts.lookahead_tokens} to {longest}; make it from a recording of 3 to 10 seconds"
            )
        if not (0 <= int(file.prompt_tokens.min()) and int(file.prompt_tokens.max()) < facts.vocab_size):
            raise InvalidVoiceFileError(
                f"the voice's prompt holds speech tokens outside 0..{facts.vocab_size - 1}; make it again"
            )
        got = (file.prompt_mel.shape[1], len(file.speaker_embedding))
        expected = (self._model.mel_bins, self._model.speaker_dimensions)
        if got != expected:
            raise InvalidVoiceFileError(
                f"the voice has {got[0]} mel bins and an embedding of {got[1]}, expected {expected[0]} and "
                f"{expected[1]}; make it again"
            )


def _decoded(data: bytes) -> VoiceFile:
    if len(data) > MAX_VOICE_FILE_BYTES:
        raise InvalidVoiceFileError(
            f"the voice file has {len(data)} bytes, expected at most {MAX_VOICE_FILE_BYTES}; send it without its audio"
        )
    try:
        return decode_voice_file(data)
    except VoiceFormatError as err:
        raise InvalidVoiceFileError(str(err)) from err


def _features_id(file: VoiceFile) -> str:
    digest = hashlib.sha256(b"voice file")
    for array in (file.prompt_tokens, file.prompt_mel, file.speaker_embedding):
        digest.update(len(array).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


T = TypeVar("T")


def stand_behind_audio() -> None:
    """Give the calling thread, and those that it starts, the CPU after all others of the process; Linux only.

    Threads of numerical libraries are started by the thread that computes, and are as patient as it is.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(os.getpriority(os.PRIO_PROCESS, thread), VOICE_NICENESS))


class BoundedPool:
    """A thread pool behind audio, which refuses a call when too many run or wait; thread-safe."""

    def __init__(self, threads: int, max_pending: int, name: str) -> None:
        """Make the pool.

        Args:
            max_pending: calls that run or wait, at most.
            name: of the threads.
        """
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name, initializer=stand_behind_audio)
        self._max_pending, self._room = max_pending, threading.Semaphore(max_pending)

    def submit(self, call: Callable[..., T], *args: Any) -> Future[T]:
        """Queue a call.

        Raises:
            CapacityError: as many as allowed run or wait.
        """
        if not self._room.acquire(timeout=0):
            raise CapacityError(f"{self._max_pending} voices are in the making, the most allowed; retry later")
        try:
            future = self._pool.submit(call, *args)
        except BaseException:
            self._room.release()
            raise
        future.add_done_callback(lambda _: self._room.release())
        return future

    def shutdown(self) -> None:
        """Cancel what waits and join the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)
