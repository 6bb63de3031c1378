"""What is fuzzed: every parser of bytes from outside, the errors that it may raise, and examples to begin from."""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
import wave
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from google.protobuf.message import DecodeError
from riva.proto import riva_tts_pb2
from tts_api.tts.v1 import speech_pb2, tts_service_pb2

from gateway.access.caller import CallerLimits
from gateway.access.keys import parse_keys
from gateway.audio.formats import AudioFormat
from gateway.dialects.elevenlabs import wire as elevenlabs
from gateway.dialects.grpc.riva_request import read_request
from gateway.dialects.grpc.tts_config import read_config
from gateway.dialects.json_socket import JsonSocket
from gateway.dialects.openai.request import read_request as read_openai
from gateway.dialects.speech_ws.wire import parse_config
from gateway.dialects.wyoming.wire import ClientLeftError, EventReader, EventStream, read_text, read_voice
from gateway.errors import GatewayError
from gateway.lexicons import rules_of_json, rules_of_pls
from gateway.llm.wire import DONE, LLMWire, event_data
from gateway.text.markdown import MarkupReader
from gateway.text.ssml import check_ssml
from gateway.text.tags import InlineTags
from gateway.voices import decoder
from gateway.voices.recordings import container_of
from llm_service.embedded.schema import RequestRefused, parse_request
from llm_service.vocab import COSYVOICE2
from servicekit.checkpoint_file import CheckpointFileError, read_declaration
from token2wav_service.checkpoint.family import read_description
from token2wav_service.contract import MAX_PROMPT_SECONDS, ServerStatus, decode_error
from token2wav_service.errors import CheckpointError, InvalidPromptError
from token2wav_service.features.audio import load_prompt_audio, validate_prompt
from token2wav_service.voice_file import VoiceFile, VoiceFormatError, decode_voice_file, encode_voice_file

MAX_BYTES = 1 << 16
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Target:
    """A parser."""

    run: Callable[[bytes], object]
    """Takes any bytes; raises `may_raise` where they make no sense, and nothing else."""
    may_raise: tuple[type[Exception], ...]
    seeds: tuple[bytes, ...]
    """Examples that make sense."""

    def try_on(self, data: bytes) -> None:
        """Parse some bytes; an error that the parser does not promise comes out."""
        try:
            self.run(data)
        except self.may_raise:
            pass


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode()


def _run(coroutine: Coroutine[Any, Any, object]) -> object:
    """Run what awaits nothing outside this process, on a loop that is kept."""
    return _loop().run_until_complete(coroutine)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _message(data: bytes) -> dict[str, Any]:
    """Read a WebSocket's text message as the gateway does."""
    socket = JsonSocket(SimpleNamespace(), MAX_BYTES, 1.0)  # type: ignore[arg-type]
    return socket._parse(_text(data))


def _contained(data: bytes) -> object:
    container = container_of(data)
    return None if container is None else decoder.decoded(data, container.demuxer, MAX_PROMPT_SECONDS)


def _wyoming(data: bytes) -> object:
    async def read() -> None:
        reader = EventReader(MAX_BYTES)
        reader.feed_data(data)
        reader.feed_eof()
        stream = EventStream(reader, SimpleNamespace(), 1.0)  # type: ignore[arg-type]
        while True:
            try:
                event = await stream.receive()
            except ClientLeftError:
                return
            for read_part in (read_text, read_voice):
                try:
                    read_part(event)
                except GatewayError:
                    continue

    return _run(read())


def _events(data: bytes) -> object:
    """Read an answer of the LLM."""
    encoder: Any = SimpleNamespace(vocabulary=COSYVOICE2, encode=str.encode)  # reading needs no tokenizer
    wire = LLMWire(encoder)
    events = (event_data(line) for line in data.split(b"\n"))
    return sum(len(wire.read(event).token_ids) for event in events if event and event != DONE)


