"""Composes a whole small checkpoint from what the services can make of their own parts."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from llm_service.checkpoint import make_random_llm
from token2wav_service.checkpoint.make_random import make_random_token2wav
from token2wav_service.checkpoint.make_voices import make_voices

MODEL_CARD = """\
# A small random checkpoint

Random weights: it speaks noise. Made by `cosydit checkpoint make-random` with seed {seed}.

    token2wav/   flow, vocoder, speaker encoder and speech tokenizer, in the official layout
    llm/         a Qwen2 of toy size with the official token numbering
    voices/      synthetic prompt voices, each a WAV and its transcript
"""


def make_random_checkpoint(directory: Path, seed: int, force: bool = False) -> None:
    """Write token2wav/, llm/, voices/ and README.md; nothing appears before everything is made.

    Args:
        directory: made if missing.
        seed: not negative; equal seeds give equal files.
        force: write over files of equal names in a directory that is not empty; others stay.

    Raises:
        FileExistsError: the directory holds something and `force` is not set.
        OSError: the directory can't be written.
    """
    if directory.exists() and not force and any(directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty; give another directory, or --force to write over it")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as scratch:
        made = Path(scratch) / "checkpoint"
        make_random_token2wav(made / "token2wav", seed)
        make_random_llm(made / "llm", seed)
        make_voices(made / "voices", seed)
        (made / "README.md").write_text(MODEL_CARD.format(seed=seed), encoding="utf-8")
        if directory.exists():
            shutil.copytree(made, directory, dirs_exist_ok=True)
        else:
            made.rename(directory)
