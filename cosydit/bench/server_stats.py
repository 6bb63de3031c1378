"""What the servers say of themselves: Triton's inference statistics and our metrics, before and after a run.

Counters become differences; gauges are kept as they were afterwards.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
import tritonclient.grpc.aio as triton
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

METRICS_PREFIX = "cosydit_"
SETTLE_S = 1.0
"""Pause in seconds until our last metrics are visible; they are published four times a second."""
_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class ServerSnapshot:
    """Everything at one moment; None where a server could not be asked."""

    triton: dict[str, Any] | None
    totals: dict[str, Any] | None
    """Our counters: sample name with labels -> value."""
    gauges: dict[str, float]
    notes: tuple[str, ...]
    """Reasons why figures are missing."""


class ServerProbe:
    """Asks Triton for its statistics and its metrics port for ours."""

    def __init__(self, grpc_url: str | None, metrics_url: str | None) -> None:
        """Keep where to ask; None leaves that part out."""
        self._grpc_url = grpc_url
        self._metrics_url = metrics_url

    async def snapshot(self) -> ServerSnapshot:
        """Take a snapshot, once the metrics have settled. Never raises for a server that does not answer."""
        statistics, totals, gauges = None, None, dict[str, float]()
        notes: list[str] = []
        if self._metrics_url is not None:
            await asyncio.sleep(SETTLE_S)
            try:
                async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client:
                    response = await client.get(self._metrics_url)
                    totals, gauges = parse_metrics(response.raise_for_status().text)
            except (httpx.HTTPError, ValueError) as error:
                notes.append(f"no metrics from {self._metrics_url}: {error!r}")
        if self._grpc_url is not None:
            async with triton.InferenceServerClient(self._grpc_url) as client:
                try:
                    answer = await client.get_inference_statistics(as_json=True, client_timeout=_TIMEOUT_S)
                    statistics = index_models(answer)
                except InferenceServerException as error:
                    notes.append(f"no Triton statistics from {self._grpc_url}: {error}")
        return ServerSnapshot(statistics, totals, gauges, tuple(notes))


def difference(before: ServerSnapshot, after: ServerSnapshot) -> dict[str, Any]:
    """Return what happened between two snapshots, ready for JSON."""
    report: dict[str, Any] = {"notes": sorted({*before.notes, *after.notes})}
    if before.triton is not None and after.triton is not None:
        report["triton_statistics"] = _subtract(after.triton, before.triton)
    if before.totals is not None and after.totals is not None:
        report["metrics"] = {"difference": _subtract(after.totals, before.totals), "gauges_after": after.gauges}
    return report


def index_models(answer: dict[str, Any]) -> dict[str, Any]:
    """Key Triton's statistics by model and batch size, so that two of them can be subtracted; numbers become ints."""
    models = {}
    for model in answer.get("model_stats", []):
        kept = {name: _numbers(value) for name, value in model.items() if isinstance(value, dict)}
        for counter in ("inference_count", "execution_count"):
            kept[counter] = int(model.get(counter, 0))
        batches = [dict(batch) for batch in model.get("batch_stats", [])]
        kept["batch_stats"] = {str(batch.pop("batch_size")): _numbers(batch) for batch in batches}
        models[str(model["name"])] = kept
    return models


def parse_metrics(text: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return our samples of a Prometheus text page, counters and gauges apart.

    Raises:
        ValueError: it is no such page.
    """
    totals: dict[str, float] = {}
    gauges: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            if sample.name.startswith(METRICS_PREFIX):
                kept = gauges if family.type == "gauge" else totals
                kept[sample.name + (f"{{{labels}}}" if labels else "")] = float(sample.value)
    return totals, gauges


def _subtract(after: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Subtract nested dictionaries of numbers; what was not there before counts as 0."""
    return {
        name: _subtract(value, before.get(name, {})) if isinstance(value, dict) else value - before.get(name, 0)
        for name, value in after.items()
    }


def _numbers(value: Any) -> Any:
    """Turn the strings by which protobuf's JSON writes 64-bit numbers into ints."""
    return {name: _numbers(inner) for name, inner in value.items()} if isinstance(value, dict) else int(value)
