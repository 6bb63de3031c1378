"""The teacher hibari: a woman's voice at 24 kHz, and, by its own pitch and a warp, others of it.

The package `hibari-tts` (Apache-2.0; distilled from Kokoro-82M, Apache-2.0) predicts spectra, pitch and how long each
phoneme lasts, and makes the samples of them. So pitch and phones are known, not tracked: they are what the audio was
made with. A `Manner` changes the pitch before the samples are made; its warp then moves pitch and formants together,
with the speaking rate put right beforehand. Needs no espeak: the package has its own pronunciations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lab.ears.pitch import FRAME_SECONDS as PITCH_FRAME_SECONDS
from lab.train.teachers.cycles import cycles_at_samples, phase_at_frames
from lab.train.teachers.flite import PAUSE, PLAIN, FloatArray, Segment, Spoken, SynthesisError

RATE_HZ = 24_000
FRAME_SECONDS = 0.0125
"""Of the teacher's pitch and its phonemes' lengths."""
LATE_S = 0.03
"""The predicted lengths end so much after the sounds do: of thirty sentences in three manners, voicing fits the phones
best when they are moved ahead by 1 or 2 frames of 20 ms."""
VOICED_HZ = 40.0
"""The teacher speaks frames of lower pitch without voice."""
_HOP = round(RATE_HZ * FRAME_SECONDS)

PHONES_OF = {
    **dict(zip("AIOWYQ", ("ey", "ay", "ow", "aw", "oy", "ow"), strict=True)),
    **dict(zip("aɑɒæɐʌɔəᵊɚɜeɛ", "aa aa aa ae ax ah ao ax ax axr er eh eh".split(), strict=True)),
    **dict(zip("iɪᵻɨoʊuɯ", "iy ih ih ih ow uh uw uw".split(), strict=True)),
    **dict(zip("bdfhjklmnpstvwz", "b d f hh y k l m n p s t v w z".split(), strict=True)),
    **dict(zip("ɡŋɹrʃʒʧʤθðɾTʔx", "g ng r r sh zh ch jh th dh dx dx t k".split(), strict=True)),
}
"""Phones of the teacher's phonemes; stress, length marks and spaces belong to what stands beside them."""
_PAUSES = frozenset(';:,.!?—…"“”()')
_TO_NEXT = frozenset(" ˈˌ")


@dataclass(frozen=True)
class Manner:
    """How the teacher speaks as one speaker."""

    name: str
    pitch: float = 1.0
    """Factor on the pitch."""
    warp: Fraction = PLAIN
    """Factor on the formants."""


MANNERS = (
    Manner("heart"),
    Manner("heart_high", 1.15, Fraction(11, 10)),
    Manner("heart_low", 0.85, Fraction(9, 10)),
    Manner("heart_man", 0.5, Fraction(4, 5)),
    Manner("heart_tenor", 0.6, Fraction(5, 6)),
    Manner("heart_a", 0.6, Fraction(9, 10)),
    Manner("heart_b", 0.92, Fraction(19, 20)),
    Manner("heart_c", 1.06, Fraction(21, 20)),
    Manner("heart_d", 0.72, Fraction(15, 17)),
    Manner("heart_e", 0.55, Fraction(6, 7)),
)
SHARES = (0.44, 0.1, 0.1, 0.14, 0.05, 0.03, 0.04, 0.04, 0.03, 0.03)
"""Shares of the audio; the default voice has most."""
LONG_SHARES = (0.7, 0.05, 0.05, 0.06, 0.03, 0.02, 0.02, 0.02, 0.025, 0.025)
"""Shares of long sentences."""


LOUDEST = 0.95
"""Greatest sample of a text; a louder text is turned down as a whole."""


@dataclass(frozen=True)
class Prediction:
    """One phrase before it is sound; F frames."""

    spectra: tuple[FloatArray, ...]
    """Five of [601, F]."""
    pitch: FloatArray
    """[F] Hz."""
    lengths: npt.NDArray[np.int64]
    """[phonemes and an edge on both sides] in units of two frames."""


