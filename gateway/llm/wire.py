"""What stands in the LLM's HTTP requests and events, for each backend. Pure: no HTTP, no time.

A request is POST /v1/completions with a prompt of token ids. The answer is server-sent events, one a line, which carry
token ids.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from gateway import errors
from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.llm.length import longest_speech
from llm_service.config import LLMBackend
from llm_service.errors import PromptError, PromptTooLongError
from llm_service.prompt import (
    MAX_SPEECH_TOKENS,
    GenerationBounds,
    InterleavedSpeechPrompt,
    TextPieces,
    build_interleaved_prompt,
    build_prompt,
    generation_bounds,
    target_text_tokens,
)
from llm_service.text_encoder import TextEncoder
from llm_service.vocab import SpeechVocabulary

_ENDED = "stop"
_GOOD_ENDS = (_ENDED, "length")
_EXCERPT_CHARACTERS = 200
_TEXTS_KEPT = 64
"""Texts whose ids are kept: a voice's transcript comes with each request."""
_EXPECTED = "is the LLM URL that of an OpenAI-compatible server?"


PATH = "/v1/completions"
"""Where answers are asked for."""


@dataclass(frozen=True)
class TokenPrompt:
    """What the LLM is given, and how much it may answer."""

    token_ids: tuple[int, ...]  # LLM ids
    bounds: GenerationBounds


class LLMWire:
    """Writes requests and reads events for one backend."""

    def __init__(
        self,
        encoder: TextEncoder,
        backend: LLMBackend = LLMBackend.EMBEDDED,
        max_speech_tokens: int = MAX_SPEECH_TOKENS,
    ) -> None:
        """Keep the choices; `encoder` also counts text tokens, which bound the answer's length."""
        self._encode = lru_cache(_TEXTS_KEPT)(encoder.encode)
        self._vocabulary = encoder.vocabulary
        self.backend = backend
        self._max_speech_tokens = max_speech_tokens

    def request(self, utterance: Utterance, sampling: Sampling, seed: int, model: str) -> dict[str, Any]:
        """Write the body of the request for one utterance.

        Raises:
            UnsupportedOptionError: the text is still being written.
            InvalidTextError: the text has no tokens, is not Unicode or spells control tokens.
            TextTooLongError: its shortest speech passes the limit of one generation.
        """
        if utterance.coming_text is not None:
            got = (
                "text interleaved with speech needs the embedded LLM server and its stream of tokens (grpc://HOST:PORT)"
            )
            raise errors.UnsupportedOptionError(f"{got}; leave text_mode out", param="text_mode")
        prompt = self.token_prompt(utterance)
        body = {"model": model, "stream": True, **self._sampling_fields(sampling, prompt.bounds, seed)}
        ids_flag = {"detokenize": False} if self.backend is LLMBackend.TRTLLM else {"return_token_ids": True}
        return body | ids_flag | {"prompt": list(prompt.token_ids)}

    def interleaved_prompt(self, utterance: Utterance) -> InterleavedSpeechPrompt:
        """Make what stands before a text that is still being written, as LLM ids.

        Raises:
            InvalidTextError: the transcript or the instruction is not Unicode or spells control tokens.
        """
        given = (utterance.reference_text, utterance.reference_tokens, self._vocabulary, utterance.instruction)
        try:
            return build_interleaved_prompt(
                self._encode, *given, spoken_tokens=utterance.spoken_tokens, fills=utterance.fills
            )
        except PromptError as error:
            raise errors.InvalidTextError(str(error), param="input") from error

    async def text_pieces(self, utterance: Utterance) -> AsyncGenerator[tuple[tuple[int, ...], bool]]:
        """Yield the LLM ids of a text that is still being written, and whether they are the last.

        What is there already comes first, all at once; then piece by piece.

        Raises:
            InvalidTextError: a piece is not Unicode or spells control tokens.
        """
        pieces, text = TextPieces(self._encode, self._vocabulary), utterance.coming_text
        next_pieces: tuple[str, ...] = (utterance.text, *(() if text is None else text.pieces))
        while next_pieces:
            try:
                ids = tuple(each for piece in next_pieces for each in pieces.ids(piece))
            except PromptError as error:
                raise errors.InvalidTextError(str(error), param="input") from error
            if ids:
                yield ids, False
            piece = None if text is None else await text.next_piece()
            next_pieces = () if piece is None else (piece,)
        yield (), True

    def token_prompt(self, utterance: Utterance) -> TokenPrompt:
        """Make the prompt of one utterance as LLM ids.

        Raises:
            InvalidTextError: the text has no tokens, is not Unicode or spells control tokens.
            TextTooLongError: its shortest speech passes the limit of one generation.
        """
        heard = (*utterance.reference_tokens, *utterance.spoken_tokens)
        try:
            texts = (utterance.reference_text, utterance.text)
            prompt = build_prompt(self._encode, *texts, heard, self._vocabulary, utterance.instruction)
            bounds = self._bounds(prompt.target_text_tokens, utterance)
        except PromptTooLongError as error:
            raise errors.TextTooLongError(str(error), param="input") from error
        except PromptError as error:
            raise errors.InvalidTextError(str(error), param="input") from error
        if spoken := len(utterance.spoken_tokens):
            bounds = GenerationBounds(max(0, bounds.min_tokens - spoken), max(1, bounds.max_tokens - spoken))
        return TokenPrompt(tuple(prompt.token_ids), bounds)

    def is_spoken_out(self, utterance: Utterance) -> bool:
        """Tell whether the tokens that were spoken reach the bound of the answer already."""
        if utterance.coming_text is not None:
            return False  # the LLM's server bounds a text that is still being written when it has ended
        text_tokens = target_text_tokens(self._encode, utterance.text, self._vocabulary)
        return len(utterance.spoken_tokens) >= self._bounds(text_tokens, utterance).max_tokens

    def _sampling_fields(self, sampling: Sampling, bounds: GenerationBounds, seed: int) -> dict[str, Any]:
        # NOTE: 0 is the servers' own default, and not each of them takes it as a value.
        least = {"min_tokens": bounds.min_tokens} if bounds.min_tokens else {}
        lengths = {"max_tokens": bounds.max_tokens, **least}
        return {**asdict(sampling), **lengths, "stop_token_ids": list(self._vocabulary.end_ids), "seed": seed}

    def read(self, event: str) -> SpeechTokenDelta:
        """Return what the next event of an answer brought.

        Raises:
            LLMProtocolError: not JSON, not the expected shape, or a token that is no speech token.
            LLMFailedError: the server reports a failure.
        """
        choice = _choice(event)
        if choice is None:
            return SpeechTokenDelta(())
        llm_ids = choice.get("token_ids") or []
        if not isinstance(llm_ids, list):
            raise errors.LLMProtocolError(f"got token_ids of type {type(llm_ids).__name__}, expected a list")
        if choice.get("text") and not llm_ids:
            hint = "use a server that sends token ids"
            raise errors.LLMProtocolError(f"the LLM sent text without token ids; {hint}")
        return _delta(llm_ids, _finish_reason(choice), self._vocabulary)

    def _bounds(self, text_tokens: int, utterance: Utterance) -> GenerationBounds:
        """Bound the answer by the text's tokens, and more closely by the voice's pace."""
        bounds = generation_bounds(text_tokens, self._max_speech_tokens)
        if utterance.instruction:  # which may ask for another pace
            return bounds
        longest = longest_speech(utterance.text, utterance.reference_text, utterance.reference_tokens)
        return replace(bounds, max_tokens=max(bounds.min_tokens, min(bounds.max_tokens, longest)))


