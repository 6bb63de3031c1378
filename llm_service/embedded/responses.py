"""The bodies that the embedded server answers with, in OpenAI's shapes, and its metrics (`cosydit_llm_*`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from llm_service.embedded.engine import METRICS
from llm_service.embedded.loop import EngineLoop
from llm_service.embedded.types import GenerationOutput

DONE_EVENT = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class AnswerShape:
    """How one answer is written."""

    answer_id: str
    model: str
    created: int  # seconds since 1970
    prompt_tokens: int

    def chunk(self, output: GenerationOutput) -> dict[str, Any]:
        """Return one streamed chunk."""
        choice = {
            "index": 0,
            "text": "",
            "token_ids": list(output.token_ids),
            "logprobs": None,
            "finish_reason": output.finish_reason.value if output.finish_reason is not None else None,
            "stop_reason": output.stop_reason,
        }
        envelope = {"id": self.answer_id, "object": "text_completion", "created": self.created, "model": self.model}
        return {**envelope, "choices": [choice]}

    def whole(self, output: GenerationOutput) -> dict[str, Any]:
        """Return the unstreamed answer; `output` holds all of it."""
        asked, answered = self.prompt_tokens, len(output.token_ids)
        usage = {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}
        return self.chunk(output) | {"usage": usage}


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def sse_event(body: dict[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


CONTENT_TYPE = CONTENT_TYPE_LATEST


def metrics_text(loop: EngineLoop) -> str:
    """Return the counters in Prometheus' text form."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(loop))
    return generate_latest(registry).decode()


class _Snapshot(Collector):
    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        stats = self._loop.stats()
        for name, value, text in (
            ("requests_running", stats.running, "Requests that hold a slot"),
            ("requests_waiting", stats.waiting, "Requests that wait for a slot or their first token"),
            ("slots", stats.slots, "Slots of the key-value cache"),
            ("slots_free", stats.free_slots, "Slots nobody holds"),
        ):
            yield GaugeMetricFamily(f"{METRICS}_{name}", text, value)
        for name, value, text in (
            ("steps_total", stats.steps, "Engine steps"),
            ("tokens_total", stats.generated_tokens, "Tokens drawn, end tokens included"),
            ("requests_finished_total", stats.finished, "Requests that ended by themselves"),
            ("requests_aborted_total", stats.aborted, "Requests given up by their callers"),
            ("requests_failed_total", stats.failed, "Requests that failed while running"),
        ):
            yield CounterMetricFamily(f"{METRICS}_{name}", text, value)
        for histogram in self._loop.histograms():
            yield from histogram.collect()
