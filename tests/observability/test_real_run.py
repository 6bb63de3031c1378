"""All three services for real, watched: every panel has data, one trace tells of everything, logs are JSON."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from cosydit.stack.stack import PORT_COUNT, LocalStack, Ports, StackOptions
from tests.e2e.conftest import RunningStack
from tests.observability.debian_prometheus import (
    CONFIG,
    Binaries,
    Prometheus,
    configured_for,
    running_prometheus,
)
from tests.token2wav_service.serving.client import StreamClient, text
from tests.workers import QuietHandler, free_ports, listening, random_checkpoint, wait_until

PATIENCE_S = 10.0
_IDS = ("traceId", "spanId", "parentSpanId")


@dataclass(frozen=True)
class ReceivedSpan:
    """A span, and its service."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int


@dataclass
class Receiver:
    """What has come so far."""

    url: str
    spans: list[ReceivedSpan] = field(default_factory=list)

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        """Return one trace's spans by their begin."""
        return sorted((span for span in self.spans if span.trace_id == trace_id), key=lambda span: span.start_ns)

    def wait(self, trace_id: str, is_whole: Callable[[list[ReceivedSpan]], bool]) -> list[ReceivedSpan] | None:
        """Return a trace once it is whole; None: it was not in time (an exporter drops what it cannot send)."""
        deadline = time.monotonic() + PATIENCE_S
        while not is_whole(self.trace(trace_id)):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.1)
        return self.trace(trace_id)

    def received(self, trace_id: str) -> str:
        """Say how many spans each service sent, of this trace and at all."""
        of_trace = Counter(span.service for span in self.trace(trace_id))
        of_all = Counter(span.service for span in self.spans)
        return ", ".join(f"{service}: {of_trace[service]} of {n}" for service, n in of_all.items())


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Listen on a free port of this machine."""

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            is_json = self.headers["content-type"].startswith("application/json")
            receiver.spans += _spans_of(_from_json(body) if is_json else ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

    with listening(Handler) as port:
        receiver = Receiver(f"http://127.0.0.1:{port}")
        yield receiver


def _spans_of(request: ExportTraceServiceRequest) -> list[ReceivedSpan]:
    return [
        ReceivedSpan(
            service=next(a.value.string_value for a in resource.resource.attributes if a.key == "service.name"),
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            start_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _from_json(body: bytes) -> ExportTraceServiceRequest:
    """Parse OTLP's JSON, whose ids are hexadecimal where protobuf's JSON has base64."""
    document = json.loads(body)
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in _IDS:
                    if name in span:
                        span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    request = ExportTraceServiceRequest()
    json_format.ParseDict(document, request, ignore_unknown_fields=True)
    return request


pytestmark = pytest.mark.servers

SCRAPE_S = 1
REQUESTS = 6
WINDOW = "60s"
TRACES = [digit * 32 for digit in "abc"]
PARENT = "eee19b7ec3c1b174"
LLM_CALL = "/tts_api.llm.v1.SpeechTokenService/GenerateMany"
TEXT = "Hello there, this is a sentence to be spoken. And this is one more of them."


@dataclass(frozen=True)
class Watched(RunningStack):
    """A stack under watch."""

    receiver: Receiver
    metrics_port: int

    @property
    def scrape_targets(self) -> dict[str, str]:
        ports = self.options.ports
        numbers = {"gateway": self.metrics_port, "token2wav": ports.triton_metrics, "llm": ports.llm}
        return {job: f"127.0.0.1:{port}" for job, port in numbers.items()}

    def log_lines(self, name: str) -> list[str]:
        (path,) = self.options.work_dir.rglob(f"{name}.log")
        return path.read_text().splitlines()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    *ports, metrics_port = free_ports(PORT_COUNT + 1)
    options = StackOptions(
        CheckpointLayout.under(random_checkpoint(tmp_path_factory)),
        folder / "stack",
        Ports(*ports),
        {"BLS_INSTANCE_NUM": "1"},
        gateway={"metrics_port": str(metrics_port)},
    )
    with ExitStack() as stack:
        receiver = stack.enter_context(receiving())
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        environment.setenv("COSYDIT_LOG_FORMAT", "json")
        running = stack.enter_context(LocalStack(options, with_gateway=True))
        yield Watched(running, receiver, metrics_port)


@pytest.fixture(scope="module")
def prometheus(watched: Watched, binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Debian's Prometheus on the shipped configuration, after a load that it has scraped."""
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("scraping") / "prometheus"
    config = configured_for(watched.scrape_targets, SCRAPE_S)
    with running_prometheus(binaries, folder, config, port) as server:
        wait_until(lambda: set(server.targets().values()) == {"up"}, "all targets up")
        put_under_load(watched)
        yield server


