"""Reads the requests of `nvidia.riva.tts`: what Riva's clients send, and what it means to the pipeline. Pure."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from riva.proto import riva_audio_pb2, riva_tts_pb2

from gateway.audio import OutputFormat, parse_riva_format
from gateway.core import InlineVoice
from gateway.errors import InvalidRequestError, UnsupportedOptionError
from gateway.speech.request import REQUEST_ID, SpeechRequest
from gateway.text import TextOptions
from gateway.text.aliases import MAX_ALIAS, MAX_WORD, NO_PHONEMES, AliasRule
from gateway.text.options import check_counts
from gateway.text.phonemes import CMU, IPA
from gateway.text.styles import Style, style_of
from gateway.voices.draft import prompt_voice, wav_of_pcm16
from gateway.voices.profile import DEFAULT_VOICE
from gateway.voices.recordings import container_of
from token2wav_service.contract import SAMPLE_RATE_HZ

MODEL_NAME = "cosydit"
"""What GetRivaSynthesisConfig calls the only model; voices may be asked for as `cosydit.<voice>`."""
_CLIENTS_LANGUAGE = "en-US"
"""Language that clients send if their users name none."""
_NOT_LATIN_LETTER = re.compile("[^\\W\\d_\u0000-\u024f\u1e00-\u1eff]")
_EMOTIONS = {
    **{name: name for name in ("angry", "calm", "disgusted", "fearful", "happy", "sad")},
    "neutral": "",
    "disgust": "disgusted",
    "pleasantsurprise": "surprised",
    "pleasantsurprised": "surprised",
}
"""Ending of a Riva voice's name, as in `Magpie-Multilingual.EN-US.Aria.Happy` -> the style that it means."""
# RIFF or RF64 (WAV), FLAC, Ogg, MP3 with and without tags.
_FILE_BEGINS = re.compile(rb"RIFF|RF64|fLaC|OggS|ID3|\xff[\xe0-\xff]", re.DOTALL)

HasVoice = Callable[[str], bool]


@dataclass(frozen=True)
class RivaSpeech:
    """What a request asks for."""

    speech: SpeechRequest
    output: OutputFormat
    has_word_times: bool


def read_request(
    request: riva_tts_pb2.SynthesizeSpeechRequest, has_voice: HasVoice, *, takes_phonemes: bool = False
) -> RivaSpeech:
    """Check a request.

    Args:
        request: as it came.
        has_voice: tells whether a voice of that name is there.
        takes_phonemes: whether the LLM reads phonemes.

    Raises:
        InvalidRequestError: a field that can't be served; an unknown voice is refused by the pipeline.
    """
    if request.custom_configuration:
        got = f"custom_configuration has {len(request.custom_configuration)} settings, this model has none"
        raise UnsupportedOptionError(f"{got}; leave it out", param="custom_configuration")
    voice, style = _read_voice(request, has_voice)
    speech = SpeechRequest(
        request.text,
        voice,
        text_options=TextOptions(
            _language(request),
            is_ssml=is_ssml_document(request.text),
            aliases=rules_of_riva(request.custom_dictionary, takes_phonemes=takes_phonemes),
            style=style,
        ),
        request_id=request.id.value if REQUEST_ID.fullmatch(request.id.value) else uuid.uuid4().hex,
        wants_times=request.enable_word_time_offsets,
    )
    return RivaSpeech(speech, _read_format(request), request.enable_word_time_offsets)


def _read_voice(
    request: riva_tts_pb2.SynthesizeSpeechRequest, has_voice: HasVoice
) -> tuple[str | InlineVoice, Style | None]:
    """Return the voice, and the emotion that its name ends in."""
    name, emotion = _parted(request.voice_name, has_voice)
    style = style_of(voice_name=emotion)
    if request.HasField("zero_shot_data"):
        return _read_prompt(request.zero_shot_data), style
    prefix = f"{MODEL_NAME}."
    if name.startswith(prefix) and not has_voice(name):
        name = name.removeprefix(prefix)
    return (DEFAULT_VOICE if name in ("", MODEL_NAME) and not has_voice(name) else name), style


def _parted(name: str, has_voice: HasVoice) -> tuple[str, str]:
    """Part the name of a voice from that of an emotion behind it; a voice of the whole name goes before."""
    voice, _, emotion = name.rpartition(".")
    if has_voice(name) or emotion.lower() not in _EMOTIONS:
        return name, ""
    return voice, _EMOTIONS[emotion.lower()]


