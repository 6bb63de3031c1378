"""Builds and runs each stage of the training over one workspace: `python -m lab.train.stages NAME`."""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from demo_voice.unpack import BUNDLE, SPEECH_TOKENIZER
from lab.train.corpus import (
    RAW,
    SHARD_UTTERANCES,
    WORKER_NICENESS,
    CorpusJob,
    make_corpus,
    token_jobs,
    wide_jobs,
    with_long,
    write_shard,
)
from lab.train.data import SpeechStreams
from lab.train.make_voices import make_voices
from lab.train.models.llm_data import Noise
from lab.train.package import trained_speaker, trained_tokenizer, write_aligner
from lab.train.replay import use_own_stream
from lab.train.silent_tokens import silent_tokens
from lab.train.sizes import SIZES, DemoSizes
from lab.train.teachers.choices import DEFAULT, FLITE, HIBARI, KOKORO_SPEAKERS, MIXED, TEACHERS
from lab.train.text.mix import PlannedUtterance, TextSources, planned
from lab.train.trainer import RunLimits, Trainee, load_part, steps_done, train
from lab.train.utterance import MIN_TOKENS, SAMPLES_PER_TOKEN_24K, whole_tokens
from lab.train.workspace import Workspace

if TYPE_CHECKING:
    from lab.train.models.llm_data import UtteranceBank
    from lab.train.teachers.flite import Spoken
    from lab.train.teachers.hibari import HibariEngine
    from lab.train.teachers.kokoro import Kokoro

logger = logging.getLogger(__name__)

TOTAL_S = {"tokenizer": 150.0, "speaker": 150.0, "vocoder": 1020.0, "flow": 870.0, "llm": 750.0, "aligner": 300.0}
"""Planned seconds of training over all runs; the learning rates fall along them."""
PLANS = {
    FLITE: TOTAL_S,
    HIBARI: {"tokenizer": 300.0, "speaker": 220.0, "vocoder": 1430.0, "flow": 1400.0, "llm": 1100.0, "aligner": 300.0},
}
PLANS[MIXED] = PLANS[HIBARI]
"""The same by teachers."""
BEGUN_S = {"tokenizer": 100.0, "speaker": 30.0, "vocoder": 0.0, "flow": 250.0, "llm": 150.0}
"""Seconds of hibari's plan that count as done where training begins from the bundled weights: the learning rates begin
lower. The vocoder's begin at the top: a bundle has no judges, and flite's never heard anything above 8 kHz."""
FIT_STEPS = 600
"""Steps in which a network is fitted to each table of the bundled weights."""
NOISES = {FLITE: Noise()} | dict.fromkeys((HIBARI, MIXED), Noise(wrong=0.1, bare=0.1))
"""What keeps the LLM from learning its corpus by heart, by teachers."""
BATCH = {
    "tokenizer": 96,
    "speaker": 192,
    "vocoder": 32,
    "flow": 128,
    "llm": 192,
    "aligner": 48,
    "reader": 256,
    "heard": 256,
}
"""Windows or sequences in a step, on a GPU."""
FIXED_SHAPES = ("tokenizer", "vocoder")
"""Stages whose every step has the same shapes: there, and only there, trying out convolution algorithms pays."""
WIDE_UTTERANCES = 24_000
"""About 22 hours."""
TOKEN_UTTERANCES = 250_000
"""About 220 hours, for the LLM; as many of them as the time allows."""
MORE_TOKEN_UTTERANCES = 400_000
"""About 420 hours; the same where other teachers speak."""
ALIGNER_UTTERANCES = 3_200
"""About 2.9 hours; the first of those of the LLM."""
PACKED_UTTERANCES = {FLITE: 100_000, HIBARI: 75_000, MIXED: 75_000}
"""Utterances of the LLM's that are kept between machines, by teachers."""
KOKORO_SEED = 3
MOST_PENDING = 64
"""Shards of Kokoro's that wait for the cores."""
LAST_SHARDS_S = 15.0
"""Seconds that the last token shards of a run take: models that train beside them should not wait."""
SILENCE_UTTERANCES = 2_000
"""Utterances of the corpus in which silent tokens are looked for."""
KOKORO_UTTERANCES = 8_192
"""About 9 hours."""
UTTERANCES = {
    "corpus": WIDE_UTTERANCES,
    "kokoro": KOKORO_UTTERANCES,
    "raw": MORE_TOKEN_UTTERANCES,
    "tokens": TOKEN_UTTERANCES,
    "aligner": ALIGNER_UTTERANCES,
}
"""Number of utterances by stage."""


