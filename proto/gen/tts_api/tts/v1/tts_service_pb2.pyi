from tts_api.tts.v1 import speech_pb2 as _speech_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VoiceGender(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VOICE_GENDER_UNSPECIFIED: _ClassVar[VoiceGender]
    VOICE_GENDER_FEMALE: _ClassVar[VoiceGender]
    VOICE_GENDER_MALE: _ClassVar[VoiceGender]
    VOICE_GENDER_NEUTRAL: _ClassVar[VoiceGender]
VOICE_GENDER_UNSPECIFIED: VoiceGender
VOICE_GENDER_FEMALE: VoiceGender
VOICE_GENDER_MALE: VoiceGender
VOICE_GENDER_NEUTRAL: VoiceGender

class SynthesizeRequest(_message.Message):
    __slots__ = ("text", "config")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    text: str
    config: _speech_pb2.SpeechConfig
    def __init__(self, text: _Optional[str] = ..., config: _Optional[_Union[_speech_pb2.SpeechConfig, _Mapping]] = ...) -> None: ...

class SynthesizeResponse(_message.Message):
    __slots__ = ("started", "audio", "finished")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    started: _speech_pb2.SpeechStarted
    audio: _speech_pb2.SpeechAudio
    finished: _speech_pb2.SpeechFinished
    def __init__(self, started: _Optional[_Union[_speech_pb2.SpeechStarted, _Mapping]] = ..., audio: _Optional[_Union[_speech_pb2.SpeechAudio, _Mapping]] = ..., finished: _Optional[_Union[_speech_pb2.SpeechFinished, _Mapping]] = ...) -> None: ...

class StreamingSynthesizeRequest(_message.Message):
    __slots__ = ("config", "text", "flush", "cancel", "end_of_text")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    END_OF_TEXT_FIELD_NUMBER: _ClassVar[int]
    config: _speech_pb2.SpeechConfig
    text: str
    flush: Flush
    cancel: Cancel
    end_of_text: EndOfText
    def __init__(self, config: _Optional[_Union[_speech_pb2.SpeechConfig, _Mapping]] = ..., text: _Optional[str] = ..., flush: _Optional[_Union[Flush, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., end_of_text: _Optional[_Union[EndOfText, _Mapping]] = ...) -> None: ...

class Flush(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Cancel(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EndOfText(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StreamingSynthesizeResponse(_message.Message):
    __slots__ = ("started", "audio", "finished")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    started: _speech_pb2.SpeechStarted
    audio: _speech_pb2.SpeechAudio
    finished: _speech_pb2.SpeechFinished
    def __init__(self, started: _Optional[_Union[_speech_pb2.SpeechStarted, _Mapping]] = ..., audio: _Optional[_Union[_speech_pb2.SpeechAudio, _Mapping]] = ..., finished: _Optional[_Union[_speech_pb2.SpeechFinished, _Mapping]] = ...) -> None: ...

class ListVoicesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListVoicesResponse(_message.Message):
    __slots__ = ("voices",)
    VOICES_FIELD_NUMBER: _ClassVar[int]
    voices: _containers.RepeatedCompositeFieldContainer[VoiceInfo]
    def __init__(self, voices: _Optional[_Iterable[_Union[VoiceInfo, _Mapping]]] = ...) -> None: ...

class VoiceInfo(_message.Message):
    __slots__ = ("name", "description", "gender", "language_code")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    GENDER_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_CODE_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    gender: VoiceGender
    language_code: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., gender: _Optional[_Union[VoiceGender, str]] = ..., language_code: _Optional[str] = ...) -> None: ...
