"""`cosydit keys new|list|revoke`: API keys for callers of the gateway."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from dataclasses import asdict
from pathlib import Path

from gateway.access.caller import CallerLimits
from gateway.access.keys import check_unique, key_line, new_key, parse_keys, without_key
from gateway.errors import ConfigError
from servicekit.files import ONLY_OWNER, write_bytes

_DIGEST_DIGITS = 12
"""Digits shown of a digest, to tell keys apart."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("keys", help="make, list and revoke API keys of the gateway's callers")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    new = actions.add_parser("new", help="make a key, store its digest and show the key once")
    new.add_argument("name", help="name of the key's owner, shown in logs")
    file = "the gateway's --keys-file, to which the line is added; left out, the line is only shown"
    new.add_argument("--file", type=Path, help=file)
    limit = "limit: streams=, audio_s_per_hour=, audio_s_per_day= or unspoken_characters=; may be repeated"
    new.add_argument("--limit", action="append", default=[], metavar="LIMIT=VALUE", help=limit)
    new.set_defaults(run=_new)
    listing = actions.add_parser("list", help="list the names and limits of a file's keys")
    revoke = actions.add_parser(
        "revoke", help="remove a key from the file; a running gateway refuses it a second later"
    )
    revoke.add_argument("name", help="name of the key's owner")
    for action, act in ((listing, _list), (revoke, _revoke)):
        action.add_argument("--file", type=Path, required=True, help="the gateway's --keys-file")
        action.set_defaults(run=act)


def _new(args: argparse.Namespace) -> int:
    key = new_key()
    line = key_line(args.name, key, args.limit)
    if args.file is not None:
        _append(args.file, line)
    print(key)
    kept = f"its digest was added to {args.file}" if args.file else f"add this line to the keys file: {line}"
    print(f"This is the only time the key is shown; {kept}", file=sys.stderr)
    return 0


def _append(file: Path, line: str) -> None:
    """Add a line, once it is clear that the whole can be read."""
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    added = line + "\n" if before.endswith("\n") or not before else f"\n{line}\n"
    check_unique(parse_keys(before + added, CallerLimits(), str(file)), str(file))
    # NOTE: one write of a whole line, as a running gateway may read the file at any time.
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, ONLY_OWNER)
    with os.fdopen(descriptor, "a", encoding="utf-8") as lines:
        lines.write(added)


def _list(args: argparse.Namespace) -> int:
    none = CallerLimits(unspoken_characters=None)
    keys = parse_keys(args.file.read_text(encoding="utf-8"), none, str(args.file))
    width = max((len(key.name) for key in keys), default=0)
    for key in keys:
        limits = [f"{name}={value:g}" for name, value in asdict(key.limits).items() if value is not None]
        print(f"{key.name:{width}}  sha256:{key.digest.hex()[:_DIGEST_DIGITS]}...  {' '.join(limits) or 'no limits'}")
    print(f"{len(keys)} keys in {args.file}", file=sys.stderr)
    return 0


def _revoke(args: argparse.Namespace) -> int:
    file = args.file.resolve()
    before = file.read_text(encoding="utf-8")
    after = without_key(before, args.name, str(args.file))
    if after == before:
        raise ConfigError(f"{args.file} has no key of {args.name!r}; see: cosydit keys list --file {args.file}")
    write_bytes(file, after.encode(), stat.S_IMODE(file.stat().st_mode))
    print(f"revoked the key of {args.name}; a running gateway refuses it from a second later on")
    return 0