@dataclass(frozen=True)
class StageOptions:
    """What one call of a stage may use."""

    work: Workspace
    sizes: DemoSizes
    device: torch.device
    limits: RunLimits
    batch: int
    utterances: int
    workers: int
    teachers: str
    """Name in `TEACHERS`."""
    is_eager: bool
    """Launch every step by itself, without CUDA graphs."""
    seed: int
    """Of what is drawn; by default the steps done before, so that a run that goes on draws other windows."""

    @property
    def speakers(self) -> int:
        return len(TEACHERS[self.teachers].speakers)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one stage; returns the exit status."""
    args = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options = prepared(args)
    if args.stage in TRAINEES:
        _train(options, TRAINEES[args.stage](options))
    else:
        STAGES[args.stage](options)
    return 0


def prepared(args: argparse.Namespace) -> StageOptions:
    """Set the device up for a stage, and return what it may use; `args` are `parser`'s."""
    device = torch.device(args.device)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = args.stage in FIXED_SHAPES
        use_own_stream(device)
    work = Workspace(args.work)
    seed = steps_done(work.weights(args.stage)) if args.seed is None else args.seed
    torch.manual_seed(seed)
    total_s = args.total_s or PLANS[args.teachers].get(args.stage, args.wall_s)
    limits = RunLimits(args.wall_s, total_s, args.max_steps)
    planned_utterances = dict(UTTERANCES)
    if args.teachers != FLITE:
        planned_utterances["tokens"] = MORE_TOKEN_UTTERANCES
    utterances = args.utterances or planned_utterances.get(args.stage, 0)
    batch = args.batch or BATCH.get(args.stage, 0)
    sizes, teachers = SIZES[args.sizes], args.teachers
    return StageOptions(work, sizes, device, limits, batch, utterances, args.workers, teachers, args.eager, seed)


def run_corpus(options: StageOptions) -> None:
    """Make the wide shards that are missing."""
    work = options.work
    jobs = wide_jobs(work.corpus, work.texts, work.unpacked_engines, options.utterances, options.teachers)
    make_corpus(jobs, options.workers, options.limits.wall_s)


def run_raw(options: StageOptions) -> None:
    """Make raw shards, every other one of long sentences, until the time is up."""
    work = options.work
    jobs = wide_jobs(work.raw, work.texts, work.unpacked_engines, options.utterances, options.teachers)
    make_corpus(with_long([replace(job, is_raw=True) for job in jobs]), options.workers, options.limits.wall_s)


