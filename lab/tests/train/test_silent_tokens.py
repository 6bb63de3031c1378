"""Which speech tokens sound as silence is found in audio, and the bundle tells it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from demo_voice.unpack import BUNDLE, SIZES_FILE, BundleSizes
from lab.train.silent_tokens import silent_tokens
from lab.train.sizes import BOUNDS
from lab.train.utterance import SAMPLES_PER_TOKEN_16K

LOUD, SOFT, SELDOM, MIXED = 7, 8, 9, 10


def test_tokens_of_soft_audio_are_silent() -> None:
    tokens = [*[LOUD] * 20, *[SOFT] * 10, *[SELDOM] * 2, *[MIXED] * 10]
    volumes = [*[0.5] * 20, *[0.0001] * 10, *[0.0001] * 2, *[0.5, 0.0001] * 5]
    samples = np.repeat(np.array(volumes, np.float32), SAMPLES_PER_TOKEN_16K)

    assert silent_tokens([(tokens, samples), (tokens[:20], samples[: 20 * SAMPLES_PER_TOKEN_16K])]) == [SOFT]


def test_the_bundle_tells_how_much_it_speaks_at_once_and_which_tokens_are_silent() -> None:
    bounds = BundleSizes.from_json((BUNDLE / SIZES_FILE).read_text("utf-8")).bounds

    assert replace(bounds, silent_tokens=BOUNDS.silent_tokens) == BOUNDS
    assert len(bounds.silent_tokens or ()) > 20
