"""Voices as files: what fits is spoken in without the feature models, what does not is refused."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.token2wav_service.engine.factory import MODEL_VERSION, SPEAKER_DIMENSIONS, make_engine, make_prompt
from token2wav_service.engine.voices import MAX_VOICE_FILE_BYTES, VOICE_NICENESS, BoundedPool, VoiceStore
from token2wav_service.errors import InvalidVoiceFileError, VoiceModelMismatchError, VoiceNotCachedError
from token2wav_service.types import VoiceFeatures, VoicePrompt
from token2wav_service.voice_file import VoiceFile, decode_voice_file, encode_voice_file


class NoExtractor:
    """Stands where the feature models would be."""

    def extract(self, prompt: VoicePrompt, on_tokens: object) -> VoiceFeatures:
        raise AssertionError("the feature models were asked")


def store_without_feature_models() -> VoiceStore:
    store = make_engine().voices
    store._extractor = NoExtractor()
    return store


@cache
def exported() -> VoiceFile:
    store = make_engine().voices
    return decode_voice_file(store.export_file(store.register(make_prompt()).voice_id))


def test_an_exported_voice_is_imported_elsewhere_without_the_feature_models() -> None:
    store = make_engine().voices
    made = store.register(make_prompt())
    other = store_without_feature_models()
    imported = other.import_file(store.export_file(made.voice_id))
    for name in ("prompt_tokens", "prompt_mel", "speaker_embedding"):
        np.testing.assert_array_equal(getattr(imported, name), getattr(made, name))
    again = decode_voice_file(other.export_file(imported.voice_id))
    np.testing.assert_array_equal(again.prompt_mel, made.prompt_mel)


def test_a_file_cant_pass_for_the_voice_of_a_prompt() -> None:
    store = make_engine().voices
    forged = replace(exported(), speaker_embedding=np.ones(SPEAKER_DIMENSIONS, np.float32))
    genuine = store.register(make_prompt())
    assert store.import_file(encode_voice_file(forged)).voice_id != genuine.voice_id
    assert store.register(make_prompt()) is genuine


def test_a_voice_is_made_without_its_prompts_long_silences_which_are_told() -> None:
    store, prompt = make_engine().voices, make_prompt()
    silence = np.zeros(48_000, np.float32)

    first, second = (
        store.register(VoicePrompt(np.concatenate([before, prompt.samples, silence])))
        for before in (silence, silence[:32_000])
    )

    assert first.voice_id == second.voice_id
    assert (first.silence_cut_s, second.silence_cut_s) == pytest.approx((5.4, 4.4), abs=0.05)
    assert store.register(prompt).silence_cut_s == 0


def test_importing_a_voice_twice_keeps_it_once() -> None:
    store = make_engine().voices
    data = encode_voice_file(exported())
    assert store.import_file(data) is store.import_file(data)
    assert store.cache.stats().voices == 1


def test_another_models_voice_is_refused_and_both_versions_are_named() -> None:
    with pytest.raises(VoiceModelMismatchError, match=f"model-0.*{MODEL_VERSION}"):
        make_engine().voices.import_file(encode_voice_file(replace(exported(), model_version="model-0")))


def sized(tokens: int, **changes: object) -> VoiceFile:
    prompt = {"prompt_tokens": np.zeros(tokens, np.int32), "prompt_mel": np.zeros((2 * tokens, 80), np.float32)}
    return replace(exported(), **{**prompt, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("file", "word"),
    [
        pytest.param(sized(2), "2 tokens", id="too short"),
        pytest.param(sized(451), "451 tokens", id="too long"),
        pytest.param(sized(3, prompt_tokens=np.array([0, 100, 0], np.int32)), r"0\.\.99", id="token over the top"),
        pytest.param(sized(3, prompt_tokens=np.array([0, -1, 0], np.int32)), r"0\.\.99", id="negative token"),
        pytest.param(sized(3, prompt_mel=np.zeros((6, 79), np.float32)), "79 mel bins", id="mel bins"),
        pytest.param(sized(3, speaker_embedding=np.zeros(192, np.float32)), "embedding of 192", id="embedding"),
        pytest.param(sized(3, audio=bytes(MAX_VOICE_FILE_BYTES)), "without its audio", id="too many bytes"),
    ],
)
def test_a_voice_that_the_models_cant_speak_in_is_refused_and_not_kept(file: VoiceFile, word: str) -> None:
    store = make_engine().voices
    with pytest.raises(InvalidVoiceFileError, match=word):
        store.import_file(encode_voice_file(file))
    assert store.cache.stats().voices == 0


def test_bytes_that_are_no_voice_file_are_refused() -> None:
    with pytest.raises(InvalidVoiceFileError, match="safetensors"):
        make_engine().voices.import_file(b"\x80\x04pickle")


def test_a_voice_that_is_not_cached_cant_be_exported() -> None:
    with pytest.raises(VoiceNotCachedError, match="register"):
        make_engine().voices.export_file("nobody")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives each thread a priority of its own")
def test_voices_are_made_behind_audio_also_in_the_threads_of_numerical_libraries() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def of_a_thread_started_here() -> int:
        with ThreadPoolExecutor(1) as library:
            return library.submit(niceness).result()

    before, pool = niceness(), BoundedPool(1, 8, "voices")
    try:
        expected = max(before, VOICE_NICENESS)
        assert [pool.submit(ask).result() for ask in (niceness, of_a_thread_started_here)] == [expected, expected]
        assert niceness() == of_a_thread_started_here() == before
    finally:
        pool.shutdown()
