"""Draws what the services' metrics say. Knows their names; knows nothing of how they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cosydit.bench.scrape import Looks, WatchedService, Window

GATEWAY, TOKEN2WAV = "cosydit_gateway", "cosydit_token2wav"
Row = Callable[[Window], list[Text]]

_NOTHING = "-"
_BAD_SILENCE = 0.005
_BAD_MISSES = 0.01
_FULL_SLOTS = 0.9
_MANY_WAITING = 4
_LEAST = 0.0001
"""Figures below this are written as 0, as more digits would need an exponent."""
# Each server of the LLM has its own names: the embedded one, vLLM, trtllm-serve.
_WAITING = ("cosydit_llm_requests_waiting", "vllm:num_requests_waiting", "trtllm_num_requests_waiting")
_RUNNING = ("cosydit_llm_requests_running", "vllm:num_requests_running", "trtllm_num_requests_running")
_TOKENS = ("cosydit_llm_tokens_total", "vllm:generation_tokens_total", "trtllm_generation_tokens_total")
_FIRST_TOKEN = (
    "cosydit_llm_first_token_seconds",
    "vllm:time_to_first_token_seconds",
    "trtllm_time_to_first_token_seconds",
)


def draw(looks: Looks, title: str) -> RenderableType:
    """Return tables of the listeners and of each replica of both services."""
    return Group(
        Text(f"cosydit top  {title}", style="bold"),
        _table(_LISTENER_COLUMNS, "listeners", looks["gateway"], _listener_row),
        _table(_REQUEST_COLUMNS, "requests", looks["gateway"], _request_row),
        _table(_TOKEN2WAV_COLUMNS, "token2wav", looks["token2wav"], _token2wav_row),
        _table(_LLM_COLUMNS, "LLM", looks["llm"], _llm_row),
    )


_LISTENER_COLUMNS = ("streams", "ttfa p50", "p95", "slack p5", "silence", "audio s/s")
_REQUEST_COLUMNS = ("done/s", "refused", "failed", "left", "tokens/s", "wasted")
_TOKEN2WAV_COLUMNS = ("slots", "batch", "step p50", "p95", "queue p95", "waiting", "late", "audio s/s")
_LLM_COLUMNS = ("running", "waiting", "tokens/s", "ttft p50", "p95")


def _listener_row(window: Window) -> list[Text]:
    silence = window.ratio(f"{GATEWAY}_underrun_seconds_total", f"{GATEWAY}_audio_seconds_total")
    return [
        _count(window.gauge(f"{GATEWAY}_streams")),
        _milliseconds(window.quantile(f"{GATEWAY}_time_to_first_audio_seconds", 0.5)),
        _milliseconds(window.quantile(f"{GATEWAY}_time_to_first_audio_seconds", 0.95)),
        _seconds(window.quantile(f"{GATEWAY}_chunk_slack_seconds", 0.05)),
        _share(silence, is_bad=silence is not None and silence > _BAD_SILENCE),
        _number(window.rate(f"{GATEWAY}_audio_seconds_total")),
    ]


def _request_row(window: Window) -> list[Text]:
    failed = window.growth(f"{GATEWAY}_requests_total", outcome="failed")
    wasted = window.ratio(f"{GATEWAY}_wasted_speech_tokens_total", f"{GATEWAY}_speech_tokens_total")
    return [
        _number(window.rate(f"{GATEWAY}_requests_total", outcome="completed")),
        _count(window.growth(f"{GATEWAY}_admission_refused_total")),
        _count(failed, is_bad=bool(failed)),
        _count(window.growth(f"{GATEWAY}_cancelled_total")),
        _number(window.rate(f"{GATEWAY}_speech_tokens_total")),
        _share(wasted, is_bad=False),
    ]


def _token2wav_row(window: Window) -> list[Text]:
    used, slots = window.gauge(f"{TOKEN2WAV}_slots_in_use"), window.gauge(f"{TOKEN2WAV}_slots")
    late = window.ratio(f"{TOKEN2WAV}_deadline_misses_total", f"{TOKEN2WAV}_chunks_total")
    is_full = bool(used and slots and used / slots > _FULL_SLOTS)
    return [
        Text(_NOTHING if used is None or slots is None else f"{used:.0f}/{slots:.0f}", style=_style(is_full)),
        _number(window.ratio(f"{TOKEN2WAV}_step_batch_size_sum", f"{TOKEN2WAV}_step_batch_size_count")),
        _milliseconds(window.quantile(f"{TOKEN2WAV}_step_seconds", 0.5)),
        _milliseconds(window.quantile(f"{TOKEN2WAV}_step_seconds", 0.95)),
        _milliseconds(window.quantile(f"{TOKEN2WAV}_queue_seconds", 0.95)),
        _count(window.gauge(f"{TOKEN2WAV}_queued_chunks")),
        _share(late, is_bad=late is not None and late > _BAD_MISSES),
        _number(window.rate(f"{TOKEN2WAV}_audio_seconds_total")),
    ]


def _llm_row(window: Window) -> list[Text]:
    waiting = _first(window.gauge(name) for name in _WAITING)
    return [
        _count(_first(window.gauge(name) for name in _RUNNING)),
        _count(waiting, is_bad=waiting is not None and waiting > _MANY_WAITING),
        _number(_first(window.rate(name) for name in _TOKENS)),
        _milliseconds(_first(window.quantile(name, 0.5) for name in _FIRST_TOKEN)),
        _milliseconds(_first(window.quantile(name, 0.95) for name in _FIRST_TOKEN)),
    ]


def _table(columns: Sequence[str], title: str, services: Sequence[WatchedService], row: Row) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", title_justify="left", padding=(0, 1, 0, 0))
    table.add_column(f"\n{title}", style="bold", no_wrap=True)
    for column in columns:
        table.add_column(f"\n{column}", justify="right", no_wrap=True)
    for service in services:
        if service.window is None:
            table.add_row(Text(f"{service.address} {service.problem}", style="bold red"))
        else:
            table.add_row(service.address, *row(service.window))
    return table


def _first(values: Iterable[float | None]) -> float | None:
    return next((value for value in values if value is not None), None)


def _style(is_bad: bool) -> str:
    return "bold red" if is_bad else ""


def _count(value: float | None, is_bad: bool = False) -> Text:
    return Text(_NOTHING if value is None else f"{value:.0f}", style=_style(is_bad))


def _number(value: float | None) -> Text:
    return Text(_NOTHING if value is None else _plain(value, 3))


def _milliseconds(value: float | None) -> Text:
    return Text(_NOTHING if value is None else f"{value * 1000:.0f} ms")


def _seconds(value: float | None) -> Text:
    return Text(_NOTHING if value is None else f"{value:.2f} s", style=_style(value is not None and value < 0))


def _share(value: float | None, is_bad: bool) -> Text:
    return Text(_NOTHING if value is None else f"{_plain(100 * value, 2)} %", style=_style(is_bad))


def _plain(value: float, digits: int) -> str:
    """Write so many digits, those before the point in any case, and never with an exponent."""
    is_large = abs(value) >= 10 ** (digits - 1)
    return f"{value:.0f}" if is_large else f"{value:.{digits}g}" if abs(value) >= _LEAST else "0"