class HibariModel(Protocol):
    """What the engine needs of the package."""

    def phonemize(self, text: str) -> list[str]:
        """Return the phonemes of each sentence."""
        ...

    def known(self, phonemes: str) -> str:
        """Return the phonemes that the model has."""
        ...

    def predict(self, phonemes: str, speed: float) -> Prediction:
        """Predict one sentence."""
        ...

    def samples(self, prediction: Prediction, pitch: FloatArray, draw: np.random.Generator) -> FloatArray:
        """Return [300 F] samples with another pitch."""
        ...


class HibariPackage:
    """The package itself, on one thread."""

    def __init__(self) -> None:
        """Load the model (under a second).

        Raises:
            SynthesisError: the package is not installed.
        """
        try:
            import onnx
            from hibari import Hibari
            from onnxruntime import InferenceSession, SessionOptions
        except ImportError as err:
            raise SynthesisError(f"{err.name} is missing; pip install hibari-tts==0.2.1 onnx onnxruntime") from err
        self._hibari = Hibari()
        options = SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        graph = with_lengths(onnx.load(self._hibari.model_path))
        self._session = InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def phonemize(self, text: str) -> list[str]:
        """Return the phonemes of each sentence."""
        return list(self._hibari.phonemize(text))

    def known(self, phonemes: str) -> str:
        """Return the phonemes that the model has."""
        return "".join(phoneme for phoneme in phonemes if phoneme in self._hibari.vocab)

    def predict(self, phonemes: str, speed: float) -> Prediction:
        """Predict one sentence."""
        feed = {"ids": np.array([self._hibari.ids(phonemes)], np.int64), "speed": np.array([speed], np.float32)}
        *answers, lengths = self._session.run(None, feed)
        *spectra, pitch = (answer[0] for answer in answers)
        return Prediction(tuple(spectra), pitch, lengths.astype(np.int64))

    def samples(self, prediction: Prediction, pitch: FloatArray, draw: np.random.Generator) -> FloatArray:
        """Return [300 F] samples with another pitch."""
        from hibari import dsp

        return np.asarray(dsp.synth(*prediction.spectra, pitch, draw), np.float32)


def with_lengths(model: Any) -> Any:
    """Make the phonemes' lengths an output of the package's ONNX graph; returns the graph.

    Raises:
        SynthesisError: it has no single place where lengths are rounded; another version, perhaps.
    """
    from onnx import TensorProto, helper

    rounded = {node.output[0] for node in model.graph.node if node.op_type == "Round"}
    lengths = [node.output[0] for node in model.graph.node if node.op_type == "Clip" and node.input[0] in rounded]
    if len(lengths) != 1:
        raise SynthesisError(f"got {len(lengths)} tensors of lengths in hibari's graph, expected 1; use version 0.2.1")
    model.graph.output.append(helper.make_tensor_value_info(lengths[0], TensorProto.FLOAT, ["L"]))
    return model


