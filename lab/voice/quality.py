"""Listens to a running stack over the held-out sentences: `python -m lab.voice.quality`.

Needs two gateways in front of the same services: one as it serves (`--url`), one that speaks every text in one chunk
(`--offline-url`; start it with `--dynamic-chunk-strategy equal --token-hop-len 2000 --token-hop-len-first 2000`). Equal
seeds give equal speech tokens, so that the two differ in their seams alone. The voice's teachers, which the checkpoint
names in `bundle.json`, speak the same sentences for the yardstick. Where the package `speechmos` is installed
(`pip install --no-deps speechmos`), DNSMOS scores the streamed audio. `--speed` takes over what `benchmarks.cpu_speed`
found beside an earlier commit. With `--moonshine` a neural recogniser listens as well (`lab/ears/moonshine.py`),
with and without the silence at the end; the better transcript counts. Writes the figures with the environment as JSON,
and the raw rows beside it as JSONL; a run that was broken off goes on behind the rows that lie there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.lib.word_errors import heldout_sentences, word_errors
from cosydit.bench.report import describe_environment, write_json
from cosydit.bench.types import count, zero_or_more
from cosydit.certify.recognition import RATE_HZ, FloatArray, SphinxRecogniser
from demo_voice.unpack import BundleError
from gateway.client import ClientError, SpeechTiming, speak_over_http
from gateway.text import TextFrontEnd, load_text_front_end
from lab.ears import bandwidth
from lab.ears.additions import transcribe_long
from lab.ears.audio_faults import find_faults
from lab.ears.moonshine import MoonshineRecogniser, Recogniser, without_last_silence
from lab.ears.opinion import Critic, DnsMos, Opinion
from lab.ears.seams import contour_distance
from lab.ears.speakers import rank_speakers
from lab.ears.study import Heard, Kind, StudyRow, figures, row_from_json, row_json
from lab.train.make_voices import SourceVoices
from lab.train.teachers.choices import TEACHERS, teachers_of
from lab.train.teachers.flite import SynthesisError
from lab.train.text.make_heldout import heldout_fragments, heldout_long, heldout_paragraphs
from lab.train.utterance import audio_of
from lab.voice.hearing import heard_as
from servicekit.clock import Clock, SystemClock
from token2wav_service.contract import SAMPLE_RATE_HZ
from token2wav_service.features.audio import load_prompt_audio, resample
from token2wav_service.features.prompt_models import SPEAKER_ENCODER_FILE, SpeakerEncoder

DEFAULT_OUT = Path("benchmarks/results/voice_cpu.json")
DEFAULT_VOICE = "default"
_PCM16_SCALE = 32768.0
_WARM_UP_TEXT = "This is to warm everything up."


@dataclass(frozen=True)
class Study:
    """What a study listens with."""

    url: str
    offline_url: str
    timeout_s: float
    recogniser: Recogniser
    encoder: SpeakerEncoder
    voices: dict[str, FloatArray]
    """Embedding of each voice's prompt."""
    source: SourceVoices
    clock: Clock
    critic: Critic | None = None
    """None: no scores."""
    neural: Recogniser | None = None
    """A second recogniser, which writes as people do; None: there is one only."""
    front_end: TextFrontEnd = field(default_factory=load_text_front_end)
    """Reads what the second one wrote."""

    def full_row(self, text: str, voice: str, seed: int) -> StudyRow:
        """Speak a sentence streamed, offline and by the source engine."""
        timing, streamed = self._spoken(self.url, text, voice, seed)
        _, offline = self._spoken(self.offline_url, text, voice, seed)
        source = self.source.speak(text, voice)
        source_16k = audio_of(source, RATE_HZ)
        semitones, decibels = contour_distance(streamed, offline, SAMPLE_RATE_HZ)
        row = self._row(
            text,
            voice,
            seed,
            timing,
            streamed,
            offline=self._heard(text, resample(offline, SAMPLE_RATE_HZ, RATE_HZ)),
            source=self._heard(text, source_16k),
            band=bandwidth.bandwidth(streamed, audio_of(source, SAMPLE_RATE_HZ)),
            distances=(_known(semitones), _known(decibels)),
        )
        again = self._heard_again(text, source_16k)
        return replace(row, source_opinion=self._opinion(source_16k), source_neural=again)

    def sourced_row(self, text: str, voice: str, seed: int) -> StudyRow:
        """Speak a fragment or a long sentence streamed, and by the source engine."""
        timing, streamed = self._spoken(self.url, text, voice, seed)
        source_16k = audio_of(self.source.speak(text, voice), RATE_HZ)
        source = self._heard(text, source_16k)
        row = self._row(text, voice, seed, timing, streamed, offline=None, source=source, distances=(None, None))
        return replace(row, source_neural=self._heard_again(text, source_16k))

    def streamed_row(self, text: str, voice: str, seed: int) -> StudyRow:
        """Speak a text streamed only: a paragraph, or a sentence to hear in whose voice it is."""
        timing, streamed = self._spoken(self.url, text, voice, seed)
        return self._row(text, voice, seed, timing, streamed, offline=None, source=None, distances=(None, None))

    def _row(
        self,
        text: str,
        voice: str,
        seed: int,
        timing: SpeechTiming,
        streamed: FloatArray,
        offline: Heard | None,
        source: Heard | None,
        distances: tuple[float | None, float | None],
        band: bandwidth.Bandwidth | None = None,
    ) -> StudyRow:
        audio_16k = resample(streamed, SAMPLE_RATE_HZ, RATE_HZ)
        return StudyRow(
            text=text,
            voice=voice,
            seed=seed,
            ttfa_s=timing.ttfa_s,
            total_s=timing.total_s,
            audio_s=timing.audio_s,
            streamed=self._heard(text, audio_16k),
            offline=offline,
            source=source,
            ranking=rank_speakers(voice, self.encoder.embed(audio_16k), self.voices),
            faults=find_faults(streamed, SAMPLE_RATE_HZ),
            pitch_distance=distances[0],
            loudness_distance=distances[1],
            opinion=self._opinion(audio_16k),
            bandwidth=band,
            streamed_neural=self._heard_again(text, audio_16k),
        )

    def _opinion(self, audio_16k: FloatArray) -> Opinion | None:
        return None if self.critic is None else self.critic.opinion(audio_16k)

    def _spoken(self, url: str, text: str, voice: str, seed: int) -> tuple[SpeechTiming, FloatArray]:
        pieces: list[bytes] = []
        timing = speak_over_http(url, text, voice, pieces.append, self.clock, self.timeout_s, seed)
        samples = np.frombuffer(b"".join(pieces), "<i2").astype(np.float32) / _PCM16_SCALE
        return timing, samples

    def _heard(self, text: str, audio_16k: FloatArray) -> Heard:
        transcript = transcribe_long(self.recogniser, audio_16k)
        return Heard(transcript, word_errors(text, transcript))

    def _heard_again(self, text: str, audio_16k: FloatArray) -> Heard | None:
        if self.neural is None:
            return None
        # NOTE: what it makes of the silence at the end is none of the voice's words.
        transcripts = [transcribe_long(self.neural, each) for each in (audio_16k, without_last_silence(audio_16k))]
        heard = [asyncio.run(heard_as(each, text, self.front_end)) for each in transcripts]
        return min(heard, key=lambda each: each.errors.errors)