def _file(parse: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    def run(data: bytes) -> object:
        path = _folder() / name
        path.write_bytes(data)
        return parse(path)

    return run


@cache
def _folder() -> Path:
    # In memory, where there is such a place: a file that is written anew waits for the disk, ten times as long as the
    # parser takes.
    return Path(tempfile.mkdtemp(prefix="cosydit-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None))


def _markup(data: bytes) -> object:
    reader, text = MarkupReader(InlineTags()), _text(data)
    steps = [step for at in range(0, len(text), 11) for step in reader.reading(text[at : at + 11])]
    return [*steps, *reader.finishing()]


def _wav(samples: int = 4000) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, 16_000, 0, "NONE", ""))
        writer.writeframes((np.arange(samples, dtype="<i2") * 37 % 2000).tobytes())
    return file.getvalue()


def _sound(kind: str) -> bytes:
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(3000) / 9.0), 16_000, format=kind)
    return file.getvalue()


def _voice() -> bytes:
    mel, speaker = np.zeros((20, 80), np.float32), np.zeros(192, np.float32)
    return encode_voice_file(VoiceFile("m", np.arange(10, dtype=np.int32), mel, speaker))


def _container(kind: str, codec: str) -> bytes:
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=kind) as made:
        stream = made.add_stream(codec, rate=16_000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 4800), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16_000
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            made.mux(packet)
    return file.getvalue()


_CHOICE = {"index": 0, "text": "", "finish_reason": None, "token_ids": [151665, 151700]}
_GATEWAY = (GatewayError,)
_PROTO = (GatewayError, DecodeError)


def _protobuf() -> Mapping[str, Target]:
    def own(data: bytes) -> object:
        request = tts_service_pb2.SynthesizeRequest.FromString(data)
        return read_config(request.config, request.text)

    def riva(data: bytes) -> object:
        return read_request(riva_tts_pb2.SynthesizeSpeechRequest.FromString(data), lambda name: name == "anna")

    config = speech_pb2.SpeechConfig(seed=1, voice=speech_pb2.Voice(name="anna"))
    dictionary = riva_tts_pb2.SynthesizeSpeechRequest(
        text="Hello.", sample_rate_hz=22050, language_code="en-US", voice_name="anna", custom_dictionary="a  b"
    )
    prompt = riva_tts_pb2.ZeroShotData(audio_prompt=b"RIFF", quality=20, transcript="a")
    inline = riva_tts_pb2.SynthesizeSpeechRequest(text="Hello.", zero_shot_data=prompt)
    request = tts_service_pb2.SynthesizeRequest(text="Hello.", config=config).SerializeToString()
    return {
        "grpc": Target(own, _PROTO, (request,)),
        "riva": Target(riva, _PROTO, (dictionary.SerializeToString(), inline.SerializeToString())),
    }


def _texts() -> Mapping[str, Target]:
    ssml = (
        b'<speak>Hi <break time="1s"/><say-as interpret-as="date" format="mdy">1/2/24</say-as> &amp; <s>b</s></speak>',
        b'<speak><sub alias="a">1</sub><prosody rate="slow">x</prosody><lang xml:lang="zh">\xe4\xbd\xa0</lang></speak>',
    )
    pls = (
        b'<?xml version="1.0"?><lexicon version="1.0" xmlns="http://www.w3.org/2005/01/pronunciation-lexicon" '
        b'alphabet="ipa" xml:lang="en"><lexeme><grapheme>a</grapheme><alias>b c</alias></lexeme></lexicon>'
    )
    rules = {"rules": [{"type": "alias", "string_to_replace": "a", "alias": "b"}]}
    return {
        "ssml": Target(lambda data: check_ssml(_text(data), None), _GATEWAY, ssml),
        "markup": Target(
            _markup, _GATEWAY, (b"# Title\n**bold** [a](http://b) `c` | d |\n", b"a [laughter] <strong>b</strong>")
        ),
        "lexicon_pls": Target(lambda data: rules_of_pls(_text(data)), _GATEWAY, (pls,)),
        "lexicon_json": Target(rules_of_json, _GATEWAY, (_json(rules),)),
        "keys": Target(lambda data: parse_keys(_text(data), CallerLimits(), "here"), _GATEWAY, _KEYS),
    }


_KEYS = (b"anna a-key-of-sixteen-characters streams=4 # comment\nbob sha256:" + b"0" * 64,)
_SOCKET_TEXTS = tuple(
    _json(message)
    for message in (
        {"text": "Hi ", "voice_settings": {"speed": 1.1}, "generation_config": {"chunk_length_schedule": [50, 90]}},
        {"text": "", "flush": True, "context_id": "a", "close_context": False},
    )
)
_CONFIG = _json({"type": "session.config", "voice": "anna", "response_format": "pcm", "speed": 1.2, "seed": 3})


