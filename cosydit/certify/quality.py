"""Checks by ear: what recognisers understand, whose voice it is, and whether chunks can be heard.

Only weights that were trained can pass: of random ones these checks are not run.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cosydit.bench.inputs import read_manifest
from cosydit.bench.types import SpeechInput
from cosydit.certify.check import CheckFailedError, Findings, NotRunError
from cosydit.certify.context import VOICE, CheckContext, keep_audio, samples_of
from cosydit.certify.doors import TIMEOUT_S
from cosydit.certify.end_to_end import running
from cosydit.certify.recognition import (
    RATE_HZ,
    Recogniser,
    SphinxRecogniser,
    WordErrors,
    edit_distance,
    heldout_sentences,
    word_errors,
)
from cosydit.stack.stack import StackOptions
from gateway.client import speak_over_grpc, speak_over_http
from servicekit.clock import SystemClock
from servicekit.extras import install_command
from token2wav_service.contract import SAMPLE_RATE_HZ
from token2wav_service.features.audio import load_prompt_audio, resample_poly
from token2wav_service.features.prompt_models import SPEAKER_ENCODER_FILE, SpeakerEncoder

SENTENCES = 100
MOST_WORD_ERRORS = 0.25
"""Bound for pocketsphinx, the weakest recogniser: it misses 9 % of the demo voice's words and 5 % of its source's."""
LEAST_SIMILARITY = 0.5
"""Least mean cosine of the speaker embeddings of speech and prompt."""
KEPT_AUDIO = 5

FloatArray = npt.NDArray[np.float32]


def check_words(context: CheckContext, found: Findings) -> None:
    """A recogniser understands the sentences."""
    _require_trained(context)
    recogniser = _recogniser(found)
    words, characters = WordErrors(0, 0), WordErrors(0, 0)
    spoken = _spoken(context)
    for row, samples in spoken:
        heard = recogniser.transcribe(resample_poly(samples, SAMPLE_RATE_HZ, RATE_HZ))
        words += word_errors(row.text, heard)
        letters, heard_letters = ([c for c in text.lower() if c.isalnum()] for text in (row.text, heard))
        characters += WordErrors(edit_distance(letters, heard_letters), len(letters))
        found.note(f"{row.text} -> {heard}")
    for row, samples in spoken[:KEPT_AUDIO]:
        keep_audio(context, found, f"quality-{row.utt}", samples)
    found.tell("sentences", len(spoken))
    found.tell("character error rate", characters.rate)
    judged, name = (words, "word error rate") if words.words else (characters, "character error rate without words")
    found.at_most(name, judged.rate, most_errors(judged.words))


def most_errors(count: int) -> float:
    """Return the bound for the error rate of `count` words: three standard errors wider, which is chance's part."""
    return MOST_WORD_ERRORS + 3 * math.sqrt(MOST_WORD_ERRORS * (1 - MOST_WORD_ERRORS) / count)


def check_speaker(context: CheckContext, found: Findings) -> None:
    """The checkpoint's own speaker encoder hears the voice of the prompt."""
    _require_trained(context)
    encoder = SpeakerEncoder(context.checkpoint.token2wav_dir / SPEAKER_ENCODER_FILE)
    likeness = []
    for row, samples in _spoken(context):
        spoken = encoder.embed(resample_poly(samples, SAMPLE_RATE_HZ, RATE_HZ))
        likeness.append(cosine(spoken, encoder.embed(_prompt(context, row))))
    found.at_least("speaker similarity", float(np.mean(likeness)), LEAST_SIMILARITY)
    found.tell("least similar sentence", min(likeness))


def cosine(a: FloatArray, b: FloatArray) -> float:
    """Return the cosine of the angle between two vectors."""
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def _require_trained(context: CheckContext) -> None:
    if not context.plan.is_audible:
        raise NotRunError("the weights are random and speak noise; give the official ones with --checkpoint")


def _rows(context: CheckContext) -> list[SpeechInput]:
    """Return the manifest's rows, else sentences that the demo voice never learnt."""
    if context.plan.manifest is None:
        texts = heldout_sentences()[:SENTENCES]
        return [SpeechInput(f"sentence-{number:02}", text) for number, text in enumerate(texts)]
    rows = read_manifest(context.plan.manifest)
    bad = [row for row in rows if not isinstance(row, SpeechInput)]
    if bad:
        raise CheckFailedError(f"{context.plan.manifest}: {len(bad)} rows can't be used, the first: {bad[0]}")
    return [row for row in rows if isinstance(row, SpeechInput)]


def _spoken(context: CheckContext) -> list[tuple[SpeechInput, FloatArray]]:
    """Speak every row once; both checks listen to the same audio."""

    def speak_all() -> list[tuple[SpeechInput, FloatArray]]:
        options = running(context).options
        return [(row, _speak(context, options, row, seed)) for seed, row in enumerate(_rows(context))]

    return context.kept("quality/spoken", speak_all)


def _speak(context: CheckContext, options: StackOptions, row: SpeechInput, seed: int) -> FloatArray:
    pieces: list[bytes] = []
    if row.prompt is None:
        voice, clock = row.voice or VOICE, SystemClock()
        speak_over_http(options.gateway_url, row.text, voice, pieces.append, clock, TIMEOUT_S, seed)
    else:
        heard, clock = (_prompt(context, row), row.prompt_text), SystemClock()
        speak_over_grpc(options.token2wav_url, row.text, *heard, pieces.append, clock, TIMEOUT_S)
    return samples_of(pieces)


def _prompt(context: CheckContext, row: SpeechInput) -> FloatArray:
    """Return the voice's prompt [N] at 16 kHz."""
    if isinstance(row.prompt, bytes):
        return load_prompt_audio(row.prompt)
    path = row.prompt or context.checkpoint.voices_dir / f"{row.voice or VOICE}.wav"
    return load_prompt_audio(Path(path).read_bytes())


def _recogniser(found: Findings) -> Recogniser:
    """Return the best recogniser that is installed and has its model here.

    Raises:
        NotRunError: there is none.
    """
    makers = {"faster-whisper": _Whisper, "FunASR": _FunASR, "pocketsphinx": SphinxRecogniser}
    for name, make in makers.items():
        try:
            recogniser: Recogniser = make()
        except Exception as error:  # each package raises its own kinds where its model can't be had
            found.note(f"{name} can't be used: {str(error).partition(chr(10))[0] or type(error).__name__}")
        else:
            found.note(f"recogniser: {name}")
            return recogniser
    raise NotRunError(f"no recogniser: pip install faster-whisper or funasr, or {install_command('ears')}")


class _Whisper:
    """faster-whisper; its model comes from its own cache, or from the hub."""

    def __init__(self, model: str = "large-v3") -> None:
        from faster_whisper import WhisperModel

        self._model: Any = WhisperModel(model)

    def transcribe(self, samples: FloatArray) -> str:
        """See `Recogniser`."""
        segments, _ = self._model.transcribe(samples)
        return " ".join(segment.text.strip() for segment in segments).lower()


class _FunASR:
    """FunASR's Paraformer, for Chinese; its model comes from its own cache, or from the hub."""

    def __init__(self, model: str = "paraformer-zh") -> None:
        from funasr import AutoModel

        self._model: Any = AutoModel(model=model, disable_update=True)

    def transcribe(self, samples: FloatArray) -> str:
        """See `Recogniser`."""
        return str(self._model.generate(input=samples)[0]["text"]).lower()
