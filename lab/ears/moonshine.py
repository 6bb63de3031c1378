"""A neural recogniser for judging: Moonshine's tiny English model, of which two ONNX files and a tokenizer are read.

Useful Sensors made it (MIT licence); `lab/train/README.md` says where its files come from. It has never heard
our models, as pocketsphinx has not, and mishears far fewer words.

Source: its inference as published in useful-moonshine-onnx: an encoder hears [1, N] samples at 16 kHz, a decoder tells
the next token of the transcript, greedily, from keys and values of the tokens before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cosydit.certify.recognition import RATE_HZ, FloatArray
from lab.ears.audio_faults import FRAME_SECONDS, silent_frames

ENCODER, DECODER, TOKENIZER = "encoder_model.onnx", "decoder_model_merged.onnx", "tokenizer.json"
BEGIN_ID, END_ID = 1, 2
MOST_TOKENS_A_SECOND = 6.5
"""Speech has no more; a decoder that repeats itself is stopped there."""
LEAST_TOKENS = 12
KEPT_SILENCE_S = 0.1
"""See `without_last_silence`. Of half a second behind a long sentence the model may make `Thank you.`; short ones that
end too soon it hears worse."""
_PAST, _PRESENT = "past_key_values.", "present."
_OF_ENCODER = ".encoder."


class Recogniser(Protocol):
    """Anything that writes down what it hears."""

    def transcribe(self, samples: FloatArray) -> str:
        """Map [N] mono float32 in +-1 at 16 kHz to lower-case words."""
        ...


class MoonshineRecogniser:
    """Writes down English as people write it, with digits and punctuation. One thread; every call starts afresh."""

    def __init__(self, directory: Path) -> None:
        """Load the models.

        Args:
            directory: has the three files.

        Raises:
            FileNotFoundError: one is missing.
        """
        import onnxruntime
        from tokenizers import Tokenizer

        for name in (ENCODER, DECODER, TOKENIZER):
            if not (directory / name).is_file():
                got = f"{directory} has no {name}"
                raise FileNotFoundError(f"{got}; lab/train/README.md says how to get Moonshine's files")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        providers = ["CPUExecutionProvider"]
        self._encoder, self._decoder = (
            onnxruntime.InferenceSession(str(directory / name), options, providers) for name in (ENCODER, DECODER)
        )
        self._tokenizer = Tokenizer.from_file(str(directory / TOKENIZER))
        self._empty = {
            each.name: np.zeros((0, each.shape[1], 1, each.shape[3]), np.float32)
            for each in self._decoder.get_inputs()
            if each.name.startswith(_PAST)
        }
        self._outputs = [each.name for each in self._decoder.get_outputs()]

    def transcribe(self, samples: FloatArray) -> str:
        """Map [N] mono float32 in +-1 at 16 kHz to what was said, which is never nothing."""
        audio = np.ascontiguousarray(np.clip(samples, -1, 1), np.float32)[None]
        (heard,) = self._encoder.run(None, {"input_values": audio})
        limit = max(LEAST_TOKENS, int(MOST_TOKENS_A_SECOND * audio.shape[1] / RATE_HZ))
        return str(self._tokenizer.decode(self._decode(heard, limit), skip_special_tokens=True))

    def _decode(self, heard: npt.NDArray[Any], limit: int) -> list[int]:
        """Return up to so many tokens; the first is not the end, which the model likes to take short audio for."""
        tokens = [BEGIN_ID]
        past = dict(self._empty)
        while len(tokens) <= limit:
            is_first = len(tokens) == 1
            inputs = {
                "input_ids": np.array([tokens[-1:]], np.int64),
                "encoder_hidden_states": heard,
                "use_cache_branch": np.array([not is_first]),
                **past,
            }
            logits, *made = self._decoder.run(self._outputs, inputs)
            scores = logits[0, -1].copy()
            if is_first:
                scores[END_ID] = -np.inf
            if (token := int(scores.argmax())) == END_ID:
                break
            tokens.append(token)
            for name, value in zip(self._outputs[1:], made, strict=True):
                # What was heard does not change: its keys and values come from the first call alone.
                if is_first or _OF_ENCODER not in name:
                    past[name.replace(_PRESENT, _PAST)] = value
        return tokens[1:]


def without_last_silence(samples: FloatArray) -> FloatArray:
    """Return [N] samples at 16 kHz up to `KEPT_SILENCE_S` behind their last sound."""
    sounding = np.flatnonzero(~silent_frames(samples, RATE_HZ))
    return samples[: round(RATE_HZ * ((sounding.max(initial=-1) + 1) * FRAME_SECONDS + KEPT_SILENCE_S))]
