"""What stands in the LLM's HTTP requests and events, for each backend. Pure: no HTTP, no time.

Two forms of one contract. `tokens`: POST /v1/completions with a prompt of token ids; events carry token ids. `chat`:
POST /v1/chat/completions with messages; events carry `<|s_N|>` text, for servers that can't send ids.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from gateway import errors
from gateway.core import Sampling, SpeechTokenDelta, Utterance
from gateway.llm.length import longest_speech
from llm_service.config import LLMBackend
from llm_service.prompt import (
    EmptyTextError,
    GenerationBounds,
    InterleavedSpeechPrompt,
    LengthLimits,
    PromptError,
    PromptTooLongError,
    TextEncoder,
    TextPieces,
    build_chat_messages,
    build_interleaved_prompt,
    build_prompt,
    generation_bounds,
    target_text_tokens,
)
from llm_service.vocab import SpeechTokenTextParser, SpeechVocabulary, VocabularyError, contains_protected_token

_ENDED = "stop"
_GOOD_ENDS = (_ENDED, "length")
_EXCERPT_CHARACTERS = 200


class PromptForm(str, Enum):
    """How prompt and answer travel."""

    TOKENS = "tokens"
    CHAT = "chat"


@dataclass(frozen=True)
class WireRequest:
    """One HTTP request."""

    path: str
    body: dict[str, Any]


@dataclass(frozen=True)
class TokenPrompt:
    """What the LLM is given, and how much it may answer."""

    token_ids: tuple[int, ...]  # LLM ids
    bounds: GenerationBounds


class LLMWire:
    """Writes requests and reads events for one backend and form."""

    def __init__(
        self,
        encoder: TextEncoder,
        backend: LLMBackend = LLMBackend.EMBEDDED,
        form: PromptForm = PromptForm.TOKENS,
        limits: LengthLimits | None = None,
    ) -> None:
        """Keep the choices; `encoder` also counts text tokens, which bound the answer's length."""
        self._encoder = encoder
        self._vocabulary = encoder.vocabulary
        self.backend = backend
        self._form = form
        self._limits = limits or LengthLimits()

    def request(self, utterance: Utterance, sampling: Sampling, seed: int, model: str) -> WireRequest:
        """Write the request for one utterance.

        Raises:
            InvalidTextError: the text has no tokens, is not Unicode or spells control tokens.
            TextTooLongError: its shortest speech passes the limit of one generation.
        """
        if utterance.coming_text is not None:
            return self._interleaved_request(utterance, sampling, seed, model)
        prompt = self.token_prompt(utterance)
        body = {"model": model, "stream": True, **self._sampling_fields(sampling, prompt.bounds, seed)}
        if self._form is PromptForm.TOKENS:
            ids_flag = {"detokenize": False} if self.backend is LLMBackend.TRTLLM else {"return_token_ids": True}
            return WireRequest("/v1/completions", body | ids_flag | {"prompt": list(prompt.token_ids)})
        visible = {} if self.backend is LLMBackend.EMBEDDED else {"skip_special_tokens": False}
        return WireRequest("/v1/chat/completions", body | visible | {"messages": self._messages(utterance)})

    def _interleaved_request(self, utterance: Utterance, sampling: Sampling, seed: int, model: str) -> WireRequest:
        prompt = self.interleaved_prompt(utterance)
        layout = {"begin_tokens": prompt.begin_tokens, "transcript_tokens": prompt.transcript_tokens}
        ids = {"return_token_ids": True, "stop_token_ids": list(self._vocabulary.end_ids), "seed": seed}
        if prompt.continued_tokens:
            ids["continued_tokens"] = prompt.continued_tokens
        body = {"model": model, "stream": True, "prompt": list(prompt.token_ids), **asdict(sampling), **ids}
        return WireRequest("/v1/completions", body | {"interleaved": {"id": secrets.token_hex(16), **layout}})

    def interleaved_prompt(self, utterance: Utterance) -> InterleavedSpeechPrompt:
        """Make what stands before a text that is still being written, as LLM ids.

        Raises:
            UnsupportedOptionError: the LLM's server or the prompt's form can't do it.
            InvalidTextError: the transcript or the instruction is not Unicode or spells control tokens.
        """
        if self.backend is not LLMBackend.EMBEDDED or self._form is not PromptForm.TOKENS:
            got = f"text interleaved with speech needs the embedded LLM server with token ids, and {self.backend.value}"
            raise errors.UnsupportedOptionError(f"{got} serves here; leave text_mode out", param="text_mode")
        given = (utterance.reference_text, utterance.reference_tokens, self._vocabulary, utterance.instruction)
        try:
            return build_interleaved_prompt(
                self._encoder.encode, *given, spoken_tokens=utterance.spoken_tokens, fills=utterance.fills
            )
        except PromptError as error:
            raise errors.InvalidTextError(str(error), param="input") from error

    async def text_pieces(self, utterance: Utterance) -> AsyncGenerator[tuple[tuple[int, ...], bool]]:
        """Yield the LLM ids of a text that is still being written, and whether they are the last.

        What is there already comes first, all at once; then piece by piece.

        Raises:
            InvalidTextError: a piece is not Unicode or spells control tokens.
        """
        pieces, text = TextPieces(self._encoder.encode, self._vocabulary), utterance.coming_text
        next_pieces: tuple[str, ...] = (utterance.text, *utterance.taken_text)
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
            prompt = build_prompt(self._encoder.encode, *texts, heard, self._vocabulary, utterance.instruction)
            bounds = self._bounds(prompt.target_text_tokens, utterance)
        except EmptyTextError as error:
            raise errors.InvalidTextError(str(error), param="input") from error
        except PromptTooLongError as error:
            raise errors.TextTooLongError(str(error), param="input") from error
        except PromptError as error:
            raise errors.InvalidTextError(str(error), param="input") from error
        if utterance.spoken_tokens:
            bounds = _rest_of(bounds, len(utterance.spoken_tokens))
        return TokenPrompt(tuple(prompt.token_ids), bounds)

    def _messages(self, utterance: Utterance) -> list[dict[str, str]]:
        """Write the chat form; our own server takes an instruction apart from the text, others before it.

        Raises:
            InvalidTextError: a text spells a token that no text may become.
        """
        try:
            return self._checked_messages(utterance)
        except PromptError as error:
            raise errors.InvalidTextError(str(error), param="input") from error

    def _checked_messages(self, utterance: Utterance) -> list[dict[str, str]]:
        heard = (*utterance.reference_tokens, *utterance.spoken_tokens)
        texts = (utterance.reference_text, utterance.text)
        if self.backend is LLMBackend.EMBEDDED and utterance.instruction:
            system = {"role": "system", "content": utterance.instruction}
            return [system, *build_chat_messages(*texts, heard, self._vocabulary)]
        # NOTE: our own server encodes texts as this encoder does; others would take any spelled token for one.
        is_own = self.backend is LLMBackend.EMBEDDED
        spells_protected = contains_protected_token if is_own else self._encoder.spells_protected
        return build_chat_messages(*texts, heard, self._vocabulary, utterance.instruction, spells_protected)

    def is_spoken_out(self, utterance: Utterance) -> bool:
        """Tell whether the tokens that were spoken reach the bound of the answer already."""
        if utterance.coming_text is not None:
            return False  # the LLM's server bounds a text that is still being written when it has ended
        text_tokens = target_text_tokens(self._encoder.encode, utterance.text, self._vocabulary)
        return len(utterance.spoken_tokens) >= self._bounds(text_tokens, utterance).max_tokens

    def _sampling_fields(self, sampling: Sampling, bounds: GenerationBounds, seed: int) -> dict[str, Any]:
        # NOTE: 0 is the servers' own default, and not each of them takes it as a value.
        least = {"min_tokens": bounds.min_tokens} if bounds.min_tokens else {}
        lengths = {"max_tokens": bounds.max_tokens, **least}
        return {**asdict(sampling), **lengths, "stop_token_ids": list(self._vocabulary.end_ids), "seed": seed}

    def reader(self) -> _TokenEvents | _ChatEvents:
        """Begin to read one answer."""
        return (_TokenEvents if self._form is PromptForm.TOKENS else _ChatEvents)(self._vocabulary)

    def _bounds(self, text_tokens: int, utterance: Utterance) -> GenerationBounds:
        """Bound the answer by the text's tokens, and more closely by the voice's pace."""
        bounds = generation_bounds(text_tokens, self._limits)
        if utterance.instruction:  # which may ask for another pace
            return bounds
        longest = longest_speech(utterance.text, utterance.reference_text, utterance.reference_tokens)
        return replace(bounds, max_tokens=max(bounds.min_tokens, min(bounds.max_tokens, longest)))