def _read_prompt(prompt: riva_tts_pb2.ZeroShotData) -> InlineVoice:
    audio = prompt.audio_prompt
    if not audio or _FILE_BEGINS.match(audio) or container_of(audio):
        return prompt_voice(audio, prompt.transcript)
    if prompt.encoding not in (riva_audio_pb2.LINEAR_PCM, riva_audio_pb2.ENCODING_UNSPECIFIED):
        got = "zero_shot_data.audio_prompt is no audio file and not LINEAR_PCM either"
        raise UnsupportedOptionError(f"{got}; send a WAV file", param="zero_shot_data")
    return prompt_voice(wav_of_pcm16(audio, prompt.sample_rate_hz), prompt.transcript)


def _language(request: riva_tts_pb2.SynthesizeSpeechRequest) -> str | None:
    if request.language_code == _CLIENTS_LANGUAGE and _NOT_LATIN_LETTER.search(request.text):
        return None
    return request.language_code or None


def _read_format(request: riva_tts_pb2.SynthesizeSpeechRequest) -> OutputFormat:
    encoding = request.encoding or riva_audio_pb2.LINEAR_PCM
    names = riva_audio_pb2.AudioEncoding
    name = names.Name(encoding) if encoding in names.values() else str(encoding)
    return parse_riva_format(name, request.sample_rate_hz or SAMPLE_RATE_HZ)


_IPA = re.compile("[\u0250-\u02af\u02b0-\u02ff\u0300-\u036f\u1d00-\u1dbfæðøŋœθβχ]|\\{@?[A-Z]")
"""Letters that only phonetic alphabets have, and the start of Riva's ARPABET in braces."""
_ARPABET = re.compile(r"\{@?([^{}]*)\}")
_MAX_PHONEMES = 10_000
"""Most characters of phonemes of one request: each takes the event loop some three microseconds."""
_MAX_ENTRY = MAX_WORD + MAX_ALIAS + 100
_ENTRY = re.compile(r"(?P<word>\S.*?)(?:\s{2,}|\t)(?P<spoken>\S.*)", re.DOTALL)


def is_ssml_document(text: str) -> bool:
    """Tell whether a text says itself that it is SSML: Riva's clients have no other way to say so."""
    return text.lstrip()[:7].lower() in ("<speak>", "<speak ")


def rules_of_riva(custom_dictionary: str, *, takes_phonemes: bool) -> tuple[AliasRule, ...]:
    """Read Riva's dictionary: entries `word␣␣pronunciation`, with two blanks between, joined by commas.

    Raises:
        InvalidRequestError: an entry of another form.
        UnsupportedOptionError: a pronunciation in phonemes, where the checkpoint reads words only.
    """
    check_counts(0, custom_dictionary.count(","))
    entries = [_entry_of(entry.strip()) for entry in custom_dictionary.split(",") if entry.strip()]
    phonemes = sum(len(spoken) for _, spoken in entries if _IPA.search(spoken))
    if phonemes > _MAX_PHONEMES:
        got = f"custom_dictionary has {phonemes} characters of phonemes, expected at most {_MAX_PHONEMES}"
        raise InvalidRequestError(f"{got}; leave out the words that the text lacks", param="custom_dictionary")
    return tuple(_rule_of(word, spoken, takes_phonemes) for word, spoken in entries)


def _entry_of(entry: str) -> tuple[str, str]:
    found = _ENTRY.fullmatch(entry) if len(entry) <= _MAX_ENTRY else None
    if found is None:
        expected = 'expected a word, two blanks and what is spoken for it, such as "Xiaomi  show me"'
        raise InvalidRequestError(
            f"custom_dictionary: got the entry {entry[:80]!r}, {expected}", param="custom_dictionary"
        )
    return found["word"], found["spoken"].strip()


def _rule_of(word: str, spoken: str, takes_phonemes: bool) -> AliasRule:
    if not _IPA.search(spoken):
        return AliasRule(word, spoken)
    if not takes_phonemes:
        raise UnsupportedOptionError(f"custom_dictionary, {word[:40]!r}: {NO_PHONEMES}", param="custom_dictionary")
    if "{" in spoken:
        return AliasRule(word, " ".join(_ARPABET.findall(spoken)), alphabet=CMU)
    return AliasRule(word, spoken, alphabet=IPA)