def put_under_load(watched: Watched) -> None:
    """Speak four at once for some scrapes; one caller errs, one leaves, one asks for a voice that is not there."""
    with ThreadPoolExecutor(4) as callers:
        answers = list(callers.map(lambda _: watched.speak(TEXT), range(REQUESTS)))
    assert {answer.status_code for answer in answers} == {200}
    assert watched.speak(TEXT, voice="nobody").status_code == 404
    watched.leave(TEXT * 10)
    client = StreamClient(watched.options.token2wav_url)
    (refused,) = client.ask("open", voice_id=text("nobody"))
    client.close()
    assert refused.error is not None
    time.sleep(3 * SCRAPE_S)


def has_data(series: list[dict[str, Any]]) -> bool:
    """Whether a query's answer has a number in it."""
    return any(not math.isnan(float(each["value"][1])) for each in series)


def test_every_panel_s_query_has_data(prometheus: Prometheus) -> None:
    board = json.loads((CONFIG / "grafana" / "dashboards" / "cosydit.json").read_text())
    panels = {panel["title"]: panel["targets"] for panel in board["panels"] if panel["type"] != "row"}

    def empty() -> dict[str, list[str]]:
        queries = {title: [t["expr"].replace("$__rate_interval", WINDOW) for t in panels[title]] for title in panels}
        lacking = {title: [q for q in each if not has_data(prometheus.query(q))] for title, each in queries.items()}
        return {title: queries for title, queries in lacking.items() if queries}

    wait_until(lambda: not empty(), f"data in every panel: {empty()}")
    assert len(panels) == 22


def test_the_rules_are_evaluated_and_no_healthy_run_is_an_alert(prometheus: Prometheus) -> None:
    wait_until(lambda: all(rule.endswith(" ok") for rule in prometheus.rules()), str(prometheus.rules()))
    assert prometheus.query('ALERTS{alertname=~"ReplicaDown|ServiceGone|ReplicaEjected"}') == []


def test_the_numbers_of_all_services_agree(prometheus: Prometheus) -> None:
    def value(expression: str) -> float:
        return float(prometheus.query(expression)[0]["value"][1])

    assert value('sum(cosydit_gateway_requests_total{outcome="completed"})') >= REQUESTS
    assert value('cosydit_gateway_requests_total{dialect="openai", outcome="invalid"}') >= 1
    assert value("cosydit_gateway_cancelled_total") >= 1
    assert value("cosydit_gateway_wasted_speech_tokens_total") > 0
    made, heard = value("cosydit_token2wav_audio_seconds_total"), value("cosydit_gateway_audio_seconds_total")
    assert 0 < heard <= made, "the warm-up and what the one who left did not hear were made too"
    assert value("cosydit_llm_tokens_total") >= value("cosydit_gateway_speech_tokens_total")
    queue, steps = value("cosydit_token2wav_queue_seconds_count"), value("cosydit_token2wav_step_seconds_count")
    assert queue == value("cosydit_token2wav_step_batch_size_sum") >= steps > 0


