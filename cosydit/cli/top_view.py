"""Draws what the services' metrics say. Knows their names; knows nothing of how they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cosydit.cli.scrape import Looks, WatchedService, Window

GATEWAY, TOKEN2WAV = "cosydit_gateway", "cosydit_token2wav"
Columns = Mapping[str, Callable[[Window], Text]]
"""Heading -> what makes a service's figure."""

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
        _table("listeners", looks["gateway"], _LISTENERS),
        _table("requests", looks["gateway"], _REQUESTS),
        _table("token2wav", looks["token2wav"], _TOKEN2WAV),
        _table("LLM", looks["llm"], _LLM),
    )


def _table(title: str, services: Sequence[WatchedService], columns: Columns) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", title_justify="left", padding=(0, 1, 0, 0))
    table.add_column(f"\n{title}", style="bold", no_wrap=True)
    for heading in columns:
        table.add_column(f"\n{heading}", justify="right", no_wrap=True)
    for service in services:
        if service.window is None:
            table.add_row(Text(f"{service.address} {service.problem}", style="bold red"))
        else:
            table.add_row(service.address, *(figure(service.window) for figure in columns.values()))
    return table


def _text(value: float | None, form: Callable[[float], str], is_bad: bool = False) -> Text:
    return Text(_NOTHING if value is None else form(value), style="bold red" if is_bad else "")


def _count(value: float | None, most: float = float("inf")) -> Text:
    return _text(value, "{:.0f}".format, value is not None and value > most)


def _number(value: float | None) -> Text:
    return _text(value, lambda number: _plain(number, 3))


def _milliseconds(value: float | None) -> Text:
    return _text(value, lambda seconds: f"{seconds * 1000:.0f} ms")


def _seconds(value: float | None) -> Text:
    return _text(value, "{:.2f} s".format, value is not None and value < 0)


def _share(value: float | None, most: float = float("inf")) -> Text:
    return _text(value, lambda share: f"{_plain(100 * share, 2)} %", value is not None and value > most)


def _slots(window: Window) -> Text:
    used, slots = (window.after.total(f"{TOKEN2WAV}_{name}") for name in ("slots_in_use", "slots"))
    is_full = bool(used and slots and used / slots > _FULL_SLOTS)
    return _text(used if slots is not None else None, lambda used: f"{used:.0f}/{slots:.0f}", is_full)


def _plain(value: float, digits: int) -> str:
    """Write so many digits, those before the point in any case, and never with an exponent."""
    is_large = abs(value) >= 10 ** (digits - 1)
    return f"{value:.0f}" if is_large else f"{value:.{digits}g}" if abs(value) >= _LEAST else "0"


def _first(values: Iterable[float | None]) -> float | None:
    return next((value for value in values if value is not None), None)


_LISTENERS: Columns = {
    "streams": lambda of: _count(of.after.total(f"{GATEWAY}_streams")),
    "ttfa p50": lambda of: _milliseconds(of.quantile(f"{GATEWAY}_time_to_first_audio_seconds", 0.5)),
    "p95": lambda of: _milliseconds(of.quantile(f"{GATEWAY}_time_to_first_audio_seconds", 0.95)),
    "slack p5": lambda of: _seconds(of.quantile(f"{GATEWAY}_chunk_slack_seconds", 0.05)),
    "silence": lambda of: _share(
        of.ratio(f"{GATEWAY}_underrun_seconds_total", f"{GATEWAY}_audio_seconds_total"), _BAD_SILENCE
    ),
    "audio s/s": lambda of: _number(of.rate(f"{GATEWAY}_audio_seconds_total")),
}
_REQUESTS: Columns = {
    "done/s": lambda of: _number(of.rate(f"{GATEWAY}_requests_total", outcome="completed")),
    "refused": lambda of: _count(of.growth(f"{GATEWAY}_admission_refused_total")),
    "failed": lambda of: _count(of.growth(f"{GATEWAY}_requests_total", outcome="failed"), 0),
    "left": lambda of: _count(of.growth(f"{GATEWAY}_cancelled_total")),
    "tokens/s": lambda of: _number(of.rate(f"{GATEWAY}_speech_tokens_total")),
    "wasted": lambda of: _share(of.ratio(f"{GATEWAY}_wasted_speech_tokens_total", f"{GATEWAY}_speech_tokens_total")),
}
_TOKEN2WAV: Columns = {
    "slots": _slots,
    "batch": lambda of: _number(of.ratio(f"{TOKEN2WAV}_step_batch_size_sum", f"{TOKEN2WAV}_step_batch_size_count")),
    "step p50": lambda of: _milliseconds(of.quantile(f"{TOKEN2WAV}_step_seconds", 0.5)),
    "p95": lambda of: _milliseconds(of.quantile(f"{TOKEN2WAV}_step_seconds", 0.95)),
    "queue p95": lambda of: _milliseconds(of.quantile(f"{TOKEN2WAV}_queue_seconds", 0.95)),
    "waiting": lambda of: _count(of.after.total(f"{TOKEN2WAV}_queued_chunks")),
    "late": lambda of: _share(of.ratio(f"{TOKEN2WAV}_deadline_misses_total", f"{TOKEN2WAV}_chunks_total"), _BAD_MISSES),
    "audio s/s": lambda of: _number(of.rate(f"{TOKEN2WAV}_audio_seconds_total")),
}
_LLM: Columns = {
    "running": lambda of: _count(_first(map(of.after.total, _RUNNING))),
    "waiting": lambda of: _count(_first(map(of.after.total, _WAITING)), _MANY_WAITING),
    "tokens/s": lambda of: _number(_first(map(of.rate, _TOKENS))),
    "ttft p50": lambda of: _milliseconds(_first(of.quantile(name, 0.5) for name in _FIRST_TOKEN)),
    "p95": lambda of: _milliseconds(_first(of.quantile(name, 0.95) for name in _FIRST_TOKEN)),
}
