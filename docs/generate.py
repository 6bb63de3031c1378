"""Writes the parts of the documentation that have a source in the code: run it after changing an option or a field.

    .venv/bin/python docs/generate.py            # write
    .venv/bin/python docs/generate.py --check    # say what would change; status 1 if anything would

Files below docs/: configuration.md (from the argument parsers and settings), api/endpoints.md and api/openapi.json
(from the table of endpoints and the stubs), api/openai-fields.md (from the request model), api/websocket-fields.md
(from the message models), api/grpc.md (from proto/) and api/errors.md (from the table of errors). `tests/docs` runs the
check.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path[:0] = [str(ROOT), str(ROOT / "proto" / "gen"), str(DOCS)]

from sources import configuration, endpoints, errors, fields, protocol  # noqa: E402

PAGES: Mapping[str, Callable[[], str]] = {
    "configuration.md": configuration.page,
    "api/endpoints.md": endpoints.page,
    "api/openai-fields.md": fields.openai_page,
    "api/openapi.json": fields.openapi,
    "api/websocket-fields.md": fields.websocket_page,
    "api/grpc.md": protocol.page,
    "api/errors.md": errors.page,
}
"""File below docs/ -> what makes its whole text."""


def outdated() -> dict[str, str]:
    """Return the files whose text is not what their source says, with the text that they should have."""
    wanted = {name: make() for name, make in PAGES.items()}
    return {name: text for name, text in wanted.items() if _text_of(DOCS / name) != text}


def main() -> int:
    """Write or check; return the exit status."""
    parser = argparse.ArgumentParser(description="Write the generated parts of the documentation.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if anything would change")
    is_check = parser.parse_args().check
    changed = outdated()
    for name, text in changed.items():
        sys.stdout.write(f"{'differs' if is_check else 'wrote'}: docs/{name}\n")
        if not is_check:
            (DOCS / name).write_text(text, encoding="utf-8")
    return 1 if is_check and changed else 0


def _text_of(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
