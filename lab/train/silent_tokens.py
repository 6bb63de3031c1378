"""Finds the speech tokens that sound as silence: `python -m lab.train.silent_tokens`. Needs the teachers.

The bundle's teachers speak the held-out sentences in the voices that are bundled; the speech tokenizer codes them.
A token is silent if nearly all its audio is much softer than the loud parts. `bundle.json` keeps the list.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks.lib.word_errors import heldout_sentences
from cosydit.certify.recognition import FloatArray
from demo_voice.unpack import BUNDLE
from lab.train.make_voices import VOICES_OF, SourceVoices
from lab.train.teachers.choices import teachers_of
from lab.train.utterance import SAMPLES_PER_TOKEN_16K, audio_16k
from token2wav_service.features.mel import s3_log_mel
from token2wav_service.features.prompt_models import SPEECH_TOKENIZER_FILE, OnnxSpeechTokenizer

SOFTER_DB = 35.0
"""Than the loud parts of the same audio."""
LEAST_SHARE, LEAST_COUNT = 0.8, 4
_LOUD_QUANTILE = 0.95
_DB_PER_DECADE, _FLOOR = 20.0, 1e-9


def silent_tokens(
    spoken: Iterable[tuple[Sequence[int], FloatArray]], samples_per_token: int = SAMPLES_PER_TOKEN_16K
) -> list[int]:
    """Return the tokens that sound as silence, sorted.

    Args:
        spoken: of each utterance the speech tokens (25 Hz) and their audio, [N] mono float32 in +-1.
        samples_per_token: of the audio.
    """
    seen: Counter[int] = Counter()
    silent: Counter[int] = Counter()
    for tokens, samples in spoken:
        levels = _levels_db(samples, samples_per_token)[: len(tokens)]
        is_soft = levels < np.quantile(levels, _LOUD_QUANTILE) - SOFTER_DB
        seen.update(tokens[: len(levels)])
        silent.update(token for token, soft in zip(tokens, is_soft, strict=False) if soft)
    return sorted(t for t, count in seen.items() if count >= LEAST_COUNT and silent[t] >= LEAST_SHARE * count)


def _levels_db(samples: FloatArray, size: int) -> FloatArray:
    """Return the level of every 40 ms."""
    whole = len(samples) // size
    frames = samples[: whole * size].reshape(whole, size)
    level = np.sqrt((frames.astype(np.float64) ** 2).mean(axis=1))
    return np.asarray(_DB_PER_DECADE * np.log10(level + _FLOOR), np.float32)


def main(argv: Sequence[str] | None = None) -> int:
    """Find and print them; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.train.silent_tokens", description=__doc__)
    parser.add_argument("--bundle", type=Path, default=BUNDLE, help="packed weights (default %(default)s)")
    parser.add_argument("--engines", type=Path, help="unpacked source engines (default: the installed ones)")
    args = parser.parse_args(argv)
    teachers = teachers_of(args.bundle)
    source, tokenizer = SourceVoices(teachers, args.engines), OnnxSpeechTokenizer(args.bundle / SPEECH_TOKENIZER_FILE)
    texts = [(text, voice.name) for voice in VOICES_OF[teachers] for text in heldout_sentences()]
    audio = (audio_16k(source.speak(text, voice)) for text, voice in tqdm(texts, unit="sentence"))
    found = silent_tokens((tokenizer.tokenize(s3_log_mel(samples)).tolist(), samples) for samples in audio)
    sys.stdout.write(f"{found}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
