"""Names a checkpoint by its content, so that a stored voice is used with the models it was made with and no others."""

from __future__ import annotations

from pathlib import Path

from servicekit.file_sums import sha256_of_file
from token2wav_service.checkpoint.family import Family, find_family
from token2wav_service.errors import CheckpointError
from token2wav_service.hashes import sha256_of_json

FEATURE_CODE_VERSION = 1
"""Raised when our own front end (resampling, mel, cutting to length) makes other numbers from the same prompt."""


def voice_model_version(model_dir: Path) -> str:
    """Return a SHA-256 over the files that make and use voices; the same files elsewhere have the same version.

    Reads every byte of them, which takes its time with a full-size checkpoint.

    Raises:
        CheckpointError: a file is missing or can't be read.
    """
    files = (find_family(model_dir) or Family.STEP_AUDIO2).files
    try:
        hashes = {name: sha256_of_file(model_dir / name) for name in files.voice_models}
    except OSError as err:
        raise CheckpointError(
            f"{err.filename} can't be read ({err.strerror}); `cosydit checkpoint verify` lists what a checkpoint needs"
        ) from err
    return sha256_of_json({"feature_code": FEATURE_CODE_VERSION, "files": hashes})
