"""Loads every part of a checkpoint, the way the services will, and says what is wrong with each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from llm_service.aligner import ALIGNER_FILE, load_aligner
from llm_service.embedded.model import SpeechLanguageModel
from llm_service.errors import LLMServiceError
from llm_service.text_encoder import load_text_encoder
from servicekit.checkpoint_file import CHECKPOINT_FILE, CheckpointFileError, declaration_path, find_declaration
from token2wav_service.checkpoint.family import (
    FLOW_WEIGHTS,
    HIFT_WEIGHTS,
    SPEAKER_ENCODER,
    Family,
    find_family,
)
from token2wav_service.checkpoint.loader import load_flow, load_vocoder
from token2wav_service.contract import PROMPT_SAMPLE_RATE_HZ
from token2wav_service.errors import CheckpointError, Token2WavError
from token2wav_service.features.audio import load_prompt_audio, validate_prompt
from token2wav_service.features.mel import s3_log_mel
from token2wav_service.features.prompt_models import OnnxSpeechTokenizer, SpeakerEncoder

_PROBE_SECONDS = 0.5
_PROBE_TOKENS = 13
"""Tokens of the probe: ceil of 50 log-mel frames / 4."""

_Check = tuple[str, Callable[[], object]]


@dataclass(frozen=True)
class PartReport:
    """One part of a checkpoint."""

    name: str
    problem: str | None
    """What is wrong; None when it loads and answers as it should."""


def verify_checkpoint(directory: Path, family: Family | None = None) -> list[PartReport]:
    """Check every part, whatever is wrong with the others.

    Args:
        directory: with token2wav/, llm/ and voices/, or a token2wav directory alone.
        family: what it must be of; None takes what its description file says.
    """
    return [PartReport(name, _problem(check)) for name, check in _checks(directory, family)]


def _token2wav_dir(directory: Path) -> Path:
    is_alone = any((directory / family.files.description).is_file() for family in Family)
    return directory if is_alone else directory / "token2wav"


def _problem(check: Callable[[], object]) -> str | None:
    try:
        check()
    except (CheckpointFileError, Token2WavError, LLMServiceError, OSError, ValueError) as err:
        return str(err)
    return None


def _checks(directory: Path, family: Family | None) -> Iterator[_Check]:
    model_dir = _token2wav_dir(directory)
    yield CHECKPOINT_FILE, partial(_check_declaration, directory, model_dir)
    yield from _token2wav_checks(model_dir, family)
    if model_dir == directory:
        return
    yield "llm/tokenizer.json", partial(load_text_encoder, directory / "llm")
    # Half the memory of what the CPU computes in.
    yield "llm/config.json and weights", partial(SpeechLanguageModel.load, directory / "llm", "cpu", "bfloat16")
    if (directory / "llm" / ALIGNER_FILE).exists():
        yield f"llm/{ALIGNER_FILE}", partial(load_aligner, directory / "llm")
    names = {"default", *(path.stem for path in (directory / "voices").glob("*.wav"))}
    for name in sorted(names):
        yield f"voices/{name}.wav and .txt", partial(_check_voice, directory / "voices", name)


def _check_declaration(directory: Path, model_dir: Path) -> None:
    declared, found = find_declaration(directory), find_family(model_dir)
    if found is not None and declared.family != found.value:
        wrong = (
            f"declares the family {declared.family}, but {model_dir} holds {found.files.description} of {found.value}"
        )
        raise CheckpointError(f"{declaration_path(directory)} {wrong}; correct the one that is wrong")


def declared_line(directory: Path) -> str | None:
    """Return what a checkpoint declares, for a person; None if its file can't be read."""
    try:
        declared = find_declaration(directory).describe()
    except CheckpointFileError:
        return None
    if declaration_path(directory) is not None:
        return declared
    return f"{declared} (as the official one; write it down with: cosydit checkpoint declare {directory})"


def _token2wav_checks(model_dir: Path, expected: Family | None) -> Iterator[_Check]:
    try:
        found = find_family(model_dir)
        if expected is not None and found is not None and found is not expected:
            held, wanted = found.files.description, expected.files.description
            raise CheckpointError(f"{model_dir} holds {held}, expected {wanted} of {expected.value}")
    except CheckpointError as err:
        yield "token2wav/", partial(_fail, err)
        return
    files = (expected or found or Family.STEP_AUDIO2).files
    yield f"token2wav/{files.description} and {FLOW_WEIGHTS}", partial(load_flow, model_dir)
    yield f"token2wav/{HIFT_WEIGHTS}", partial(load_vocoder, model_dir)
    yield f"token2wav/{SPEAKER_ENCODER}", partial(_check_speaker_encoder, model_dir / SPEAKER_ENCODER)
    yield f"token2wav/{files.speech_tokenizer}", partial(_check_speech_tokenizer, model_dir / files.speech_tokenizer)


def _fail(err: CheckpointError) -> None:
    raise err


def _check_speaker_encoder(path: Path) -> None:
    embedding = SpeakerEncoder(path).embed(_probe())
    if not np.isfinite(embedding).all():
        raise CheckpointError(f"{path} answers with NaN or infinity; download or make it again")


def _check_speech_tokenizer(path: Path) -> None:
    ids = OnnxSpeechTokenizer(path).tokenize(s3_log_mel(_probe()))
    if len(ids) != _PROBE_TOKENS:
        raise CheckpointError(
            f"{path} gave {len(ids)} tokens for {_PROBE_SECONDS} s, expected {_PROBE_TOKENS} (25 a second)"
        )


def _check_voice(directory: Path, name: str) -> None:
    wav, transcript = directory / f"{name}.wav", directory / f"{name}.txt"
    validate_prompt(load_prompt_audio(wav.read_bytes()))
    if not transcript.read_text("utf-8").strip():
        raise ValueError(f"{transcript} is empty; write what {wav.name} says")


def _probe() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    samples = int(_PROBE_SECONDS * PROMPT_SAMPLE_RATE_HZ)
    return (0.1 * np.random.default_rng(0).standard_normal(samples)).astype(np.float32)
