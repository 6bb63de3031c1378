"""Where a checkpoint's parts lie, and which checkpoint is used when none is named."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

RANDOM_SEED = 0


@dataclass(frozen=True)
class CheckpointLayout:
    """The three parts of a checkpoint."""

    token2wav_dir: Path
    """flow.yaml, flow.pt, hift.pt and the two ONNX files."""
    llm_dir: Path
    """The speech-token LLM in Hugging Face layout, with its tokenizer."""
    voices_dir: Path
    """<name>.wav and <name>.txt."""

    @classmethod
    def under(cls, directory: Path) -> CheckpointLayout:
        """Return the layout that `cosydit checkpoint make-random` writes."""
        return cls(directory / "token2wav", directory / "llm", directory / "voices")

    def missing(self) -> list[Path]:
        """Return the directories that are not there."""
        return [path for path in (self.token2wav_dir, self.llm_dir, self.voices_dir) if not path.is_dir()]


class CheckpointMissingError(Exception):
    """The named checkpoint is not there, or is incomplete."""


def resolve_checkpoint(directory: Path | None, work_dir: Path) -> CheckpointLayout:
    """Return the named checkpoint, or a small random one, made on first use.

    Raises:
        CheckpointMissingError: the named directory lacks parts.
    """
    if directory is None:
        directory = work_dir / f"random-checkpoint-{RANDOM_SEED}"
        if CheckpointLayout.under(directory).missing():
            from cosydit.local.make_checkpoint import make_random_checkpoint

            make_random_checkpoint(directory, RANDOM_SEED)
        logger.warning("no checkpoint given: using random weights in %s; they speak noise", directory)
    layout = CheckpointLayout.under(directory)
    if layout.missing():
        names = [str(path) for path in layout.missing()]
        raise CheckpointMissingError(
            f"{directory} is not a checkpoint: {names} are missing; make one with `cosydit checkpoint make-random DIR`"
        )
    return layout