def run(args: argparse.Namespace) -> int:
    """Run the study; returns 0, or 2 if it could not run."""
    try:
        study = _open(args)
        speed = {} if args.speed is None else speed_ratios(args.speed)
        rows = _listen(study, heldout_sentences()[: args.sentences], args)
    except (ClientError, SynthesisError, BundleError, ImportError, OSError, LookupError, ValueError) as error:
        print(f"quality: {error}", file=sys.stderr)
        return 2
    found = {**figures(rows, args.voice), **speed.get("figures", {})}
    arguments = {name: value for name, value in vars(args).items() if name != "run"}
    told = {"rows": len(rows), "teachers": study.source.teachers, "speed": speed.get("taken_from")}
    write_json(args.out, {"figures": found, **told, "environment": describe_environment(arguments)})
    for name, value in found.items():
        print(f"{name:24} {value:.4f}")
    print(f"figures in {args.out}, rows in {args.out.with_suffix('.jsonl')}")
    return 0


_RATIOS = ("rtf_ratio", "ttfa_ratio", "ttfa_long_ratio")


def speed_ratios(path: Path) -> dict[str, Any]:
    """Read what `benchmarks.cpu_speed` wrote.

    Returns:
        "figures": `rtf_ratio`, `ttfa_ratio` and `ttfa_long_ratio`; "taken_from": the two commits and the time.

    Raises:
        OSError: the file can't be read.
        ValueError: it is no JSON.
        KeyError: it lacks them.
    """
    document = json.loads(path.read_text("utf-8"))
    environment = document["environment"]
    return {
        "figures": {name: float(document["figures"][name]) for name in _RATIOS},
        "taken_from": {
            "commit_before": document["commit_before"],
            "git_commit": environment["git_commit"],
            "date_utc": environment["date_utc"],
        },
    }