def _choice(event: str) -> dict[str, Any] | None:
    """Return the event's only choice, or None for an event without one (usage)."""
    try:
        message = json.loads(event)
        if not isinstance(message, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        got = f"the LLM sent an event that is not a JSON object: {event[:_EXCERPT_CHARACTERS]!r}"
        raise errors.LLMProtocolError(f"{got}; {_EXPECTED}") from error
    if message.get("error"):
        raise errors.LLMFailedError(f"the LLM reports {str(message['error'])[:_EXCERPT_CHARACTERS]}; see its log")
    choices = message.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise errors.LLMProtocolError(f"the LLM sent an event without choices: {event[:_EXCERPT_CHARACTERS]!r}")
    return choices[0] if choices else None


def _finish_reason(choice: dict[str, Any]) -> str | None:
    reason = choice.get("finish_reason")
    if reason is None or reason in _GOOD_ENDS:
        return reason
    raise errors.LLMFailedError(f"the LLM ended with finish_reason {reason!r}, expected one of {_GOOD_ENDS}; try again")


def _delta(llm_ids: Sequence[Any], finish_reason: str | None, vocabulary: SpeechVocabulary) -> SpeechTokenDelta:
    speech_ids: list[int] = []
    first_end = vocabulary.end_ids[0]
    for llm_id in llm_ids:
        if isinstance(llm_id, int) and 0 <= llm_id - first_end < len(vocabulary.closing_tokens):
            return SpeechTokenDelta(tuple(speech_ids), finish_reason or _ENDED)
        if not isinstance(llm_id, int) or not vocabulary.is_speech(llm_id):
            got = f"the LLM sent id {llm_id!r}, which is neither a speech token nor an end token"
            raise errors.LLMProtocolError(f"{got}; its head must allow no other tokens")
        speech_ids.append(vocabulary.speech_id(llm_id))
    return SpeechTokenDelta(tuple(speech_ids), finish_reason)


DONE = "[DONE]"
"""Data of the line behind the last event."""
_DATA = b"data:"
_OTHER_FIELDS = (b":", b"event:", b"id:", b"retry:")


def event_data(line: bytes) -> str | None:
    """Return the data of one line of a body; None for a blank line, a comment or another field.

    Raises:
        errors.LLMProtocolError: it is no line of server-sent events, or not UTF-8.
    """
    line = line.rstrip(b"\r\n")
    if not line or line.startswith(_OTHER_FIELDS):
        return None
    if not line.startswith(_DATA):
        raise _not_an_event(line)
    try:
        return line[len(_DATA) :].strip().decode()
    except UnicodeDecodeError as error:
        raise _not_an_event(line) from error


def _not_an_event(line: bytes) -> errors.LLMProtocolError:
    excerpt = line[:_EXCERPT_CHARACTERS].decode(errors="replace")
    return errors.LLMProtocolError(f"the LLM sent a line that is no server-sent event: {excerpt!r}; {_EXPECTED}")
