"""Answers the other requests of ElevenLabs' clients: the voices, one voice, and the account. Nothing here speaks.

Characters are not counted here (an operator limits a key's streams and seconds of audio), so that a client which looks
at what is left of its characters finds a limit that it never reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi.responses import JSONResponse, Response
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from gateway.dialects.common.answers import answering
from gateway.dialects.elevenlabs.wire import error_response
from gateway.host import Host
from gateway.voices.directory import StoredVoice
from gateway.voices.registry import NamedVoice, VoiceRegistry

VOICES_PATH, SEARCH_PATH = "/v1/voices", "/v2/voices"
USER_PATH = "/v1/user"
TIER = "self_hosted"
UNLIMITED_CHARACTERS = 2**31 - 1
"""Character limit told to clients: the largest that clients of 32 bits read."""


def routes(host: Callable[[], Host], caller_of: Callable[[Request], str]) -> list[BaseRoute]:
    """Return the routes, ready to be added to an application.

    Args:
        host: returns the host, whose voices are asked, once the application has started.
        caller_of: names the caller.
    """

    async def voices(request: Request) -> Response:
        return JSONResponse({"voices": _found(host().voices, "")})

    async def search(request: Request) -> Response:
        found = _found(host().voices, request.query_params.get("search", ""))
        return JSONResponse({"voices": found, "has_more": False, "total_count": len(found), "next_page_token": None})

    async def voice(request: Request) -> Response:
        return JSONResponse(voice_object(host().voices.find(request.path_params["voice"])))

    async def user(request: Request) -> Response:
        return JSONResponse(_user(caller_of(request), host().voices))

    async def subscription(request: Request) -> Response:
        return JSONResponse(_subscription(host().voices) | {"open_invoices": [], "has_open_invoices": False})

    return [
        Route(VOICES_PATH, answering(voices, error_response), methods=["GET"]),
        Route(f"{VOICES_PATH}/{{voice}}", answering(voice, error_response), methods=["GET"]),
        Route(SEARCH_PATH, answering(search, error_response), methods=["GET"]),
        Route(USER_PATH, answering(user, error_response), methods=["GET"]),
        Route(f"{USER_PATH}/subscription", answering(subscription, error_response), methods=["GET"]),
    ]


def voice_object(voice: NamedVoice | StoredVoice) -> dict[str, Any]:
    """Describe a voice as ElevenLabs does."""
    if isinstance(voice, NamedVoice):
        labels = {name: value for name, value in voice.profile.facts.items() if name != "description"}
        return _object(voice.name, voice.name, "premade", voice.profile.description, labels)
    return _object(voice.id, voice.name, "cloned", voice.description, {}) | {"created_at_unix": voice.created_at}


def _object(voice_id: str, name: str, category: str, description: str, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "voice_id": voice_id,
        "name": name,
        "category": category,
        "description": description or None,
        "labels": labels,
        "preview_url": None,
        "available_for_tiers": [],
        "settings": None,
    }


def _found(registry: VoiceRegistry, wanted: str) -> list[dict[str, Any]]:
    described = map(voice_object, registry.listed)
    return [voice for voice in described if wanted.casefold() in voice["name"].casefold()]


def _user(caller: str, registry: VoiceRegistry) -> dict[str, Any]:
    return {
        "user_id": caller,
        "workspace_id": TIER,
        "first_name": caller,
        "subscription": _subscription(registry),
        "is_new_user": False,
        "can_use_delayed_payment_methods": False,
        "is_onboarding_completed": True,
        "is_onboarding_checklist_completed": True,
        "created_at": 0,
        "seat_type": "workspace_member",
    }


def _subscription(registry: VoiceRegistry) -> dict[str, Any]:
    can_create = registry.max_audio_bytes > 0
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
        "voice_limit": registry.max_created,
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
