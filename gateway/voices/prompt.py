"""A voice that comes along with a request: the rules for its recording and transcript. Pure.

Whether the recording itself will do (readable, long enough, not silent) is for token2wav to say.
"""

from __future__ import annotations

import io
import wave

from gateway.audio.pcm import PCM16_BYTES
from gateway.core import InlineVoice
from gateway.errors import InvalidRequestError, InvalidVoicePromptError, UploadTooLargeError
from gateway.voices.draft import MAX_TRANSCRIPT_CHARACTERS

MAX_PROMPT_BYTES = 10 * 1024 * 1024
"""Of a recording; 10 seconds of 24-bit stereo at 48 kHz have 3 MB."""
_MIN_RATE_HZ = 8000
_MAX_RATE_HZ = 192_000


def prompt_voice(audio: bytes, transcript: str) -> InlineVoice:
    """Make a voice from an audio file.

    Raises:
        InvalidVoicePromptError: there is no recording.
        UploadTooLargeError: it is too large.
        InvalidRequestError: the transcript is too long.
    """
    if not audio:
        raise InvalidVoicePromptError("the voice prompt is empty; send 3 to 10 seconds of speech", param="voice")
    if len(audio) > MAX_PROMPT_BYTES:
        got = f"the voice prompt has {len(audio)} bytes, the limit is {MAX_PROMPT_BYTES}"
        raise UploadTooLargeError(f"{got}; send 3 to 10 seconds of speech", param="voice")
    if len(transcript) > MAX_TRANSCRIPT_CHARACTERS:
        got = f"the voice prompt's transcript has {len(transcript)} characters"
        raise InvalidRequestError(f"{got}, expected at most {MAX_TRANSCRIPT_CHARACTERS}; shorten it", param="voice")
    return InlineVoice(audio, transcript.strip())


def wav_of_pcm16(pcm: bytes, sample_rate_hz: int) -> bytes:
    """Make a WAV file of signed 16-bit little endian mono samples.

    Raises:
        InvalidVoicePromptError: no whole number of samples, or an odd rate.
    """
    if not _MIN_RATE_HZ <= sample_rate_hz <= _MAX_RATE_HZ:
        got = f"got a voice prompt at {sample_rate_hz} Hz, expected {_MIN_RATE_HZ} to {_MAX_RATE_HZ}"
        raise InvalidVoicePromptError(f"{got}; give the rate, or send a WAV file", param="voice")
    if len(pcm) % PCM16_BYTES:
        got = f"got a voice prompt of {len(pcm)} bytes, expected 16-bit samples"
        raise InvalidVoicePromptError(f"{got}; send all bytes of the last sample too", param="voice")
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(PCM16_BYTES)
        wav.setframerate(sample_rate_hz)
        wav.writeframes(pcm)
    return file.getvalue()
