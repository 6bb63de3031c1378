"""A list of texts for measuring the speed of `benchmarks.offline_batch`: `python -m benchmarks.offline_input --help`.

The answers of a random LLM run to their bound, which is so many speech tokens for every text token: the texts' lengths
decide how long the speech is.
"""

from __future__ import annotations

import argparse
import json
import random
import string
import sys
from collections.abc import Sequence
from pathlib import Path

from cosydit.bench.report import write_text
from cosydit.bench.types import count
from llm_service.prompt import MAX_SPEECH_PER_TEXT_TOKEN
from llm_service.text_encoder import TextEncoder, load_text_encoder
from token2wav_service.contract import TOKEN_RATE_HZ

SPREAD = 0.2
"""Share by which the longest speech is longer than the mean, and the shortest shorter."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    args = _parser().parse_args(argv)
    voices = sorted(args.voices_dir.glob("*.wav"))[: args.voices]
    if len(voices) < args.voices:
        print(f"offline_input: {args.voices_dir} has {len(voices)} voices, expected {args.voices}", file=sys.stderr)
        return 1
    rows = make_rows(load_text_encoder(args.llm_model_name_or_path), voices, args.rows, args.seconds)
    write_text(args.out, "".join(json.dumps(row) + "\n" for row in rows))
    return 0


def make_rows(encoder: TextEncoder, voices: Sequence[Path], rows: int, seconds: float) -> list[dict[str, str]]:
    """Return rows of a JSONL list, the voices in turn; equal arguments give equal rows.

    Args:
        encoder: counts text tokens.
        voices: audio files with their transcripts beside them.
        rows: how many.
        seconds: of speech in a row, the mean.
    """
    rng = random.Random(0)
    mean_tokens = seconds * TOKEN_RATE_HZ / MAX_SPEECH_PER_TEXT_TOKEN
    shortest, longest = round((1 - SPREAD) * mean_tokens), round((1 + SPREAD) * mean_tokens)
    return [
        {
            "utt": f"u{index:05d}",
            "text": _text(encoder, max(1, rng.randint(shortest, longest)), rng),
            "prompt_wav": str(voices[index % len(voices)].resolve()),
            "prompt_text": voices[index % len(voices)].with_suffix(".txt").read_text(encoding="utf-8").strip(),
        }
        for index in range(rows)
    ]


def _text(encoder: TextEncoder, tokens: int, rng: random.Random) -> str:
    text = ""
    while len(encoder.encode(text)) < tokens:
        text += rng.choice(string.ascii_lowercase)
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.offline_input", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--llm-model-name-or-path", type=Path, required=True, help="directory of the LLM, for its tokenizer"
    )
    parser.add_argument(
        "--voices-dir", type=Path, required=True, help="directory with <name>.wav and <name>.txt of each voice"
    )
    parser.add_argument("--voices", type=count, default=64, help="number of voices, used in turn (default %(default)s)")
    parser.add_argument("--rows", type=count, default=512, help="number of rows (default %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="mean seconds of speech in a row (default %(default)s)"
    )
    parser.add_argument("--out", type=Path, required=True, help="JSONL to write")
    return parser


if __name__ == "__main__":
    sys.exit(main())
