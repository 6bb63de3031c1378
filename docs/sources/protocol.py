"""The page of the gRPC interfaces, from the comments in proto/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sources.markdown import WARNING, code, listing

ROOT = Path(__file__).resolve().parents[2]
_FILES = (
    ("tts_api.tts.v1", "our own interface", ("tts_service.proto", "speech.proto"), "proto/tts_api/tts/v1"),
    ("nvidia.riva.tts", "for NVIDIA Riva's clients", ("riva_tts.proto",), "proto/riva/proto"),
)
_PLAIN = {
    "ListVoicesRequest",
    "StreamingSynthesizeResponse",
    "SynthesizeResponse",
    "RivaSynthesisConfigRequest",
    "RivaSynthesisConfigResponse",
    "WordTiming",
    "SynthesizeSpeechResponse",
    "SynthesizeSpeechResponseMetadata",
}
"""Messages that say nothing which the calls that they belong to, or Riva's own pages, do not."""
_BLOCK = re.compile(r"(service|message|enum|oneof) (\w+) \{(\})?")
_RPC = re.compile(r"rpc (\w+)\((stream )?([\w.]+)\) returns \((stream )?([\w.]+)\)")
_FIELD = re.compile(r"((?:optional |repeated )?(?:map<[^>]+>|[\w.]+)) (\w+) = \d+( \[.*\])?;")
_VALUE = re.compile(r"(\w+) = \d+;")
_INTRODUCTION = """# gRPC

The gateway listens on port 50051 (`--grpc-port`; 0 closes it), with health (`grpc.health.v1.Health`) and reflection.
The Python stubs come with the package: `tts_api.tts.v1` and `riva.proto`; the latter can be loaded beside any version
of `nvidia-riva-client`. [An example](index.md#grpc).

- A call that fails ends with a status whose message says what was got, what was expected and what to do. The trailing
  metadata `error-code` and `error-param` are for programs ([codes](errors.md)).
- API keys travel as metadata `authorization: Bearer KEY`.
- A request may have 4 MiB, a voice prompt included. A call's first message must be whole within 30 s.
"""


@dataclass
class _Block:
    """A service, message or enum."""

    kind: str
    name: str
    comment: str
    rows: list[tuple[str, ...]] = field(default_factory=list)


def page() -> str:
    """Return the page."""
    parts = [WARNING, _INTRODUCTION.strip()]
    for package, meaning, names, folder in _FILES:
        parts.append(f"## {package}: {meaning}\n\nSource, with types and numbers of the fields: `{folder}`.")
        for name in names:
            for block in _blocks((ROOT / folder / name).read_text(encoding="utf-8")):
                parts += _section(block)
    return "\n\n".join(parts) + "\n"


def _section(block: _Block) -> Iterator[str]:
    if not block.rows or block.name in _PLAIN:
        return
    yield f"### {block.name}"
    if block.kind == "enum":
        values = [row for row in block.rows if not row[0].endswith("UNSPECIFIED`")]
        yield " ".join(f"{name}: {said}" for name, said in values)
        return
    yield block.comment.partition("  ")[0]
    yield listing((row[0], row[-1], _kind(row[1]) if block.kind == "message" else "") for row in block.rows)


def _kind(shown: str) -> str:
    """Return what a reader must know of a field's type besides its meaning: nothing of plain numbers and texts."""
    return "" if re.fullmatch(r"`(optional )?(string|bytes|bool|double|int32|int64)`", shown) else shown


def _blocks(text: str) -> list[_Block]:
    """Read a file of our style: one declaration a line, its comment in the lines before it."""
    blocks: list[_Block] = []
    open_blocks: list[_Block | None] = []
    comment: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if line.startswith("//"):
            comment.append(line.removeprefix("//").strip())
            continue
        said = " ".join(comment)
        comment = []
        if begins := _BLOCK.match(line):
            if begins[1] != "oneof":
                blocks.append(_Block(begins[1], begins[2], said))
            if not begins[3]:
                open_blocks.append(None if begins[1] == "oneof" else blocks[-1])
        elif line == "}":
            open_blocks.pop()
        elif row := _row(line, said):
            next(block for block in reversed(open_blocks) if block is not None).rows.append(row)
    return blocks


def _row(line: str, said: str) -> tuple[str, ...] | None:
    if found := _RPC.match(line):
        return code(found[1]), f"{found[2] or ''}{code(found[3])}", f"{found[4] or ''}{code(found[5])}", said
    if found := _FIELD.match(line):
        return code(found[2]), code(found[1]), said
    if found := _VALUE.match(line):
        return code(found[1]), said
    return None
