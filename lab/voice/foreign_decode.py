"""Counts answers of a running gateway that other libraries can't decode: `python -m lab.voice.foreign_decode`.

Every format, sample rate and door is asked in turn. The decoders are libFLAC, mpg123, opusfile, faad2 and libsndfile,
none of which the gateway encodes with (`apt-get install flac mpg123 opus-tools faad`). An answer fails if its decoder
reports an error, if a FLAC answer's samples differ from those that FFmpeg reads, or if another one's number of samples
differs by more than three frames of MP3. Writes the figure with the environment as JSON.
"""

from __future__ import annotations

import argparse
import base64
import io
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import av
import grpc
import httpx
import numpy as np
import soundfile
from riva.proto import riva_tts_pb2, riva_tts_pb2_grpc
from tqdm import tqdm
from tts_api.tts.v1 import speech_pb2, tts_service_pb2, tts_service_pb2_grpc
from websockets.sync.client import connect

from cosydit.bench.report import describe_environment, write_json
from cosydit.bench.types import count

DEFAULT_OUT = Path("benchmarks/results/foreign_decode_cpu.json")
FORMATS = ("flac", "opus", "mp3", "aac", "wav")
GRPC_ENCODINGS = {"opus": "OGG_OPUS"}
RIVA = {"flac": "FLAC", "opus": "OGGOPUS"}
ELEVENLABS = {"mp3_22050_32": "mp3", "mp3_24000_48": "mp3", "mp3_44100_128": "mp3", "opus_48000_64": "opus"}
RATES_HZ = (8000, 16_000, 24_000, 44_100, 48_000)
VOICES = ("default", "low", "bright", "man", "deep")
TEXTS = ("Good morning!", "Yes. No, wait.", "It is late; come home soon.", "Hush...", 'One. <break time="400ms"/> Two.')
DECODERS = {
    "flac": "flac -d -s -c --force-raw-format --endian=little --sign=signed {file}",
    "mp3": "mpg123 -q -s {file}",
    "opus": "opusdec --quiet --rate 48000 {file} -",
    "aac": "faad -q -o {out} {file}",
}
"""Format -> command that writes 16-bit samples to standard output; faad into a WAV file, as it may double the rate."""
_TOLERANCE_SAMPLES = 3 * 1152
_TIMEOUT_S = 300.0

# The stubs have no types.
_tts_stub: Any = tts_service_pb2_grpc.TextToSpeechServiceStub
_riva_stub: Any = riva_tts_pb2_grpc.RivaSpeechSynthesisStub


class DecodeError(Exception):
    """An answer was not read to its end, or read as something else."""


@dataclass(frozen=True)
class Wanted:
    """One answer to ask for."""

    door: str
    audio_format: str
    """Of `FORMATS`."""
    named: str
    """The format as the door calls it."""
    rate_hz: int
    voice: str
    text: str


def wanted(answers: int) -> list[Wanted]:
    """Return what to ask for: every format, rate and door, again and again with other texts and voices."""
    forms = [(door, name, name, rate) for rate in RATES_HZ for name in FORMATS for door in ("openai", "events")]
    forms += [("grpc", name, GRPC_ENCODINGS.get(name, name.upper()), rate) for rate in RATES_HZ for name in FORMATS]
    forms += [("riva", name, named, rate) for rate in RATES_HZ for name, named in RIVA.items()]
    forms += [("elevenlabs", name, named, 0) for named, name in ELEVENLABS.items()]
    forms += [("sentences", name, name, 0) for name in FORMATS]
    said = itertools.cycle(itertools.product(VOICES, TEXTS))
    asked = zip(itertools.islice(itertools.cycle(forms), answers), said, strict=False)
    return [Wanted(*form, voice, text) for form, (voice, text) in asked]


