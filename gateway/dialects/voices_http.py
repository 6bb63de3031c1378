"""Voices over HTTP: create, list, show and delete under /v1/audio/voices.

The form and the answers carry OpenAI's fields (`audio.voice`) and vllm-omni's (`uploaded_voices`, `ref_text`) side by
side, so that clients of either find theirs. Parses and refuses; everything else is the registry's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import File, Form, UploadFile
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import UploadFile as Recording
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.routing import BaseRoute

from gateway.access.caller import current_caller
from gateway.dialects.endpoints import Door, Endpoint, a_voice, voices_of
from gateway.errors import InvalidRequestError, UnsupportedOptionError
from gateway.voices.directory import StoredVoice
from gateway.voices.draft import VoiceDraft, too_large
from gateway.voices.registry import NamedVoice

PATH = "/v1/audio/voices"
MEDIA_TYPE = "multipart/form-data"
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


async def list_voices(request: Request) -> Response:
    """List the voices."""
    voices = voices_of(request)
    uploaded = [_upload_of(voice, voices.is_owned(voice)) for voice in voices.created]
    aliases = voices.aliases
    details = [
        {**_summary_of(voice), "aliases": [alias for alias, name in aliases.items() if name == voice.name]}
        for voice in voices.listed
    ]
    answer = {"voices": voices.names, "details": details, "uploaded_voices": uploaded, "aliases": aliases}
    return JSONResponse(answer)


async def create(request: Request) -> Response:
    """Create a voice from the form's recording."""
    voices = voices_of(request)
    voices.admit_creation(current_caller().name)
    voice = await voices.create(await _read_draft(request, voices.limits.max_audio_bytes))
    return JSONResponse({**_created_object(voice, True), "success": True, "voice": _upload_of(voice, True)})


async def show(request: Request) -> Response:
    """Describe a voice."""
    voices = voices_of(request)
    voice = voices.find(request.path_params["voice"])
    if isinstance(voice, NamedVoice):
        return JSONResponse({"object": "audio.voice", **_summary_of(voice), "ref_text": voice.transcript})
    return JSONResponse(_created_object(voice, voices.is_owned(voice)))


async def share(request: Request) -> Response:
    """Share a created voice, or keep it from others again."""
    voice = await voices_of(request).share(request.path_params["voice"], request.method == "POST")
    return JSONResponse(_created_object(voice, True))


async def delete(request: Request) -> Response:
    """Delete a created voice."""
    voice = await voices_of(request).delete(request.path_params["voice"])
    message = f"voice {voice.name!r} was deleted"
    answer = {"object": "audio.voice", "id": voice.id, "deleted": True, "success": True, "message": message}
    return JSONResponse(answer)


async def _read_draft(request: Request, max_audio_bytes: int) -> VoiceDraft:
    content_type = request.headers.get("content-type", "")
    if not content_type.lower().startswith(MEDIA_TYPE):
        got = f"got content type {content_type!r}, and a voice is created from a recording: send {MEDIA_TYPE}"
        raise UnsupportedOptionError(f"{got}; {_EXPECTED_FORM}")
    try:
        form = await _FormParser(request, max_audio_bytes).parse()
    except MultiPartException as error:
        raise InvalidRequestError(f"the form is damaged ({error.message}); send {MEDIA_TYPE}") from error
    try:
        return await _draft_of(form.multi_items())
    finally:
        await form.close()


class _FormParser(MultiPartParser):
    """Reads a form into memory, and not into temporary files, because it carries recordings of people."""

    def __init__(self, request: Request, max_audio_bytes: int) -> None:
        self.spool_max_size = max_audio_bytes + _OTHER_FIELDS_BYTES
        self._max_audio_bytes, self._has_ended = max_audio_bytes, False
        super().__init__(request.headers, self._bounded(request), max_files=_MAX_FIELDS, max_fields=_MAX_FIELDS)

    def on_end(self) -> None:
        self._has_ended = True

    async def _bounded(self, request: Request) -> AsyncGenerator[bytes, None]:
        left = self.spool_max_size
        async for piece in request.stream():
            left -= len(piece)
            if left < 0:
                raise too_large(self._max_audio_bytes)
            yield piece
        if not self._has_ended:
            raise InvalidRequestError("the form is cut: its closing boundary is missing; send all of it")


