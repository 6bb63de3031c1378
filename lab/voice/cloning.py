"""Measures how alike the product speaks to speakers that nothing was trained on: `python -m lab.voice.cloning`.

The speakers are mixtures of Kokoro's voices that `teachers.kokoro.SPEAKERS` does not have; a voice of which no speaker
of the training has any share is among them. Each speaks one prompt and some sentences. The product speaks the same
sentences with the prompt as its voice, in this process, through the gateway's own path. An encoder that is no part of
the training compares that with the speaker's own audio of the other sentences: Resemblyzer's, of whose package
(`pip install --no-deps Resemblyzer==0.1.4`) only the weights are read. The bundled voices are measured alike, for
comparison.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.lib.word_errors import heldout_sentences
from cosydit.bench.types import count
from demo_voice.unpack import BundleError
from lab.ears.likeness import RATE_HZ, Likeness, VoiceEncoder, mean_embedding
from lab.ears.speakers import FloatArray, SpeakerRanking, cosine, rank_speakers, top1
from lab.train.make_voices import VOICES_OF, write_prompt
from lab.train.teachers.choices import TEACHERS, HibariAndKokoro, teachers_of
from lab.train.teachers.flite import Spoken, SynthesisError
from lab.train.teachers.kokoro import KokoroSpeaker
from lab.train.utterance import audio_16k, audio_of
from lab.voice.hearing import write_study
from lab.voice.in_process import open_pipeline, speak
from token2wav_service.contract import SAMPLE_RATE_HZ
from token2wav_service.features.audio import resample

DEFAULT_OUT = Path("benchmarks/results/cloning_cpu.json")
HELD_OUT = (
    KokoroSpeaker("tebukuro", {"jf_tebukuro": 1.0}),
    KokoroSpeaker("tebukuro_kumo", {"jf_tebukuro": 0.5, "jm_kumo": 0.5}),
    KokoroSpeaker("tebukuro_alpha", {"jf_tebukuro": 0.5, "jf_alpha": 0.5}),
    KokoroSpeaker("tebukuro_gongitsune", {"jf_tebukuro": 0.5, "jf_gongitsune": 0.5}),
    KokoroSpeaker("kumo_tebukuro", {"jm_kumo": 0.75, "jf_tebukuro": 0.25}),
    KokoroSpeaker("kumo_nezumi", {"jm_kumo": 0.6, "jf_nezumi": 0.4}),
    KokoroSpeaker("gongitsune_nezumi", {"jf_gongitsune": 0.5, "jf_nezumi": 0.5}),
    KokoroSpeaker("alpha_gongitsune_kumo", {"jf_alpha": 0.4, "jf_gongitsune": 0.3, "jm_kumo": 0.3}),
)
"""Speakers that nothing was trained on. Five have a share of jf_tebukuro, which no speaker of the training has."""
PROMPT = "The lamp in the window was still burning when the train left."
"""What every held-out speaker says to the product; about 4 s."""
SHORTEST, LONGEST = 55, 80
"""Letters of a sentence: about 4 s too."""
_JUDGED = (
    "A speaker is known by the mean embedding of the speaker's own audio of the other sentences, without the prompt: "
    "cosines to it are taken of the product's audio in that speaker's voice (similarity), of the speaker's own audio "
    "(teacher_similarity), of either to all other speakers' means (to_others). top1: the share of sentences for which "
    "no other speaker, held out or bundled, is more alike. over_trained: the share for which no speaker of the "
    "training is. clone: held-out speakers; bundled: bundled voices."
)


@dataclass(frozen=True)
class Person:
    """Somebody who speaks."""

    name: str
    speak: Callable[[str], Spoken]
    """Says a text in the person's own voice; may raise `SynthesisError`."""


@dataclass(frozen=True)
class Bundled:
    """A bundled voice."""

    name: str
    teacher: str
    """Who of the training's speakers it is."""


@dataclass(frozen=True)
class People:
    """Everybody of a study."""

    held_out: Sequence[Person]
    bundled: Sequence[Bundled]
    trained: Sequence[Person]
    """Whom the models learnt from, the bundled voices' teachers among them."""

    @property
    def imitated(self) -> list[str]:
        """Names of the voices that the product speaks in."""
        return [*(person.name for person in self.held_out), *(voice.name for voice in self.bundled)]


