"""What the Wyoming door answers to `describe`: one program with the voices that are there now."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import metadata

from wyoming.info import Attribution, Info, TtsProgram, TtsVoice

from gateway.host import Host
from gateway.voices.directory import StoredVoice
from gateway.voices.profile import NO_PROFILE
from gateway.voices.registry import NamedVoice

PROGRAM = "cosydit"
_ATTRIBUTION = Attribution(name=PROGRAM, url="")
_FALLBACK_LANGUAGE = "en"
"""Language of a voice whose transcript does not tell one: clients leave out voices without languages."""


def describe(host: Host, languages: Sequence[str] = ()) -> Info:
    """List the voices.

    Args:
        host: has them.
        languages: that each voice speaks, as BCP 47 tags; none: each speaks its own, which is that of its transcript
            where nobody named it.
    """
    voices = [_voice(host, host.voices.find(name), languages) for name in host.voices.names]
    program = TtsProgram(
        name=PROGRAM,
        attribution=_ATTRIBUTION,
        installed=True,
        description="Streaming text to speech",
        version=_version(),
        voices=voices,
        supports_synthesize_streaming=True,
    )
    return Info(tts=[program])


def _voice(host: Host, voice: NamedVoice | StoredVoice, languages: Sequence[str]) -> TtsVoice:
    profile = voice.profile if isinstance(voice, NamedVoice) else NO_PROFILE
    about = profile.description
    own = profile.language or host.pipeline.front_end.language_of(voice.transcript)
    return TtsVoice(
        name=voice.name,
        attribution=_ATTRIBUTION,
        installed=True,
        # Home Assistant shows the description in place of the name.
        description=f"{voice.name}: {about}" if about else voice.name,
        version=None,
        languages=list(languages) or [own or _FALLBACK_LANGUAGE],
    )


@cache
def _version() -> str | None:
    try:
        return metadata.version("cosydit")
    except metadata.PackageNotFoundError:
        return None
