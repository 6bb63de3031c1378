"""`cosydit say`: speak one text through both services, started here for the occasion."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cosydit.cli.client import speech_progress, written_whole
from cosydit.cli.stack_options import add_stack_options, all_given, running, stack_options, wav_path
from cosydit.stack.host import find_host, for_host
from cosydit.stack.stack import EMBEDDED, StackOptions
from llm_service.config import LLMBackend
from servicekit.gpu_host import AUTO

if TYPE_CHECKING:
    from gateway.config import GatewayConfig
    from gateway.speech.request import SpeechRequest, SpeechResult

logger = logging.getLogger(__name__)

WARM_UP_TEXT = "Ready."
ONE_STREAM = {"max_batch_size": "2"}
"""Settings of the LLM on a CPU for a single caller: the answer that is heard, and the next one."""
FEW_STREAMS = {"BLS_INSTANCE_NUM": "1", "TRITON_MAX_BATCH_SIZE": "1", "max_streams": "4"}
"""Settings of the model repository for a single caller: a small pool and few programs are ready sooner."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("say", help="speak a text into a WAV file, through both services")
    parser.add_argument("text", help="text to speak")
    parser.add_argument("--out", type=wav_path, default="speech.wav", help="WAV file to write (default %(default)s)")
    parser.add_argument("--voice", default="default", help="name of a voice of the checkpoint (default %(default)s)")
    parser.add_argument("--seed", type=int, help="seed that repeats the same speech; drawn and printed if left out")
    add_stack_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from gateway.speech.request import DEFAULT_MAX_TEXT_CHARACTERS, SpeechRequest, check_request

    logging.getLogger("cosydit").setLevel(logging.INFO)
    request = SpeechRequest(args.text, args.voice, args.seed)
    check_request(request, DEFAULT_MAX_TEXT_CHARACTERS)
    given = all_given(args)
    host = find_host(str(given[""].get("device", AUTO)))
    options = _for_one(for_host(stack_options(given, FEW_STREAMS), host, one_stream=True))
    _check_voice(args.voice, options.checkpoint.voices_dir)
    with running(options, host):
        result = asyncio.run(_speak(options, request, args.out))
    _print_result(result, args.out)
    from gateway.speech.speech_job import warnings_of

    for warning in warnings_of(result).values():
        print(f"warning: {warning}", file=sys.stderr)
    return 0


def _for_one(options: StackOptions) -> StackOptions:
    """Have an LLM on the CPU compute one row at a time, unless the user says otherwise."""
    if options.llm_backend != EMBEDDED or "device" in options.llm:
        return options
    return dataclasses.replace(options, llm={**ONE_STREAM, **options.llm})


def _check_voice(voice: str, voices_dir: Path) -> None:
    names = sorted(path.stem for path in voices_dir.glob("*.wav"))
    if voice not in names:
        raise ValueError(f"got the voice {voice!r}; {voices_dir} has {', '.join(names) or 'no voice'}")


async def _speak(options: StackOptions, request: SpeechRequest, out: Path) -> SpeechResult:
    """Stream the speech into a file; a first, short synthesis warms the services up and is not counted."""
    from gateway.app import open_gateway
    from gateway.audio.codecs import to_pcm16
    from gateway.speech.request import SpeechRequest, SpeechResult

    async with open_gateway(_gateway_config(options, request)) as gateway:
        async for _ in gateway.pipeline.synthesize(SpeechRequest(WARM_UP_TEXT, request.voice, seed=0)):
            pass
        result = SpeechResult()
        with written_whole(out) as file, speech_progress(f"speaking {out}") as progress:
            async for chunk in gateway.pipeline.synthesize(request, result):
                file.writeframesraw(to_pcm16(chunk.samples))
                progress(len(chunk.samples))
    return result


def _gateway_config(options: StackOptions, request: SpeechRequest) -> GatewayConfig:
    from gateway.chunking.policies import ChunkSettings
    from gateway.config import GatewayConfig

    return GatewayConfig(
        tokenizer_dir=options.checkpoint.llm_dir,
        voices_dir=options.checkpoint.voices_dir,
        llm_url=options.token_url,
        llm_backend=LLMBackend(options.llm_backend),
        token2wav_url=options.token2wav_url,
        warm_up_voice=str(request.voice),
        # Nobody listens yet, and with chunks that do not depend on the machine's speed equal seeds give equal files.
        chunks=ChunkSettings("exponential"),
    )


def _print_result(result: SpeechResult, out: Path) -> None:
    ttfa_ms = 1000 * (result.ttfa_s or 0.0)
    total_s = result.total_s or 0.0
    print(f"wrote {out}: {result.audio_s:.2f} s of audio, {result.speech_tokens} speech tokens, seed {result.seed}")
    print(f"time to first audio {ttfa_ms:.0f} ms, total {total_s:.2f} s, RTF {total_s / result.audio_s:.3f} (warm)")
    if result.is_truncated:
        print("the LLM did not end by itself: the bound for the text's length ended it")