def run_kokoro(options: StageOptions) -> None:
    """Make the wide shards of Kokoro's speakers that are missing: sound on the device, features on the cores."""
    from lab.train.teachers import kokoro
    from lab.train.teachers.hibari import MANNERS, HibariEngine

    assert tuple(speaker.name for speaker in kokoro.SPEAKERS) == KOKORO_SPEAKERS
    began, work = time.monotonic(), options.work
    teacher, letters = kokoro.Kokoro.load(options.device), HibariEngine()
    sources = TextSources.read(work.texts)
    work.corpus.mkdir(parents=True, exist_ok=True)
    per_buffer = kokoro.BUFFER // SHARD_UTTERANCES
    with ExitStack() as stack:
        write = _writer(stack, options.workers // 2)
        for number in range(-(-options.utterances // kokoro.BUFFER)):
            first = kokoro.FIRST_SHARD + number * per_buffer
            numbers = range(first, first + per_buffer)
            jobs = [CorpusJob(work.corpus, work.texts, None, index, None, options.teachers) for index in numbers]
            if all(job.path.exists() for job in jobs):
                continue
            if time.monotonic() - began > options.limits.wall_s:
                logger.warning("the time for Kokoro is up")
                break
            plan = planned(sources, KOKORO_SEED, number * kokoro.BUFFER, kokoro.SHARES, is_varied=True)
            spoken = _spoken_by_kokoro(teacher, letters, list(islice(plan, kokoro.BUFFER)), len(MANNERS))
            for place, job in enumerate(jobs):
                write(job, spoken[place::per_buffer])
    made = len(list(work.corpus.glob(f"shard-{kokoro.FIRST_SHARD // 10_000}*.npz")))
    logger.info("%d shards of Kokoro's after %.1f s", made, time.monotonic() - began)


def _writer(stack: ExitStack, workers: int) -> Callable[[CorpusJob, Sequence[tuple[PlannedUtterance, Spoken]]], None]:
    """Return what computes features and writes a shard, in other processes if there may be several."""
    if workers < 2:
        return write_shard
    pool = stack.enter_context(
        ProcessPoolExecutor(workers, get_context("spawn"), initializer=os.nice, initargs=(WORKER_NICENESS,))
    )
    pending: deque[Future[None]] = deque()
    stack.callback(lambda: [left.result() for left in pending])

    def write(job: CorpusJob, spoken: Sequence[tuple[PlannedUtterance, Spoken]]) -> None:
        pending.append(pool.submit(write_shard, job, spoken))
        while len(pending) > MOST_PENDING:
            pending.popleft().result()

    return write


def _spoken_by_kokoro(
    teacher: Kokoro, letters: HibariEngine, plan: Sequence[PlannedUtterance], first_speaker: int
) -> list[tuple[PlannedUtterance, Spoken]]:
    """Speak a plan; its speakers are Kokoro's, the answer's are those of the teachers, from `first_speaker` on."""
    from lab.train.teachers import kokoro

    phonemes = [teacher.known(" ".join(letters.phonemes(utterance.text))) for utterance in plan]
    found: dict[int, Spoken] = {}
    for places in kokoro.batches(phonemes):
        made = teacher.speak([(phonemes[place], kokoro.SPEAKERS[plan[place].speaker]) for place in places])
        found |= {place: kokoro.spoken(phonemes[place], sentence) for place, sentence in zip(places, made, strict=True)}
    return [
        (replace(plan[place], speaker=first_speaker + plan[place].speaker), found[place])
        for place in sorted(found)
        if whole_tokens(found[place]) >= MIN_TOKENS
    ]


def run_warm(options: StageOptions) -> None:
    """Write the states that are missing out of the bundled weights; needs some of the corpus."""
    from lab.train.warm import FEATURES, begin_from_bundle

    streams = _streams(options, FEATURES)
    steps = options.limits.max_steps or FIT_STEPS
    errors = begin_from_bundle(options.work, options.sizes, options.speakers, streams, BEGUN_S, steps)
    record = json.dumps({"stage": "warm", **{f"{k}_table_error": round(v, 4) for k, v in errors.items()}})
    options.work.warm.write_text(record + "\n", "utf-8")
    logger.info("%s", record)


def tokenizer_stage(options: StageOptions) -> Trainee:
    """Return the speech tokenizer, to be trained."""
    from lab.train.models.tokenizer import FEATURES, TokenizerStage

    streams = _streams(options, FEATURES)
    anchor = None
    if options.work.warm.is_file():
        from lab.train.warm import bundled_anchor

        anchor = bundled_anchor(options.device)
    return TokenizerStage(options.sizes.tokenizer, options.speakers, streams, options.batch, anchor)


def speaker_stage(options: StageOptions) -> Trainee:
    """Return the speaker encoder, to be trained."""
    from lab.train.models.speaker import FEATURES, SpeakerStage

    streams = _streams(options, FEATURES)
    return SpeakerStage(options.sizes.speaker, options.speakers, streams, options.batch)


def vocoder_stage(options: StageOptions) -> Trainee:
    """Return the vocoder, to be trained."""
    from lab.train.models.vocoder import FEATURES, VocoderStage

    sizes, streams = options.sizes, _streams(options, FEATURES)
    return VocoderStage(sizes.hift, sizes.discriminators, streams, options.batch)


def run_codes(options: StageOptions) -> None:
    """Tokenize all shards with the trained tokenizer, export it, and learn the LLM's text tokenizer."""
    from lab.train.models.llm_data import save_text_tokenizer, train_text_tokenizer
    from lab.train.models.onnx_export import export_tokenizer, tokenize_streams

    net = trained_tokenizer(options.work, options.sizes)
    streams = _streams(options, ("log_mel",))
    np.save(options.work.codes, tokenize_streams(net, streams).cpu().numpy().astype(np.uint16))
    if options.teachers != FLITE:
        audible = _streams(options, ("log_mel", "audio"))
        _write_silent_tokens(options.work, audible, tokenize_streams(net, audible).cpu().numpy().astype(np.uint16))
    export_tokenizer(net, options.work.speech_tokenizer)
    if not options.work.text_tokenizer.exists():
        texts = [utterance.text for utterance in streams.utterances]
        save_text_tokenizer(train_text_tokenizer(texts, options.sizes.llm.text_tokens), options.work.text_tokenizer)


def _write_silent_tokens(work: Workspace, streams: SpeechStreams, codes: npt.NDArray[np.uint16]) -> None:
    heard = streams.utterances[:: max(1, len(streams.utterances) // SILENCE_UTTERANCES)]
    pairs = (
        (codes[u.start : u.start + u.tokens].tolist(), streams.column("audio", u.start, u.tokens).float().cpu().numpy())
        for u in heard
    )
    found = silent_tokens(pairs, SAMPLES_PER_TOKEN_24K)
    work.silent_tokens.write_text(json.dumps(found) + "\n", "utf-8")
    logger.info("%d tokens sound as silence in %d utterances", len(found), len(heard))


def flow_stage(options: StageOptions) -> Trainee:
    """Return the flow, to be trained."""
    from lab.train.models.flow import FEATURES, TOKENS, FlowStage

    streams = _streams(options, FEATURES)
    streams.add_column(TOKENS, torch.from_numpy(np.load(options.work.codes).astype(np.int32)))
    return FlowStage(options.sizes.flow, streams, trained_speaker(options.work, options.sizes), options.batch)


def run_tokens(options: StageOptions) -> None:
    """Make token shards for the LLM until the time is up, and pack them into one file."""
    from lab.train.models.llm_data import pack_tokens, utterances_of_shards

    work = options.work
    jobs = with_long(
        token_jobs(
            work.token_shards,
            work.texts,
            work.unpacked_engines,
            options.utterances,
            work.speech_tokenizer,
            options.teachers,
        )
    )
    jobs = [job for job in jobs if not (work.raw / job.path.name).exists()]  # those are in `codes`
    # The models that train beside it need cores too.
    end_s = max(1.0, options.limits.wall_s - (0.0 if options.teachers == FLITE else LAST_SHARDS_S))
    make_corpus(jobs, max(1, options.workers * 2 // 3), end_s)
    most = PACKED_UTTERANCES[options.teachers]
    # No more than are packed: models that train beside it wait until all are done.
    utterances = utterances_of_shards(work.token_shards, -(-most // SHARD_UTTERANCES))[:most]
    pack_tokens(utterances, work.packed_tokens)
    hours = sum(len(utterance.token_ids) for utterance in utterances) / 25 / 3600
    logger.info("packed %d utterances, %.1f hours, %d bytes", len(utterances), hours, work.packed_tokens.stat().st_size)


def llm_stage(options: StageOptions) -> Trainee:
    """Return the LLM, to be trained."""
    from lab.train.models.llm import LLMStage

    return LLMStage(options.sizes.llm, _bank(options), options.device, options.batch, NOISES[options.teachers].dropout)


def _bank(options: StageOptions) -> UtteranceBank:
    """Read all speech tokens that there are: the shards, or what was packed, and the codes."""
    from tokenizers import Tokenizer

    from lab.train.models.llm_data import UtteranceBank, utterances_of_shards, utterances_of_streams

    work = options.work
    tokenizer = Tokenizer.from_file(str(work.text_tokenizer))
    utterances = utterances_of_shards(work.token_shards if work.token_shards.is_dir() else work.packed_tokens.parent)
    if work.codes.is_file():
        utterances += utterances_of_streams(_streams(options, ()), np.load(work.codes))
    bank = UtteranceBank(utterances, tokenizer, options.seed, NOISES[options.teachers])
    logger.info("%d utterances, %.1f hours of speech tokens", len(utterances), bank.speech_tokens / 25 / 3600)
    return bank


def reader_stage(options: StageOptions) -> Trainee:
    """Return the reader of tokens that judges the LLM's answers, to be trained on the token shards."""
    from lab.train.models.llm_data import utterances_of_shards
    from lab.train.models.token_reader import ReaderStage

    utterances = utterances_of_shards(options.work.token_shards)
    return ReaderStage(utterances, options.device, options.batch, options.seed)


def heard_stage(options: StageOptions) -> Trainee:
    """Return the trained LLM, to learn from what the trained reader hears in its answers."""
    from lab.train.models.llm_heard import HeardLLMStage
    from lab.train.models.token_reader import TokenReader

    work, reader = options.work, TokenReader()
    load_part(work.weights("reader"), "model", reader.eval().requires_grad_(False))
    stage = HeardLLMStage(options.sizes.llm, _bank(options), options.device, options.batch, reader)
    load_part(work.weights("llm"), "model", stage.parts()["model"])
    return stage


def run_aligner(options: StageOptions) -> None:
    """Train the aligner on the first token shards, and write its file; shards that are missing are made before.

    Without a tokenizer of this workspace, the bundled one makes them: so it can be trained for the bundled voice alone.
    """
    from lab.train.models.aligner import AlignerStage, phone_utterances

    work = options.work
    tokenizer = work.speech_tokenizer if work.speech_tokenizer.is_file() else BUNDLE / SPEECH_TOKENIZER
    jobs = token_jobs(
        work.token_shards, work.texts, work.unpacked_engines, options.utterances, tokenizer, options.teachers
    )
    make_corpus(jobs, options.workers, options.limits.wall_s)
    utterances = phone_utterances(job.path for job in jobs if job.path.exists())
    stage = AlignerStage(options.sizes.aligner, utterances, options.device, options.batch, options.seed)
    logger.info("%d utterances, %.1f hours", len(utterances), sum(len(u.token_ids) for u in utterances) / 25 / 3600)
    _train(options, stage)
    logger.info("%d bytes in %s", write_aligner(work, options.sizes), work.bundle)


def run_package(options: StageOptions) -> None:
    """Write the bundle out of the stages' states."""
    from lab.train.package import write_bundle

    work = options.work
    sizes = write_bundle(work, options.sizes, options.teachers)
    if options.teachers != FLITE:
        make_voices(work.voices, options.teachers, TEACHERS[options.teachers].open(None))
    logger.info("%s", json.dumps({"stage": "package", **sizes, "all": sum(sizes.values())}))


TRAINEES: dict[str, Callable[[StageOptions], Trainee]] = {
    "tokenizer": tokenizer_stage,
    "speaker": speaker_stage,
    "vocoder": vocoder_stage,
    "flow": flow_stage,
    "llm": llm_stage,
    "reader": reader_stage,
    "heard": heard_stage,
}
"""Stages that only train; each builds its models and data."""
STAGES: dict[str, Callable[[StageOptions], None]] = {
    "corpus": run_corpus,
    "raw": run_raw,
    "kokoro": run_kokoro,
    "warm": run_warm,
    "codes": run_codes,
    "tokens": run_tokens,
    "aligner": run_aligner,
    "package": run_package,
}


def _streams(options: StageOptions, features: Sequence[str]) -> SpeechStreams:
    """Load wide shards, and raw ones, too, where these have the features."""
    work = options.work
    beside = work.raw if set(features) <= set(RAW) else None
    return SpeechStreams(work.corpus, features, options.device, options.seed, beside)


def _train(options: StageOptions, trainee: Trainee) -> None:
    if options.is_eager:
        trainee.replayer.stop_capturing()
    train(trainee, options.work.weights(trainee.name), options.work.log, options.limits)


def parser() -> argparse.ArgumentParser:
    """Return what reads the options of a stage."""
    found = argparse.ArgumentParser(prog="python -m lab.train.stages", description=__doc__)
    found.add_argument("stage", choices=[*STAGES, *TRAINEES])
    found.add_argument("--work", type=Path, required=True, help="folder of the training")
    found.add_argument("--sizes", choices=list(SIZES), default="demo", help="default %(default)s")
    found.add_argument("--teachers", choices=list(TEACHERS), default=DEFAULT, help="default %(default)s")
    found.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="default %(default)s")
    found.add_argument("--eager", action="store_true", help="launch steps one by one, without CUDA graphs")
    found.add_argument("--wall-s", type=float, default=500.0, help="seconds of this run (default %(default)s)")
    found.add_argument("--total-s", type=float, help="planned seconds of all runs (default: the plan's)")
    found.add_argument("--max-steps", type=int, help="stop after so many steps")
    found.add_argument("--batch", type=int, help="windows or sequences a step (default: the plan's)")
    found.add_argument("--utterances", type=int, help="of corpus and tokens (default: the plan's)")
    found.add_argument("--seed", type=int, help="of what training draws (default: the number of steps done before)")
    found.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes of corpus and tokens")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
