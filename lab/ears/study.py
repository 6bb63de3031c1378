"""The figures of a listening study, computed from its raw rows. Pure; `lab.voice.quality` fills the rows.

A row is one sentence in one voice. Everything a figure needs stands in the rows, so that anybody can compute it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from math import inf
from statistics import median
from typing import Any

from benchmarks.lib.word_errors import WordErrors, total
from lab.ears.additions import additions
from lab.ears.audio_faults import AudioFaults
from lab.ears.bandwidth import Bandwidth
from lab.ears.opinion import Opinion, mean_opinion
from lab.ears.speakers import SpeakerRanking, top1

_MS = 1000.0
_HEARD = ("streamed", "offline", "source", "streamed_neural", "source_neural")


class Kind(str, Enum):
    """What a row's text is; each kind has figures of its own."""

    SENTENCE = "sentence"
    FRAGMENT = "fragment"
    """Without a stop."""
    LONG = "long"
    """A sentence of 100 to 200 letters."""
    PARAGRAPH = "paragraph"
    """100 to 300 words."""


@dataclass(frozen=True)
class Heard:
    """What the recogniser made of one audio."""

    transcript: str
    errors: WordErrors


@dataclass(frozen=True)
class StudyRow:
    """One sentence, spoken by the stack and by the source engine."""

    text: str
    voice: str
    seed: int
    ttfa_s: float
    total_s: float
    audio_s: float
    streamed: Heard
    """What was heard of speech in chunks, as it is served."""
    offline: Heard | None
    """What was heard of the same seed in one chunk; None if that was not asked for."""
    source: Heard | None
    """What was heard of the source engine's own audio; None if that was not asked for."""
    ranking: SpeakerRanking
    faults: AudioFaults
    pitch_distance: float | None
    """Semitones between streamed and offline; None without offline, or where no frame is voiced in both."""
    loudness_distance: float | None
    """Decibels between streamed and offline."""
    opinion: Opinion | None = None
    """Scores of the streamed audio; None where no critic listened."""
    source_opinion: Opinion | None = None
    """Scores of the source engine's own audio; None where no critic listened to it."""
    bandwidth: Bandwidth | None = None
    """How high streamed and source audio reach; None without source audio, or where it never hisses."""
    streamed_neural: Heard | None = None
    """What a neural recogniser heard of the streamed speech; None where none listened."""
    source_neural: Heard | None = None
    """What it heard of the source engine's own audio; None where it did not listen to that."""
    kind: Kind = Kind.SENTENCE

    @property
    def key(self) -> tuple[Kind, str, int, str]:
        """What was asked for: kind, voice, seed and text."""
        return self.kind, self.voice, self.seed, self.text


def figures(rows: Sequence[StudyRow], voice: str) -> dict[str, float]:
    """Compute the study's figures.

    Args:
        rows: of all voices.
        voice: the one whose sentences count for the error rates and the speed; all count for the speakers.

    Returns:
        Figures by name; `dnsmos_p808` and `dnsmos_ovrl`, and those of the source (`source_dnsmos_p808`), only if a
        critic heard every row of the voice; `neural_wer` and the like only if a neural recogniser did, and so those of
        long sentences and paragraphs; those of fragments and `bandwidth_over_source` only if there are such rows.

    Raises:
        ValueError: there are no rows of the voice, or one lacks the offline or the source audio.
    """
    sentences = [row for row in rows if row.kind is Kind.SENTENCE]
    own = [row for row in sentences if row.voice == voice]
    fragments, long, paragraphs = (
        [row for row in rows if row.kind is kind and row.voice == voice]
        for kind in (Kind.FRAGMENT, Kind.LONG, Kind.PARAGRAPH)
    )
    offline = [row.offline for row in own if row.offline is not None]
    source = [row.source for row in own if row.source is not None]
    if not own or not len(own) == len(offline) == len(source):
        raise ValueError(
            f"got {len(own)} rows of voice {voice!r}, {len(offline)} with offline and {len(source)} with source audio; "
            "expected all three alike and at least one"
        )
    streamed_rate = total(row.streamed.errors for row in own).rate
    offline_rate = total(heard.errors for heard in offline).rate
    source_rate = total(heard.errors for heard in source).rate
    return {
        "wer": streamed_rate,
        "source_wer": source_rate,
        "wer_over_source": _ratio(streamed_rate, source_rate),
        **_fragments(fragments),
        **_neural(own, ""),
        **_neural(fragments, "fragment_"),
        **_long(long),
        **_paragraphs(paragraphs),
        "rtf": sum(row.total_s for row in own) / sum(row.audio_s for row in own),
        "ttfa_ms": _MS * median(row.ttfa_s for row in own),
        "speaker_top1": top1([row.ranking for row in sentences]),
        **_bandwidth(own),
        "seam_wer_ratio": _ratio(streamed_rate, offline_rate),
        **_opinions([row.opinion for row in own], ""),
        **_opinions([row.source_opinion for row in own], "source_"),
    }


