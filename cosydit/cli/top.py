"""`cosydit top`: a live view of the gateway, the LLM and token2wav, from their metrics."""

from __future__ import annotations

import argparse
import time

DEFAULT_INTERVAL_S = 1.0
DEFAULT_WINDOW_S = 30.0
_DEFAULTS = {
    "gateway": "http://127.0.0.1:8080/metrics",
    "token2wav": "http://127.0.0.1:8002/metrics",
    "llm": "http://127.0.0.1:8000/metrics",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser("top", help="watch running services in the terminal")
    for name, url in _DEFAULTS.items():
        text = f"metrics of a {name} process; may be repeated (default {url})"
        parser.add_argument(f"--{name}", action="append", metavar="URL", help=text)
    parser.add_argument("--interval-s", type=float, default=DEFAULT_INTERVAL_S, help="between looks (%(default)s)")
    parser.add_argument("--window-s", type=float, default=DEFAULT_WINDOW_S, help="rates are over (%(default)s)")
    parser.add_argument("--once", action="store_true", help="look once, at everything since the services' start")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Draw until interrupted; returns 0, or 1 if nothing answered a single look."""
    from rich.console import Console
    from rich.live import Live

    from cosydit.clock import SystemClock
    from cosydit.watch.follow import Watch
    from cosydit.watch.view import draw

    urls = {name: getattr(args, name) or [url] for name, url in _DEFAULTS.items()}
    watch = Watch(urls["gateway"], urls["token2wav"], urls["llm"], args.window_s, SystemClock())
    try:
        if args.once:
            picture = watch.look(f"{time.strftime('%H:%M:%S')}  since the services' start")
            Console().print(draw(picture))
            services = [*picture.gateways, *picture.token2wav, *picture.llm]
            return 0 if any(service.window is not None for service in services) else 1
        title = f"last {args.window_s:g} s  (Ctrl-C ends it)"
        with Live(draw(watch.look(title)), auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(args.interval_s)
                live.update(draw(watch.look(f"{time.strftime('%H:%M:%S')}  {title}")), refresh=True)
    finally:
        watch.close()
