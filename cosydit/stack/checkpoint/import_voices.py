"""Turns the original's voices into files of the gateway's directory of created voices."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import ConfigError, GatewayError, VoiceExistsError
from gateway.voices.directory import OPERATOR, StoredVoice, VoiceDirectory, new_voice_id
from gateway.voices.draft import MAX_CONSENT_CHARACTERS, MAX_TRANSCRIPT_CHARACTERS, checked_name, checked_text
from token2wav_service.checkpoint.family import voice_model_version
from token2wav_service.checkpoint.spk2info import OriginalVoice, UnusableVoice, read_spk2info
from token2wav_service.contract import TOKEN_RATE_HZ
from token2wav_service.voice_file import VoiceFile

_NO_TRANSCRIPT = "no transcript: only the timbre is used; give --tokenizer-dir if the file has its token ids"

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class ImportReport:
    """The outcome for one voice."""

    name: str
    voice_id: str = ""
    note: str = ""
    problem: str | None = None


def import_voices(
    path: Path, out: Path, model_dir: Path, tokenizer_dir: Path | None = None, consent: str = ""
) -> list[ImportReport]:
    """Write a file for every voice of a spk2info.pt that can be used; the features are taken as they are.

    Args:
        out: the gateway's directory of created voices.
        model_dir: the token2wav checkpoint whose feature models made the voices.

    Raises:
        CheckpointError: the file or the checkpoint can't be read.
        ConfigError: `out` or the tokenizer can't be used.
        InvalidRequestError: the note can't be kept.
    """
    voices = read_spk2info(path)
    version = voice_model_version(model_dir)
    decode = _decoder(tokenizer_dir) if tokenizer_dir is not None else None
    directory = VoiceDirectory(out)
    consent = checked_text("consent", consent or f"taken over from {path.name}", MAX_CONSENT_CHARACTERS)
    return [_import(directory, voice, version, decode, consent) for voice in voices]


def _import(
    directory: VoiceDirectory, voice: OriginalVoice | UnusableVoice, version: str, decode: Decode | None, consent: str
) -> ImportReport:
    if isinstance(voice, UnusableVoice):
        return ImportReport(voice.name, problem=voice.reason)
    try:
        transcript = checked_text("transcript", _transcript(voice, decode), MAX_TRANSCRIPT_CHARACTERS)
        stored = StoredVoice(
            id=new_voice_id(),
            name=checked_name(voice.name),
            transcript=transcript,
            consent=consent,
            created_at=int(time.time()),
            seconds=len(voice.prompt_tokens) / TOKEN_RATE_HZ,
        )
        if directory.find(stored.name, OPERATOR) is not None:
            raise VoiceExistsError(f"there is a voice {stored.name!r} in the directory already", param="name")
        file = VoiceFile(version, voice.prompt_tokens, voice.prompt_mel, voice.speaker_embedding)
        directory.write(stored, file)
    except GatewayError as error:
        return ImportReport(voice.name, problem=str(error))
    return ImportReport(voice.name, stored.id, note="" if transcript else _NO_TRANSCRIPT)


def _transcript(voice: OriginalVoice, decode: Decode | None) -> str:
    if voice.transcript is not None:
        return voice.transcript
    return decode(voice.transcript_ids) if decode is not None else ""


def _decoder(tokenizer_dir: Path) -> Decode:
    from tokenizers import Tokenizer

    path = tokenizer_dir / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as err:  # the library raises plain Exception
        raise ConfigError(f"{path} can't be read as a tokenizer ({err}); name the LLM's directory") from err
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))
