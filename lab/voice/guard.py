"""Counts how often speech leaves its text, without the guard and with it: `python -m lab.voice.guard`.

Speaks the thousand texts of `lab.voice.guard_texts` in this process through the gateway's own path, and has the
recognisers and the voice's teachers judge each. Rows are appended to a JSONL file beside `--out`; a run that was
broken off goes on behind them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import wave
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from cosydit.bench.report import write_text
from cosydit.bench.types import count
from cosydit.certify.recognition import RATE_HZ, FloatArray, SphinxRecogniser
from demo_voice.unpack import BundleError
from gateway.chunking.policies import FixedChunks
from gateway.core import RegisteredVoice, Sampling, SpeechLM, SpeechTokenDelta, Token2Wav, Utterance
from gateway.speech.guard import GuardMode
from gateway.speech.request import SpeechRequest, SpeechResult
from gateway.speech.speaker import Speaker
from lab.ears.moonshine import MoonshineRecogniser, Recogniser
from lab.ears.study import Heard
from lab.load.instant import InstantToken2Wav
from lab.train.make_voices import SourceVoices
from lab.train.teachers.choices import teachers_of
from lab.train.teachers.flite import SynthesisError
from lab.train.utterance import audio_of
from lab.voice.guard_study import (
    LONGEST_SHARE,
    SHORTEST_SHARE,
    SLACK_S,
    WORST_ERROR_RATE,
    GuardRow,
    SpokenSegment,
    bad_shares,
    figures,
    is_misheard,
    row_from_json,
    row_json,
    shares_by_recogniser,
)
from lab.voice.guard_texts import GuardText, guard_texts
from lab.voice.hearing import heard_as, write_study
from lab.voice.in_process import EmbeddedLM, EngineToken2Wav, make_pipeline
from token2wav_service.contract import SAMPLE_RATE_HZ
from token2wav_service.features.audio import resample

DEFAULT_OUT = Path("benchmarks/results/guard_cpu.json")
VOICE = "default"
_CHUNKS = FixedChunks(125, 125)
"""Long chunks, which cost least; they do not change which tokens are spoken."""
_PCM16_SCALE = 32767.0
_JUDGED = (
    f"bad: every recogniser hears more than {WORST_ERROR_RATE:.0%} of the words wrong, and one of them not more of the "
    f"source engine's own audio; or longer than {LONGEST_SHARE} times that audio and {SLACK_S} s, or shorter than "
    f"{SHORTEST_SHARE} of it less {SLACK_S} s. The source engine is heard where a recogniser mishears the voice, as "
    "nothing else asks for it. With the guard, those texts are spoken again in whose recorded answers it sees a "
    "trouble; it changes no token of others."
)


@dataclass
class RecordingLM:
    """Implements `gateway.core.SpeechLM` over another one and keeps its answers to one text."""

    inner: SpeechLM
    answers: list[SpokenSegment] = field(default_factory=list)

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        """See `SpeechLM.generate`."""
        token_ids, finish_reason = list[int](), "broken off"
        try:
            async with aclosing(self.inner.generate(utterance, sampling, seed)) as deltas:
                async for delta in deltas:
                    token_ids += delta.token_ids
                    finish_reason = delta.finish_reason or finish_reason
                    yield delta
        finally:
            self.answers.append(SpokenSegment(utterance.text, seed, tuple(token_ids), finish_reason))


@dataclass
class ReplayingLM:
    """Implements `gateway.core.SpeechLM` with the answers of an earlier run."""

    answers: dict[tuple[str, int], SpokenSegment] = field(default_factory=dict)

    async def generate(self, utterance: Utterance, sampling: Sampling, seed: int) -> AsyncGenerator[SpeechTokenDelta]:
        """See `SpeechLM.generate`; what was never answered is answered as the first segment was, as nobody listens."""
        known = self.answers.get((utterance.text, seed), next(iter(self.answers.values())))
        for token_id in known.token_ids:
            yield SpeechTokenDelta((token_id,))
        yield SpeechTokenDelta((), known.finish_reason)

    async def is_ready(self) -> bool:
        """See `SpeechLM.is_ready`."""
        return True


class UnheardToken2Wav(InstantToken2Wav):
    """Knows the voices of another one, and makes noise where nobody listens."""

    def __init__(self, inner: Token2Wav) -> None:
        """Register voices with `inner`."""
        self._inner = inner

    async def register_voice(self, audio: bytes | FloatArray) -> RegisteredVoice:
        """See `Token2Wav.register_voice`."""
        return await self._inner.register_voice(audio)


class Study:
    """What a study speaks and listens with."""

    def __init__(
        self, checkpoint: Path, source: SourceVoices, recognisers: Mapping[str, Recogniser], audio_dir: Path | None
    ) -> None:
        """Load everything.

        Args:
            checkpoint: directory with llm/, token2wav/ and voices/.
            source: the teachers' own speech.
            recognisers: judge together, by name.
            audio_dir: keeps the audio of each text; None: it is not kept.
        """
        torch.set_num_threads(1)
        self._llm, self._replay = RecordingLM(EmbeddedLM(checkpoint / "llm")), ReplayingLM()
        token2wav = EngineToken2Wav(checkpoint / "token2wav")
        self._without = make_pipeline(checkpoint, self._llm, token2wav, GuardMode.OFF, _CHUNKS)
        self._with = make_pipeline(checkpoint, self._llm, token2wav, GuardMode.MEND)
        self._replayed = make_pipeline(checkpoint, self._replay, UnheardToken2Wav(token2wav), GuardMode.MEND)
        self._source, self._recognisers, self._audio_dir = source, recognisers, audio_dir

    async def before(self, text: GuardText) -> GuardRow:
        """Speak one text without the guard and judge it."""
        return await self._row(self._without, text)

    async def after(self, row: GuardRow) -> GuardRow | None:
        """Speak the text of a row with the guard and judge it; None if the guard changes nothing in it."""
        self._replay.answers = {(each.text, each.seed): each for each in row.segments}
        result = SpeechResult()
        request = SpeechRequest(row.text, VOICE, row.number)
        async for _ in self._replayed.synthesize(request, result):
            if result.guard_notes:
                break
        return await self._row(self._with, GuardText(row.number, row.kind, row.text)) if result.guard_notes else None

    async def _row(self, pipeline: Speaker, text: GuardText) -> GuardRow:
        result = SpeechResult()
        self._llm.answers.clear()
        request = SpeechRequest(text.text, VOICE, text.number)
        audio = np.concatenate([chunk.samples async for chunk in pipeline.synthesize(request, result)])
        audio_16k = resample(audio, SAMPLE_RATE_HZ, RATE_HZ)
        if self._audio_dir is not None:
            _write_wav(self._audio_dir / f"{text.number:04}.wav", audio_16k)
        heard = await self._heard(result.spoken_text, audio_16k)
        source = audio_of(self._source.speak(result.spoken_text, VOICE), RATE_HZ)
        return GuardRow(
            number=text.number,
            kind=text.kind,
            text=text.text,
            spoken_text=result.spoken_text,
            segments=tuple(self._llm.answers),
            audio_s=len(audio) / SAMPLE_RATE_HZ,
            heard=heard,
            source_s=len(source) / RATE_HZ,
            source=await self._heard(result.spoken_text, source) if any(map(is_misheard, heard.values())) else None,
            notes=tuple(f"{note.trouble} {note.outcome.value}" for note in result.guard_notes),
        )

    async def _heard(self, text: str, audio_16k: FloatArray) -> dict[str, Heard]:
        front_end = self._without.front_end
        return {
            name: await heard_as(recogniser.transcribe(audio_16k), text, front_end)
            for name, recogniser in self._recognisers.items()
        }


def _write_wav(path: Path, samples: FloatArray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes((np.clip(samples, -1, 1) * _PCM16_SCALE).astype("<i2").tobytes())


def read_rows(path: Path) -> list[GuardRow]:
    """Read the rows of a run; a line that was broken off at the end is left out."""
    if not path.exists():
        return []
    lines = path.read_text("utf-8").split("\n")[:-1]
    return [row_from_json(json.loads(line)) for line in lines]


class RowFile:
    """Rows of one pass, appended as they come; a later run finds them again."""

    def __init__(self, path: Path) -> None:
        """Read what is there; a line that was broken off is taken away."""
        self._path = path
        if path.exists():
            whole, end, _ = path.read_text("utf-8").rpartition("\n")
            write_text(path, whole + end)
        self.rows = {row.number: row for row in read_rows(path)}

    def append(self, row: GuardRow) -> None:
        """Keep a row."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row_json(row)) + "\n")
        self.rows[row.number] = row


