"""The `cosydit` command: dispatches to one module per subcommand."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence

SUBCOMMANDS = (
    "say",
    "serve",
    "client",
    "replay",
    "bench",
    "batch",
    "build_engines",
    "checkpoint",
    "convert_llm",
    "download",
    "export",
    "import_voices",
    "keys",
    "doctor",
    "plan",
    "top",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="cosydit", description=__doc__.partition(":")[0] if __doc__ else None)
    parser.add_argument("--verbose", action="store_true", help="log at INFO level to standard error")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in SUBCOMMANDS:
        importlib.import_module(f"cosydit.cli.{name}").add_parser(subparsers)
    args = parser.parse_args(argv)
    level = logging.INFO if args.verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        print("cosydit: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