def _open(args: argparse.Namespace) -> Study:
    encoder = SpeakerEncoder(args.checkpoint / "token2wav" / SPEAKER_ENCODER_FILE)
    prompts = {path.stem: load_prompt_audio(path.read_bytes()) for path in (args.checkpoint / "voices").glob("*.wav")}
    voices = {name: encoder.embed(samples) for name, samples in sorted(prompts.items())}
    return Study(
        url=args.url,
        offline_url=args.offline_url,
        timeout_s=args.timeout_s,
        recogniser=SphinxRecogniser(),
        encoder=encoder,
        voices=voices,
        source=SourceVoices(args.teachers or teachers_of(args.checkpoint), args.engines),
        clock=SystemClock(),
        critic=_critic(),
        neural=None if args.moonshine is None else MoonshineRecogniser(args.moonshine),
    )


def _critic() -> Critic | None:
    try:
        return DnsMos()
    except ImportError as error:
        print(f"quality: no DNSMOS ({error})", file=sys.stderr)
        return None


def _listen(study: Study, sentences: Sequence[str], args: argparse.Namespace) -> list[StudyRow]:
    """Warm up, then take every row; one request at a time, as the speed of one stream is a figure."""
    for voice in study.voices:
        study.streamed_row(_WARM_UP_TEXT, voice, seed=0)
    rows = {row.key: row for row in _rows_of(args.out)}
    with args.out.with_suffix(".jsonl").open("a", encoding="utf-8") as file:
        for kind, text, voice, seed, take in tqdm(_wanted(study, sentences, args), desc="listening", unit="text"):
            key = (kind, voice, seed, text)
            if key not in rows:
                rows[key] = replace(take(text, voice, seed), kind=kind)
                file.write(json.dumps(row_json(rows[key])) + "\n")
                file.flush()
    return list(rows.values())


_Take = Callable[[str, str, int], StudyRow]


def _wanted(
    study: Study, sentences: Sequence[str], args: argparse.Namespace
) -> list[tuple[Kind, str, str, int, _Take]]:
    """Return each row's kind, text, voice and seed, and what takes it."""
    own: list[tuple[Kind, Sequence[str], _Take]] = [
        (Kind.SENTENCE, sentences, study.full_row),
        (Kind.FRAGMENT, heldout_fragments()[: args.fragments], study.sourced_row),
        (Kind.LONG, heldout_long()[: args.long], study.sourced_row),
        (Kind.PARAGRAPH, heldout_paragraphs()[: args.paragraphs], study.streamed_row),
    ]
    others = [voice for voice in study.voices if voice != args.voice]
    spoken = sentences[: args.speaker_sentences]
    return [
        *((kind, text, args.voice, seed, take) for kind, texts, take in own for seed, text in enumerate(texts)),
        *(
            (Kind.SENTENCE, text, voice, seed, study.streamed_row)
            for voice in others
            for seed, text in enumerate(spoken)
        ),
    ]


def _rows_of(out: Path) -> list[StudyRow]:
    """Return the rows of a run that was broken off."""
    path = out.with_suffix(".jsonl")
    return [row_from_json(json.loads(line)) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def main(argv: Sequence[str] | None = None) -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m lab.voice.quality", description=__doc__)
    parser.add_argument(
        "--url", default="http://127.0.0.1:8080", help="URL of a gateway with its usual chunks (default %(default)s)"
    )
    parser.add_argument(
        "--offline-url",
        default="http://127.0.0.1:8081",
        help="URL of a gateway that makes one chunk (default %(default)s)",
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="directory with token2wav/ and voices/")
    parser.add_argument(
        "--engines", type=Path, help="directory of unpacked source engines (default: the installed ones)"
    )
    parser.add_argument(
        "--teachers", choices=list(TEACHERS), help="who speaks the yardstick (default: what the checkpoint says)"
    )
    parser.add_argument(
        "--voice", default=DEFAULT_VOICE, help="voice whose errors and speed count (default %(default)s)"
    )
    parser.add_argument(
        "--sentences", type=count, default=100, help="number of held-out sentences (default %(default)s)"
    )
    parser.add_argument(
        "--fragments", type=zero_or_more, default=50, help="number of held-out fragments (default %(default)s)"
    )
    parser.add_argument("--long", type=zero_or_more, default=100, help="number of long sentences (default %(default)s)")
    parser.add_argument(
        "--paragraphs", type=zero_or_more, default=20, help="number of paragraphs (default %(default)s)"
    )
    parser.add_argument("--moonshine", type=Path, help="directory of a second recogniser's files (default: none)")
    parser.add_argument("--speed", type=Path, help="JSON of benchmarks.cpu_speed (default: no ratios of speed)")
    parser.add_argument(
        "--speaker-sentences",
        type=zero_or_more,
        default=30,
        help="number of sentences in each other voice (default %(default)s)",
    )
    parser.add_argument(
        "--timeout-s", type=float, default=120.0, help="longest silence of the server in seconds (default %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON to write (default %(default)s)")
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    raise SystemExit(main())