class HibariEngine:
    """The teacher as the corpus asks it."""

    def __init__(self, model: HibariModel | None = None) -> None:
        """Take a model, or load the package's.

        Raises:
            SynthesisError: the package is not installed.
        """
        self._model = HibariPackage() if model is None else model

    def phonemes(self, text: str) -> list[str]:
        """Return the phonemes of each sentence that has a word."""
        known = [self._model.known(phonemes) for phonemes in self._model.phonemize(text)]
        return [phonemes for phonemes in known if not PHONES_OF.keys().isdisjoint(phonemes)]

    def speak(self, text: str, speaker: int) -> Spoken:
        """Speak a text as `MANNERS[speaker]`; equal texts give equal audio.

        Raises:
            SynthesisError: there is no word in the text.
        """
        manner = MANNERS[speaker]
        sentences = self.phonemes(text)
        if not sentences:
            raise SynthesisError(f"hibari has no phonemes for {text!r}; is there a word in it?")
        draw = np.random.default_rng(len(text))
        warp = float(manner.warp)
        pieces, pitches, cycles, segments = [], [], [], list[Segment]()
        for phonemes in sentences:
            # Played faster by the warp, the audio gets shorter; so the teacher speaks slower by the same factor.
            prediction = self._model.predict(phonemes, 1.0 / warp)
            voiced = np.where(prediction.pitch > VOICED_HZ, prediction.pitch, 0.0).astype(np.float32)
            before_warp = (voiced * manner.pitch / warp).astype(np.float32)
            pieces.append(self._model.samples(prediction, before_warp, draw))
            cycles.append(cycles_at_samples(before_warp, _HOP, RATE_HZ, VOICED_HZ))
            began = segments[-1].end_s if segments else 0.0
            seconds = len(prediction.pitch) * FRAME_SECONDS / warp
            segments += segments_of(phonemes, prediction.lengths, began, began + seconds)
            pitches.append(voiced * manner.pitch)
        samples = _played(np.concatenate(pieces), manner.warp)
        step = round(RATE_HZ * PITCH_FRAME_SECONDS)
        frames = len(samples) // step
        pitch = pitch_at_frames(np.concatenate(pitches), FRAME_SECONDS / warp, frames)
        phase = phase_at_frames(np.concatenate(cycles), step * warp, frames)
        # Other formants may be louder than the model's own; at another rate, peaks may rise a little.
        gain = LOUDEST / max(LOUDEST, float(np.abs(samples).max(initial=0.0)))
        return Spoken(samples * np.float32(gain), tuple(segments), RATE_HZ, pitch, phase)


def segments_of(
    phonemes: str, lengths: Sequence[int] | npt.NDArray[np.int64], began_s: float, ended_s: float
) -> list[Segment]:
    """Turn phonemes and their lengths into phones and where they are heard to end.

    Args:
        phonemes: of one sentence.
        lengths: [phonemes + 2], in any unit; one edge on either side.
        began_s: where the sentence begins, in seconds.
        ended_s: where it ends.
    """
    ends = began_s + np.cumsum(lengths) / np.sum(lengths) * (ended_s - began_s)
    heard = np.maximum(began_s, ends[:-1] - LATE_S)
    found = [Segment(PAUSE, float(heard[0]))]
    for phoneme, end in zip(phonemes, heard[1:], strict=True):
        if phoneme in _TO_NEXT:
            continue  # the next phone begins where the last one ended
        phone = PAUSE if phoneme in _PAUSES else PHONES_OF.get(phoneme)
        found.append(Segment(found[-1].phone if phone is None else phone, float(end)))
    return [*found, Segment(PAUSE, float(ends[-1]))]


def pitch_at_frames(pitch: FloatArray, frame_s: float, frames: int) -> FloatArray:
    """Read a pitch curve at the middle of every 20 ms.

    Args:
        pitch: [F] Hz, 0 where unvoiced; value k is at (k + 0.5) frames.
        frame_s: seconds of a frame.
        frames: of the answer.

    Returns:
        [frames] float32 Hz, interpolated between voiced neighbours; 0 where the nearest value is unvoiced.
    """
    at = (np.arange(frames) + 0.5) * PITCH_FRAME_SECONDS / frame_s - 0.5
    left = np.clip(np.floor(at).astype(np.int64), 0, len(pitch) - 1)
    right = np.minimum(left + 1, len(pitch) - 1)
    share = np.clip(at - left, 0.0, 1.0)
    both = (pitch[left] > 0) & (pitch[right] > 0)
    nearest = np.where(share < 0.5, pitch[left], pitch[right])
    return np.where(both, (1 - share) * pitch[left] + share * pitch[right], nearest).astype(np.float32)


def _played(samples: FloatArray, warp: Fraction) -> FloatArray:
    if warp == PLAIN:
        return samples
    from scipy import signal

    return np.asarray(signal.resample_poly(samples, warp.denominator, warp.numerator), np.float32)