def test_one_trace_from_the_client_s_request_to_each_chunk(watched: Watched) -> None:
    spans = a_whole_trace(watched)
    by_id = {span.span_id: span for span in spans}

    def path(span: ReceivedSpan) -> str:
        above = by_id.get(span.parent_id)
        own = f"{span.service.removeprefix('cosydit-')}:{span.name}"
        return f"{path(above)} > {own}" if above else own

    paths = [path(span) for span in spans]
    speech = "gateway:POST /v1/audio/speech > gateway:speech"
    stream = f"{speech} > gateway:token2wav.stream"
    assert f"{speech} > gateway:llm.generate > llm:{LLM_CALL} > llm:decode" in paths, paths
    chunks = sum(each == f"{speech} > gateway:chunk" for each in paths)
    assert chunks >= 2, paths
    engine = next(each for each in paths if each.endswith("token2wav:token2wav.stream"))
    assert engine == f"{stream} > token2wav:token2wav.stream", paths
    for name in ("chunk", "chunk > token2wav:queue", "chunk > token2wav:step"):
        assert sum(each == f"{engine} > token2wav:{name}" for each in paths) == chunks, paths
    assert sum(each == f"{stream} > triton:InferRequest" for each in paths) == chunks + 1, paths
    (root,) = [span for span in spans if span.parent_id not in by_id]
    assert root.parent_id == PARENT
    assert all(span.end_ns <= root.end_ns + 50_000_000 for span in spans), paths


def a_whole_trace(watched: Watched) -> list[ReceivedSpan]:
    """Speak until a request's trace is whole, at most three times."""
    for trace in TRACES:
        assert watched.speak(TEXT, {"traceparent": f"00-{trace}-{PARENT}-01"}).status_code == 200
        if spans := watched.receiver.wait(trace, is_whole):
            return spans
    raise AssertionError("; ".join(watched.receiver.received(trace) for trace in TRACES))


def is_whole(spans: list[ReceivedSpan]) -> bool:
    """Whether each service has sent its last span of a stream."""
    names = [(span.service, span.name) for span in spans]
    chunks = names.count(("cosydit-gateway", "chunk"))
    ends = {("cosydit-gateway", "POST /v1/audio/speech"), ("cosydit-llm", LLM_CALL)}
    ends |= {("cosydit-token2wav", "token2wav.stream")}
    return ends <= set(names) and names.count(("triton", "InferRequest")) == chunks + 1


def test_logs_are_json_and_follow_a_stream_through_the_services(watched: Watched) -> None:
    trace = "1" * 32
    assert watched.speak(TEXT, {"traceparent": f"00-{trace}-{'2' * 16}-01"}).status_code == 200
    wait_until(
        lambda: f'"trace_id": "{trace}"' in "\n".join(watched.log_lines("token2wav_service")), "token2wav's line"
    )
    logs = {name: json_lines(watched.log_lines(name)) for name in ("gateway", "llm_service", "token2wav_service")}
    (gateway,) = [line for line in logs["gateway"] if line.get("trace_id") == trace and "stream_id" in line]
    (token2wav,) = [line for line in logs["token2wav_service"] if line.get("trace_id") == trace]
    (llm,) = [line for line in logs["llm_service"] if line.get("trace_id") == trace]
    assert gateway["request_id"] and gateway["caller"] == "127.0.0.1"
    assert token2wav["stream_id"] == gateway["stream_id"]
    assert llm["request_id"].startswith("grpc-")
    for name in ("gateway", "llm_service"):
        plain = [line for line in watched.log_lines(name) if not line.startswith("{")]
        assert plain == [], f"{name} wrote lines that are no JSON"


def json_lines(lines: list[str]) -> list[dict[str, Any]]:
    """Parse the lines that are JSON; Triton's own are none."""
    return [json.loads(line) for line in lines if re.match(r"\{.*\}$", line)]


def test_metrics_are_on_their_own_port_only(watched: Watched) -> None:
    own = httpx.get(f"http://127.0.0.1:{watched.metrics_port}/metrics", trust_env=False)
    assert "cosydit_gateway_streams" in own.text
    assert httpx.get(f"{watched.options.gateway_url}/metrics", trust_env=False).status_code == 404


def test_the_shipped_names_are_in_the_stack_s_own_scrapes(watched: Watched) -> None:
    """Alerts must not name a metric that nobody has; other servers' names and the router's are their own."""
    text = (CONFIG / "alerts.yml").read_text()
    names = set(re.findall(r"cosydit_[a-z0-9_]+", text))
    scraped = "".join(
        httpx.get(f"http://{target}/metrics", trust_env=False).text for target in watched.scrape_targets.values()
    )
    assert names
    assert [name for name in sorted(names) if name not in scraped] == []
