"""Writes grafana/dashboards/cosydit.json: `python deploy/observability/make_dashboard.py`; `--check` compares only.

The panels are in the table below; Grafana's own library gives the file its form.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef

TARGET = Path(__file__).parent / "grafana" / "dashboards" / "cosydit.json"
SOURCE_TYPE, SOURCE_VARIABLE = "prometheus", "datasource"
SOURCE = DataSourceRef(type_val=SOURCE_TYPE, uid=f"${{{SOURCE_VARIABLE}}}")
"""The one that is chosen in the dashboard, so that it loads in any Grafana."""
WIDTH, HEIGHT = 8, 7


@dataclass(frozen=True)
class Panel:
    """One panel: queries and how each one's lines are named."""

    title: str
    unit: str
    text: str
    queries: tuple[tuple[str, str], ...]


def quantile(share: float, histogram: str, by: str = "le") -> str:
    """Return the query of a quantile of a histogram over all instances, or over each."""
    return f"histogram_quantile({share}, sum by ({by}) (rate({histogram}_bucket[$__rate_interval])))"


def rate(counter: str, by: str = "") -> str:
    """Return the query of a counter's sum a second."""
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({counter}[$__rate_interval]))"


GATEWAY, TOKEN2WAV = "cosydit_gateway", "cosydit_token2wav"
FIRST_AUDIO, SLACK = f"{GATEWAY}_time_to_first_audio_seconds", f"{GATEWAY}_chunk_slack_seconds"
ROWS: dict[str, tuple[Panel, ...]] = {
    "Listeners": (
        Panel(
            "Time to first audio",
            "s",
            "From the request to its first samples, at the gateway.",
            ((quantile(0.5, FIRST_AUDIO), "p50"), (quantile(0.95, FIRST_AUDIO), "p95")),
        ),
        Panel(
            "Slack between chunks",
            "s",
            "How long before its listener would run dry a chunk comes: the worst of 20 and of 100. Below 0 is silence.",
            ((quantile(0.05, SLACK), "1 of 20"), (quantile(0.01, SLACK), "1 of 100")),
        ),
        Panel(
            "Silence in the audio",
            "percentunit",
            "Seconds of silence between chunks for each second of audio.",
            ((f"{rate(f'{GATEWAY}_underrun_seconds_total')} / {rate(f'{GATEWAY}_audio_seconds_total')}", "silence"),),
        ),
        Panel(
            "Streams and audio",
            "short",
            "Streams spoken now; seconds of audio made in a second.",
            (
                (f"sum (max_over_time({GATEWAY}_streams[$__rate_interval]))", "streams"),
                (rate(f"{GATEWAY}_audio_seconds_total"), "audio s/s"),
            ),
        ),
        Panel(
            "Requests by outcome",
            "reqps",
            "Streams that ended, a second.",
            ((rate(f"{GATEWAY}_requests_total", "outcome"), "{{outcome}}"),),
        ),
        Panel(
            "Requests by dialect",
            "reqps",
            "Streams that ended, a second.",
            ((rate(f"{GATEWAY}_requests_total", "dialect"), "{{dialect}}"),),
        ),
        Panel(
            "Failures by cause",
            "reqps",
            "Codes of errors at the gateway; those that never came up are left out.",
            ((f"{rate(f'{GATEWAY}_failures_total', 'cause')} > 0", "{{cause}}"),),
        ),
        Panel(
            "Refused and cancelled",
            "reqps",
            "429 answers; callers who left.",
            (
                (rate(f"{GATEWAY}_admission_refused_total"), "refused"),
                (rate(f"{GATEWAY}_cancelled_total"), "cancelled"),
            ),
        ),
        Panel(
            "Speech tokens",
            "short",
            "From the LLM, a second; wasted are those whose audio nobody heard.",
            (
                (rate(f"{GATEWAY}_speech_tokens_total"), "received"),
                (rate(f"{GATEWAY}_wasted_speech_tokens_total"), "wasted"),
            ),
        ),
    ),
    "LLM": (
        Panel(
            "LLM requests",
            "short",
            "Requests that run and that wait, at each server.",
            (
                ("max_over_time(llm:requests_running[$__rate_interval])", "running {{instance}}"),
                ("max_over_time(llm:requests_waiting[$__rate_interval])", "waiting {{instance}}"),
            ),
        ),
        Panel(
            "LLM tokens",
            "short",
            "Tokens a second, at each server.",
            (("llm:tokens:rate1m", "{{instance}}"),),
        ),
        Panel(
            "LLM first token",
            "s",
            "From a request's arrival at the server to its first token.",
            (
                ("histogram_quantile(0.5, sum by (le) (llm:first_token_seconds_bucket:rate5m))", "p50"),
                ("histogram_quantile(0.95, sum by (le) (llm:first_token_seconds_bucket:rate5m))", "p95"),
            ),
        ),
    ),
    "token2wav": (
        Panel(
            "Slots in use",
            "percentunit",
            "Share of the streams that each replica may have open.",
            ((f"{TOKEN2WAV}_slots_in_use / {TOKEN2WAV}_slots", "{{instance}}"),),
        ),
        Panel(
            "Step",
            "s",
            "Duration of a batched step, and how long chunks wait for theirs.",
            (
                (quantile(0.5, f"{TOKEN2WAV}_step_seconds"), "step p50"),
                (quantile(0.95, f"{TOKEN2WAV}_step_seconds"), "step p95"),
                (quantile(0.95, f"{TOKEN2WAV}_queue_seconds"), "queue p95"),
            ),
        ),
        Panel(
            "Batch size",
            "short",
            "Streams advanced together in a step, at each replica.",
            (
                (
                    f"rate({TOKEN2WAV}_step_batch_size_sum[$__rate_interval])"
                    f" / rate({TOKEN2WAV}_step_batch_size_count[$__rate_interval])",
                    "mean {{instance}}",
                ),
            ),
        ),
        Panel(
            "Chunks and deadlines",
            "short",
            "Chunks a second; those whose listener ran dry though they were sent in time; those that wait now.",
            (
                (rate(f"{TOKEN2WAV}_chunks_total"), "chunks"),
                (rate(f"{TOKEN2WAV}_deadline_misses_total"), "deadline misses"),
                (f"sum ({TOKEN2WAV}_queued_chunks)", "queued"),
            ),
        ),
        Panel(
            "Memory",
            "bytes",
            "Of open streams' states and of cached voices.",
            (
                (f"{TOKEN2WAV}_state_bytes", "states {{instance}}"),
                (f"{TOKEN2WAV}_voice_bytes", "voices {{instance}}"),
            ),
        ),
        Panel(
            "Voices and failures",
            "ops",
            "The voice cache's hits and misses; errors sent, by cause.",
            (
                (rate(f"{TOKEN2WAV}_voice_hits_total"), "hits"),
                (rate(f"{TOKEN2WAV}_voice_misses_total"), "misses"),
                (f"{rate(f'{TOKEN2WAV}_failures_total', 'cause')} > 0", "{{cause}}"),
            ),
        ),
    ),
    "Replicas": (
        Panel(
            "Replicas",
            "short",
            "Processes that answer their scrapes.",
            (('sum by (job) (up{job=~"gateway|llm|token2wav"})', "{{job}}"),),
        ),
        Panel(
            "Replicas, as the gateway sees them",
            "short",
            "By what they are good for.",
            ((f"max by (service, state) ({GATEWAY}_replicas)", "{{service}} {{state}}"),),
        ),
        Panel(
            "Load of the replicas",
            "short",
            "Streams of the gateways at each; a recent step in seconds.",
            (
                (f"sum by (replica) ({GATEWAY}_replica_open_streams)", "streams {{replica}}"),
                (f"max by (replica) ({GATEWAY}_replica_step_seconds)", "step {{replica}}"),
            ),
        ),
        Panel(
            "Failovers",
            "ops",
            "Streams that went on elsewhere, and what replicas failed.",
            (
                (rate(f"{GATEWAY}_failovers_total", "service"), "failovers {{service}}"),
                (rate(f"{GATEWAY}_replica_failures_total", "service"), "failures {{service}}"),
            ),
        ),
    ),
}


