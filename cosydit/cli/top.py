"""`cosydit top`: a live view of the gateway, the LLM and token2wav, from their metrics."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.live import Live

from cosydit.bench.types import http_url
from cosydit.cli.scrape import Follower, Looks
from cosydit.cli.top_view import draw
from cosydit.stack.stack import default_work_dir, running_metrics
from servicekit.clock import SystemClock

INTERVAL_S, WINDOW_S = 1.0, 30.0
"""Seconds between two updates, and those over which rates are taken."""
_DEFAULTS = {
    "gateway": "http://127.0.0.1:8080/metrics",
    "token2wav": "http://127.0.0.1:8002/metrics",
    "llm": "http://127.0.0.1:8000/metrics",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("top", help="watch running services in the terminal")
    for name, url in _DEFAULTS.items():
        text = f"metrics of a {name} process; may be repeated (default: of a running `cosydit serve`, else {url})"
        parser.add_argument(f"--{name}", action="append", type=http_url, metavar="URL", help=text)
    parser.add_argument("--work-dir", type=Path, help="work directory of the running serve (default: ~/.cache/cosydit)")
    parser.add_argument("--once", action="store_true", help="show the figures since the services' start once, and stop")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Draw until interrupted; returns 0, or 1 if nothing answered a single look."""
    clock = SystemClock()
    groups = {kind: [Follower(url, WINDOW_S, clock) for url in urls] for kind, urls in _urls(args).items()}
    with ThreadPoolExecutor(max(1, sum(map(len, groups.values())))) as threads:

        def look() -> Looks:
            pending = {kind: threads.map(Follower.read, group) for kind, group in groups.items()}
            return {kind: list(readings) for kind, readings in pending.items()}

        if args.once:
            looks = look()
            Console().print(draw(looks, f"{time.strftime('%H:%M:%S')}  since the services' start"))
            if any(service.window is not None for kind in looks.values() for service in kind):
                return 0
            print("cosydit top: no figures; is `cosydit serve` running, and is this its --work-dir?", file=sys.stderr)
            return 1
        title = f"last {WINDOW_S:g} s  (Ctrl-C ends it)"
        with Live(draw(look(), title), auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(INTERVAL_S)
                live.update(draw(look(), f"{time.strftime('%H:%M:%S')}  {title}"), refresh=True)


def _urls(args: argparse.Namespace) -> dict[str, list[str]]:
    """Return the pages to read: those named, else of what `cosydit serve` runs here, else at the default ports."""
    found = running_metrics(args.work_dir or default_work_dir())
    return {name: getattr(args, name) or (found.get(name, []) if found else [url]) for name, url in _DEFAULTS.items()}
