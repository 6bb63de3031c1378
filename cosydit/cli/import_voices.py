"""`cosydit import-voices`: the voices of the original's spk2info.pt, as created voices of the gateway."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cosydit.stack.checkpoint.import_voices import ImportReport


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `import-voices`."""
    parser = subparsers.add_parser("import-voices", help="take over the voices of the original's spk2info.pt")
    parser.add_argument("file", type=Path, help="path of spk2info.pt, which is read without running code")
    add = parser.add_argument
    add("--out", type=Path, required=True, help="directory to write, the gateway's --created-voices-dir")
    model = "directory of the token2wav checkpoint that will speak in the voices"
    add("--model-dir", type=Path, required=True, help=model)
    tokenizer = "directory of the LLM's tokenizer, for transcripts that the file has only as token ids"
    add("--tokenizer-dir", type=Path, help=tokenizer)
    consent = "note on who allowed the voices to be made (default: where they come from)"
    add("--consent", default="", help=consent)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Take over what can be; returns the exit status, 1 if anything was left out."""
    from cosydit.stack.checkpoint.import_voices import import_voices
    from gateway.errors import GatewayError
    from token2wav_service.errors import CheckpointError

    try:
        reports = import_voices(args.file, args.out, args.model_dir, args.tokenizer_dir, args.consent)
    except (CheckpointError, GatewayError, OSError) as err:
        print(f"cosydit import-voices: {err}", file=sys.stderr)
        return 2
    for report in reports:
        print(_line(report))
    failed = sum(report.problem is not None for report in reports)
    print(f"{len(reports)} voices, {failed} left out")
    return 1 if failed else 0


def _line(report: ImportReport) -> str:
    if report.problem is not None:
        return f"FAIL  {report.name}: {report.problem}"
    return f"ok    {report.name}: {report.voice_id}{f' ({report.note})' if report.note else ''}"
