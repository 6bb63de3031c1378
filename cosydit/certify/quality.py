"""Checks by ear: what recognisers understand, whose voice it is, and whether chunks can be heard.

Only weights that were trained can pass: of random ones these checks are not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cosydit.bench.inputs import read_manifest
from cosydit.bench.types import SpeechInput
from cosydit.certify.check import Check, CheckFailedError, Findings, NotRunError
from cosydit.certify.context import VOICE, CheckContext, keep_audio
from cosydit.certify.end_to_end import STACK, TIMEOUT_S, running
from cosydit.certify.recognition import (
    RATE_HZ,
    Recogniser,
    SphinxRecogniser,
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

AREA = "quality"
PAGE = "performance.md"
SENTENCES, SHORT_SENTENCES = 100, 2
MOST_WORD_ERRORS = 0.25
"""Bound for pocketsphinx, the weakest recogniser: it misses 9 % of the demo voice's words and 5 % of its source's."""
LEAST_SIMILARITY = 0.5
"""Least mean cosine of the speaker embeddings of speech and prompt."""
KEPT_AUDIO = 5
_PCM16_SCALE = 32768.0

FloatArray = npt.NDArray[np.float32]


def checks() -> list[Check]:
    """Return the checks of this area."""
    return [
        Check(AREA, "words", check_words, PAGE, 3600.0, STACK),
        Check(AREA, "speaker", check_speaker, "voices.md", 3600.0, STACK),
    ]


def check_words(context: CheckContext, found: Findings) -> None:
    """A recogniser understands the sentences."""
    _require_trained(context)
    name, recogniser = _recogniser(found)
    errors, characters = [], []
    for row, samples in _spoken(context, found):
        heard = recogniser.transcribe(resample_poly(samples, SAMPLE_RATE_HZ, RATE_HZ))
        errors.append(word_errors(row.text, heard))
        letters = [[c for c in text.lower() if c.isalnum()] for text in (row.text, heard)]
        characters.append((edit_distance(*letters), len(letters[0])))
        found.note(f"{row.text} -> {heard}")
    found.note(f"recogniser: {name}")
    found.tell("sentences", len(errors))
    wrong, letters_in_all = (sum(column) for column in zip(*characters, strict=True))
    found.tell("character error rate", wrong / max(letters_in_all, 1))
    if total(errors).words:
        found.at_most("word error rate", total(errors).rate, MOST_WORD_ERRORS)
    else:
        found.at_most("character error rate of texts without Latin words", wrong / letters_in_all, MOST_WORD_ERRORS)


def check_speaker(context: CheckContext, found: Findings) -> None:
    """The checkpoint's own speaker encoder hears the voice of the prompt."""
    _require_trained(context)
    encoder = SpeakerEncoder(context.checkpoint.token2wav_dir / SPEAKER_ENCODER_FILE)
    likeness = []
    for row, samples in _spoken(context, found, keep=False):
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
    count = SHORT_SENTENCES if context.plan.is_short else SENTENCES
    if context.plan.manifest is None:
        return [SpeechInput(f"sentence-{number:02}", text) for number, text in enumerate(heldout_sentences()[:count])]
    rows = read_manifest(context.plan.manifest)
    bad = [row for row in rows if not isinstance(row, SpeechInput)]
    if bad:
        raise CheckFailedError(f"{context.plan.manifest}: {len(bad)} rows can't be used, the first: {bad[0]}")
    return [row for row in rows if isinstance(row, SpeechInput)]


def _spoken(context: CheckContext, found: Findings, keep: bool = True) -> Sequence[tuple[SpeechInput, FloatArray]]:
    """Speak every row once; both checks listen to the same audio."""
    rows: list[tuple[SpeechInput, FloatArray]] = context.kept("quality/spoken", lambda: _speak_all(context))
    if keep:
        for row, samples in rows[:KEPT_AUDIO]:
            keep_audio(context, found, f"quality-{row.utt}", samples)
    return rows


def _speak_all(context: CheckContext) -> list[tuple[SpeechInput, FloatArray]]:
    started = running(context)
    return [(row, _speak(context, started.options.gateway_url, started.options.token2wav_url, row, seed))
            for seed, row in enumerate(_rows(context))]  # fmt: skip


def _speak(context: CheckContext, http_url: str, triton_url: str, row: SpeechInput, seed: int) -> FloatArray:
    pieces: list[bytes] = []
    if row.prompt is None:
        voice = row.voice or VOICE
        speak_over_http(http_url, row.text, voice, pieces.append, SystemClock(), TIMEOUT_S, seed)
    else:
        reference = _prompt(context, row)
        speak_over_grpc(triton_url, row.text, reference, row.prompt_text, pieces.append, SystemClock(), TIMEOUT_S)
    return np.frombuffer(b"".join(pieces), "<i2").astype(np.float32) / _PCM16_SCALE


def _prompt(context: CheckContext, row: SpeechInput) -> FloatArray:
    """Return the voice's prompt [N] at 16 kHz."""
    if isinstance(row.prompt, bytes):
        return load_prompt_audio(row.prompt)
    path = row.prompt or context.checkpoint.voices_dir / f"{row.voice or VOICE}.wav"
    return load_prompt_audio(Path(path).read_bytes())


def _recogniser(found: Findings) -> tuple[str, Recogniser]:
    """Return the best recogniser that is installed and has its model here.

    Raises:
        NotRunError: there is none.
    """
    makers: dict[str, Callable[[], Recogniser]] = {
        "faster-whisper": _Whisper,
        "FunASR": _FunASR,
        "pocketsphinx": SphinxRecogniser,
    }
    for name, make in makers.items():
        try:
            return name, make()
        except Exception as error:  # each package raises its own kinds where its model can't be had
            found.note(f"{name} can't be used: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
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
