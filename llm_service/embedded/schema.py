"""The requests that the embedded server takes, parsed from bytes; an unknown field is an error that names it.

Field names and meanings are OpenAI's, and vLLM's or TensorRT-LLM's for the extensions. Knows nothing of the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from tokenizers import Tokenizer

from llm_service.errors import UnsafeTextError, VocabularyError
from llm_service.prompt import chat_prefix, instruction_ids
from llm_service.text_encoder import TOKENIZER_FILE, load_text_encoder
from llm_service.vocab import VOCABULARIES, SpeechTokenTextParser

MAX_STOP_STRINGS = 16
MAX_TEMPERATURE = 10.0
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 10.0
MIN_SEED, MAX_SEED = -(1 << 63), (1 << 63) - 1
MAX_COUNT = (1 << 31) - 1
"""Most tokens or rows that a request may name, within the engines' integers."""

TokenId = Annotated[int, Field(ge=0, lt=max(each.table_rows for each in VOCABULARIES))]
EndToken = Annotated[str, Field(pattern=r"^<\|(eos\d?|endoftext|im_end|fill)\|>$")]


class RequestRefused(Exception):
    """A request body that isn't what the endpoint takes; becomes an error in OpenAI's shape."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value", status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.code, self.status = message, param, code, status


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class UsageOptions(_Strict):
    """What else a stream carries: the wire's `stream_options`."""

    include_usage: bool = False


class GenerationFields(_Strict):
    """Fields of both endpoints. None or absent means the server's default."""

    model: str | None = None
    stream: bool = False
    stream_options: UsageOptions | None = None
    n: Literal[1] = 1
    max_tokens: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = None  # default: all the room there is
    min_tokens: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_COUNT)] | None = None  # 0 or -1: no limit
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None  # least share of the likeliest token's probability
    repetition_penalty: Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)] | None = None
    seed: Annotated[int, Field(ge=MIN_SEED, le=MAX_SEED)] | None = None
    # As the original's clients send it, and nothing else: every end token ends an answer, named here or not.
    stop: EndToken | Annotated[list[EndToken], Field(max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: list[TokenId] | None = None
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None  # nothing else comes out
    banned_token_ids: list[TokenId] | None = None  # never come out
    continued_tokens: Annotated[int, Field(ge=0, le=MAX_COUNT)] = (
        0  # at the prompt's end: tokens of this answer, drawn elsewhere
    )
    ignore_eos: bool = False  # end tokens can't come out at all
    skip_special_tokens: bool = True  # false: the end token is handed out too
    return_token_ids: bool = False  # vLLM's way to ask for ids beside the text
    detokenize: bool = True  # TensorRT-LLM's: false gives ids instead of text

    @model_validator(mode="after")
    def _bounds_agree(self) -> GenerationFields:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens {self.min_tokens} is more than max_tokens {self.max_tokens}")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is possible with stream=true only")
        return self

    @property
    def wants_token_ids(self) -> bool:
        """Tell whether choices carry token_ids."""
        return self.return_token_ids or not self.detokenize


AnswerId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class InterleavedFields(_Strict):
    """Of an answer whose text comes while its speech is drawn, by POST /v1/completions/text."""

    id: AnswerId  # the caller's name for the answer, new and not to be guessed
    begin_tokens: Annotated[int, Field(ge=1, le=MAX_COUNT)]  # of sos, and the instruction up to its end mark
    transcript_tokens: Annotated[int, Field(ge=0, le=MAX_COUNT)]
    """Tokens of the transcript after the beginning; all further ones are the voice's speech, but for `continued_tokens`
    at the end."""


class MoreText(_Strict):
    """POST /v1/completions/text: more text of an interleaved answer, behind what came before."""

    id: AnswerId
    text_ids: list[TokenId]
    is_last: bool = False  # no text comes behind it


class CompletionRequest(GenerationFields):
    """POST /v1/completions. A string prompt is the raw prompt, control tokens and all."""

    prompt: str | list[int]
    interleaved: InterleavedFields | None = None
    add_special_tokens: bool = True  # what the tokenizer itself adds to a string prompt; ours adds nothing


class ChatMessage(_Strict):
    """One message; an assistant's content is speech tokens as text, to be continued, and a system's how to speak."""

    role: Literal["system", "user", "assistant"]
    content: str


class ChatCompletionRequest(GenerationFields):
    """POST /v1/chat/completions: a user message, and maybe an assistant message with the prompt speech tokens.

    A system message before them is an instruction on how to speak; other servers take it within the user's content.
    """

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=3)]

    @model_validator(mode="after")
    def _roles_alternate(self) -> ChatCompletionRequest:
        roles = [message.role for message in self.messages]
        if roles[roles[:1] == ["system"] :] not in (["user"], ["user", "assistant"]):
            raise ValueError(f"messages have the roles {roles}; expected a user message, then at most one assistant's")
        return self