def _requests() -> Mapping[str, Target]:
    speech = {"model": "m", "input": "Hi.", "voice": {"id": "a"}, "response_format": "mp3", "speed": 1.5, "seed": 1}
    more = {**speech, "pronunciations": {"a": "b"}, "ssml": True, "lexicons": ["a", "b"]}
    completion = {
        "model": "m",
        "prompt": [1, 2],
        "max_tokens": 5,
        "stream": True,
        "return_token_ids": True,
        "seed": 1,
        "top_p": 0.5,
    }
    query = b"model_id=m&output_format=pcm_16000&inactivity_timeout=20&sync_alignment=true"
    wyoming = b'{"type": "synthesize", "data_length": 15, "payload_length": 0}\n{"text": "Hi."}'
    refused = (RequestRefused,)
    return {
        "openai": Target(lambda data: read_openai(data, AudioFormat.PCM, "r"), _GATEWAY, (_json(speech), _json(more))),
        "speech_ws": Target(lambda data: parse_config(_message(data)).text_options(), _GATEWAY, (_CONFIG,)),
        "elevenlabs_ws": Target(lambda data: elevenlabs.parse_message(_message(data)), _GATEWAY, _SOCKET_TEXTS),
        "elevenlabs_query": Target(
            lambda data: elevenlabs.read_socket_options(dict(parse_qsl(_text(data)))), _GATEWAY, (query,)
        ),
        "elevenlabs_body": Target(
            lambda data: elevenlabs.read_options(elevenlabs.SpeechQuery, _message(data)), _GATEWAY, _SOCKET_TEXTS
        ),
        "wyoming": Target(_wyoming, _GATEWAY, (wyoming,)),
        "llm_completions": Target(lambda data: parse_request(data), refused, (_json(completion),)),
    }


def _services() -> Mapping[str, Target]:
    events = b"data: " + _json({"choices": [_CHOICE]}) + b"\n\n: a comment\r\ndata: [DONE]\n\n"
    status = ServerStatus(4, 0, 0, None, is_draining=False).to_json().encode()
    return {
        "llm_events": Target(_events, _GATEWAY, (events,)),
        "token2wav_status": Target(lambda data: ServerStatus.from_json(_text(data)), (ValueError,), (status,)),
        "token2wav_error": Target(lambda data: decode_error(_text(data)), (), (b"INTERNAL: a", b"INVALID_CHUNK: b")),
    }


def _files() -> Mapping[str, Target]:
    flow = b"flow: !new:a.B\n  size: !ref <width>\n  product: !ref <width> * <width>\nwidth: 80\n"
    declaration = _json({"family": "cosyvoice2"})
    return {
        "voice_file": Target(decode_voice_file, (VoiceFormatError,), (_voice(),)),
        "flow_yaml": Target(
            _file(lambda path: read_description(path, ("flow",)), "flow.yaml"), (CheckpointError,), (flow,)
        ),
        "checkpoint_json": Target(
            _file(read_declaration, "checkpoint.json"), (CheckpointFileError,), (declaration, b"{}")
        ),
    }


def _decoders() -> Mapping[str, Target]:
    """Recordings; FFmpeg's and libsndfile's code is not Python's, and may do worse than raise."""

    import av

    def prompt(data: bytes) -> object:
        samples = load_prompt_audio(data)
        validate_prompt(samples)
        return samples

    sounds = (_wav(), *(_sound(kind) for kind in ("FLAC", "OGG", "MP3", "AIFF", "CAF")))
    containers = (_container("mp4", "aac"), _container("matroska", "libopus"), _container("adts", "aac"))
    return {
        "recording": Target(prompt, (InvalidPromptError,), sounds),
        "recording_in_a_container": Target(_contained, (decoder.RefusedError, av.FFmpegError), containers),
    }


@cache
def targets() -> Mapping[str, Target]:
    """Return all targets by name."""
    return {**_requests(), **_protobuf(), **_texts(), **_services(), **_files(), **_decoders()}
