"""What the servers say of themselves: Triton's inference statistics and our metrics, before and after a run.

Counters become differences; gauges are kept as they were afterwards.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

METRICS_PREFIX = "cosydit_"
SETTLE_S = 1.0
"""Pause in seconds until our last metrics are visible; they are published four times a second."""
_TIMEOUT_S = 5.0
_HTTP_OK = 200
_GAUGE = "gauge"


@dataclass(frozen=True)
class MetricsSnapshot:
    """Our metrics at one moment: sample name with labels -> value."""

    totals: dict[str, float]
    gauges: dict[str, float]


@dataclass(frozen=True)
class ServerSnapshot:
    """Everything at one moment; None where a server could not be asked."""

    triton: dict[str, Any] | None
    metrics: MetricsSnapshot | None
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
        if self._metrics_url is not None:
            await asyncio.sleep(SETTLE_S)
        notes: list[str] = []
        statistics = await self._statistics(notes)
        metrics = await self._metrics(notes)
        return ServerSnapshot(statistics, metrics, tuple(notes))

    async def _statistics(self, notes: list[str]) -> dict[str, Any] | None:
        if self._grpc_url is None:
            return None
        async with triton.InferenceServerClient(self._grpc_url) as client:
            try:
                answer = await client.get_inference_statistics(as_json=True, client_timeout=_TIMEOUT_S)
            except InferenceServerException as error:
                notes.append(f"no Triton statistics from {self._grpc_url}: {error}")
                return None
        return index_models(answer)

    async def _metrics(self, notes: list[str]) -> MetricsSnapshot | None:
        if self._metrics_url is None:
            return None
        try:
            async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client:
                response = await client.get(self._metrics_url)
        except httpx.HTTPError as error:
            notes.append(f"no metrics from {self._metrics_url}: {error!r}")
            return None
        if response.status_code != _HTTP_OK:
            notes.append(f"no metrics from {self._metrics_url}: status {response.status_code}")
            return None
        return parse_metrics(response.text)


def difference(before: ServerSnapshot, after: ServerSnapshot) -> dict[str, Any]:
    """Return what happened between two snapshots, ready for JSON."""
    report: dict[str, Any] = {"notes": sorted({*before.notes, *after.notes})}
    if before.triton is not None and after.triton is not None:
        report["triton_statistics"] = subtract(after.triton, before.triton)
    if before.metrics is not None and after.metrics is not None:
        earlier = before.metrics.totals
        totals = {name: value - earlier.get(name, 0.0) for name, value in after.metrics.totals.items()}
        report["metrics"] = {"difference": totals, "gauges_after": after.metrics.gauges}
    return report


def index_models(answer: dict[str, Any]) -> dict[str, Any]:
    """Key Triton's statistics by model and batch size, so that two of them can be subtracted; numbers become ints."""
    models = {}
    for model in answer.get("model_stats", []):
        kept = {name: _numbers(value) for name, value in model.items() if isinstance(value, dict)}
        for counter in ("inference_count", "execution_count"):
            kept[counter] = int(model.get(counter, 0))
        kept["batch_stats"] = {
            str(batch["batch_size"]): _numbers({name: value for name, value in batch.items() if name != "batch_size"})
            for batch in model.get("batch_stats", [])
        }
        models[str(model["name"])] = kept
    return models


def subtract(after: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Subtract nested dictionaries of numbers; what was not there before counts as 0."""
    return {
        name: subtract(value, before.get(name, {})) if isinstance(value, dict) else value - before.get(name, 0)
        for name, value in after.items()
    }


def parse_metrics(text: str) -> MetricsSnapshot:
    """Read our samples out of a Prometheus text page."""
    kinds: dict[str, str] = {}
    totals: dict[str, float] = {}
    gauges: dict[str, float] = {}
    for line in text.splitlines():
        words = line.split()
        if line.startswith("# TYPE"):
            _, _, name, kind = words
            kinds[name] = kind
        elif line.startswith(METRICS_PREFIX):
            sample, _, value = line.rpartition(" ")
            is_gauge = kinds.get(sample.partition("{")[0]) == _GAUGE
            (gauges if is_gauge else totals)[sample] = float(value)
    return MetricsSnapshot(totals, gauges)


def _numbers(value: Any) -> Any:
    """Turn the strings by which protobuf's JSON writes 64-bit numbers into ints."""
    if isinstance(value, dict):
        return {name: _numbers(inner) for name, inner in value.items()}
    return int(value)