def build() -> str:
    """Return the dashboard's JSON."""
    board = (
        dashboard.Dashboard("cosydit").uid("cosydit").tags(["cosydit"]).refresh("10s").time("now-30m", "now").editable()
    )
    board.with_variable(dashboard.DatasourceVariable(SOURCE_VARIABLE).label("Data source").type(SOURCE_TYPE))
    for title, panels in ROWS.items():
        board.with_row(dashboard.Row(title))
        for panel in panels:
            board.with_panel(_panel(panel))
    document = json.loads(JSONEncoder(sort_keys=True).encode(board.build()))
    for number, panel in enumerate(document["panels"], start=1):
        panel["id"] = number
    return json.dumps(document, sort_keys=True, indent=2) + "\n"


def main(arguments: list[str]) -> int:
    """Write the file, or say whether it is what would be written."""
    if arguments == ["--check"]:
        is_current = TARGET.read_text() == build()
        sys.stdout.write(f"{TARGET}: {'current' if is_current else 'outdated; run make_dashboard.py'}\n")
        return 0 if is_current else 1
    TARGET.write_text(build())
    return 0


def _panel(panel: Panel) -> timeseries.Panel:
    built = timeseries.Panel().title(panel.title).description(panel.text).unit(panel.unit).datasource(SOURCE)
    built.height(HEIGHT).span(WIDTH).line_width(1).fill_opacity(8)
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    built.legend(legend.show_legend(True)).tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    for number, (expression, legend) in enumerate(panel.queries):
        name = chr(ord("A") + number)
        built.with_target(prometheus.Dataquery().ref_id(name).expr(expression).legend_format(legend))
    return built


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
