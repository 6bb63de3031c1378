"""What the servers' metrics say before and after a run: ours, and Triton's counts of inferences.

Counters become differences; gauges are kept as they were afterwards.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

PREFIXES = ("cosydit_", "nv_inference_")
SETTLE_S = 1.0
"""Pause in seconds until our last metrics are visible; they are published four times a second."""
_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class ServerSnapshot:
    """One page of metrics: sample name with labels -> value; empty where it could not be had."""

    totals: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    note: str = ""
    """Reason why figures are missing."""


def read_metrics(url: str | None) -> ServerSnapshot:
    """Read a page once the metrics have settled; never raises for a server that does not answer. None: no page."""
    if url is None:
        return ServerSnapshot()
    time.sleep(SETTLE_S)
    try:
        answer = httpx.get(url, timeout=_TIMEOUT_S, trust_env=False).raise_for_status()
        return parse_metrics(answer.text)
    except (httpx.HTTPError, ValueError) as error:
        return ServerSnapshot(note=f"no metrics from {url}: {error!r}")


def parse_metrics(text: str) -> ServerSnapshot:
    """Return the samples that count of a Prometheus text page.

    Raises:
        ValueError: it is no such page.
    """
    found = ServerSnapshot()
    for family in text_string_to_metric_families(text):
        kept = found.gauges if family.type == "gauge" else found.totals
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            if sample.name.startswith(PREFIXES):
                kept[sample.name + (f"{{{labels}}}" if labels else "")] = float(sample.value)
    return found


def difference(before: ServerSnapshot, after: ServerSnapshot) -> dict[str, Any]:
    """Return what happened between two snapshots, ready for JSON; what was not there before counts as 0."""
    grown = {name: value - before.totals.get(name, 0.0) for name, value in after.totals.items()}
    notes = sorted({each.note for each in (before, after)} - {""})
    return {"notes": notes, "metrics": {"difference": grown, "gauges_after": after.gauges}}
