"""The requests that the embedded server takes, parsed from bytes; an unknown field is an error that names it.

Field names and meanings are OpenAI's, and vLLM's or TensorRT-LLM's for the extensions. Knows nothing of the engine.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from llm_service.vocab import VOCABULARIES

MAX_TEMPERATURE = 10.0
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 10.0
MIN_SEED, MAX_SEED = -(1 << 63), (1 << 63) - 1
MAX_COUNT = (1 << 31) - 1
"""Most tokens or rows that a request may name, within the engines' integers."""

TokenId = Annotated[int, Field(ge=0, lt=max(each.table_rows for each in VOCABULARIES))]


class RequestRefused(Exception):
    """A request body that isn't what the endpoint takes; becomes an error in OpenAI's shape."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value", status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.code, self.status = message, param, code, status


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class CompletionRequest(_Strict):
    """POST /v1/completions. None or absent means the server's default."""

    prompt: list[int]  # LLM ids
    model: str | None = None
    stream: bool = False
    n: Literal[1] = 1
    max_tokens: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = None  # default: all the room there is
    min_tokens: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_COUNT)] | None = None  # 0 or -1: no limit
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None  # least share of the likeliest token's probability
    repetition_penalty: Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=MAX_REPETITION_PENALTY)] | None = None
    seed: Annotated[int, Field(ge=MIN_SEED, le=MAX_SEED)] | None = None
    stop_token_ids: list[TokenId] | None = None  # beside the end tokens, all of which end an answer
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None  # nothing else comes out
    ignore_eos: bool = False  # end tokens can't come out at all
    # Answers are token ids, never text; a caller says that it wants them in vLLM's way or in TensorRT-LLM's.
    return_token_ids: bool = False
    detokenize: bool = True

    @model_validator(mode="after")
    def _fields_agree(self) -> CompletionRequest:
        if self.detokenize and not self.return_token_ids:
            raise ValueError("answers are token ids; ask for them with return_token_ids=true or detokenize=false")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens {self.min_tokens} is more than max_tokens {self.max_tokens}")
        return self


def parse_request(body: bytes) -> CompletionRequest:
    """Parse a body.

    Raises:
        RequestRefused: it is no JSON, has unknown fields (all are named) or a value out of range.
    """
    try:
        return CompletionRequest.model_validate_json(body)
    except ValidationError as err:
        errors = err.errors(include_url=False, include_context=False, include_input=False)
    unknown = [_path(error["loc"]) for error in errors if error["type"] == "extra_forbidden"]
    if unknown:
        raise RequestRefused(f"unknown fields: {', '.join(unknown)}", param=unknown[0], code="unknown_field")
    field = str(errors[0]["loc"][0]) if errors[0]["loc"] else None
    raise RequestRefused(f"{field}: {errors[0]['msg']}" if field else errors[0]["msg"], param=field)


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)
