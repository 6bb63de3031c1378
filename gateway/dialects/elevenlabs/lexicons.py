"""ElevenLabs' pronunciation dictionaries over HTTP: create from rules or a PLS file, change, list, get, download.

A caller sees its own dictionaries and the operator's, which it can't change. Parses and refuses; everything else is
the store's (`gateway.lexicons`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from gateway.dialects.common.answers import Handler, answering, read_body
from gateway.dialects.common.multipart import MEDIA_TYPE, FormTooLargeError, read_form
from gateway.dialects.elevenlabs.wire import error_response, invalid_fields
from gateway.errors import (
    InvalidRequestError,
    LexiconProtectedError,
    UnsupportedOptionError,
    UploadTooLargeError,
)
from gateway.host import Host
from gateway.lexicons.book import NamedLexicon
from gateway.lexicons.forms import RuleFields, fields_of, pls_of_rules, rules_of_fields, rules_of_pls
from gateway.lexicons.store import StoredLexicon
from gateway.speech.request import decode_text
from gateway.text.pronunciation.aliases import AliasRule

PATH = "/v1/pronunciation-dictionaries"
_PLS = "application/pls+xml"
_MAX_FIELDS = 16
_DEFAULT_PAGE, _LARGEST_PAGE = 30, 100
_OPERATOR = "operator"
_SORTS = {"creation_time_unix": "created_at", "name": "name"}

Body = TypeVar("Body", bound=BaseModel)


class NewLexicon(BaseModel):
    """A dictionary to create from rules."""

    name: str
    """The dictionary's name: 1 to 100 printable characters."""
    rules: list[RuleFields]
    """The rules, at most 5000."""
    description: str | None = None
    """A description, at most 1000 characters."""


class MoreRules(BaseModel):
    """Rules to add, or to set in place of all."""

    rules: list[RuleFields]


class RulesToRemove(BaseModel):
    """Rules to remove, by what they replace."""

    rule_strings: list[str]


class NewDescription(BaseModel):
    """What to change of a dictionary beside its rules."""

    name: str | None = None
    archived: bool | None = None


def routes(host: Callable[[], Host], max_body_bytes: int) -> list[BaseRoute]:
    """Return the routes, ready to be added to an application.

    Args:
        host: where to find the dictionaries, once the application has started.
        max_body_bytes: largest request body accepted.
    """
    lexicons = _Lexicons(host, max_body_bytes)
    one = f"{PATH}/{{lexicon}}"
    return [
        Route(PATH, _answering(lexicons.list), methods=["GET"]),
        Route(f"{PATH}/add-from-rules", _answering(lexicons.create), methods=["POST"]),
        Route(f"{PATH}/add-from-file", _answering(lexicons.create_from_file), methods=["POST"]),
        Route(one, _answering(lexicons.show), methods=["GET"]),
        Route(one, _answering(lexicons.describe), methods=["PATCH"]),
        Route(f"{one}/add-rules", _answering(lexicons.add_rules), methods=["POST"]),
        Route(f"{one}/set-rules", _answering(lexicons.set_rules), methods=["POST"]),
        Route(f"{one}/remove-rules", _answering(lexicons.remove_rules), methods=["POST"]),
        Route(f"{one}/{{version}}/download", _answering(lexicons.download), methods=["GET"]),
    ]


