from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TextMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TEXT_MODE_UNSPECIFIED: _ClassVar[TextMode]
    TEXT_MODE_SEGMENTS: _ClassVar[TextMode]
    TEXT_MODE_INTERLEAVED: _ClassVar[TextMode]

class AudioEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUDIO_ENCODING_UNSPECIFIED: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_PCM_S16LE: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_WAV: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_MP3: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_OGG_OPUS: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_AAC: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_FLAC: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_MULAW: _ClassVar[AudioEncoding]
    AUDIO_ENCODING_ALAW: _ClassVar[AudioEncoding]

class TextNormalization(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TEXT_NORMALIZATION_UNSPECIFIED: _ClassVar[TextNormalization]
    TEXT_NORMALIZATION_ON: _ClassVar[TextNormalization]
    TEXT_NORMALIZATION_OFF: _ClassVar[TextNormalization]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_COMPLETED: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]
TEXT_MODE_UNSPECIFIED: TextMode
TEXT_MODE_SEGMENTS: TextMode
TEXT_MODE_INTERLEAVED: TextMode
AUDIO_ENCODING_UNSPECIFIED: AudioEncoding
AUDIO_ENCODING_PCM_S16LE: AudioEncoding
AUDIO_ENCODING_WAV: AudioEncoding
AUDIO_ENCODING_MP3: AudioEncoding
AUDIO_ENCODING_OGG_OPUS: AudioEncoding
AUDIO_ENCODING_AAC: AudioEncoding
AUDIO_ENCODING_FLAC: AudioEncoding
AUDIO_ENCODING_MULAW: AudioEncoding
AUDIO_ENCODING_ALAW: AudioEncoding
TEXT_NORMALIZATION_UNSPECIFIED: TextNormalization
TEXT_NORMALIZATION_ON: TextNormalization
TEXT_NORMALIZATION_OFF: TextNormalization
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_COMPLETED: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CANCELLED: FinishReason

class SpeechConfig(_message.Message):
    __slots__ = ("voice", "audio_format", "speed", "language_code", "text_normalization", "seed", "priority", "request_id", "run_ahead_s", "lexicons", "pronunciations", "ssml", "style", "text_mode")
    class PronunciationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VOICE_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FORMAT_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_NORMALIZATION_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_AHEAD_S_FIELD_NUMBER: _ClassVar[int]
    LEXICONS_FIELD_NUMBER: _ClassVar[int]
    PRONUNCIATIONS_FIELD_NUMBER: _ClassVar[int]
    SSML_FIELD_NUMBER: _ClassVar[int]
    STYLE_FIELD_NUMBER: _ClassVar[int]
    TEXT_MODE_FIELD_NUMBER: _ClassVar[int]
    voice: Voice
    audio_format: AudioFormat
    speed: float
    language_code: str
    text_normalization: TextNormalization
    seed: int
    priority: int
    request_id: str
    run_ahead_s: float
    lexicons: _containers.RepeatedCompositeFieldContainer[Lexicon]
    pronunciations: _containers.ScalarMap[str, str]
    ssml: bool
    style: str
    text_mode: TextMode
    def __init__(self, voice: _Optional[_Union[Voice, _Mapping]] = ..., audio_format: _Optional[_Union[AudioFormat, _Mapping]] = ..., speed: _Optional[float] = ..., language_code: _Optional[str] = ..., text_normalization: _Optional[_Union[TextNormalization, str]] = ..., seed: _Optional[int] = ..., priority: _Optional[int] = ..., request_id: _Optional[str] = ..., run_ahead_s: _Optional[float] = ..., lexicons: _Optional[_Iterable[_Union[Lexicon, _Mapping]]] = ..., pronunciations: _Optional[_Mapping[str, str]] = ..., ssml: bool = ..., style: _Optional[str] = ..., text_mode: _Optional[_Union[TextMode, str]] = ...) -> None: ...

class Lexicon(_message.Message):
    __slots__ = ("id", "version")
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    id: str
    version: str
    def __init__(self, id: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class Voice(_message.Message):
    __slots__ = ("name", "prompt")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    name: str
    prompt: VoicePrompt
    def __init__(self, name: _Optional[str] = ..., prompt: _Optional[_Union[VoicePrompt, _Mapping]] = ...) -> None: ...

class VoicePrompt(_message.Message):
    __slots__ = ("audio", "transcript")
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    audio: bytes
    transcript: str
    def __init__(self, audio: _Optional[bytes] = ..., transcript: _Optional[str] = ...) -> None: ...

class AudioFormat(_message.Message):
    __slots__ = ("encoding", "sample_rate_hz", "bit_rate_kbps")
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    BIT_RATE_KBPS_FIELD_NUMBER: _ClassVar[int]
    encoding: AudioEncoding
    sample_rate_hz: int
    bit_rate_kbps: int
    def __init__(self, encoding: _Optional[_Union[AudioEncoding, str]] = ..., sample_rate_hz: _Optional[int] = ..., bit_rate_kbps: _Optional[int] = ...) -> None: ...

class SpeechStarted(_message.Message):
    __slots__ = ("request_id", "seed", "audio_format", "ignored_fields")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FORMAT_FIELD_NUMBER: _ClassVar[int]
    IGNORED_FIELDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    seed: int
    audio_format: AudioFormat
    ignored_fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., seed: _Optional[int] = ..., audio_format: _Optional[_Union[AudioFormat, _Mapping]] = ..., ignored_fields: _Optional[_Iterable[str]] = ...) -> None: ...

class SpeechAudio(_message.Message):
    __slots__ = ("content", "end_s", "characters", "is_turn_end")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    IS_TURN_END_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    end_s: float
    characters: _containers.RepeatedCompositeFieldContainer[CharacterTiming]
    is_turn_end: bool
    def __init__(self, content: _Optional[bytes] = ..., end_s: _Optional[float] = ..., characters: _Optional[_Iterable[_Union[CharacterTiming, _Mapping]]] = ..., is_turn_end: bool = ...) -> None: ...

class CharacterTiming(_message.Message):
    __slots__ = ("character", "position", "start_s", "end_s")
    CHARACTER_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    character: str
    position: int
    start_s: float
    end_s: float
    def __init__(self, character: _Optional[str] = ..., position: _Optional[int] = ..., start_s: _Optional[float] = ..., end_s: _Optional[float] = ...) -> None: ...

class SpeechFinished(_message.Message):
    __slots__ = ("reason", "generated_samples", "sent_samples", "sent_characters", "spoken_text", "time_to_first_audio_s")
    REASON_FIELD_NUMBER: _ClassVar[int]
    GENERATED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SENT_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SENT_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    SPOKEN_TEXT_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_AUDIO_S_FIELD_NUMBER: _ClassVar[int]
    reason: FinishReason
    generated_samples: int
    sent_samples: int
    sent_characters: int
    spoken_text: str
    time_to_first_audio_s: float
    def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., generated_samples: _Optional[int] = ..., sent_samples: _Optional[int] = ..., sent_characters: _Optional[int] = ..., spoken_text: _Optional[str] = ..., time_to_first_audio_s: _Optional[float] = ...) -> None: ...
