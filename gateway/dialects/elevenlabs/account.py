"""Answers the other requests of ElevenLabs' clients: the voices, one voice, and the account. Nothing here speaks.

Characters are not counted here (an operator limits a key's streams and seconds of audio), so that a client which looks
at what is left of its characters finds a limit that it never reaches.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import JSONResponse, Response
from starlette.requests import Request
from starlette.routing import BaseRoute

from gateway.access.caller import current_caller
from gateway.dialects.endpoints import Door, Endpoint, a_voice, voices_of
from gateway.voices.directory import StoredVoice
from gateway.voices.registry import NamedVoice, VoiceRegistry

VOICES_PATH, SEARCH_PATH = "/v1/voices", "/v2/voices"
USER_PATH = "/v1/user"
TIER = "self_hosted"
UNLIMITED_CHARACTERS = 2**31 - 1
"""Character limit told to clients: the largest that clients of 32 bits read."""


async def voices(request: Request) -> Response:
    """List the voices."""
    return JSONResponse({"voices": _found(voices_of(request), "")})


async def search(request: Request) -> Response:
    """List the voices whose names have something in them."""
    found = _found(voices_of(request), request.query_params.get("search", ""))
    return JSONResponse({"voices": found, "has_more": False, "total_count": len(found), "next_page_token": None})


async def voice(request: Request) -> Response:
    """Describe one voice."""
    return JSONResponse(voice_object(voices_of(request).find(request.path_params["voice"])))


async def user(request: Request) -> Response:
    """Tell who asks."""
    caller = current_caller().name
    answer = {
        "user_id": caller,
        "workspace_id": TIER,
        "first_name": caller,
        "subscription": _subscription(voices_of(request)),
        "is_new_user": False,
        "can_use_delayed_payment_methods": False,
        "is_onboarding_completed": True,
        "is_onboarding_checklist_completed": True,
        "created_at": 0,
        "seat_type": "workspace_member",
    }
    return JSONResponse(answer)


async def subscription(request: Request) -> Response:
    """Tell what is left of the characters."""
    return JSONResponse(_subscription(voices_of(request)) | {"open_invoices": [], "has_open_invoices": False})


def voice_object(voice: NamedVoice | StoredVoice) -> dict[str, Any]:
    """Describe a voice as ElevenLabs does."""
    labels = dict(voice.profile.facts)
    described: dict[str, Any] = {
        "voice_id": voice.id,
        "name": voice.name,
        "description": labels.pop("description", None),
        "labels": labels,
        "preview_url": None,
        "available_for_tiers": [],
        "settings": None,
    }
    if isinstance(voice, NamedVoice):
        return described | {"category": "premade"}
    return described | {"category": "cloned", "created_at_unix": voice.created_at}


def _found(registry: VoiceRegistry, wanted: str) -> list[dict[str, Any]]:
    described = map(voice_object, registry.listed)
    return [voice for voice in described if wanted.casefold() in voice["name"].casefold()]


def _subscription(registry: VoiceRegistry) -> dict[str, Any]:
    can_create = registry.limits.max_audio_bytes > 0
    return {
        "tier": TIER,
        "status": "active",
        "character_count": 0,
        "character_limit": UNLIMITED_CHARACTERS,
        "max_credit_limit_extension": "unlimited",
        "can_extend_character_limit": False,
        "allowed_to_extend_character_limit": False,
        "next_character_count_reset_unix": None,
        "voice_slots_used": len(registry.created),
        "voice_limit": registry.limits.max_voices,
        "voice_add_edit_counter": 0,
        "can_extend_voice_limit": False,
        "can_use_instant_voice_cloning": can_create,
        "professional_voice_slots_used": 0,
        "professional_voice_slots_used_in_workspace": 0,
        "professional_voice_limit": 0,
        "can_use_professional_voice_cloning": False,
        "currency": None,
        "current_overage": {"amount": "0", "currency": "usd"},
        "billing_period": None,
        "character_refresh_period": None,
    }


_Wanted = Annotated[str, Query(description="Part of a name, in any case; empty: all voices.")]


def _a_search(search: _Wanted = "") -> None: ...


_VOICE = {"voice_id": "default", "name": "default", "category": "premade", "labels": {}}
_FOUND = {"voices": [_VOICE], "has_more": False, "total_count": 1, "next_page_token": None}
_PLAN = {"tier": TIER, "status": "active", "character_count": 0, "character_limit": UNLIMITED_CHARACTERS}
_USER = {"user_id": "anna", "subscription": _PLAN}
_OURS = Door.ELEVENLABS

ROUTES: list[BaseRoute] = [
    Endpoint("GET", VOICES_PATH, voices, _OURS, "List the voices.", example={"voices": [_VOICE]}),
    Endpoint("GET", f"{VOICES_PATH}/{{voice}}", voice, _OURS, "Show a voice.", takes=a_voice, example=_VOICE),
    Endpoint("GET", SEARCH_PATH, search, _OURS, "Find voices by their name.", takes=_a_search, example=_FOUND),
    Endpoint("GET", USER_PATH, user, _OURS, "Say who asks, by the name of its key.", example=_USER),
    Endpoint(
        *("GET", f"{USER_PATH}/subscription", subscription, _OURS),
        "Say what is left of the characters, which are not counted here.",
        example=_PLAN,
    ),
]
