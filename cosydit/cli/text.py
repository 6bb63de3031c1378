"""`cosydit text`: what the gateway has the LLM speak of a text: language, segments and words, and the rules at work."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.text import Segment, TextFrontEnd, TextStream

_CUTS = ("whole", "live", "interleaved")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("text", help="show how a text is cut and read, and which rule changed what")
    add = parser.add_argument
    add("text", help="the text, or - to read it from standard input")
    add("--language", help="BCP 47 tag or English name of its language; else it is guessed")
    cuts = "as a whole text is cut, one that is still being written, or one that the LLM takes while it speaks"
    add("--cuts", choices=_CUTS, default=_CUTS[0], help=f"{cuts} (default %(default)s)")
    add("--checkpoint", type=Path, help="directory of a checkpoint, whose languages and tags then count")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from gateway.text import INTERLEAVED_TEXT, LIVE_TEXT, WHOLE_TEXT, TextOptions

    text = sys.stdin.read() if args.text == "-" else args.text
    settings = dict(zip(_CUTS, (WHOLE_TEXT, LIVE_TEXT, INTERLEAVED_TEXT), strict=True))[args.cuts]
    text.encode()  # what is not UTF-8 came as lone surrogates
    stream = _front_end(args.checkpoint).open(TextOptions(language=args.language), settings)
    try:
        for number, segment in enumerate([*stream.push(text), *stream.flush()], 1):
            print(*_described(number, segment, stream), sep="\n")
    except BrokenPipeError:
        return 141  # whoever read our output has enough, as `head` has; a shell names that signal so
    return 0


def _front_end(checkpoint: Path | None) -> TextFrontEnd:
    from gateway.text import load_text_front_end
    from llm_service.speech_bounds import load_speech_bounds
    from servicekit.checkpoint_file import find_declaration

    if checkpoint is None:
        return load_text_front_end()
    if not checkpoint.is_dir():
        raise ValueError(f"got --checkpoint {checkpoint}, expected the directory of a checkpoint or its llm/")
    llm = checkpoint / "llm" if (checkpoint / "llm").is_dir() else checkpoint
    return load_text_front_end(load_speech_bounds(llm).segment_letters, find_declaration(checkpoint))


def _described(number: int, segment: Segment, stream: TextStream) -> list[str]:
    from gateway.text.rules import noted, watched

    with watched() as changes:
        noted("cleaning and markup", segment.text, segment.text if segment.bare is None else segment.bare.text)
        spoken = stream.prepare(segment)
    return [
        f"segment {number}, characters {segment.start} to {segment.end}, language {spoken.language or 'unknown'}",
        f"  written  {segment.text!r}",
        f"  spoken   {spoken.text!r}" if spoken.is_speakable else "  spoken   nothing",
        *(f"  rule     {each.rule}: {each.written!r} -> {each.spoken!r}" for each in changes),
        *([] if segment.pause is None else [f"  silence  {segment.pause_s:g} s behind it"]),
    ]