async def _draft_of(parts: list[tuple[str, Recording | str]]) -> VoiceDraft:
    texts: dict[str, str] = {}
    recordings: list[Recording] = []
    for name, part in parts:
        if isinstance(part, Recording) and name in _RECORDINGS and not recordings:
            recordings.append(part)
        elif isinstance(part, str) and name in _TEXTS and _TEXTS[name] not in texts:
            texts[_TEXTS[name]] = part
        else:
            raise InvalidRequestError(f"{_mistake(name, part)}; {_EXPECTED_FORM}", param=name)
    if texts.pop("type", _FROM_RECORDING) != _FROM_RECORDING:
        raise UnsupportedOptionError(f"only voices of type {_FROM_RECORDING!r} can be created", param="type")
    shared = texts.pop("shared", _SHARED[False])
    if shared not in _SHARED:
        raise InvalidRequestError(f"got shared {shared[:10]!r}, expected true or false", param="shared")
    needed = {"name": "name" in texts, "consent": "consent" in texts, _RECORDINGS[0]: bool(recordings)}
    missing = [field for field, is_there in needed.items() if not is_there]
    if missing:
        raise InvalidRequestError(f"the form lacks {', '.join(missing)}; {_EXPECTED_FORM}", param=missing[0])
    audio, media_type = await recordings[0].read(), recordings[0].content_type or ""
    return VoiceDraft(audio=audio, media_type=media_type, is_shared=shared == _SHARED[True], **texts)


_EXPECTED_FORM = (
    "expected one file audio_sample (or file) and the texts name, consent and, optional, transcript (or ref_text), "
    "description (or speaker_description) and shared"
)


def _mistake(name: str, part: Recording | str) -> str:
    if name not in (*_RECORDINGS, *_TEXTS):
        return f"got an unknown field {name!r}"
    is_file = isinstance(part, Recording)
    if is_file != (name in _RECORDINGS):
        return f"{name} is a {'file' if is_file else 'text'}"
    return f"{name} came twice"


def _created_object(voice: StoredVoice, is_owned: bool) -> dict[str, Any]:
    """Describe a created voice as OpenAI does, with what else we know of it."""
    return {"object": "audio.voice", "type": _FROM_RECORDING, **_upload_of(voice, is_owned), **_summary_of(voice)}


def _summary_of(voice: NamedVoice | StoredVoice) -> dict[str, Any]:
    """Say what a listener wants to know of a voice: its description and, if they are known, gender and language."""
    return {"id": voice.id, "name": voice.name, "description": "", **voice.profile.facts}


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


def _a_recording(
    name: Annotated[str, Form(description="What the voice is called: 1 to 64 letters, digits, blanks and . - _")],
    consent: Annotated[str, Form(description="Who agreed, and when; kept with the voice.")],
    audio_sample: Annotated[
        UploadFile, File(description="A recording of one speaker, 3 to 10 seconds are best (or `file`).")
    ],
    transcript: Annotated[
        str, Form(description="What the recording says (or `ref_text`); without it only the timbre is used.")
    ] = "",
    description: Annotated[str, Form(description="For people (or `speaker_description`).")] = "",
) -> None: ...


_UPLOADED = {
    "id": "voice_0123456789abcdef01234567",
    "name": "eva",
    "created_at": 0,
    "consent": "Eva, 3 May",
    "mime_type": "audio/wav",
    "file_size": 96044,
    "seconds": 3.0,
}
_VOICE = {"id": "default", "name": "default", "description": "A man, calm and clear, American English."}
_CREATED = {"object": "audio.voice", **_UPLOADED}
_DELETED = {"object": "audio.voice", "id": _UPLOADED["id"], "deleted": True, "success": True, "message": ""}
_LIST = {"voices": ["default"], "details": [{**_VOICE, "aliases": ["alloy"]}], "uploaded_voices": [_UPLOADED]}
_MADE = {"object": "audio.voice", "type": "audio_sample", **_UPLOADED, "success": True, "voice": _UPLOADED}
_ONE = f"{PATH}/{{voice}}"
_OURS = Door.VOICES

ROUTES: list[BaseRoute] = [
    Endpoint("GET", PATH, list_voices, _OURS, "List the voices and their aliases.", example=_LIST),
    Endpoint(
        *("POST", PATH, create, _OURS),
        "Create a voice from a recording; needs `--created-voices-dir`.",
        takes=_a_recording,
        example=_MADE,
    ),
    Endpoint("GET", _ONE, show, _OURS, "Show a voice.", takes=a_voice, example={"object": "audio.voice", **_VOICE}),
    Endpoint("DELETE", _ONE, delete, _OURS, "Delete a created voice.", takes=a_voice, example=_DELETED),
    *(
        Endpoint(method, f"{_ONE}/share", share, _OURS, summary, takes=a_voice, example=_CREATED)
        for method, summary in (
            ("POST", "Let every key speak in a created voice."),
            ("DELETE", "Let only its owner's key speak in it again."),
        )
    ),
]
