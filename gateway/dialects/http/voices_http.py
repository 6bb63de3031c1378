"""Voices over HTTP: create, list, show and delete under /v1/audio/voices.

The form and the answers carry OpenAI's fields (`audio.voice`) and vllm-omni's (`uploaded_voices`, `ref_text`) side by
side, so that clients of either find theirs. Parses and refuses; everything else is the registry's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import ceil
from typing import Any

from fastapi.responses import JSONResponse, Response
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from gateway.dialects.common.answers import Handler, answering
from gateway.dialects.common.multipart import MEDIA_TYPE, FormPart, FormTooLargeError, read_form
from gateway.dialects.openai.errors import error_response
from gateway.errors import (
    GatewayError,
    InvalidRequestError,
    UnsupportedOptionError,
    VoiceExistsError,
    VoiceRateError,
    VoiceStoreFullError,
)
from gateway.host import Host
from gateway.voices.directory import StoredVoice
from gateway.voices.draft import VoiceDraft, too_large
from gateway.voices.registry import NamedVoice, VoiceRegistry

logger = logging.getLogger(__name__)

PATH = "/v1/audio/voices"

_MAX_FIELDS = 16
_OTHER_FIELDS_BYTES = 64 * 1024
"""Most bytes of a form's fields other than the recording."""
_RECORDINGS = ("audio_sample", "file")
_TEXTS = {
    "name": "name",
    "consent": "consent",
    "transcript": "transcript",
    "ref_text": "transcript",
    "description": "description",
    "speaker_description": "description",
    "type": "type",
    "shared": "shared",
}
"""Field of a form -> what it means; the second names are vllm-omni's."""
_SHARED = ("false", "true")
_FROM_RECORDING = "audio_sample"
"""OpenAI's `type` of a voice made from a recording, the only one that we make."""
_FINAL_ERRORS = (VoiceExistsError, VoiceStoreFullError)
"""Errors that a repeated request cannot mend, though clients repeat 409 and 429 on their own."""


def routes(host: Callable[[], Host], caller_of: Callable[[Request], str] | None = None) -> list[BaseRoute]:
    """Return the routes, ready to be added to an application.

    Args:
        host: returns the host, whose voices are asked, once the application has started.
        caller_of: names the caller whose creations are counted; by default its address.
    """
    voices = _Voices(lambda: host().voices, caller_of or _address)
    return [
        Route(PATH, _answering(voices.list), methods=["GET"]),
        Route(PATH, _answering(voices.create), methods=["POST"]),
        Route(f"{PATH}/{{voice}}", _answering(voices.show), methods=["GET"]),
        Route(f"{PATH}/{{voice}}", _answering(voices.delete), methods=["DELETE"]),
        Route(f"{PATH}/{{voice}}/share", _answering(voices.share), methods=["POST", "DELETE"]),
    ]


class _Voices:
    """The handlers."""

    def __init__(self, registry: Callable[[], VoiceRegistry], caller_of: Callable[[Request], str]) -> None:
        self._registry = registry
        self._caller_of = caller_of

    async def list(self, request: Request) -> Response:
        registry = self._registry()
        uploaded = [_upload_of(voice, registry.is_owned(voice)) for voice in registry.created]
        details = [{**_summary_of(voice), "aliases": registry.aliases_of(voice.name)} for voice in registry.listed]
        answer = {"voices": registry.names, "details": details, "uploaded_voices": uploaded}
        return JSONResponse({**answer, "aliases": registry.aliases})

    async def create(self, request: Request) -> Response:
        registry = self._registry()
        registry.admit_creation(self._caller_of(request))
        voice = await registry.create(await _read_draft(request, registry.max_audio_bytes))
        return JSONResponse({**_created_object(voice, True), "success": True, "voice": _upload_of(voice, True)})

    async def show(self, request: Request) -> Response:
        registry = self._registry()
        voice = registry.find(request.path_params["voice"])
        if isinstance(voice, NamedVoice):
            return JSONResponse({"object": "audio.voice", **_summary_of(voice), "ref_text": voice.transcript})
        return JSONResponse(_created_object(voice, registry.is_owned(voice)))

    async def share(self, request: Request) -> Response:
        voice = await self._registry().share(request.path_params["voice"], request.method == "POST")
        return JSONResponse(_created_object(voice, True))

    async def delete(self, request: Request) -> Response:
        voice = await self._registry().delete(request.path_params["voice"])
        message = f"voice {voice.name!r} was deleted"
        answer = {"object": "audio.voice", "id": voice.id, "deleted": True, "success": True, "message": message}
        return JSONResponse(answer)