class _Lexicons:
    """The handlers."""

    def __init__(self, host: Callable[[], Host], max_body_bytes: int) -> None:
        self._host = host
        self._max_body_bytes = max_body_bytes

    async def list(self, request: Request) -> Response:
        query, book = request.query_params, self._host().lexicons
        size, begin = _whole(query, "page_size", _DEFAULT_PAGE, _LARGEST_PAGE), _whole(query, "cursor", 0, None)
        created = book.store.lexicons() if book.can_create else []
        shown = [_named(each) for each in book.named.values()]
        shown += [_stored(each) for each in _sorted(created, query) if each.archived_at is None]
        page, has_more = shown[begin : begin + size], begin + size < len(shown)
        cursor = str(begin + size) if has_more else None
        return JSONResponse({"pronunciation_dictionaries": page, "next_cursor": cursor, "has_more": has_more})

    async def create(self, request: Request) -> Response:
        store = self._host().lexicons.store
        body = await self._body(request, NewLexicon)
        rules = self._rules(body.rules)
        return JSONResponse(_created(await store.create(body.name, body.description or "", rules)))

    async def create_from_file(self, request: Request) -> Response:
        store = self._host().lexicons.store
        texts, file = await self._form(request)
        takes_phonemes = self._host().lexicons.takes_phonemes
        rules = await asyncio.to_thread(rules_of_pls, decode_text(file), takes_phonemes=takes_phonemes)
        return JSONResponse(_created(await store.create(texts["name"], texts.get("description", ""), rules)))

    async def show(self, request: Request) -> Response:
        book, name = self._host().lexicons, request.path_params["lexicon"]
        if (named := book.named.get(name)) is not None:
            return JSONResponse({**_named(named), "rules": [fields_of(rule) for rule in named.version.rules]})
        stored = book.own(name)
        return JSONResponse({**_stored(stored), "rules": [fields_of(rule) for rule in stored.latest.rules]})

    async def describe(self, request: Request) -> Response:
        name = self._changeable(request)
        body = await self._body(request, NewDescription)
        return JSONResponse(_stored(await self._host().lexicons.store.describe(name, body.name, body.archived)))

    async def add_rules(self, request: Request) -> Response:
        body = await self._body(request, MoreRules)
        new = self._rules(body.rules)
        return await self._changed(request, lambda rules: (*_without(rules, {rule.word for rule in new}), *new))

    async def set_rules(self, request: Request) -> Response:
        body = await self._body(request, MoreRules)
        new = self._rules(body.rules)
        return await self._changed(request, lambda rules: new)

    async def remove_rules(self, request: Request) -> Response:
        body = await self._body(request, RulesToRemove)
        return await self._changed(request, lambda rules: _without(rules, set(body.rule_strings)))

    async def download(self, request: Request) -> Response:
        book, name, version_id = self._host().lexicons, request.path_params["lexicon"], request.path_params["version"]
        named = book.named.get(name)
        version = book.own(name).version(version_id) if named is None else named.version
        headers = {"content-disposition": f'attachment; filename="{version.id}.pls"'}
        return Response(pls_of_rules(version.rules), media_type=_PLS, headers=headers)

    async def _changed(
        self, request: Request, change: Callable[[tuple[AliasRule, ...]], tuple[AliasRule, ...]]
    ) -> Response:
        changed = await self._host().lexicons.store.change_rules(self._changeable(request), change)
        latest = changed.latest
        return JSONResponse({"id": changed.id, "version_id": latest.id, "version_rules_num": len(latest.rules)})

    def _rules(self, fields: Sequence[RuleFields]) -> tuple[AliasRule, ...]:
        return rules_of_fields(fields, takes_phonemes=self._host().lexicons.takes_phonemes)

    def _changeable(self, request: Request) -> str:
        name: str = request.path_params["lexicon"]
        if name in self._host().lexicons.named:
            got = f"the pronunciation dictionary {name!r} is the operator's"
            raise LexiconProtectedError(f"{got}; create one of your own", param="pronunciation_dictionary_id")
        return name

    async def _body(self, request: Request, kind: type[Body]) -> Body:
        try:
            return kind.model_validate_json(decode_text(await read_body(request, self._max_body_bytes, "rules")))
        except ValidationError as error:
            raise invalid_fields(error) from error

    async def _form(self, request: Request) -> tuple[dict[str, str], bytes]:
        """Return a form's texts and its file."""
        content_type = request.headers.get("content-type", "")
        if not content_type.lower().startswith(MEDIA_TYPE):
            expected = f"send {MEDIA_TYPE} with the texts name and description and the file"
            raise UnsupportedOptionError(f"got content type {content_type!r}; {expected}")
        try:
            parts = await read_form(content_type, request.stream(), self._max_body_bytes, _MAX_FIELDS)
        except FormTooLargeError as error:
            got = f"the form has more than {self._max_body_bytes} bytes, the limit"
            raise UploadTooLargeError(f"{got}; make several files", param="file") from error
        files = [part for part in parts if part.is_file and part.name == "file"]
        texts = {part.name: part.text() for part in parts if not part.is_file}
        if len(files) != 1 or "name" not in texts:
            raise InvalidRequestError("expected one PLS file in the field file, and a name", param="file")
        return texts, bytes(files[0].data)


def _answering(handler: Handler) -> Handler:
    return answering(handler, error_response)


def _without(rules: tuple[AliasRule, ...], words: set[str]) -> tuple[AliasRule, ...]:
    return tuple(rule for rule in rules if rule.word not in words)


def _created(lexicon: StoredLexicon) -> dict[str, Any]:
    return {
        "id": lexicon.id,
        "name": lexicon.name,
        "created_by": lexicon.owner or _OPERATOR,
        "creation_time_unix": lexicon.created_at,
        "version_id": lexicon.latest.id,
        "version_rules_num": len(lexicon.latest.rules),
        "description": lexicon.description,
        "permission_on_resource": "admin",
    }


def _stored(lexicon: StoredLexicon) -> dict[str, Any]:
    return {
        "id": lexicon.id,
        "latest_version_id": lexicon.latest.id,
        "latest_version_rules_num": len(lexicon.latest.rules),
        "name": lexicon.name,
        "permission_on_resource": "admin",
        "created_by": lexicon.owner or _OPERATOR,
        "creation_time_unix": lexicon.created_at,
        "archived_time_unix": lexicon.archived_at,
        "description": lexicon.description,
    }


def _named(lexicon: NamedLexicon) -> dict[str, Any]:
    return {
        "id": lexicon.name,
        "latest_version_id": lexicon.version.id,
        "latest_version_rules_num": len(lexicon.version.rules),
        "name": lexicon.name,
        "permission_on_resource": "viewer",
        "created_by": _OPERATOR,
        "creation_time_unix": 0,
        "archived_time_unix": None,
        "description": None,
    }


def _sorted(created: list[StoredLexicon], query: Any) -> list[StoredLexicon]:
    sort, direction = query.get("sort") or "creation_time_unix", (query.get("sort_direction") or "DESCENDING").upper()
    if sort not in _SORTS or direction not in ("ASCENDING", "DESCENDING"):
        expected = f"expected {' or '.join(_SORTS)}, and ASCENDING or DESCENDING"
        raise InvalidRequestError(f"got sort {sort[:40]!r} {direction[:40]!r}, {expected}", param="sort")
    return sorted(created, key=lambda each: getattr(each, _SORTS[sort]), reverse=direction == "DESCENDING")


def _whole(query: Any, name: str, default: int, largest: int | None) -> int:
    given = query.get(name) or str(default)
    if (
        not (given.isascii() and given.isdigit())
        or len(given) > 9
        or (largest is not None and not 1 <= int(given) <= largest)
    ):
        expected = "a whole number" if largest is None else f"1 to {largest}"
        raise InvalidRequestError(f"got {name} {given[:40]!r}, expected {expected}", param=name)
    return int(given)
