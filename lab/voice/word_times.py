"""Compares word times with a recogniser's alignment, with the aligner and without: `python -m lab.voice.word_times`.

Speaks the held-out sentences of the bundled voice in this process through the gateway's own path, and takes the times
of their words as a listener gets them while the speech is under way. The recogniser (pocketsphinx) aligns the audio
with the same words. Time errors of a word's start and of its end count alike.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.lib.word_errors import heldout_sentences
from cosydit.bench.types import count
from cosydit.certify.recognition import RATE_HZ, FloatArray, words_of
from gateway.speech.guard import GuardMode
from gateway.speech.letter_times import LetterTimes
from gateway.speech.request import SpeechRequest, SpeechResult
from gateway.speech.speaker import Speaker
from gateway.speech.text_clock import TextClock, WordGatherer, WordTime
from lab.ears.alignment import SphinxAligner
from lab.voice.guard import RecordingLM
from lab.voice.guard_study import SpokenSegment
from lab.voice.hearing import write_study
from lab.voice.in_process import EmbeddedLM, EngineToken2Wav, make_pipeline
from llm_service.aligner import Aligner
from token2wav_service.contract import SAMPLE_RATE_HZ, TOKEN_RATE_HZ
from token2wav_service.features.audio import resample

DEFAULT_OUT = Path("benchmarks/results/word_times_cpu.json")
VOICE = "default"
_Errors = list[tuple[float, float]]
_MS = 1000.0
_P95 = 95.0
_TRIES = 5
_METHOD = (
    "milliseconds between a word's start or end as the gateway gives it and pocketsphinx's forced alignment of the "
    "same words with the audio; before: letters spread evenly over the segment, which is what a checkpoint without an "
    "aligner gets; after: the checkpoint's aligner, read while the speech is under way"
)


@dataclass(frozen=True)
class TimedSentence:
    """One sentence as it was spoken, its words in seconds from the first sample."""

    text: str
    audio_16k: FloatArray
    with_aligner: tuple[WordTime, ...]
    without: tuple[WordTime, ...]
    cpu_s: float
    """That finding out the times takes; the least of several tries, as other work on the machine only adds to it."""


def cpu_s(aligner: Aligner, segments: Sequence[SpokenSegment]) -> float:
    """Return the seconds of CPU time that the times of some segments take, asked for once a second of speech."""
    tries = []
    for _ in range(_TRIES):
        began_s = process_time()
        for segment in segments:
            times = LetterTimes(aligner, segment.text)
            times.add(segment.token_ids, is_last=True)
            for token in range(0, len(segment.token_ids) + TOKEN_RATE_HZ, TOKEN_RATE_HZ):
                times.read(token)
        tries.append(process_time() - began_s)
    return min(tries)


async def spoken(pipeline: Speaker, llm: RecordingLM, text: str, seed: int) -> TimedSentence:
    """Speak a sentence and note its words' times in both ways."""
    result, gatherer = SpeechResult(), WordGatherer()
    clock, words, pieces, samples = TextClock(result.spans), list[WordTime](), list[FloatArray](), 0
    llm.answers.clear()
    request = SpeechRequest(text, VOICE, seed, wants_times=True)
    async for chunk in pipeline.synthesize(request, result):
        pieces.append(chunk.samples)
        samples += len(chunk.samples)
        heard_s = samples / SAMPLE_RATE_HZ
        words += gatherer.push(clock.read(heard_s, chunk.is_last))
    words += gatherer.finish()
    even = TextClock([replace(span, letter_times=None) for span in result.spans])
    gatherer = WordGatherer()
    without = [*gatherer.push(even.read(samples / SAMPLE_RATE_HZ, True)), *gatherer.finish()]
    aligner = pipeline.settings.aligner
    took_s = cpu_s(aligner, llm.answers) if aligner is not None else 0.0
    audio_16k = resample(np.concatenate(pieces), SAMPLE_RATE_HZ, RATE_HZ)
    return TimedSentence(text, audio_16k, tuple(words), tuple(without), took_s)


def errors_ms(words: Sequence[WordTime], aligned: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return how much later each word starts and ends than the recogniser says.

    Raises:
        ValueError: there are not as many words.
    """
    pairs = zip(words, aligned, strict=True)
    return [((word.start_s - start) * _MS, (word.end_s - end) * _MS) for word, (start, end) in pairs]


def figures(before: Sequence[tuple[float, float]], after: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return median and 95th percentile of the absolute errors of all starts and ends."""
    found: dict[str, float] = {"words": len(after)}
    for name, errors in (("", after), ("_before", before)):
        absolute = np.abs(np.array(errors, np.float64)).ravel()
        found[f"median{name}_ms"] = round(float(np.median(absolute)), 1)
        found[f"p95{name}_ms"] = round(float(np.percentile(absolute, _P95)), 1)
    return found


async def _take(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(1)
    llm, token2wav = RecordingLM(EmbeddedLM(args.checkpoint / "llm")), EngineToken2Wav(args.checkpoint / "token2wav")
    pipeline = make_pipeline(args.checkpoint, llm, token2wav, GuardMode.MEND)
    aligner = SphinxAligner()
    all_cpu_s = all_audio_s = 0.0
    rows, left_out = list[tuple[int, _Errors, _Errors]](), list[int]()
    for number, text in enumerate(tqdm(heldout_sentences()[: args.limit], unit="sentence")):
        sentence = await spoken(pipeline, llm, text, number)
        all_cpu_s, all_audio_s = all_cpu_s + sentence.cpu_s, all_audio_s + len(sentence.audio_16k) / RATE_HZ
        words = [word for word in sentence.without if words_of(word.word)]
        heard = aligner.word_times(sentence.audio_16k, [" ".join(words_of(word.word)) for word in words])
        if heard is None:
            left_out.append(number)
            continue
        before = errors_ms(words, heard)
        after = errors_ms([word for word in sentence.with_aligner if words_of(word.word)], heard)
        rows.append((number, before, after))
    earlier, later = ([pair for _, pairs, _ in rows for pair in pairs], [pair for *_, pairs in rows for pair in pairs])
    errors = [f"{number}: {_listed(before)} | {_listed(after)}" for number, before, after in rows]
    return {
        "figures": figures(earlier, later) | {"cpu_ms_per_s": round(all_cpu_s / all_audio_s * _MS, 2)},
        "method": _METHOD,
        "left_out": left_out,
        "errors_ms": errors,
        "errors_are": "by sentence, start/end of each word, before | after",
    }


def _listed(errors: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{start:.0f}/{end:.0f}" for start, end in errors)


def run(args: argparse.Namespace) -> int:
    """Run the study; returns 0, or 2 if it could not run."""
    try:
        document = asyncio.run(_take(args))
    except (ImportError, OSError) as error:
        print(f"word_times: {error}", file=sys.stderr)
        return 2
    print(write_study(args.out, document, vars(args)))
    print(f"figures in {args.out}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m lab.voice.word_times", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="directory with llm/, token2wav/ and voices/")
    parser.add_argument("--limit", type=count, default=None, help="first sentences only (default: all)")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON to write (default %(default)s)")
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    raise SystemExit(main())
