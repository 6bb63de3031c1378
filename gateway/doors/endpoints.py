"""Every address of the HTTP door in one table: its purpose, its input and its answers.

The OpenAPI document and the documentation's list are made from it; tests compare it with the application's routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pydantic import BaseModel

from gateway.audio.formats import OPENAI_FORMATS
from gateway.dialects.elevenlabs import account, ws
from gateway.dialects.elevenlabs import http as elevenlabs_http
from gateway.dialects.http import voices_http, web_page
from gateway.dialects.openai import http as openai_http
from gateway.dialects.openai import request as openai_request
from gateway.dialects.speech_ws import socket as speech_ws

WEBSOCKET = "WEBSOCKET"
"""Value of `method` for a WebSocket."""
DOCUMENT_PATH = "/openapi.json"


class Door(str, Enum):
    """Whose protocol it is."""

    OPENAI = "OpenAI"
    VOICES = "Voices"
    ELEVENLABS = "ElevenLabs"
    OMNI = "vllm-omni, sglang-omni"
    GATEWAY = "Gateway"
    PAGE = "Pages"


@dataclass(frozen=True)
class Form:
    """A multipart/form-data body."""

    texts: Mapping[str, str]
    """Text fields of the form -> meaning."""
    files: Mapping[str, str]
    required: tuple[str, ...]


@dataclass(frozen=True)
class Endpoint:
    """One method of one address."""

    method: str
    path: str
    door: Door
    summary: str
    body: type[BaseModel] | Form | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    """Option of the URL -> meaning; all are optional."""
    media_types: tuple[str, ...] = ("application/json",)
    """Media types of the answer."""
    example: Any = None
    """Example of an answer in JSON; every answer has the same types."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Header of the answer -> meaning."""
    speaks: bool = False
    """Whether the endpoint asks both services."""


SPEECH_HEADERS = {
    "x-request-id": "The request's id in logs: the caller's own `x-request-id`, or one that the gateway made.",
    "x-seed": "The seed that the speech tokens were drawn with.",
    "x-sample-rate": "Samples a second of the audio.",
    "x-ignored-fields": "Names of fields of the body that changed nothing; only there if any did.",
    "x-language-warning": "The text is in a language that the checkpoint does not declare; only there if it is.",
    "x-voice-warning": "What may be wrong with the voice's recording or transcript; only there if anything is.",
    "x-speech-warning": "How the speech left its text; only there if that shows before the answer begins.",
}
_AUDIO = tuple(dict.fromkeys(kind.media_type for kind in OPENAI_FORMATS.values()))
_TEXT = ("text/plain",)
_MODEL = {"id": openai_http.MODEL_ID, "object": "model", "created": 0, "owned_by": openai_http.MODEL_ID}
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
_OBJECT = {"object": "audio.voice", **_VOICE}
_CREATED = {"object": "audio.voice", **_UPLOADED}
_DELETED = {"object": "audio.voice", "id": _UPLOADED["id"], "deleted": True, "success": True, "message": ""}
_VOICES = {"voices": ["default"], "details": [{**_VOICE, "aliases": ["alloy"]}], "uploaded_voices": [_UPLOADED]}
_ELEVENLABS_VOICE = {"voice_id": "default", "name": "default", "category": "premade", "labels": {}}
_SUBSCRIPTION = {"tier": account.TIER, "status": "active", "character_count": 0, "character_limit": 2147483647}
_ALIGNMENT = {
    "characters": ["H", "i"],
    "character_start_times_seconds": [0.0, 0.1],
    "character_end_times_seconds": [0.1, 0.2],
}
_TIMED = {"audio_base64": "UklGRg==", "alignment": _ALIGNMENT, "normalized_alignment": _ALIGNMENT}

_OUTPUT_FORMAT = {"output_format": "such as `mp3_44100_128` (default), `pcm_24000`, `opus_48000_64`, `ulaw_8000`"}
_SPEECH_QUERY = {
    **_OUTPUT_FORMAT,
    "language_code": "BCP 47 tag; by default guessed from the text",
    "apply_text_normalization": "`auto` (default), `on` or `off`",
    "seed": "0 to 2**63-1: the same seed and text give the same speech tokens",
    "enable_ssml_parsing": "`true`: the text is SSML, or what may stand in its `<speak>`",
}
_SOCKET_QUERY = {
    **_SPEECH_QUERY,
    "auto_mode": "`true`: a text message is spoken at once; `false` (default): it waits for the schedule or a flush",
    "sync_alignment": "`true`: times count from the context's start; `false` (default): from the alignment before",
    "inactivity_timeout": "seconds without a message after which the socket is closed; 20, at most 180",
}
_VOICE_FORM = Form(
    texts={
        "name": "What the voice is called: 1 to 64 letters, digits, blanks and . - _",
        "consent": "Who agreed, and when; kept with the voice.",
        "transcript": "What the recording says (or `ref_text`); without it only the timbre is used.",
        "description": "For people (or `speaker_description`).",
    },
    files={"audio_sample": "A recording of one speaker, 3 to 10 seconds are best (or `file`)."},
    required=("name", "consent", "audio_sample"),
)