@dataclass(frozen=True)
class CloneRow:
    """One sentence of one person, spoken by the product and by that person."""

    is_held_out: bool
    sentence: str
    product: SpeakerRanking
    teacher: SpeakerRanking
    product_to_trained: float
    """Greatest cosine of the product's audio to a speaker of the training."""
    teacher_to_trained: float

    def to_json(self) -> dict[str, Any]:
        """Return what matters of a row, ready for JSON."""
        told: dict[str, Any] = {"speaker": self.product.spoken_in, "sentence": self.sentence}
        for name, ranking in (("product", self.product), ("teacher", self.teacher)):
            told[name] = {"similarity": own(ranking), "to_others": to_others(ranking), "nearest": ranking.ranked_first}
        told["product"]["to_trained"], told["teacher"]["to_trained"] = self.product_to_trained, self.teacher_to_trained
        return told


def figures(rows: Sequence[CloneRow]) -> dict[str, float]:
    """Compute the study's figures.

    Raises:
        ValueError: there are no rows of held-out speakers, or none of bundled voices.
    """
    held_out = [row for row in rows if row.is_held_out]
    return {
        **_group("clone", held_out),
        "clone_over_trained": _mean([own(row.product) > row.product_to_trained for row in held_out]),
        "clone_teacher_over_trained": _mean([own(row.teacher) > row.teacher_to_trained for row in held_out]),
        **_group("bundled", [row for row in rows if not row.is_held_out]),
    }


