"""How the LLM is asked for the rest of an answer that broke off."""

from __future__ import annotations

import pytest
from aiohttp import web

from gateway.core import Sampling, Utterance
from gateway.llm.wire import LLMWire
from llm_service.prompt import LengthLimits
from llm_service.vocab import llm_id_from_speech_id
from tests.gateway.fakes import CharacterEncoder
from tests.gateway.llm.server import client_of, collect

LIMITS = LengthLimits(min_speech_per_text_token=2, max_speech_per_text_token=4)
WHOLE = Utterance("abc", "de", (5, 6))


def _begun(*spoken: int) -> Utterance:
    return Utterance("abc", "de", (5, 6), spoken)


def _body(utterance: Utterance) -> dict[str, object]:
    wire = LLMWire(CharacterEncoder(), limits=LIMITS)  # type: ignore[arg-type]
    return wire.request(utterance, Sampling(), 3, "m")


def test_spoken_tokens_stand_behind_the_reference_tokens() -> None:
    spoken = [llm_id_from_speech_id(token) for token in (7, 8)]
    assert _body(_begun(7, 8))["prompt"] == [*_body(WHOLE)["prompt"], *spoken]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("spoken", "least", "most"), [((), 6, 12), ((7,), 5, 11), ((7,) * 6, None, 6), ((7,) * 11, None, 1)]
)
def test_the_bounds_shrink_by_what_is_spoken(spoken: tuple[int, ...], least: int | None, most: int) -> None:
    body = _body(_begun(*spoken))
    assert (body.get("min_tokens"), body["max_tokens"]) == (least, most)


async def test_an_answer_at_its_bound_ends_without_a_request() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        raise AssertionError("the server was asked")

    wire = LLMWire(CharacterEncoder(), limits=LIMITS)  # type: ignore[arg-type]
    async with client_of(refuse, wire) as client:
        deltas = await collect(client, _begun(*[7] * 12))
    assert [(delta.token_ids, delta.finish_reason) for delta in deltas] == [((), "length")]
