"""Makes the sounds and the section *Listen* of docs/voices.md: `python -m lab.voice.listening_page`.

Speaks the same sentences with the bundle and by the teachers that it names, in this process. Every voice speaks each
sentence once, with the sentence's number as the seed: nothing is chosen. The sounds are Ogg Opus files,
`docs/sounds/*.opus`, which are replaced together with the section. On the documentation's website their links become
players (`docs/hooks.py`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import soundfile
import torch

from cosydit.bench.report import write_text
from cosydit.certify.recognition import FloatArray
from demo_voice.unpack import BUNDLE, VOICES, BundleError, unpack
from gateway.voices.profile import DEFAULT_VOICE
from lab.train.make_voices import VOICES_OF, SourceVoices
from lab.train.teachers.choices import teachers_of
from lab.train.teachers.flite import SynthesisError
from lab.train.utterance import audio_of
from lab.voice.in_process import open_pipeline, speak
from token2wav_service.contract import SAMPLE_RATE_HZ

DOCS = Path("docs")
PAGE, SOUNDS = "voices.md", "sounds"
BEGIN, END = "<!-- listen: written by lab/voice/listening_page.py -->", "<!-- listen: end -->"
"""The section stands between these lines of the page."""
SENTENCES = (
    "The harbour was quiet, but somebody had left a light on.",
    "Could you call me back before nine, or is that too late?",
    "Twenty-eight people walked home through the snow that night.",
)
"""Written for the page; the first one is spoken by every voice, the others by the default voice."""
MAX_BYTES = 250_000
"""Of all sounds together."""
_COMPRESSION = 0.95
"""Of libsndfile's Opus: about 19 kbit/s."""


class PageError(Exception):
    """The page can't be written; the message says why."""


@dataclass(frozen=True)
class Sound:
    """One recording of the page."""

    who: str
    """`new` or `teacher`."""
    voice: str
    sentence: int
    samples: FloatArray
    """[N] in +-1 at 24 kHz."""

    @property
    def name(self) -> str:
        return sound_name(self.who, self.voice, self.sentence)


def sound_name(who: str, voice: str, sentence: int) -> str:
    """Return the file's name of a voice's sentence; sentences count from 0, files from 1."""
    return f"{who}-{voice}-{sentence + 1}.opus"


def said(voice: str) -> range:
    """Return which sentences a voice speaks."""
    return range(len(SENTENCES) if voice == DEFAULT_VOICE else 1)


def product_sounds(bundle: Path, voices: Path, names: Sequence[str]) -> Iterator[Sound]:
    """Speak with a bundle.

    Raises:
        BundleError: it can't be read.
        OSError: likewise.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        unpack(Path(scratch) / "checkpoint", bundle, voices)
        pipeline = open_pipeline(Path(scratch) / "checkpoint")
        for name in names:
            for number in said(name):
                yield Sound("new", name, number, speak(pipeline, SENTENCES[number], name, number))


def teacher_sounds(source: SourceVoices, names: Sequence[str]) -> Iterator[Sound]:
    """Have the teachers speak.

    Raises:
        SynthesisError: they can't.
    """
    for name in names:
        for number in said(name):
            samples = audio_of(source.speak(SENTENCES[number], name), SAMPLE_RATE_HZ)
            yield Sound("teacher", name, number, samples)


def voice_names(teachers: str) -> list[str]:
    """Return the names of the voices that such teachers' bundles have, the default one first."""
    return [voice.name for voice in VOICES_OF[teachers]]


def section(teachers: str) -> str:
    """Return the section's Markdown.

    Args:
        teachers: who taught the bundle.
    """
    rows = [
        [f"`{voice.name}`", f"“{SENTENCES[number]}”", *(_link(who, voice.name, number) for who in ("new", "teacher"))]
        for voice in VOICES_OF[teachers]
        for number in said(voice.name)
    ]
    return "\n".join(
        [
            "## Listen { #listen }",
            "",
            f"Each voice, and its teacher itself, one of {' and '.join(f'`{name}`' for name in teachers.split('+'))}. "
            "Every sentence was spoken once; nothing was chosen.",
            "",
            *_table([["voice", "sentence", "voice", "teacher"], *rows]),
            "",
        ]
    )


def _link(who: str, voice: str, sentence: int) -> str:
    return f"[hear]({SOUNDS}/{sound_name(who, voice, sentence)})"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]


def with_section(page: str, text: str) -> str:
    """Return a page with the text between its marks.

    Raises:
        PageError: the page lacks them.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise PageError(f"the page has no lines {BEGIN!r} and {END!r}; put them where the section should stand")
    return f"{before}{begin}\n\n{text}\n{end}{after}"


def write_sounds(folder: Path, sounds: Sequence[Sound]) -> int:
    """Replace a folder's Opus files; returns the bytes.

    Raises:
        PageError: they are more than MAX_BYTES together; the folder is as it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        paths = [_encoded(Path(scratch) / sound.name, sound.samples) for sound in sounds]
        size = sum(path.stat().st_size for path in paths)
        if size > MAX_BYTES:
            raise PageError(f"got {size} bytes of sounds, expected at most {MAX_BYTES}; take shorter sentences")
        for old in folder.glob("*.opus"):
            old.unlink()
        for path in paths:
            path.rename(folder / path.name)
    return size


def _encoded(path: Path, samples: FloatArray) -> Path:
    soundfile.write(path, samples, SAMPLE_RATE_HZ, format="OGG", subtype="OPUS", compression_level=_COMPRESSION)
    return path


def run(args: argparse.Namespace) -> int:
    """Make sounds and section; returns 0, or 2 if they could not be made."""
    torch.manual_seed(0)  # Kokoro's noise
    try:
        bundle, voices = args.new
        teachers = teachers_of(bundle)
        source = SourceVoices(teachers, args.engines)
        names, page = voice_names(teachers), args.docs / PAGE
        text = with_section(page.read_text("utf-8"), section(teachers))
        sounds = [*product_sounds(bundle, voices, names), *teacher_sounds(source, names)]
        size = write_sounds(args.docs / SOUNDS, sounds)
        write_text(page, text)
    except (PageError, BundleError, SynthesisError, OSError) as error:
        print(f"listening_page: {error}", file=sys.stderr)
        return 2
    seconds = sum(len(sound.samples) for sound in sounds) / SAMPLE_RATE_HZ
    print(f"{len(sounds)} sounds of {seconds:.1f} s, {size} bytes, in {args.docs / SOUNDS}; section in {page}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m lab.voice.listening_page", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--new",
        nargs=2,
        type=Path,
        metavar=("BUNDLE", "VOICES"),
        default=[BUNDLE, VOICES],
        help="packed weights and prompt voices (default: the bundled ones)",
    )
    parser.add_argument("--engines", type=Path, help="directory of unpacked source engines (default: installed ones)")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the documentation (default %(default)s)")
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    raise SystemExit(main())
