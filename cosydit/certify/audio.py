"""Audio beside the certificate: Ogg Opus files to listen to, with figures of what no listener should hear."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from cosydit.certify.check import Findings
from cosydit.certify.context import CheckContext
from gateway.audio.encoder import open_encoder
from gateway.audio.formats import AudioFormat, OutputFormat
from gateway.errors import GatewayError
from token2wav_service.contract import SAMPLE_RATE_HZ

FOLDER = "audio"
KBIT_PER_S = 32

FloatArray = npt.NDArray[np.float32]


def keep_audio(context: CheckContext, found: Findings, name: str, samples: FloatArray) -> None:
    """Write samples [N] at 24 kHz as Ogg Opus into the certificate's folder; without the `audio` extra, as WAV."""
    file_name = re.sub(r"[^a-z0-9-]+", "-", name.lower())
    folder = context.plan.out_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    try:
        audio, suffix = _encoded(samples, OutputFormat(AudioFormat.OPUS, SAMPLE_RATE_HZ, KBIT_PER_S)), "opus"
    except GatewayError:
        audio, suffix = _encoded(samples, OutputFormat(AudioFormat.WAV)), "wav"
    path = folder / f"{file_name}.{suffix}"
    path.write_bytes(audio)
    found.audio.append(f"{FOLDER}/{path.name}")


def _encoded(samples: FloatArray, form: OutputFormat) -> bytes:
    with open_encoder(form) as encoder:
        return encoder.encode(np.clip(np.nan_to_num(samples), -1, 1)) + encoder.finish()
