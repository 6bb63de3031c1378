"""Where a checkpoint's parts lie, and which checkpoint is used when none is named."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from servicekit.logs import PlainError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointLayout:
    """The three parts of a checkpoint."""

    token2wav_dir: Path
    """Folder with flow.yaml, flow.pt, hift.pt and the two ONNX files."""
    llm_dir: Path
    """Folder of the speech-token LLM in Hugging Face layout, with its tokenizer."""
    voices_dir: Path
    """Folder with <name>.wav and <name>.txt of each voice."""

    @classmethod
    def under(cls, directory: Path) -> CheckpointLayout:
        """Return the layout that `cosydit checkpoint make-random` writes."""
        return cls(directory / "token2wav", directory / "llm", directory / "voices")

    def missing(self) -> list[Path]:
        """Return the directories that are not there."""
        return [path for path in (self.token2wav_dir, self.llm_dir, self.voices_dir) if not path.is_dir()]


class CheckpointMissingError(PlainError):
    """The named checkpoint is not there, or is incomplete."""


def default_directory(work_dir: Path) -> Path:
    """Return where the checkpoint lies that is used when none is named: the demo voice."""
    return work_dir / "demo-voice"


def resolve_checkpoint(directory: Path | None, work_dir: Path) -> CheckpointLayout:
    """Return the named checkpoint, or the demo voice, unpacked on first use.

    Raises:
        CheckpointMissingError: the named directory lacks parts.
        BundleError: the demo voice can't be unpacked.
    """
    if directory is None:
        from demo_voice.unpack import provide  # which needs torch

        directory = default_directory(work_dir)
        if provide(directory):
            logger.info("unpacked the demo voice into %s", directory)
        logger.info("no checkpoint given: using the demo voice in %s", directory)
    layout = CheckpointLayout.under(directory)
    if layout.missing():
        names = [str(path) for path in layout.missing()]
        raise CheckpointMissingError(
            f"{directory} is not a checkpoint: {names} are missing; make one with `cosydit checkpoint unpack-demo DIR`"
        )
    return layout
