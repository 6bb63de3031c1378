"""`cosydit client http|grpc|triton-http`: speak one text through a running door into a file, say how fast it was."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import wave
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from cosydit.cli.stack_options import wav_path
from cosydit.stack.process import stopped_by_signals
from servicekit.clock import SystemClock
from servicekit.extras import install_command
from token2wav_service.contract import DROP_IN_MODEL, SAMPLE_RATE_HZ
from token2wav_service.errors import InvalidPromptError

if TYPE_CHECKING:
    from typing_extensions import Never

    from gateway.client import OnAudio, SpeechTiming
    from gateway.core import FloatArray

DEFAULT_TIMEOUT_S = 120.0
API_KEY_VARIABLE = "COSYDIT_API_KEY"
"""Environment variable of the API key: on the command line the list of processes would show it."""


PCM16_BYTES = 2
PROGRESS_AFTER_S = 2.0
"""Seconds before the progress line appears: short speech ends before anybody could read one."""
_BAR = "{desc}: {n:.1f} s of audio in {elapsed}"
_DEFAULT_DOOR = "http"


def with_default_door(words: Sequence[str]) -> list[str]:
    """Return a command line of which a `client` that names no door uses the gateway's."""
    command = next((at for at, word in enumerate(words) if not word.startswith("-")), len(words))
    behind = [*words[command + 1 : command + 2], ""][0]
    if list(words[command : command + 1]) != ["client"] or not behind.startswith("--") or behind == "--help":
        return list(words)
    return [*words[: command + 1], _DEFAULT_DOOR, *words[command + 1 :]]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand; `triton-http` is the original's client, with the names of its options."""
    parser = subparsers.add_parser("client", help="speak one text through a running gateway or Triton")
    where = f"where to speak (default {_DEFAULT_DOOR})"
    doors = parser.add_subparsers(dest="door", required=True, metavar="DOOR", help=where)
    about = f"use the gateway's POST /v1/audio/speech; {API_KEY_VARIABLE} may hold its key"
    http = doors.add_parser("http", help=about)
    http.add_argument("--url", default="http://127.0.0.1:8080", help="URL of the gateway")
    http.add_argument("--voice", default="default", help="name of a voice that the gateway knows")
    http.add_argument("--seed", type=int, default=None, help="seed that makes the speech repeatable")
    grpc = doors.add_parser("grpc", help="use the drop-in Triton model")
    grpc.add_argument("--url", default="127.0.0.1:8001", help="host:port of Triton's gRPC service")
    about = "use the drop-in Triton model over HTTP, assembled with DECOUPLED_MODE=False"
    plain = doors.add_parser("triton-http", help=about)
    plain.add_argument("--server-url", dest="url", default="localhost:18000", help="host:port of Triton's HTTP service")
    for door, wav in ((grpc, "--reference-wav"), (plain, "--reference-audio")):
        models = "name of the model: cosyvoice2_dit, cosyvoice2 or cosyvoice3"
        door.add_argument("--model-name", default=DROP_IN_MODEL, help=models)
        door.add_argument(wav, dest="reference_wav", type=Path, help="audio file of the voice to clone")
        door.add_argument("--reference-text", help="transcript of the reference")
    for door in (http, grpc):
        door.add_argument("--text", required=True, help="text to speak")
        door.add_argument("--out", type=wav_path, required=True, help="WAV file to write (mono, 16 bit, 24 kHz)")
    plain.add_argument("--target-text", dest="text", required=True, help="text to speak")
    plain.add_argument("--output-audio", dest="out", type=wav_path, default="output.wav", help="WAV file to write")
    for door in (http, grpc, plain):
        silence = "longest silence of the server in seconds"
        door.add_argument("--timeout-s", type=float, default=DEFAULT_TIMEOUT_S, help=silence)
    http.set_defaults(run=run, speak=_http_speaker)
    grpc.set_defaults(run=run, speak=_triton_speaker)
    plain.set_defaults(run=run, speak=partial(_triton_speaker, is_http=True))


def run(args: argparse.Namespace) -> int:
    speak = args.speak(args)
    with stopped_by_signals(lambda: signal.raise_signal(signal.SIGKILL)):
        timing = _write_wav(args.out, speak)
    figures = f"first audio {timing.ttfa_s * 1000:.0f} ms, audio {timing.audio_s:.2f} s, RTF {timing.rtf:.3f}"
    print(f"{args.out}: {figures}")
    if timing.warning is not None:
        print(f"warning: {timing.warning}", file=sys.stderr)
    return 0


def _http_speaker(args: argparse.Namespace) -> Callable[[OnAudio], SpeechTiming]:
    from gateway.client import speak_over_http

    clock, last = SystemClock(), (args.timeout_s, args.seed, os.environ.get(API_KEY_VARIABLE))
    return lambda on_audio: speak_over_http(args.url, args.text, args.voice, on_audio, clock, *last)


def _triton_speaker(args: argparse.Namespace, is_http: bool = False) -> Callable[[OnAudio], SpeechTiming]:
    from gateway.client import speak_over_triton

    voice = (None if args.reference_wav is None else _load_reference(args.reference_wav), args.reference_text)
    clock, last = SystemClock(), (args.timeout_s, args.model_name, is_http)
    return lambda on_audio: speak_over_triton(args.url, args.text, *voice, on_audio, clock, *last)


def _load_reference(path: Path) -> FloatArray:
    from gateway.client import ClientError

    try:
        from token2wav_service.features.audio import load_prompt_audio
    except ImportError as error:
        raise ClientError(f"reading a reference needs more ({error}): {install_command('token2wav')}") from error
    try:
        return load_prompt_audio(path.read_bytes())
    except InvalidPromptError as error:
        raise ClientError(f"{path}: {error}") from error


def _write_wav(path: Path, speak: Callable[[OnAudio], SpeechTiming]) -> SpeechTiming:
    with written_whole(path) as wav, speech_progress(f"receiving {path}") as progress:

        def take(pcm: bytes) -> None:
            wav.writeframesraw(pcm)
            progress(len(pcm) // PCM16_BYTES)

        return speak(take)


@contextmanager
def written_whole(out: Path) -> Iterator[wave.Wave_write]:
    """Open a WAV of mono 16-bit samples at 24 kHz that is there when it is complete, and not at all after an error.

    Raises:
        OSError: the directory can't be written.
    """
    partial = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with wave.open(str(partial), "wb") as wav:
            wav.setnchannels(1)
            wav.setsampwidth(PCM16_BYTES)
            wav.setframerate(SAMPLE_RATE_HZ)
            yield wav
        os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def speech_progress(label: str) -> Iterator[Callable[[int], object]]:
    """Show on standard error how much is spoken, where that is a terminal and it takes a while.

    What is given takes the number of samples (24 kHz) of more audio.
    """
    # NOTE: `disable=None` shows it on terminals only, `delay` not before that many seconds.
    bar: tqdm[Never] = tqdm(
        desc=label, bar_format=_BAR, disable=None, delay=PROGRESS_AFTER_S, leave=False, dynamic_ncols=True
    )
    with bar:
        yield lambda samples: bar.update(samples / SAMPLE_RATE_HZ)
