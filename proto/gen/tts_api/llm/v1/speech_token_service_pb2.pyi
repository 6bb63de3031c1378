from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason

class GenerateManyRequest(_message.Message):
    __slots__ = ("begin", "cancel", "texts")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    begin: _containers.RepeatedCompositeFieldContainer[NumberedRequest]
    cancel: _containers.RepeatedScalarFieldContainer[int]
    texts: _containers.RepeatedCompositeFieldContainer[MoreText]
    def __init__(self, begin: _Optional[_Iterable[_Union[NumberedRequest, _Mapping]]] = ..., cancel: _Optional[_Iterable[int]] = ..., texts: _Optional[_Iterable[_Union[MoreText, _Mapping]]] = ...) -> None: ...

class MoreText(_message.Message):
    __slots__ = ("number", "text_ids", "is_last")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_IDS_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    number: int
    text_ids: _containers.RepeatedScalarFieldContainer[int]
    is_last: bool
    def __init__(self, number: _Optional[int] = ..., text_ids: _Optional[_Iterable[int]] = ..., is_last: bool = ...) -> None: ...

class NumberedRequest(_message.Message):
    __slots__ = ("number", "request", "timeout_ms", "traceparent")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    number: int
    request: GenerateRequest
    timeout_ms: int
    traceparent: str
    def __init__(self, number: _Optional[int] = ..., request: _Optional[_Union[GenerateRequest, _Mapping]] = ..., timeout_ms: _Optional[int] = ..., traceparent: _Optional[str] = ...) -> None: ...

class GenerateManyResponse(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[NumberedPart]
    def __init__(self, parts: _Optional[_Iterable[_Union[NumberedPart, _Mapping]]] = ...) -> None: ...

class NumberedPart(_message.Message):
    __slots__ = ("number", "response", "failure")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    number: int
    response: GenerateResponse
    failure: Failure
    def __init__(self, number: _Optional[int] = ..., response: _Optional[_Union[GenerateResponse, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("prompt_ids", "sampling", "max_tokens", "min_tokens", "seed", "continued_tokens", "priority", "head_start_tokens", "tokens_per_s", "interleaved")
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CONTINUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    HEAD_START_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    INTERLEAVED_FIELD_NUMBER: _ClassVar[int]
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    max_tokens: int
    min_tokens: int
    seed: int
    continued_tokens: int
    priority: int
    head_start_tokens: int
    tokens_per_s: float
    interleaved: Interleaved
    def __init__(self, prompt_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., seed: _Optional[int] = ..., continued_tokens: _Optional[int] = ..., priority: _Optional[int] = ..., head_start_tokens: _Optional[int] = ..., tokens_per_s: _Optional[float] = ..., interleaved: _Optional[_Union[Interleaved, _Mapping]] = ...) -> None: ...

class Interleaved(_message.Message):
    __slots__ = ("begin_tokens", "transcript_tokens")
    BEGIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    begin_tokens: int
    transcript_tokens: int
    def __init__(self, begin_tokens: _Optional[int] = ..., transcript_tokens: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("speech_ids", "finish_reason", "fills")
    SPEECH_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    FILLS_FIELD_NUMBER: _ClassVar[int]
    speech_ids: _containers.RepeatedScalarFieldContainer[int]
    finish_reason: FinishReason
    fills: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, speech_ids: _Optional[_Iterable[int]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., fills: _Optional[_Iterable[int]] = ...) -> None: ...
