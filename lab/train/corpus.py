"""Makes the corpus from its seed with all cores: `python -m lab.train.corpus`. Shards that are there stay.

Three kinds of shards. Wide ones hold every feature. Raw ones lack what the vocoder alone needs, the audio: they teach
the tokenizer, the flow and the LLM, which want more hours. Token shards hold text, speech tokens and phones only (for
the LLM, which wants the most hours, and the aligner); they need a trained tokenizer.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lab.train.teachers.choices import DEFAULT, TEACHERS, Engine
from lab.train.teachers.flite import Spoken, SynthesisError
from lab.train.text.mix import PlannedUtterance, TextSources, planned
from lab.train.utterance import (
    LAYOUTS,
    MIN_TOKENS,
    audio_16k,
    heard_phones,
    utterance_arrays,
    whole_tokens,
)
from token2wav_service.types import FloatArray, IntArray

logger = logging.getLogger(__name__)

AnyArray = npt.NDArray[np.generic]

WIDE_SEED, TOKEN_SEED = 1, 2
"""Different plans, so that the LLM's many hours are not the same sentences again."""
LONG_FIRST_SHARD = 20_000
"""Raw and token shards from here to `LONG_LAST_SHARD` are long sentences, most of them in the voice `default`."""
LONG_LAST_SHARD = 49_999
SHARD_UTTERANCES = 64
RAW = ("log_mel", "mel", "fbank", "phones", "pitch")
"""Columns of a raw shard."""
WORKER_NICENESS = 10


@dataclass(frozen=True)
class CorpusJob:
    """One shard to make; small enough to send to a worker."""

    directory: Path
    texts: Path
    engines: Path | None
    """Unpacked Debian packages; None: installed ones."""
    index: int
    tokenizer: Path | None
    """Trained speech tokenizer (ONNX): makes a token shard; None: a wide one, or a raw one."""
    teachers: str
    """Name in `TEACHERS`."""
    is_raw: bool = False
    """Makes a shard of RAW."""

    @property
    def path(self) -> Path:
        return self.directory / f"shard-{self.index:05d}.npz"


def make_corpus(jobs: Sequence[CorpusJob], workers: int, deadline_s: float) -> int:
    """Make the shards that are missing, in order, until all are there or the time is up.

    Args:
        jobs: of one directory.
        workers: processes.
        deadline_s: no shard is begun after so many seconds.

    Returns:
        Shards that are there now.
    """
    began = time.monotonic()
    todo = [job for job in jobs if not job.path.exists()]
    if todo:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # a worker a core; read when the workers import numpy
        jobs[0].directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            run_all = _mapper(stack, workers)
            # Handed out in rounds, so that a passed deadline leaves no queue behind.
            for round_of_jobs in _rounds(todo, 4 * workers):
                if time.monotonic() - began > deadline_s:
                    logger.warning("the time for the corpus is up")
                    break
                run_all(round_of_jobs)
    done = [job for job in jobs if job.path.exists()]
    logger.info("%d of %d shards in %s after %.1f s", len(done), len(jobs), jobs[0].directory, time.monotonic() - began)
    return len(done)


