"""What the LLM is asked for, how long its answer may be, and the answer's events however they are cut."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp import web

from gateway.core import Sampling, Utterance
from gateway.errors import LLMProtocolError
from gateway.llm.client import next_event
from gateway.llm.length import longest_speech
from gateway.llm.wire import LLMWire
from llm_service.checkpoint import make_random_llm
from llm_service.text_encoder import load_text_encoder
from llm_service.vocab import COSYVOICE2, COSYVOICE3, SPEECH_TOKENS_PER_SECOND, SpeechVocabulary
from tests.gateway.fakes import CharacterEncoder
from tests.gateway.llm.server import client_of, collect
from tests.workers import made_once

BODY = ': hi\nevent: x\ndata: {"a": "é语"}\n\nid: 7\ndata:two\n\nretry: 9\ndata:  three  \n\ndata: [DONE]\n\ndata: 4\n'
EVENTS = ['{"a": "é语"}', "two", "three"]


async def read(pieces: list[bytes]) -> list[str]:
    """Return the data of a body's events, up to the last."""
    content = aiohttp.StreamReader(Mock(), 2**16, loop=asyncio.get_running_loop())
    for piece in pieces:
        content.feed_data(piece)
    content.feed_eof()
    found = []
    while (event := await next_event(content)) is not None:
        found.append(event)
    return found


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
async def test_a_body_cut_at_any_byte_gives_the_same_events_and_nothing_behind_done(line_end: str) -> None:
    raw = BODY.replace("\n", line_end).encode()
    assert await read([raw]) == EVENTS
    for at in range(len(raw)):
        assert await read([raw[:at], raw[at:]]) == EVENTS
    assert await read([raw[at : at + 1] for at in range(len(raw))]) == EVENTS


@pytest.mark.parametrize("line", [b"<html>", b"\xff\xfe\x00garbage", b"data: \xff\xfe", b"{}", b"  "])
async def test_a_line_that_is_no_event_is_a_protocol_error(line: bytes) -> None:
    with pytest.raises(LLMProtocolError, match="no server-sent event"):
        await read([b"data: one\n\n" + line + b"\n"])


async def test_a_line_without_an_end_is_a_protocol_error() -> None:
    with pytest.raises(LLMProtocolError, match="too long"):
        await read([b"data: " + bytes(2**20)])


MOST_TOKENS = 12
WHOLE = Utterance("abc", "de", (5, 6))


def _begun(*spoken: int) -> Utterance:
    return Utterance("abc", "de", (5, 6), spoken)


def _body(utterance: Utterance) -> dict[str, object]:
    wire = LLMWire(CharacterEncoder(), max_speech_tokens=MOST_TOKENS)  # type: ignore[arg-type]
    return wire.request(utterance, Sampling(), 3, "m")


def test_spoken_tokens_stand_behind_the_reference_tokens() -> None:
    spoken = [COSYVOICE2.llm_id(token) for token in (7, 8)]
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

    wire = LLMWire(CharacterEncoder(), max_speech_tokens=MOST_TOKENS)  # type: ignore[arg-type]
    async with client_of(refuse, wire) as client:
        deltas = await collect(client, _begun(*[7] * 12))
    assert [(delta.token_ids, delta.finish_reason) for delta in deltas] == [((), "length")]


REFERENCE = "The quick brown fox jumps over the lazy dog and runs into the wood."
AT_USUAL_PACE = [0] * int(1.6 * len(REFERENCE))


def longest_s(text: str, tokens: list[int] = AT_USUAL_PACE, reference: str = REFERENCE) -> float:
    return longest_speech(text, reference, tokens) / SPEECH_TOKENS_PER_SECOND


@pytest.mark.parametrize(
    ("text", "usual_s"),
    [
        ("Yes.", 1.6),
        ("Please bring the blue folder.", 1.9),
        ("I thought you were against me.", 2.3),
        ("NASA, IBM and the FBI.", 3.0),
        ("$5 & 7% = 3", 3.5),
        ("[laughter]", 1.5),
        ("今天天气很好，我们去公园吧！", 3.2),
    ],
)
def test_usual_speech_fits_and_babble_does_not(text: str, usual_s: float) -> None:
    assert usual_s * 1.2 < longest_s(text) < usual_s * 2 + 4


def test_a_slow_voice_may_take_longer() -> None:
    text = "Please bring the blue folder."
    assert longest_s(text, [0] * 3 * len(REFERENCE)) > 1.5 * longest_s(text)


@pytest.mark.parametrize(
    ("reference", "tokens"), [("", []), ("", [0] * 9), (REFERENCE, []), (REFERENCE, [0]), ("a", [0] * 900)]
)
def test_a_prompt_that_tells_no_pace_bounds_loosely(reference: str, tokens: list[int]) -> None:
    assert 3 < longest_s("Please bring the blue folder.", tokens, reference) < 12


END_OF_PROMPT = 151646


@pytest.mark.parametrize("vocabulary", [COSYVOICE2, COSYVOICE3], ids=["cosyvoice2", "cosyvoice3"])
def test_the_llms_input_is_an_instruction_its_end_and_a_text_without_the_voices_prompt(
    vocabulary: SpeechVocabulary, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def make(directory: Path) -> None:
        make_random_llm(directory, seed=3, vocabulary=vocabulary)

    encoder = load_text_encoder(made_once(tmp_path_factory, f"llm-{vocabulary.name}", make))
    before = "" if vocabulary is COSYVOICE2 else "You are a helpful assistant. "
    expected = [*encoder.encode(f"{before}Be kind."), END_OF_PROMPT, *encoder.encode("Yes.")]
    asked = LLMWire(encoder).token_prompt(Utterance("Yes.", "", (), instruction="Be kind."))
    assert asked.token_ids == (vocabulary.sos_id, *expected, vocabulary.task_id)