RequestT = TypeVar("RequestT", bound=BaseModel)


def parse_request(kind: type[RequestT], body: bytes) -> RequestT:
    """Parse a body.

    Raises:
        RequestRefused: it is no JSON, has unknown fields (all are named) or a value out of range.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as err:
        errors = err.errors(include_url=False, include_context=False, include_input=False)
    unknown = [_path(error["loc"]) for error in errors if error["type"] == "extra_forbidden"]
    if unknown:
        raise RequestRefused(f"unknown fields: {', '.join(unknown)}", param=unknown[0], code="unknown_field")
    # A union has one error for each of its members, placed below the field's own name.
    field = str(errors[0]["loc"][0]) if errors[0]["loc"] else None
    of_field = [error for error in errors if field is None or str(error["loc"][0]) == field]
    message = "; or ".join(dict.fromkeys(error["msg"] for error in of_field))
    raise RequestRefused(f"{field}: {message}" if field else message, param=field)


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)


class PromptReader:
    """Reads prompts with one directory's tokenizer: a tenth of a second and more for a long text, so in a thread."""

    def __init__(self, tokenizer_dir: Path) -> None:
        """Load the tokenizer.

        Raises:
            CheckpointError: it is missing, or numbers its tokens otherwise.
        """
        self._encoder = load_text_encoder(tokenizer_dir)
        self._tokenizer = Tokenizer.from_file(str(tokenizer_dir / TOKENIZER_FILE))

    def from_completion(self, prompt: str | list[int], add_special_tokens: bool) -> tuple[int, ...]:
        """Return the ids of a raw prompt; a string may spell control and speech tokens."""
        if isinstance(prompt, str):
            # NOTE: of the library's calls only those on batches release the interpreter's lock.
            return tuple(self._tokenizer.encode_batch([prompt], add_special_tokens=add_special_tokens)[0].ids)
        return tuple(prompt)

    def from_chat(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """Return sos, the user's text, task_id, and the assistant's speech tokens: what the chat template gives.

        An instruction, which is what a system message says, stands before the user's text with `<|endofprompt|>`
        between them. Both stay text whatever they spell, but for the family's own instruction at the user's start.

        Raises:
            RequestRefused: the assistant's content is not speech tokens, or the text can't be encoded.
        """
        vocabulary, encode = self._encoder.vocabulary, self._encoder.encode_apart
        asked = messages[0].content if messages[0].role == "system" else ""
        user, *assistant = messages[messages[0].role == "system" :]
        try:
            instruction = instruction_ids(encode, vocabulary, asked)
            text_ids = encode(user.content.removeprefix(chat_prefix(vocabulary)))
        except UnsafeTextError as err:
            raise RequestRefused(str(err), param="messages.0.content") from err
        speech = assistant[0].content if assistant else ""
        parser = SpeechTokenTextParser(vocabulary)
        try:
            speech_ids = parser.feed(speech)
            parser.close()
        except VocabularyError as err:
            raise RequestRefused(str(err), param="messages.1.content") from err
        begin = (vocabulary.sos_id, *instruction, *text_ids, vocabulary.task_id)
        return (*begin, *(vocabulary.llm_id(speech_id) for speech_id in speech_ids))
