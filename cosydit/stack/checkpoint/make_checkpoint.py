"""Composes a whole random checkpoint from what the services can make of their own parts."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from llm_service.checkpoint import OFFICIAL_LLM, SMALL_LLM, make_random_llm
from llm_service.vocab import COSYVOICE2, COSYVOICE3
from servicekit.checkpoint_file import CheckpointDeclaration, write_declaration
from servicekit.file_sums import write_sums
from servicekit.files import writing
from token2wav_service.checkpoint.family import Family
from token2wav_service.checkpoint.make_random import OFFICIAL_SIZES, SMALL_SIZES, make_random_token2wav
from token2wav_service.checkpoint.make_voices import make_numbered_voices, make_voices

NUMBERED_VOICE_SECONDS = 5.0


def make_random_checkpoint(
    directory: Path,
    seed: int,
    force: bool = False,
    is_official: bool = False,
    numbered_voices: int = 0,
    family: Family = Family.STEP_AUDIO2,
) -> None:
    """Write token2wav/, llm/, voices/, their SHA256SUMS and checkpoint.json.

    Nothing appears before everything is made; equal arguments give equal files.

    Args:
        seed: not negative.
        force: write over files of equal names in a directory that is not empty; others stay.
        is_official: whether the models have the official sizes, for measuring speed: about 2 GB, and answers have their
            greatest length. Else they are small, about 50 MB, for tests and for trying the whole path.
        numbered_voices: how many prompt voices to make beside the usual two, for load tests.
        family: of both models; Step-Audio2's token2wav goes with CosyVoice2's LLM.

    Raises:
        FileExistsError: the directory holds something and `force` is not set.
        OSError: the directory can't be written.
    """
    if directory.exists() and not force and any(directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty; give another directory, or --force to write over it")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as scratch:
        made = Path(scratch) / "checkpoint"
        with writing(directory):
            _make(made, seed, is_official, numbered_voices, family)
        if directory.exists():
            shutil.copytree(made, directory, dirs_exist_ok=True)
        else:
            made.rename(directory)


def _make(directory: Path, seed: int, is_official: bool, numbered_voices: int, family: Family) -> None:
    flow, hift = (OFFICIAL_SIZES if is_official else SMALL_SIZES)[family]
    make_random_token2wav(directory / "token2wav", seed, flow, hift)
    vocabulary = COSYVOICE3 if family is Family.COSYVOICE3 else COSYVOICE2
    make_random_llm(directory / "llm", seed, OFFICIAL_LLM if is_official else SMALL_LLM, vocabulary)
    make_voices(directory / "voices", seed)
    make_numbered_voices(directory / "voices", seed, numbered_voices, NUMBERED_VOICE_SECONDS)
    instruct = None if family is Family.STEP_AUDIO2 else "endofprompt"
    phonemes = "cosyvoice3" if family is Family.COSYVOICE3 else None
    declared = {"name": "random weights", "family": family.value, "instruct": instruct, "phonemes": phonemes}
    write_declaration(directory, CheckpointDeclaration.model_validate(declared))
    write_sums(directory)