def _answering(handler: Handler) -> Handler:
    return answering(handler, _refusal)


def _refusal(error: GatewayError) -> Response:
    logger.info("voices: %s: %s", error.code, error)
    response = error_response(error)
    if isinstance(error, VoiceRateError):
        response.headers["retry-after"] = str(ceil(error.retry_after_s))
    if isinstance(error, _FINAL_ERRORS):
        response.headers["x-should-retry"] = "false"
    return response


async def _read_draft(request: Request, max_audio_bytes: int) -> VoiceDraft:
    content_type = request.headers.get("content-type", "")
    if not content_type.lower().startswith(MEDIA_TYPE):
        got = f"got content type {content_type!r}, and a voice is created from a recording: send {MEDIA_TYPE}"
        raise UnsupportedOptionError(f"{got}; {_EXPECTED_FORM}")
    try:
        parts = await read_form(content_type, request.stream(), max_audio_bytes + _OTHER_FIELDS_BYTES, _MAX_FIELDS)
    except FormTooLargeError as error:
        raise too_large(max_audio_bytes) from error
    return _draft_of(parts)


def _draft_of(parts: list[FormPart]) -> VoiceDraft:
    texts: dict[str, str] = {}
    recordings: list[FormPart] = []
    for part in parts:
        if part.name in _RECORDINGS and part.is_file and not recordings:
            recordings.append(part)
        elif part.name in _TEXTS and not part.is_file and _TEXTS[part.name] not in texts:
            texts[_TEXTS[part.name]] = part.text()
        else:
            raise InvalidRequestError(f"{_mistake(part)}; {_EXPECTED_FORM}", param=part.name)
    if texts.pop("type", _FROM_RECORDING) != _FROM_RECORDING:
        raise UnsupportedOptionError(f"only voices of type {_FROM_RECORDING!r} can be created", param="type")
    shared = texts.pop("shared", _SHARED[False])
    if shared not in _SHARED:
        raise InvalidRequestError(f"got shared {shared[:10]!r}, expected true or false", param="shared")
    needed = {"name": "name" in texts, "consent": "consent" in texts, _RECORDINGS[0]: bool(recordings)}
    missing = [field for field, is_there in needed.items() if not is_there]
    if missing:
        raise InvalidRequestError(f"the form lacks {', '.join(missing)}; {_EXPECTED_FORM}", param=missing[0])
    return VoiceDraft(
        audio=bytes(recordings[0].data), media_type=recordings[0].media_type, is_shared=shared == _SHARED[True], **texts
    )


_EXPECTED_FORM = (
    "expected one file audio_sample (or file) and the texts name, consent and, optional, transcript (or ref_text), "
    "description (or speaker_description) and shared"
)


def _mistake(part: FormPart) -> str:
    if part.name not in (*_RECORDINGS, *_TEXTS):
        return f"got an unknown field {part.name!r}"
    if part.is_file != (part.name in _RECORDINGS):
        return f"{part.name} is a {'file' if part.is_file else 'text'}"
    return f"{part.name} came twice"


def _created_object(voice: StoredVoice, is_owned: bool) -> dict[str, Any]:
    """Describe a created voice as OpenAI does, with what else we know of it."""
    return {"object": "audio.voice", "type": _FROM_RECORDING, **_upload_of(voice, is_owned), **_summary_of(voice)}


def _summary_of(voice: NamedVoice | StoredVoice) -> dict[str, Any]:
    """Say what a listener wants to know of a voice: its description and, if they are known, gender and language."""
    voice_id = voice.name if isinstance(voice, NamedVoice) else voice.id
    return {"id": voice_id, "name": voice.name, "description": "", **voice.profile.facts}


def _upload_of(voice: StoredVoice, is_owned: bool) -> dict[str, Any]:
    """Describe a created voice as vllm-omni does, with its id and length; consent and transcript for its owner."""
    described = {
        "id": voice.id,
        "name": voice.name,
        "created_at": voice.created_at,
        "mime_type": voice.media_type,
        "file_size": voice.audio_bytes,
        "seconds": voice.seconds,
        "shared": voice.is_shared,
    }
    optional = {"speaker_description": voice.description, "warning": voice.warning}
    if is_owned:
        optional |= {"consent": voice.consent, "ref_text": voice.transcript}
    return described | {name: text for name, text in optional.items() if text}


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""
