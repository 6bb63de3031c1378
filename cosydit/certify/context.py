"""What the checks of one group share while they run: services, ports, texts, the log. Closed behind the group."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from cosydit.certify.check import Findings, NotRunError, Plan
from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from token2wav_service.contract import SAMPLE_RATE_HZ

T = TypeVar("T")
FloatArray = npt.NDArray[np.float32]

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Please call me back this evening, if you can.",
    "It rained all night, and the river rose by morning.",
    "A small boat crossed the bay before the storm.",
)
"""Sentences that any English voice can say."""
VOICE = "default"
AUDIO_FOLDER = "audio"
KBIT_PER_S = 32
PCM16_SCALE = 32768.0


class CheckContext:
    """The plan, and what was opened for the checks that run now; a context manager that closes it."""

    def __init__(self, plan: Plan) -> None:
        """Open nothing yet."""
        self.plan = plan
        self._opened = ExitStack()
        self._resources: dict[str, Any] = {}

    def __enter__(self) -> CheckContext:
        return self

    def __exit__(self, *details: object) -> None:
        self._resources.clear()
        self._opened.close()

    @property
    def checkpoint(self) -> CheckpointLayout:
        """Where the checkpoint's parts lie."""
        return CheckpointLayout.under(self.plan.checkpoint_dir)

    @property
    def log_dir(self) -> Path:
        """Where services that are started here log to."""
        return self.plan.out_dir / "logs"

    def shared(self, name: str, open_it: Callable[[], AbstractContextManager[T]]) -> T:
        """Return what was opened under a name; it stays open until the group ends.

        Raises:
            NotRunError: it was tried before and failed.
        """
        found = self._resources.get(name)
        if isinstance(found, NotRunError):
            raise found
        if found is None:
            self._resources[name] = NotRunError(f"{name} could not be started; see the check that failed")
            found = self._resources[name] = self._opened.enter_context(open_it())
        opened: T = found
        return opened

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """Return what is made once for the group and needs no closing."""
        return self.shared(name, lambda: nullcontext(make()))

    def scratch(self, name: str) -> Path:
        """Return an empty folder that is removed behind the group."""
        self.plan.work_dir.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=f"certify-{name}-", dir=self.plan.work_dir)
        return Path(self._opened.enter_context(folder))


def keep_audio(context: CheckContext, found: Findings, name: str, samples: FloatArray) -> None:
    """Write samples [N] at 24 kHz as Ogg Opus into the certificate's folder; without the `audio` extra, as WAV."""
    from gateway.audio.encoder import open_encoder
    from gateway.audio.formats import AudioFormat, OutputFormat
    from gateway.errors import GatewayError

    def encoded(form: OutputFormat) -> bytes:
        with open_encoder(form) as encoder:
            return encoder.encode(np.clip(np.nan_to_num(samples), -1, 1)) + encoder.finish()

    try:
        audio, suffix = encoded(OutputFormat(AudioFormat.OPUS, SAMPLE_RATE_HZ, KBIT_PER_S)), "opus"
    except GatewayError:
        audio, suffix = encoded(OutputFormat(AudioFormat.WAV)), "wav"
    file = f"{AUDIO_FOLDER}/{re.sub(r'[^a-z0-9-]+', '-', name.lower())}.{suffix}"
    (context.plan.out_dir / AUDIO_FOLDER).mkdir(parents=True, exist_ok=True)
    (context.plan.out_dir / file).write_bytes(audio)
    found.audio.append(file)


def samples_of(pieces: list[bytes]) -> FloatArray:
    """Return 16-bit PCM as samples [N] in +-1."""
    return np.frombuffer(b"".join(pieces), "<i2").astype(np.float32) / PCM16_SCALE