class _TokenEvents:
    """Events of /v1/completions whose choices carry LLM ids."""

    def __init__(self, vocabulary: SpeechVocabulary) -> None:
        self._vocabulary = vocabulary

    def read(self, event: str) -> SpeechTokenDelta:
        """Return what the next event brought.

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
            hint = "use the LLM prompt form `chat` for a server that can't send ids"
            raise errors.LLMProtocolError(f"the LLM sent text without token ids; {hint}")
        delta = _delta(llm_ids, _finish_reason(choice), self._vocabulary)
        return replace(delta, fills=_fills(choice, len(llm_ids))) if choice.get("fills") else delta


class _ChatEvents:
    """Events of /v1/chat/completions whose deltas carry `<|s_N|>` text."""

    def __init__(self, vocabulary: SpeechVocabulary) -> None:
        self._parser = SpeechTokenTextParser(vocabulary)

    def read(self, event: str) -> SpeechTokenDelta:
        """See `_TokenEvents.read`."""
        choice = _choice(event)
        if choice is None:
            return SpeechTokenDelta(())
        finish_reason = _finish_reason(choice)
        try:
            speech_ids = self._parser.feed(_content(choice))
            if finish_reason == _ENDED:
                self._parser.close()
        except VocabularyError as error:
            raise errors.LLMProtocolError(f"the LLM sent text that is not speech tokens: {error}") from error
        return SpeechTokenDelta(tuple(speech_ids), finish_reason)


def _rest_of(bounds: GenerationBounds, spoken_tokens: int) -> GenerationBounds:
    """Bound what follows tokens that were spoken already."""
    return GenerationBounds(max(0, bounds.min_tokens - spoken_tokens), max(1, bounds.max_tokens - spoken_tokens))


def _choice(event: str) -> dict[str, Any] | None:
    """Return the event's only choice, or None for an event without one (usage)."""
    try:
        message = json.loads(event)
        if not isinstance(message, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        got = f"the LLM sent an event that is not a JSON object: {event[:_EXCERPT_CHARACTERS]!r}"
        raise errors.LLMProtocolError(f"{got}; is the LLM URL that of an OpenAI-compatible server?") from error
    if message.get("error"):
        raise errors.LLMFailedError(f"the LLM reports {str(message['error'])[:_EXCERPT_CHARACTERS]}; see its log")
    choices = message.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise errors.LLMProtocolError(f"the LLM sent an event without choices: {event[:_EXCERPT_CHARACTERS]!r}")
    return choices[0] if choices else None


def _content(choice: dict[str, Any]) -> str:
    """Return the text that a chat's choice adds; an event may have none."""
    delta = choice.get("delta") or {}
    content = (delta.get("content") or "") if isinstance(delta, dict) else None
    if not isinstance(content, str):
        got = f"the LLM sent a delta that is not an object with text: {str(delta)[:_EXCERPT_CHARACTERS]!r}"
        raise errors.LLMProtocolError(f"{got}; is the LLM URL that of an OpenAI-compatible server?")
    return content


def _finish_reason(choice: dict[str, Any]) -> str | None:
    reason = choice.get("finish_reason")
    if reason is None or reason in _GOOD_ENDS:
        return reason
    raise errors.LLMFailedError(f"the LLM ended with finish_reason {reason!r}, expected one of {_GOOD_ENDS}; try again")


def _fills(choice: dict[str, Any], tokens: int) -> tuple[int, ...]:
    fills = choice["fills"]
    if not isinstance(fills, list) or not all(isinstance(each, int) and 0 <= each <= tokens for each in fills):
        got = f"the LLM sent fills {str(fills)[:_EXCERPT_CHARACTERS]}"
        raise errors.LLMProtocolError(f"{got}; expected places among its {tokens} tokens")
    return tuple(fills)


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