def _group(name: str, rows: Sequence[CloneRow]) -> dict[str, float]:
    product, teacher = [row.product for row in rows], [row.teacher for row in rows]
    return {
        f"{name}_top1": top1(product),
        f"{name}_similarity": _mean([own(ranking) for ranking in product]),
        f"{name}_to_others": _mean([to_others(ranking) for ranking in product]),
        f"{name}_teacher_top1": top1(teacher),
        f"{name}_teacher_similarity": _mean([own(ranking) for ranking in teacher]),
        f"{name}_teacher_to_others": _mean([to_others(ranking) for ranking in teacher]),
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def own(ranking: SpeakerRanking) -> float:
    """Return the cosine to the right speaker."""
    return ranking.similarity[ranking.spoken_in]


def to_others(ranking: SpeakerRanking) -> float:
    """Return the mean cosine to all others."""
    return float(np.mean([value for name, value in ranking.similarity.items() if name != ranking.spoken_in]))


Embeddings = Mapping[str, Sequence[FloatArray]]
"""By person, one for each sentence."""


def compare(
    people: People, texts: Sequence[str], said: Embeddings, trained: Embeddings, cloned: Embeddings
) -> list[CloneRow]:
    """Compare what the product said with what everybody said.

    Args:
        people: who is imitated.
        texts: the sentences, at least two.
        said: of each imitated person's own audio.
        trained: likewise, of the training's speakers.
        cloned: of the product's audio.

    Returns:
        A row for each person and sentence.

    Raises:
        ValueError: there is one sentence only, so that no other is left to compare with.
    """
    rows = []
    held_out = {person.name for person in people.held_out}
    for place, text in enumerate(texts):
        known, learnt = _without(said, place), _without(trained, place)
        for name in said:
            product, teacher = cloned[name][place], said[name][place]
            rows.append(
                CloneRow(
                    name in held_out,
                    text,
                    rank_speakers(name, product, known),
                    rank_speakers(name, teacher, known),
                    max(cosine(product, each) for each in learnt.values()),
                    max(cosine(teacher, each) for each in learnt.values()),
                )
            )
    return rows


def _without(embeddings: Embeddings, place: int) -> dict[str, FloatArray]:
    """Return everybody's mean over all sentences but one."""
    return {name: mean_embedding([*each[:place], *each[place + 1 :]]) for name, each in embeddings.items()}


def gather(teachers: str, engines: Path | None) -> People:
    """Open the teachers.

    Args:
        teachers: name in `TEACHERS`, those of the checkpoint.
        engines: folder of unpacked engines; None: the installed ones.

    Raises:
        SynthesisError: a package is missing, or nobody bundles voices of such teachers.
    """
    if teachers not in VOICES_OF:
        raise SynthesisError(f"got teachers {teachers!r}, expected one of {sorted(VOICES_OF)}")
    engine, mixer = TEACHERS[teachers].open(engines), HibariAndKokoro()
    speakers = enumerate(TEACHERS[teachers].speakers)
    trained = [Person(name, partial(engine.speak, speaker=number)) for number, name in speakers]
    return People(
        [Person(speaker.name, partial(mixer.speak_as, speaker=speaker)) for speaker in HELD_OUT],
        [Bundled(voice.name, voice.base) for voice in VOICES_OF[teachers]],
        trained,
    )


def sentences(number: int) -> list[str]:
    """Return held-out sentences of about 4 s."""
    return [text for text in heldout_sentences() if SHORTEST <= len(text) <= LONGEST][:number]


def with_voices(checkpoint: Path, people: Sequence[Person], directory: Path) -> None:
    """Make a checkpoint that has the people's prompts as voices, too.

    Args:
        checkpoint: directory with llm/, token2wav/ and voices/.
        people: say the prompt.
        directory: is made, with links to the checkpoint's files.

    Raises:
        SynthesisError: one of them could not speak.
        OSError: a file can't be read or written.
    """
    (directory / "voices").mkdir(parents=True)
    files = [path for path in checkpoint.iterdir() if path.name != "voices"]
    for path in [*files, *(checkpoint / "voices").iterdir()]:
        (directory / path.relative_to(checkpoint)).symlink_to(path.resolve())
    for person in people:
        write_prompt(directory / "voices", person.name, audio_16k(person.speak(PROMPT)), PROMPT)


def _cloned(checkpoint: Path, voices: Sequence[str], texts: Sequence[str], ear: Likeness) -> Embeddings:
    pipeline = open_pipeline(checkpoint)

    def heard(text: str, voice: str, seed: int) -> FloatArray:
        return ear.embed(resample(speak(pipeline, text, voice, seed), SAMPLE_RATE_HZ, RATE_HZ))

    return {
        voice: [heard(text, voice, seed) for seed, text in enumerate(texts)]
        for voice in tqdm(voices, desc="the product", unit="voice")
    }


def _said(people: Sequence[Person], texts: Sequence[str], ear: Likeness) -> Embeddings:
    return {
        person.name: [ear.embed(audio_of(person.speak(text), RATE_HZ)) for text in texts]
        for person in tqdm(people, desc="the teachers", unit="speaker")
    }


def study(checkpoint: Path, people: People, texts: Sequence[str], ear: Likeness) -> list[CloneRow]:
    """Have everybody and the product speak, and compare.

    Raises:
        SynthesisError: a teacher could not speak.
        OSError: a file can't be read or written.
        ValueError: there are fewer than two sentences.
    """
    with tempfile.TemporaryDirectory() as scratch:
        widened = Path(scratch) / "checkpoint"
        with_voices(checkpoint, people.held_out, widened)
        trained, said = _said(people.trained, texts, ear), dict(_said(people.held_out, texts, ear))
        for person in people.bundled:
            said[person.name] = trained[person.teacher]
        return compare(people, texts, said, trained, _cloned(widened, people.imitated, texts, ear))


def run(args: argparse.Namespace) -> int:
    """Run the study; returns 0, or 2 if it could not run."""
    torch.set_num_threads(1)  # several wait for one another where other programs run
    torch.manual_seed(0)  # Kokoro's noise
    try:
        teachers = teachers_of(args.checkpoint)
        ear = VoiceEncoder.load(args.encoder)
        rows = study(args.checkpoint, gather(teachers, args.engines), sentences(args.sentences), ear)
    except (SynthesisError, BundleError, ImportError, OSError, ValueError) as error:
        print(f"cloning: {error}", file=sys.stderr)
        return 2
    document = {
        "figures": figures(rows),
        "judged": _JUDGED,
        "teachers": teachers,
        "prompt": PROMPT,
        "held_out": {speaker.name: speaker.shares for speaker in HELD_OUT},
        "rows": [row.to_json() for row in rows],
    }
    print(write_study(args.out, document, vars(args)))
    print(f"figures and rows in {args.out}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m lab.voice.cloning", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="directory with llm/, token2wav/ and voices/")
    parser.add_argument(
        "--engines", type=Path, help="directory of unpacked source engines (default: the installed ones)"
    )
    parser.add_argument(
        "--encoder", type=Path, help="Resemblyzer's pretrained.pt (default: that of the installed package)"
    )
    parser.add_argument(
        "--sentences", type=count, default=4, help="number of sentences of each voice (default %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON to write (default %(default)s)")
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    raise SystemExit(main())