def _fragments(rows: Sequence[StudyRow]) -> dict[str, float]:
    source = [row.source for row in rows if row.source is not None]
    if not rows or len(source) < len(rows):
        return {}
    rate, source_rate = total(row.streamed.errors for row in rows).rate, total(heard.errors for heard in source).rate
    ratio = _ratio(rate, source_rate)
    return {"fragment_wer": rate, "fragment_source_wer": source_rate, "fragment_wer_over_source": ratio}


def _neural(rows: Sequence[StudyRow], prefix: str) -> dict[str, float]:
    heard = [(row.streamed_neural, row.source_neural) for row in rows]
    both = [(streamed.errors, source.errors) for streamed, source in heard if streamed and source]
    if not both or len(both) < len(rows):
        return {}
    rate, source_rate = (total(errors).rate for errors in zip(*both, strict=True))
    return {f"neural_{prefix}wer": rate, f"neural_{prefix}source_wer": source_rate}


def _long(rows: Sequence[StudyRow]) -> dict[str, float]:
    """Word errors by the neural recogniser; shares of sentences with added words by both, of the source's audio too."""
    neural = _neural(rows, "long_")
    if not neural:
        return {}
    rate, source_rate = neural["neural_long_wer"], neural["neural_long_source_wer"]
    shares = {name: sum(_added(row, heard)[0] > 0 for row in rows) / len(rows) for name, heard in _SHARES.items()}
    return {
        "long_wer": rate,
        "long_source_wer": source_rate,
        "long_wer_over_source": _ratio(rate, source_rate),
        **shares,
    }


_SHARES = {
    "inserted_share": "streamed_neural",
    "source_inserted_share": "source_neural",
    "sphinx_inserted_share": "streamed",
    "sphinx_source_inserted_share": "source",
}


def _paragraphs(rows: Sequence[StudyRow]) -> dict[str, float]:
    """Count the places with added words, and those of them that repeat what was just said."""
    if not rows or any(row.streamed_neural is None for row in rows):
        return {}
    found = {"": "streamed_neural", "sphinx_": "streamed"}
    counts = {name: [_added(row, heard) for row in rows] for name, heard in found.items()}
    return {
        f"{name}paragraph_{what}": float(sum(count[place] for count in counts[name]))
        for name in found
        for place, what in enumerate(("insertions", "repeats"))
    }


def _added(row: StudyRow, heard: str) -> tuple[int, int]:
    """Return the places of one audio with added words, and those that repeat."""
    what: Heard | None = getattr(row, heard)
    found = [] if what is None else additions(row.text, what.transcript)
    return len(found), sum(each.is_repeat for each in found)


def _bandwidth(rows: Sequence[StudyRow]) -> dict[str, float]:
    """Every frame that counts weighs alike."""
    found = [row.bandwidth for row in rows if row.bandwidth is not None]
    if not found:
        return {}
    spoken, source = (
        sum(each.frames * hz for each, hz in zip(found, values, strict=True))
        for values in ([each.spoken_hz for each in found], [each.source_hz for each in found])
    )
    return {"bandwidth_over_source": spoken / source}


def _opinions(found: Sequence[Opinion | None], prefix: str) -> dict[str, float]:
    opinions = [opinion for opinion in found if opinion is not None]
    if len(opinions) < len(found):
        return {}
    mean = mean_opinion(opinions)
    return {f"{prefix}dnsmos_p808": mean.p808, f"{prefix}dnsmos_ovrl": mean.overall}


def row_json(row: StudyRow) -> dict[str, Any]:
    """Return a row ready for JSON."""
    return asdict(row)


def row_from_json(values: Mapping[str, Any]) -> StudyRow:
    """Undo `row_json`."""
    nested = {name: _heard(values.get(name)) for name in _HEARD}
    ranking, faults = SpeakerRanking(**values["ranking"]), AudioFaults(**values["faults"])
    opinions = {
        name: None if values.get(name) is None else Opinion(**values[name]) for name in ("opinion", "source_opinion")
    }
    band = None if values.get("bandwidth") is None else Bandwidth(**values["bandwidth"])
    made = {"ranking": ranking, "faults": faults, **opinions, "bandwidth": band}
    return StudyRow(**{**values, **nested, **made, "kind": Kind(values["kind"])})


def _heard(values: Mapping[str, Any] | None) -> Heard | None:
    return None if values is None else Heard(values["transcript"], WordErrors(**values["errors"]))


def _ratio(streamed: float, offline: float) -> float:
    """Two faultless renderings are alike."""
    if offline:
        return streamed / offline
    return inf if streamed else 1.0
