"""`cosydit checkpoint`: makes a random one, unpacks the demo voice, says what one can do, seals one, and checks one.

`cosydit import-voices`: the voices of the original's spk2info.pt, as created voices of the gateway.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cosydit.cli.plan import FAMILIES
from servicekit.checkpoint_file import CheckpointDeclaration, find_declaration, write_declaration
from servicekit.file_sums import SUMS_FILE, write_sums
from servicekit.settings import argument, whole

if TYPE_CHECKING:
    from cosydit.stack.checkpoint.import_voices import ImportReport

_SEED = argument(whole(0))


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "checkpoint", help="make a random checkpoint, unpack the demo voice, verify one, ..."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    make = actions.add_parser("make-random", help="write a complete random checkpoint; it speaks noise")
    make.add_argument("directory", type=Path, help="directory to write token2wav/, llm/ and voices/ into")
    make.add_argument("--seed", type=_SEED, default=0, help="equal seeds give equal files (default %(default)s)")
    size = "size of the models; official: the real sizes, about 2 GB, to measure speed; its answers have full length"
    make.add_argument("--size", choices=("small", "official"), default="small", help=size)
    _add_family(make, "step_audio2", "of the models (default %(default)s)")
    voices = "number of further voices, named voice-000 and so on"
    make.add_argument("--numbered-voices", type=_SEED, default=0, metavar="N", help=voices)
    make.add_argument("--force", action="store_true", help="write over a directory that is not empty")
    make.set_defaults(run=_make_random)
    demo = actions.add_parser(
        "unpack-demo", help="unpack the bundled demo voice; does nothing if it is unpacked already"
    )
    demo.add_argument("directory", type=Path, help="directory to unpack into; made if missing")
    demo.set_defaults(run=_unpack_demo)
    declare = actions.add_parser("declare", help="write checkpoint.json: what a checkpoint can do")
    declare.add_argument("directory", type=Path, help="directory with token2wav/, llm/ and voices/")
    declare.add_argument("--name", help="name of the checkpoint for people")
    _add_family(declare, None, "family of the models; left out, its description file tells it")
    unknown = "left out: as in the file now, else as for the family's official checkpoint"
    languages = f"languages of the LLM, such as en,zh; any: unknown; {unknown}"
    declare.add_argument("--languages", metavar="LANGUAGE[,...]", help=languages)
    tags = f"tags that the LLM acts on, such as [breath],[sigh]; none: no tags; {unknown}"
    declare.add_argument("--tags", metavar="TAG[,...]", help=tags)
    instruct = "endofprompt: the LLM takes an instruction before <|endofprompt|>; none: it takes none"
    declare.add_argument("--instruct", choices=("endofprompt", "none"), help=f"{instruct}; {unknown}")
    phonemes = "cosyvoice3: the LLM reads CMU phones and pinyin in brackets; none: it reads words only"
    declare.add_argument("--phonemes", choices=("cosyvoice3", "none"), help=f"{phonemes}; {unknown}")
    declare.set_defaults(run=_declare)
    seal = actions.add_parser("seal", help=f"list the SHA-256 of every weight in {SUMS_FILE}; services check it")
    seal.add_argument("directory", type=Path, help="directory with token2wav/, llm/ and voices/")
    seal.set_defaults(run=_seal)
    verify = actions.add_parser("verify", help="load every part of a checkpoint and say what is wrong with it")
    verify.add_argument("directory", type=Path, help="directory that make-random wrote, or a token2wav directory")
    _add_family(verify, None, "family that it must have; left out, its description file tells it")
    verify.set_defaults(run=_verify)

    _add_import(subparsers)


def _add_import(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
    parser.set_defaults(run=_import_voices)


def _add_family(parser: argparse.ArgumentParser, default: str | None, meaning: str) -> None:
    parser.add_argument("--family", choices=FAMILIES, default=default, help=meaning)


def _make_random(args: argparse.Namespace) -> int:
    from cosydit.stack.checkpoint.make_checkpoint import make_random_checkpoint
    from token2wav_service.checkpoint.family import Family

    is_official, family = args.size == "official", Family(args.family)
    make_random_checkpoint(args.directory, args.seed, args.force, is_official, args.numbered_voices, family)
    print(f"wrote {args.directory} ({args.family}, random weights, seed {args.seed}: it speaks noise)")
    return 0


def _unpack_demo(args: argparse.Namespace) -> int:
    from demo_voice.unpack import provide

    provide(args.directory)
    print(f"the demo voice lies in {args.directory}")
    return 0


def _declare(args: argparse.Namespace) -> int:
    fields = {**find_declaration(args.directory).model_dump(by_alias=True), **_declared_fields(args)}
    declaration = CheckpointDeclaration.model_validate(fields)
    path = write_declaration(args.directory, declaration)
    print(f"wrote {path}: {declaration.describe()}")
    return 0


def _declared_fields(args: argparse.Namespace) -> dict[str, object]:
    fields: dict[str, object] = {}
    if args.languages is not None:
        fields["languages"] = None if args.languages == "any" else args.languages.split(",")
    if args.tags is not None:
        fields["tags"] = [] if args.tags == "none" else args.tags.split(",")
    for name in ("instruct", "phonemes"):
        if (form := getattr(args, name)) is not None:
            fields[name] = None if form == "none" else form
    named = {"name": args.name, "family": args.family}
    return fields | {name: value for name, value in named.items() if value is not None}


def _seal(args: argparse.Namespace) -> int:
    if not args.directory.is_dir():
        raise NotADirectoryError(f"{args.directory} is no directory")
    path = write_sums(args.directory)
    print(f"wrote {path}: {len(path.read_text('utf-8').splitlines())} weight files")
    return 0


def _verify(args: argparse.Namespace) -> int:
    if not args.directory.is_dir():
        raise NotADirectoryError(f"{args.directory} is no directory")
    from cosydit.stack.checkpoint.verify_checkpoint import declared_line, verify_checkpoint
    from token2wav_service.checkpoint.family import Family

    if (declared := declared_line(args.directory)) is not None:
        print(f"declares: {declared}")
    reports = verify_checkpoint(args.directory, Family(args.family) if args.family else None)
    for report in reports:
        print(f"{'ok':4}  {report.name}" if report.problem is None else f"FAIL  {report.name}: {report.problem}")
    failed = sum(report.problem is not None for report in reports)
    print(f"{len(reports)} parts, {failed} with problems")
    return 1 if failed else 0


def _import_voices(args: argparse.Namespace) -> int:
    """Take over what can be; returns the exit status, 1 if anything was left out."""
    from cosydit.stack.checkpoint.import_voices import import_voices

    reports = import_voices(args.file, args.out, args.model_dir, args.tokenizer_dir, args.consent)
    for report in reports:
        print(_outcome(report))
    failed = sum(report.problem is not None for report in reports)
    print(f"{len(reports)} voices, {failed} left out")
    return 1 if failed else 0


def _outcome(report: ImportReport) -> str:
    if report.problem is not None:
        return f"FAIL  {report.name}: {report.problem}"
    return f"ok    {report.name}: {report.voice_id}{f' ({report.note})' if report.note else ''}"
