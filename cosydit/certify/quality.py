"""Checks by ear: what a recogniser understands, and whose voice it is.

Only weights that were trained can pass: of random ones these checks are not run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cosydit.bench.inputs import read_manifest, require_all_good
from cosydit.bench.types import SpeechInput
from cosydit.certify.check import Findings, NotRunError
from cosydit.certify.context import VOICE, CheckContext, FloatArray, keep_audio, samples_of
from cosydit.certify.end_to_end import TIMEOUT_S, running
from cosydit.certify.recognition import (
    RATE_HZ,
    Recogniser,
    SphinxRecogniser,
    WordErrors,
    edit_distance,
    heldout_sentences,
    total,
    word_errors,
)
from gateway.client import speak_over_grpc, speak_over_http
from servicekit.clock import SystemClock
from servicekit.extras import install_command
from token2wav_service.contract import SAMPLE_RATE_HZ
from token2wav_service.features.audio import load_prompt_audio, resample_poly
from token2wav_service.features.prompt_models import SPEAKER_ENCODER_FILE, SpeakerEncoder

SENTENCES = 100
MOST_WORD_ERRORS = 0.5
"""Far above what chance makes of a good voice, and below what anything broken has: pocketsphinx, the weakest
recogniser, misses 9 to 26 % of the demo voice's words, and all words of noise."""
LEAST_SIMILARITY = 0.5
"""Least mean cosine of the speaker embeddings of speech and prompt; the demo voice has 0.9."""
KEPT_AUDIO = 5


def check_words(context: CheckContext, found: Findings) -> None:
    """A recogniser understands the sentences."""
    _require_trained(context)
    recogniser = _recogniser(found)
    spoken = _spoken(context)
    heard = [recogniser.transcribe(resample_poly(samples, SAMPLE_RATE_HZ, RATE_HZ)) for _, samples in spoken]
    pairs = [(row.text, text) for (row, _), text in zip(spoken, heard, strict=True)]
    found.notes += [f"{said} -> {text}" for said, text in pairs]
    words, characters = total(word_errors(*pair) for pair in pairs), total(_letter_errors(*pair) for pair in pairs)
    for row, samples in spoken[:KEPT_AUDIO]:
        keep_audio(context, found, f"quality-{row.utt}", samples)
    found.tell("sentences", len(spoken))
    found.tell("character error rate", characters.rate)
    judged, name = (words, "word error rate") if words.words else (characters, "character error rate without words")
    found.tell(name, judged.rate, most=MOST_WORD_ERRORS)


def _letter_errors(reference: str, hypothesis: str) -> WordErrors:
    expected, got = ([letter for letter in text.lower() if letter.isalnum()] for text in (reference, hypothesis))
    return WordErrors(edit_distance(expected, got), len(expected))


def check_speaker(context: CheckContext, found: Findings) -> None:
    """The checkpoint's own speaker encoder hears the voice of the prompt."""
    _require_trained(context)
    encoder = SpeakerEncoder(context.checkpoint.token2wav_dir / SPEAKER_ENCODER_FILE)
    likeness = []
    for row, samples in _spoken(context):
        spoken = encoder.embed(resample_poly(samples, SAMPLE_RATE_HZ, RATE_HZ))
        likeness.append(cosine(spoken, encoder.embed(_prompt(context, row))))
    found.tell("speaker similarity", float(np.mean(likeness)), least=LEAST_SIMILARITY)
    found.tell("least similar sentence", min(likeness))


def cosine(a: FloatArray, b: FloatArray) -> float:
    """Return the cosine of the angle between two vectors."""
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def _require_trained(context: CheckContext) -> None:
    if not context.plan.is_audible:
        raise NotRunError("the weights are random and speak noise; give the official ones with --checkpoint")


def _spoken(context: CheckContext) -> list[tuple[SpeechInput, FloatArray]]:
    """Speak every row once; both checks listen to the same audio."""

    def speak_all() -> list[tuple[SpeechInput, FloatArray]]:
        if context.plan.manifest is not None:
            rows = require_all_good(read_manifest(context.plan.manifest))
        else:
            texts = heldout_sentences()[:SENTENCES]
            rows = [SpeechInput(f"sentence-{number:02}", text) for number, text in enumerate(texts)]
        return [(row, _speak(context, row, seed)) for seed, row in enumerate(rows)]

    return context.kept("quality/spoken", speak_all)


def _speak(context: CheckContext, row: SpeechInput, seed: int) -> FloatArray:
    options, clock = running(context).options, SystemClock()
    pieces: list[bytes] = []
    if row.prompt is None:
        speak_over_http(options.gateway_url, row.text, VOICE, pieces.append, clock, TIMEOUT_S, seed)
    else:
        heard = (_prompt(context, row), row.prompt_text)
        speak_over_grpc(options.token2wav_url, row.text, *heard, pieces.append, clock, TIMEOUT_S)
    return samples_of(pieces)


def _prompt(context: CheckContext, row: SpeechInput) -> FloatArray:
    """Return the voice's prompt [N] at 16 kHz."""
    prompt = row.prompt or context.checkpoint.voices_dir / f"{VOICE}.wav"
    return load_prompt_audio(prompt.read_bytes() if isinstance(prompt, Path) else prompt)


def _recogniser(found: Findings) -> Recogniser:
    """Return the best recogniser that is installed and has its model here.

    Raises:
        NotRunError: there is none.
    """
    for name, make in (("faster-whisper", _Whisper), ("pocketsphinx", SphinxRecogniser)):
        try:
            recogniser: Recogniser = make()
        except Exception as error:  # each package raises its own kinds where its model can't be had
            found.note(f"{name} can't be used: {str(error).partition(chr(10))[0] or type(error).__name__}")
        else:
            found.note(f"recogniser: {name}")
            return recogniser
    raise NotRunError(f"no recogniser: pip install faster-whisper, or {install_command('ears')}")


class _Whisper:
    """faster-whisper; its model comes from its own cache, or from the hub."""

    def __init__(self) -> None:
        from faster_whisper import WhisperModel

        self._model: Any = WhisperModel("large-v3")

    def transcribe(self, samples: FloatArray) -> str:
        """See `Recogniser`."""
        return " ".join(segment.text.strip() for segment in self._model.transcribe(samples)[0]).lower()
