"""The published figures of an offline batch, computed from the raw rows of its results. Measures nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cosydit.batch.types import BatchReport
from cosydit.bench.types import BenchmarkError

RAW_COLUMNS = (
    "audio_s",
    "speech_tokens",
    "llm_began_s",
    "llm_s",
    "token2wav_began_s",
    "token2wav_s",
    "token2wav_batch",
    "write_s",
    "written_s",
)
"""Of a row of results.jsonl; times in seconds, counted from when the first utterance was begun."""


def raw_samples(results: Path, report: BatchReport) -> dict[str, Any]:
    """Return a run's rows as columns, and what is known of the run only.

    Raises:
        BenchmarkError: the run did not speak every row itself, or some rows failed.
        OSError: no results.
    """
    if report.done_before or report.failures or not report.done:
        raise BenchmarkError(
            f"figures need a run that speaks every row: of {report.rows}, {report.done_before} were done before and "
            f"{len(report.failures)} failed; give an empty --output-dir and rows that can be spoken"
        )
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    columns = {name: [row[name] for row in rows] for name in RAW_COLUMNS}
    return {"voices": report.voices, "voices_s": report.voices_s, "stage_busy_s": report.stage_busy_s, "rows": columns}


def compute_figures(raw: Mapping[str, Any]) -> dict[str, float]:
    """Compute the published figures.

    Returns:
        `rtf` is wall time from the first utterance begun to the last one written, over the audio made; voices are
        made ready before that and stand apart.
    """
    rows: Mapping[str, Sequence[float]] = raw["rows"]
    wall_s, audio_s = max(rows["written_s"]) - min(rows["llm_began_s"]), sum(rows["audio_s"])
    return {
        "rtf": wall_s / audio_s,
        "times_real_time": audio_s / wall_s,
        "utterances": len(rows["audio_s"]),
        "audio_s": audio_s,
        "wall_s": wall_s,
        "voices": raw["voices"],
        "voices_s": raw["voices_s"],
        "llm_busy_s": raw["stage_busy_s"]["llm"],
        "token2wav_busy_s": raw["stage_busy_s"]["token2wav"],
        "write_busy_s": raw["stage_busy_s"]["write"],
    }