def wide_jobs(directory: Path, texts: Path, engines: Path | None, utterances: int, teachers: str) -> list[CorpusJob]:
    """Return the jobs of a corpus with all features."""
    count = -(-utterances // SHARD_UTTERANCES)
    return [CorpusJob(directory, texts, engines, index, None, teachers) for index in range(count)]


def token_jobs(
    directory: Path, texts: Path, engines: Path | None, utterances: int, tokenizer: Path, teachers: str
) -> list[CorpusJob]:
    """Return the jobs of a corpus of texts and tokens."""
    count = -(-utterances // SHARD_UTTERANCES)
    return [CorpusJob(directory, texts, engines, index, tokenizer, teachers) for index in range(count)]


def with_long(jobs: Sequence[CorpusJob]) -> list[CorpusJob]:
    """Put a job of long sentences behind each job of raw or token shards."""
    return [each for job in jobs for each in (job, replace(job, index=LONG_FIRST_SHARD + job.index))]


def _mapper(stack: ExitStack, workers: int) -> Callable[[Sequence[CorpusJob]], object]:
    """Return what makes several shards; one worker needs no process of its own."""
    if workers == 1:
        return lambda jobs: list(map(_make_shard, jobs))
    # Models may be training beside: their one thread each must not wait for us.
    spawn = get_context("spawn")
    pool = stack.enter_context(
        ProcessPoolExecutor(workers, mp_context=spawn, initializer=os.nice, initargs=(WORKER_NICENESS,))
    )
    return lambda jobs: list(pool.map(_make_shard, jobs))


def _make_shard(job: CorpusJob) -> None:
    seed = WIDE_SEED if job.tokenizer is None and not job.is_raw else TOKEN_SEED
    teachers = TEACHERS[job.teachers]
    first = job.index * SHARD_UTTERANCES
    is_long = LONG_FIRST_SHARD <= job.index <= LONG_LAST_SHARD
    shares = teachers.long_shares if is_long else teachers.shares
    plan = planned(_sources(job.texts), seed, first, shares, teachers.is_varied, is_long)
    write_shard(job, list(_spoken(_engine(job.teachers, job.engines), islice(plan, SHARD_UTTERANCES))))


def write_shard(job: CorpusJob, spoken: Sequence[tuple[PlannedUtterance, Spoken]]) -> None:
    """Write one shard of what was spoken, as `write_whole` does."""
    if job.tokenizer is None:
        columns = _columns(spoken, RAW if job.is_raw else tuple(LAYOUTS))
    else:
        columns = _token_columns(spoken, job.tokenizer)
    head: dict[str, AnyArray] = {
        "speaker": np.array([utterance.speaker for utterance, _ in spoken], np.uint8),
        "tokens": np.array([whole_tokens(audio) for _, audio in spoken], np.int32),
        "texts": np.array(json.dumps([utterance.text for utterance, _ in spoken])),
    }
    write_whole(job.path, head | columns)


def write_whole(path: Path, columns: Mapping[str, AnyArray]) -> None:
    """Write a shard's columns; never leaves half a file."""
    partial = path.with_suffix(f".{os.getpid()}.part")
    with partial.open("wb") as file:
        np.savez(file, **columns)
    os.replace(partial, path)


def _spoken(engine: Engine, plan: Iterator[PlannedUtterance]) -> Iterator[tuple[PlannedUtterance, Spoken]]:
    """Yield what the engine could say; a text it fails on is left out, and says so."""
    for utterance in plan:
        try:
            spoken = engine.speak(utterance.text, utterance.speaker)
        except SynthesisError as err:
            logger.warning("utterance %d left out: %s", utterance.number, err)
            continue
        if whole_tokens(spoken) >= MIN_TOKENS:
            yield utterance, spoken


def _columns(spoken: Sequence[tuple[PlannedUtterance, Spoken]], names: Sequence[str]) -> dict[str, AnyArray]:
    each = [utterance_arrays(audio) for _, audio in spoken]
    return {name: np.concatenate([arrays[name] for arrays in each]) for name in names}


def _token_columns(spoken: Sequence[tuple[PlannedUtterance, Spoken]], tokenizer: Path) -> dict[str, AnyArray]:
    tokenize = _tokenizer(tokenizer)
    phones = [heard_phones(audio) for _, audio in spoken]
    token_ids = np.concatenate([tokenize(audio_16k(audio)) for _, audio in spoken]).astype(np.uint16)
    return {"token_ids": token_ids, "phones": np.concatenate(phones)}


@lru_cache(maxsize=1)
def _engine(teachers: str, engines: Path | None) -> Engine:
    return TEACHERS[teachers].open(engines)


@lru_cache(maxsize=1)
def _sources(texts: Path) -> TextSources:
    return TextSources.read(texts)


@lru_cache(maxsize=1)
def _tokenizer(path: Path) -> Callable[[FloatArray], IntArray]:
    from token2wav_service.features.mel import s3_log_mel
    from token2wav_service.features.prompt_models import OnnxSpeechTokenizer

    model = OnnxSpeechTokenizer(path)
    return lambda samples: model.tokenize(s3_log_mel(samples))


def _rounds(jobs: Sequence[CorpusJob], size: int) -> Iterator[Sequence[CorpusJob]]:
    return (jobs[start : start + size] for start in range(0, len(jobs), size))


def main(argv: Sequence[str] | None = None) -> int:
    """Make a corpus; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.train.corpus", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory of the shards")
    parser.add_argument("--texts", type=Path, required=True, help="directory of the texts")
    parser.add_argument("--engines", type=Path, help="unpacked engines (default: installed ones)")
    parser.add_argument("--teachers", choices=list(TEACHERS), default=DEFAULT, help="default %(default)s")
    parser.add_argument("--utterances", type=int, default=10_000, help="about 4 s each (default %(default)s)")
    parser.add_argument("--tokenizer", type=Path, help="trained tokenizer: make token shards instead of wide ones")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    parser.add_argument("--deadline-s", type=float, default=500.0, help="begin no shard later (default %(default)s)")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    jobs = wide_jobs(args.out, args.texts, args.engines, args.utterances, args.teachers)
    if args.tokenizer is not None:
        jobs = [replace(job, tokenizer=args.tokenizer) for job in jobs]
    return 0 if make_corpus(jobs, args.workers, args.deadline_s) == len(jobs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