class Doors:
    """Asks a gateway through each of its doors."""

    def __init__(self, url: str, channel: grpc.Channel) -> None:
        """Keep where it listens."""
        self._url = url.rstrip("/")
        self._http = httpx.Client(timeout=_TIMEOUT_S, trust_env=False)
        self._tts, self._riva = _tts_stub(channel), _riva_stub(channel)

    def ask(self, wanted: Wanted) -> bytes:
        """Return the bytes of an answer."""
        ways = {"openai": self._openai, "events": self._events, "elevenlabs": self._elevenlabs}
        ways |= {"sentences": self._sentences, "grpc": self._own, "riva": self._of_riva}
        return ways[wanted.door](wanted)

    def _openai(self, wanted: Wanted, stream_format: str = "audio") -> bytes:
        body = {"input": wanted.text, "voice": wanted.voice, "response_format": wanted.named}
        return self._posted("/v1/audio/speech", {**body, "sample_rate": wanted.rate_hz, "stream_format": stream_format})

    def _events(self, wanted: Wanted) -> bytes:
        lines = self._openai(wanted, "sse").decode().splitlines()
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
        return b"".join(base64.b64decode(event.get("audio", "")) for event in events)

    def _elevenlabs(self, wanted: Wanted) -> bytes:
        path = f"/v1/text-to-speech/{wanted.voice}/stream?output_format={wanted.named}"
        return self._posted(path, {"text": wanted.text})

    def _posted(self, path: str, body: dict[str, Any]) -> bytes:
        return self._http.post(f"{self._url}{path}", json=body).raise_for_status().content

    def _sentences(self, wanted: Wanted) -> bytes:
        config = {"type": "session.config", "voice": wanted.voice, "response_format": wanted.named}
        config["split_granularity"] = "none"
        with connect(f"ws{self._url.removeprefix('http')}/v1/audio/speech/stream", proxy=None) as socket:
            for message in (config, {"type": "input.text", "text": wanted.text}, {"type": "input.done"}):
                socket.send(json.dumps(message))
            while not isinstance(heard := socket.recv(_TIMEOUT_S), bytes):
                pass
            return heard

    def _own(self, wanted: Wanted) -> bytes:
        audio_format = speech_pb2.AudioFormat(encoding=f"AUDIO_ENCODING_{wanted.named}", sample_rate_hz=wanted.rate_hz)
        config = speech_pb2.SpeechConfig(voice=speech_pb2.Voice(name=wanted.voice), audio_format=audio_format)
        request = tts_service_pb2.SynthesizeRequest(text=wanted.text, config=config)
        return b"".join(answer.audio.content for answer in self._tts.Synthesize(request, timeout=_TIMEOUT_S))

    def _of_riva(self, wanted: Wanted) -> bytes:
        fields: dict[str, Any] = {"encoding": wanted.named, "sample_rate_hz": wanted.rate_hz, "language_code": "en-US"}
        request = riva_tts_pb2.SynthesizeSpeechRequest(text=wanted.text, voice_name=wanted.voice, **fields)
        answers = self._riva.SynthesizeOnline(iter([request]), timeout=_TIMEOUT_S)
        return b"".join(answer.audio for answer in answers)


def check(audio: bytes, audio_format: str) -> None:
    """Decode an answer with another library than the gateway's, and compare with what FFmpeg reads.

    Raises:
        DecodeError: the decoders disagree, or the other one reports an error.
    """
    ours, rate_hz = _by_ffmpeg(audio)
    theirs, their_rate_hz = _by_libsndfile(audio) if audio_format == "wav" else _by_command(audio, audio_format)
    samples = round(len(theirs) * rate_hz / (their_rate_hz or rate_hz))
    if not samples or abs(len(ours) - samples) > _TOLERANCE_SAMPLES:
        raise DecodeError(f"{samples} samples, FFmpeg reads {len(ours)}")
    if audio_format in ("flac", "wav") and not np.array_equal(ours, theirs):
        raise DecodeError(f"{samples} samples, FFmpeg reads {len(ours)}, and they are not the same")


def _by_ffmpeg(audio: bytes) -> tuple[Any, int]:
    with av.open(io.BytesIO(audio)) as file:
        frames = [frame.to_ndarray()[0] for frame in file.decode(audio=0)]
        return np.concatenate(frames), file.streams.audio[0].rate


def _by_libsndfile(audio: bytes) -> tuple[Any, int]:
    samples, rate_hz = soundfile.read(io.BytesIO(audio), dtype="int16")
    return samples, rate_hz


def _by_command(audio: bytes, audio_format: str) -> tuple[Any, int]:
    """Return samples and their rate; 0: that of the file."""
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / f"answer.{audio_format}", Path(folder) / "out.wav"
        file.write_bytes(audio)
        command = DECODERS[audio_format].format(file=file, out=out).split()
        done = subprocess.run(command, capture_output=True, check=False, timeout=_TIMEOUT_S)
        if done.returncode:
            raise DecodeError(f"{command[0]}: {done.stderr.decode(errors='replace').strip()[-300:]}")
        return _by_libsndfile(out.read_bytes()) if out.exists() else (np.frombuffer(done.stdout, "<i2"), 0)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit status: 0 if every answer decodes."""
    parser = argparse.ArgumentParser(prog="python -m lab.voice.foreign_decode", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="URL of the gateway")
    parser.add_argument("--grpc", default="127.0.0.1:50051", help="host:port of its gRPC door")
    parser.add_argument("--answers", type=count, default=200, help="number of answers")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="JSON to write")
    args = parser.parse_args(argv)
    if missing := [name for line in DECODERS.values() if shutil.which(name := line.split()[0]) is None]:
        parser.error(f"{', '.join(missing)} are not installed: apt-get install flac mpg123 opus-tools faad")
    failures, asked = [], wanted(args.answers)
    with grpc.insecure_channel(args.grpc) as channel:
        doors = Doors(args.url, channel)
        for each in tqdm(asked, unit="answer"):
            try:
                check(doors.ask(each), each.audio_format)
            except (DecodeError, soundfile.SoundFileError, av.FFmpegError) as error:
                failures.append({**asdict(each), "error": str(error)})
    counts = Counter(f"{each.door} {each.audio_format}" for each in asked)
    figures = {"foreign_decode_failures": len(failures), "answers": len(asked)}
    report = {"figures": figures, "answers_of": counts, "failures": failures}
    write_json(args.out, {**report, "environment": describe_environment(vars(args))})
    print(json.dumps(figures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
