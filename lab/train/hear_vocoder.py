"""Scores a vocoder that is being trained: `python -m lab.train.hear_vocoder --work WORK`.

Speaks the newest held-out utterances of every speaker out of their own mel, with the predicted pitch, as the service
does, and prints one JSON line: distances, and DNSMOS (needs speechmos) of the teachers' audio and of the made one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from lab.ears.opinion import DnsMos, Opinion, mean_opinion
from lab.train.data import SpeechStreams, Utterance
from lab.train.models.vocoder_losses import MelLoss, SpectralLoss
from lab.train.sizes import SIZES
from lab.train.trainer import load_part, mean_of
from lab.train.utterance import PCM16_SCALE
from lab.train.workspace import Workspace
from token2wav_service.config import SynthesisPolicy
from token2wav_service.contract import PROMPT_SAMPLE_RATE_HZ, SAMPLE_RATE_HZ
from token2wav_service.features.audio import resample
from token2wav_service.models.causal import VocoderInput
from token2wav_service.models.vocoder.hift import HiFT
from token2wav_service.models.vocoder.vocoder_stream import StreamVocoder
from token2wav_service.types import FloatArray

LONG_ENOUGH_TOKENS = 50
"""2 s; the critic hears shorter ones many times over."""


def newest(utterances: Sequence[Utterance], count: int) -> list[Utterance]:
    """Return the last utterances of each speaker's stream, of those that are long enough; they are held out."""
    speakers: dict[int, list[Utterance]] = {}
    for utterance in utterances:
        if utterance.tokens >= LONG_ENOUGH_TOKENS:
            speakers.setdefault(utterance.speaker, []).append(utterance)
    return [utterance for own in speakers.values() for utterance in own[-count:]]


@torch.inference_mode()
def hear(hift: HiFT, streams: SpeechStreams, utterances: Sequence[Utterance], critic: DnsMos) -> dict[str, float]:
    """Speak and score; streams have audio and mel, all on the CPU."""
    vocoder, mel_loss, spectral_loss = StreamVocoder(hift, SynthesisPolicy()), MelLoss(), SpectralLoss()
    distances = []
    opinions: dict[str, list[Opinion]] = {"teacher": [], "vocoder": []}
    for utterance in utterances:
        mel = streams.column("mel", utterance.start, utterance.tokens).float().T
        true = streams.column("audio", utterance.start, utterance.tokens).float() / PCM16_SCALE
        (made,), _, _ = vocoder.forward([VocoderInput(vocoder.initial_state(), mel, seed=0, is_last=True)])
        pair = made[None], true[None]
        distances.append({"mel": mel_loss(*pair), "spectral": spectral_loss(*pair)})
        opinions["teacher"].append(critic.opinion(_to_16k(true.numpy())))
        opinions["vocoder"].append(critic.opinion(_to_16k(made.numpy())))
    means = {who: mean_opinion(heard) for who, heard in opinions.items()}
    scores = {f"p808_{who}": mean.p808 for who, mean in means.items()}
    return {**mean_of(distances), **scores, **{f"ovrl_{who}": mean.overall for who, mean in means.items()}}


def _to_16k(samples: FloatArray) -> FloatArray:
    return resample(np.asarray(samples, np.float32), SAMPLE_RATE_HZ, PROMPT_SAMPLE_RATE_HZ)


def main(argv: Sequence[str] | None = None) -> int:
    """Hear the vocoder of a workspace; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.train.hear_vocoder", description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of the training")
    parser.add_argument("--sizes", choices=list(SIZES), default="demo", help="default %(default)s")
    parser.add_argument("--each", type=int, default=1, help="utterances of each speaker (default %(default)s)")
    args = parser.parse_args(argv)
    work, critic = Workspace(args.work), DnsMos()
    hift = HiFT(SIZES[args.sizes].hift)
    load_part(work.weights("vocoder"), "hift", hift)
    streams = SpeechStreams(work.corpus, ("audio", "mel"), torch.device("cpu"), 0)
    heard = newest(streams.utterances, args.each)
    figures = hear(hift.eval(), streams, heard, critic)
    rounded = {name: round(value, 4) for name, value in figures.items()}
    sys.stdout.write(json.dumps({"utterances": len(heard), **rounded}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
