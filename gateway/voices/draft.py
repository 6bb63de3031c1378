"""A voice as it comes from a caller, to be created or along with a request: the rules for both. Pure.

Whether the recording itself will do (readable, long enough, not silent) is for token2wav to say.
"""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from dataclasses import dataclass, replace

from gateway.audio.codecs import PCM16_BYTES, wav_header
from gateway.core import InlineVoice
from gateway.errors import InvalidRequestError, InvalidVoicePromptError, UnsupportedOptionError, UploadTooLargeError
from gateway.voices.directory import VOICE_ID

MAX_NAME_CHARACTERS = 64
MAX_TRANSCRIPT_CHARACTERS = 2000
"""Most characters of a transcript: far more than anybody says in the longest prompt."""
MAX_CONSENT_CHARACTERS = 2000
MAX_DESCRIPTION_CHARACTERS = 500

_NAME_MARKS = " .-_"
"""Characters of names beside letters, marks and digits of any script; none is special in a path, a URL or a list."""
_MEDIA_TYPE = re.compile(r"[a-z]+/[a-z0-9.+\-]{1,64}")


@dataclass(frozen=True)
class VoiceDraft:
    """A voice to be."""

    name: str
    audio: bytes
    """A recording in any format that token2wav or PyAV reads; see `gateway.voices.recordings`."""
    consent: str
    """Name of the person who allowed the voice, or the id of that consent elsewhere."""
    transcript: str = ""
    """Transcript of the recording; without it the LLM can't continue from the recording, only the timbre is taken."""
    description: str = ""
    media_type: str = ""
    is_shared: bool = False
    """Whether other keys may speak in it."""


def checked_draft(draft: VoiceDraft, max_audio_bytes: int) -> VoiceDraft:
    """Return the draft with its texts tidied.

    Raises:
        InvalidRequestError: a name or text that can't be kept.
        InvalidVoicePromptError: there is no recording.
        UploadTooLargeError: the recording is too large.
    """
    if not draft.audio:
        raise InvalidVoicePromptError("the recording is empty; upload 3 to 10 seconds of speech", param="audio_sample")
    if len(draft.audio) > max_audio_bytes:
        raise too_large(max_audio_bytes)
    media_type = draft.media_type.partition(";")[0].strip().lower()
    return replace(
        draft,
        name=checked_name(draft.name),
        consent=checked_text("consent", draft.consent, MAX_CONSENT_CHARACTERS, is_required=True),
        transcript=checked_text("transcript", draft.transcript, MAX_TRANSCRIPT_CHARACTERS),
        description=checked_text("description", draft.description, MAX_DESCRIPTION_CHARACTERS),
        media_type=media_type if _MEDIA_TYPE.fullmatch(media_type) else "",
    )


def checked_name(name: str) -> str:
    """Return a voice's name as it is kept.

    Raises:
        InvalidRequestError: it can't be one.
    """
    tidy = unicodedata.normalize("NFC", name).strip()
    if not _is_name(tidy) or len(tidy) > MAX_NAME_CHARACTERS:
        raise InvalidRequestError(
            f"got the name {name[:MAX_NAME_CHARACTERS]!r}, expected 1 to {MAX_NAME_CHARACTERS} letters, digits, blanks "
            "and . - _, beginning with a letter or digit",
            param="name",
        )
    if VOICE_ID.fullmatch(tidy):
        raise InvalidRequestError(f"got the name {tidy!r}, which looks like an id; choose another", param="name")
    return tidy


def plain_form(name: str) -> str:
    """Return what a reader takes for the same name: in small letters, of any width, without marks that few see."""
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", name).casefold())
    return "".join(letter for letter in apart if unicodedata.category(letter)[0] not in "MC")


def checked_text(what: str, text: str, max_characters: int, *, is_required: bool = False) -> str:
    """Return a text as it is kept with a voice.

    Raises:
        InvalidRequestError: too long, missing, or no plain text; `what` names it.
    """
    tidy = text.strip()
    if is_required and not tidy:
        raise InvalidRequestError(f"{what} is missing; say who allowed this voice to be made", param=what)
    if len(tidy) > max_characters:
        got = f"{what} has {len(tidy)} characters"
        raise InvalidRequestError(f"{got}, expected at most {max_characters}; shorten it", param=what)
    if any(unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t" for character in tidy):
        raise InvalidRequestError(f"{what} holds control characters or lone surrogates; send plain text", param=what)
    return tidy


def too_large(max_audio_bytes: int) -> UploadTooLargeError:
    """Make the error of a recording that passes the limit."""
    got = f"the recording passes the limit of {max_audio_bytes} bytes"
    return UploadTooLargeError(f"{got}; upload 3 to 10 seconds of speech", param="audio_sample")


def _is_name(text: str) -> bool:
    kinds = [unicodedata.category(character)[0] for character in text]
    fits = all(kind in "LMN" or character in _NAME_MARKS for kind, character in zip(kinds, text, strict=True))
    return bool(kinds) and kinds[0] in "LN" and fits


MAX_PROMPT_BYTES = 10 * 1024 * 1024
"""Most bytes of a recording; 10 seconds of 24-bit stereo at 48 kHz have 3 MB."""
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


def voice_in_base64(ref_audio: str, transcript: str) -> InlineVoice:
    """Make a voice from an audio file in base64, bare or as a `data:` URL.

    Raises:
        UnsupportedOptionError: it is an address.
        InvalidRequestError: it is not base64; and see `prompt_voice`.
    """
    scheme, colon, rest = ref_audio.partition(":")
    if colon and scheme != "data":
        raise UnsupportedOptionError("ref_audio is an address; send the recording itself in base64", param="ref_audio")
    try:
        audio = base64.b64decode(rest.partition(",")[2] if colon else ref_audio, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidVoicePromptError("ref_audio is not base64; send a file's bytes in base64") from error
    return prompt_voice(audio, transcript)


def wav_of_pcm16(pcm: bytes, sample_rate_hz: int, channels: int = 1) -> bytes:
    """Make a WAV file of signed 16-bit little endian samples, those of several channels in turn.

    Raises:
        InvalidVoicePromptError: no whole number of samples, or an odd rate.
    """
    if not _MIN_RATE_HZ <= sample_rate_hz <= _MAX_RATE_HZ:
        got = f"got a voice prompt at {sample_rate_hz} Hz, expected {_MIN_RATE_HZ} to {_MAX_RATE_HZ}"
        raise InvalidVoicePromptError(f"{got}; give the rate, or send a WAV file", param="voice")
    if len(pcm) % PCM16_BYTES:
        got = f"got a voice prompt of {len(pcm)} bytes, expected 16-bit samples"
        raise InvalidVoicePromptError(f"{got}; send all bytes of the last sample too", param="voice")
    return wav_header(sample_rate_hz, len(pcm), channels) + pcm