_ELEVENLABS = elevenlabs_http.PATH
_VOICE_PATH = f"{voices_http.PATH}/{{voice}}"
_USER = {"user_id": "anna", "subscription": _SUBSCRIPTION}

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "POST",
        openai_http.PATH,
        Door.OPENAI,
        "Speak a text; the audio is sent while it is made. With `stream_format: sse` in server-sent events.",
        body=openai_request.SpeechBody,
        media_types=(*_AUDIO, "text/event-stream"),
        headers=SPEECH_HEADERS,
        speaks=True,
    ),
    Endpoint(
        "GET",
        openai_http.MODELS_PATH,
        Door.OPENAI,
        "List the models; there is one.",
        example={"object": "list", "data": [_MODEL]},
    ),
    Endpoint("GET", f"{openai_http.MODELS_PATH}/{{model:path}}", Door.OPENAI, "Show the model.", example=_MODEL),
    Endpoint("GET", voices_http.PATH, Door.VOICES, "List the voices and their aliases.", example=_VOICES),
    Endpoint(
        "POST",
        voices_http.PATH,
        Door.VOICES,
        "Create a voice from a recording; needs `--created-voices-dir`.",
        body=_VOICE_FORM,
        example={"object": "audio.voice", "type": "audio_sample", **_UPLOADED, "success": True, "voice": _UPLOADED},
    ),
    Endpoint("GET", _VOICE_PATH, Door.VOICES, "Show a voice.", example=_OBJECT),
    Endpoint("DELETE", _VOICE_PATH, Door.VOICES, "Delete a created voice.", example=_DELETED),
    Endpoint("POST", f"{_VOICE_PATH}/share", Door.VOICES, "Let every key speak in a created voice.", example=_CREATED),
    Endpoint(
        "DELETE", f"{_VOICE_PATH}/share", Door.VOICES, "Let only its owner's key speak in it again.", example=_CREATED
    ),
    Endpoint(
        WEBSOCKET, speech_ws.PATH, Door.OMNI, "Speak texts that are still being written, one utterance after the other."
    ),
    *(
        Endpoint(
            "POST",
            f"{_ELEVENLABS}{below}",
            Door.ELEVENLABS,
            summary,
            body=elevenlabs_http.ElevenLabsSpeechBody,
            query=_SPEECH_QUERY,
            media_types=media_types,
            example=_TIMED if media_types == ("application/json",) else None,
            headers={"request-id": "The request's name in logs."},
            speaks=True,
        )
        for below, summary, media_types in (
            ("", "Speak a text; the audio is sent while it is made.", _AUDIO),
            (
                "/with-timestamps",
                "Speak a text; audio in base64 and the time of each character.",
                ("application/json",),
            ),
            ("/stream", "The same as without `/stream`.", _AUDIO),
            ("/stream/with-timestamps", "Lines of JSON while the audio is made.", ("application/json",)),
        )
    ),
    Endpoint(
        WEBSOCKET,
        f"{ws.PATH}/multi-stream-input",
        Door.ELEVENLABS,
        "Speak texts that are still being written, in several contexts on one socket.",
        query=_SOCKET_QUERY,
    ),
    Endpoint(
        WEBSOCKET,
        f"{ws.PATH}/stream-input",
        Door.ELEVENLABS,
        "Speak one text that is still being written.",
        query=_SOCKET_QUERY,
    ),
    Endpoint("GET", account.VOICES_PATH, Door.ELEVENLABS, "List the voices.", example={"voices": [_ELEVENLABS_VOICE]}),
    Endpoint("GET", f"{account.VOICES_PATH}/{{voice}}", Door.ELEVENLABS, "Show a voice.", example=_ELEVENLABS_VOICE),
    Endpoint(
        "GET",
        account.SEARCH_PATH,
        Door.ELEVENLABS,
        "Find voices by their name.",
        query={"search": "part of a name, in any case; empty: all voices"},
        example={"voices": [_ELEVENLABS_VOICE], "has_more": False, "total_count": 1, "next_page_token": None},
    ),
    Endpoint("GET", account.USER_PATH, Door.ELEVENLABS, "Say who asks, by the name of its key.", example=_USER),
    Endpoint(
        "GET",
        f"{account.USER_PATH}/subscription",
        Door.ELEVENLABS,
        "Say what is left of the characters, which are not counted here.",
        example=_SUBSCRIPTION,
    ),
    Endpoint("GET", "/healthz", Door.GATEWAY, "200 while the door is open.", media_types=_TEXT),
    *(
        Endpoint("GET", path, Door.GATEWAY, "200 while speech can be made, else 503.", media_types=_TEXT)
        for path in ("/readyz", "/health")
    ),
    Endpoint("GET", "/metrics", Door.GATEWAY, "Metrics for Prometheus.", media_types=_TEXT),
    Endpoint("GET", DOCUMENT_PATH, Door.GATEWAY, "This interface as OpenAPI 3.1.", example={"openapi": "3.1.0"}),
    Endpoint("GET", "/", Door.PAGE, "A page to type a text and hear it.", media_types=("text/html",)),
    Endpoint("GET", web_page.API_PATH, Door.PAGE, "A page that shows this interface.", media_types=("text/html",)),
    Endpoint(
        "GET",
        web_page.SETTINGS_PATH,
        Door.PAGE,
        "What the page may offer here.",
        example={"voice_creation": True, "max_recording_bytes": 10485760},
    ),
)
"""All endpoints, except the files of the pages."""
