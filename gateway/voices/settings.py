"""The gateway's settings that concern voices: where they lie, what callers may create, and their other names."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gateway.core import VoiceService
from gateway.errors import ConfigError
from gateway.ledger import CallerLedger
from gateway.voices.directory import Viewer, VoiceDirectory
from gateway.voices.inline_budget import InlineVoiceBudget
from gateway.voices.profile import VoiceAliases
from gateway.voices.registry import VoiceRegistry, load_voices
from gateway.voices.store import CreatedVoices, VoiceLimits
from gateway.voices.transcripts import TranscriptCheck


@dataclass(frozen=True)
class VoiceSettings:
    """Everything but the operator's own voices."""

    created_dir: Path | None = None
    """Folder of created voices; None: callers can't create voices."""
    limits: VoiceLimits = field(default_factory=VoiceLimits)
    aliases: VoiceAliases = field(default_factory=VoiceAliases)
    is_shared: bool = False
    """Whether every key may speak in every created voice; each stays its owner's."""


def open_registry(
    voices_dir: Path,
    settings: VoiceSettings,
    token2wav: VoiceService,
    ledger: CallerLedger,
    key_of_call: Callable[[], str | None] = lambda: None,
    transcripts: TranscriptCheck | None = None,
) -> VoiceRegistry:
    """Find all voices; to be called inside the running event loop.

    Args:
        ledger: counts the voices that callers bring and create, and knows those that are registered.
        key_of_call: tells which key the call under way came with; see `Viewer.key`.

    Raises:
        ConfigError: a directory that can't be used; see `load_voices` and `VoiceDirectory`.
    """
    named, store = load_voices(voices_dir), None
    if settings.created_dir is not None:
        directory = VoiceDirectory(settings.created_dir)
        store = CreatedVoices(directory, token2wav, settings.limits, ledger, transcripts=transcripts)
    parts = (settings.aliases, lambda: Viewer(key_of_call(), settings.is_shared), InlineVoiceBudget(ledger))
    return VoiceRegistry(token2wav, named, store, *parts, transcripts, ledger)


def voice_settings(args: argparse.Namespace) -> VoiceSettings:
    """Read the settings.

    Raises:
        ConfigError: an alias that can't be read.
    """
    return VoiceSettings(
        args.created_voices_dir,
        aliases=VoiceAliases(_read_aliases(args.voice_alias), not args.no_openai_voices),
        is_shared=args.share_created_voices,
    )


def _read_aliases(texts: Sequence[str]) -> dict[str, str]:
    aliases: dict[str, str] = {}
    for text in texts:
        alias, _, voice = (part.strip() for part in text.partition("="))
        if not alias or not voice or alias in aliases:
            raise ConfigError(f"got --voice-alias {text!r}, expected ALIAS=VOICE, each alias once")
        aliases[alias] = voice
    return aliases
