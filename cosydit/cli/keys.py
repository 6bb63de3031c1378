"""`cosydit keys new`: make an API key for callers of the gateway."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

_ONLY_OWNER = 0o600


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `keys`."""
    parser = subparsers.add_parser("keys", help="make API keys for the gateway's callers")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    new = actions.add_parser("new", help="make a key, keep its digest, show it once")
    new.add_argument("name", help="whose it is; stands in logs")
    new.add_argument(
        "--file", type=Path, default=None, help="the gateway's --keys-file, to which the line is added; None: shown too"
    )
    new.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="LIMIT=VALUE",
        help="streams=, audio_s_per_hour= or audio_s_per_day=; may be repeated",
    )
    new.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make a key; returns the exit status."""
    from gateway.access.keys import key_line, new_key
    from gateway.errors import ConfigError

    key = new_key()
    try:
        line = key_line(args.name, key, args.limit)
        if args.file is not None:
            _append(args.file, line)
    except (ConfigError, OSError) as error:
        print(f"cosydit keys: {error}", file=sys.stderr)
        return 2
    print(key)
    kept = (
        f"its digest was added to {args.file}" if args.file is not None else f"add this line to the keys file: {line}"
    )
    print(f"This is the only time the key is shown; {kept}", file=sys.stderr)
    return 0


def _append(file: Path, line: str) -> None:
    """Add a line, once it is clear that the whole can be read."""
    from gateway.access.caller import CallerLimits
    from gateway.access.keys import KeyRing, parse_keys

    before = file.read_text(encoding="utf-8") if file.exists() else ""
    added = line + "\n" if before.endswith("\n") or not before else f"\n{line}\n"
    KeyRing(parse_keys(before + added, CallerLimits(), str(file)), where=str(file))
    # NOTE: one write of a whole line, as a running gateway may read the file at any time.
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _ONLY_OWNER)
    with os.fdopen(descriptor, "a", encoding="utf-8") as lines:
        lines.write(added)