async def _speak_all(study: Study, texts: Sequence[GuardText], before: RowFile) -> None:
    """Speak the texts without the guard that were not spoken yet."""
    with tqdm(total=len(texts), desc="without the guard", unit="text") as bar:
        for text in texts:
            if text.number not in before.rows:
                before.append(await study.before(text))
            bar.update()


async def _mend_all(study: Study, rows: Sequence[GuardRow], after: RowFile) -> None:
    """Speak those texts with the guard that it changes."""
    for row in tqdm(rows, desc="with the guard", unit="text"):
        if row.number not in after.rows and (spoken := await study.after(row)) is not None:
            after.append(spoken)


def _take(args: argparse.Namespace) -> dict[str, Any]:
    """Speak and judge; return the document."""
    if args.audio_dir is not None:
        args.audio_dir.mkdir(parents=True, exist_ok=True)
    source = SourceVoices(teachers_of(args.checkpoint), args.engines)
    recognisers: dict[str, Recogniser] = {"pocketsphinx": SphinxRecogniser()}
    if args.moonshine is not None:
        recognisers["moonshine"] = MoonshineRecogniser(args.moonshine)
    study = Study(args.checkpoint, source, recognisers, args.audio_dir)
    texts = guard_texts()[: args.limit]
    before, after = (RowFile(args.out.with_suffix(f".{name}.jsonl")) for name in ("before", "after"))
    asyncio.run(_speak_all(study, texts, before))
    rows = [before.rows[text.number] for text in texts]
    asyncio.run(_mend_all(study, rows, after))
    touched = [after.rows[row.number] for row in rows if row.number in after.rows]
    return {
        "figures": figures(rows, touched),
        "bad_shares_before": bad_shares(rows),
        "bad_shares_after": bad_shares([after.rows.get(row.number, row) for row in rows]),
        "changed_by_the_guard": {row.number: row.notes for row in touched},
        "judged": _JUDGED,
        "bad_shares_before_by_recogniser_alone": shares_by_recogniser(rows),
    }


def run(args: argparse.Namespace) -> int:
    """Run the study; returns 0, or 2 if it could not run."""
    try:
        document = _take(args)
    except (SynthesisError, BundleError, ImportError, OSError) as error:
        print(f"guard: {error}", file=sys.stderr)
        return 2
    print(write_study(args.out, document, vars(args)))
    print(f"figures in {args.out}, rows beside it")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m lab.voice.guard", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="directory with llm/, token2wav/ and voices/")
    parser.add_argument(
        "--engines", type=Path, help="directory of unpacked source engines (default: the installed ones)"
    )
    parser.add_argument(
        "--moonshine", type=Path, help="directory of a second recogniser's files (default: pocketsphinx alone)"
    )
    parser.add_argument("--limit", type=count, default=None, help="number of first texts to speak (default: all)")
    parser.add_argument("--audio-dir", type=Path, help="directory for a WAV of each text (default: none is kept)")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON to write (default %(default)s)")
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    raise SystemExit(main())
