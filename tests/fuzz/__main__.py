"""Coverage-guided fuzzing of every parser of bytes from outside, by atheris: `python -m tests.fuzz --runs 1000000`.

Each target runs in a child process with limits on memory and on the time of one input. An input that breaks a parser
is kept in `--found`; put it into `tests/fuzz/found/TARGET/` with the mend, where the tests try it from then on.
`make fuzz` installs atheris apart from `.venv`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

RUNS = 1_000_000
MEMORY_MIB, INPUT_S = 2048, 20
_PACKAGES = ("gateway", "token2wav_service", "llm_service", "servicekit", "wyoming")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; exit status 1 if any input broke a parser."""
    args = _parser().parse_args(argv)
    if args.child:
        _fuzz(args.targets[0], args)
        return 0
    from tests.fuzz.targets import targets

    unknown = sorted(set(args.targets) - targets().keys())
    if unknown:
        print(f"fuzz: no targets {unknown}; there are: {', '.join(targets())}", file=sys.stderr)
        return 2
    names = args.targets or list(targets())
    broken = [name for number, name in enumerate(names, 1) if not _run_child(name, args, f"{number} of {len(names)}")]
    print(f"{len(names)} targets, {len(broken)} broken{': ' if broken else ''}{', '.join(broken)}")
    return int(bool(broken))


def _run_child(name: str, args: argparse.Namespace, place: str) -> bool:
    found = args.found / name
    found.mkdir(parents=True, exist_ok=True)
    log = found / "log.txt"
    command = [sys.executable, "-m", "tests.fuzz", name, "--child", "--runs", str(args.runs)]
    command += ["--found", str(args.found), "--seed", str(args.seed), "--most-s", str(args.most_s)]
    began_s = time.monotonic()
    with log.open("wb") as file:
        status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    lines = log.read_text(errors="replace").splitlines()
    last = next((line for line in reversed(lines) if line.startswith(("Done", "#"))), "")
    print(
        f"{place}: {name}: {'ok' if status == 0 else f'BROKEN, see {log}'}; {last}; {time.monotonic() - began_s:.0f} s",
        flush=True,
    )
    return status == 0


def _fuzz(name: str, args: argparse.Namespace) -> None:
    import atheris

    with atheris.instrument_imports(include=list(_PACKAGES)):
        from tests.fuzz.targets import MAX_BYTES, targets

        target = targets()[name]
    found = args.found / name
    corpus = found / "corpus"
    corpus.mkdir(exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed{number}").write_bytes(seed)
    longest = min(MAX_BYTES, 2 * max(len(seed) for seed in target.seeds) + 64)
    options = [f"-runs={args.runs}", f"-max_total_time={args.most_s}", f"-seed={args.seed}", f"-max_len={longest}"]
    options += [
        f"-rss_limit_mb={MEMORY_MIB}",
        f"-timeout={INPUT_S}",
        f"-artifact_prefix={found}/",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], target.try_on)
    atheris.Fuzz()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__, allow_abbrev=False)
    parser.add_argument("targets", nargs="*", help="parsers by name (all)")
    parser.add_argument("--runs", type=int, default=RUNS, help="inputs of each target (default %(default)s)")
    parser.add_argument("--most-s", type=int, default=0, help="seconds of each target at most (0: no limit)")
    parser.add_argument("--seed", type=int, default=1, help="equal seeds draw equal inputs (default %(default)s)")
    parser.add_argument(
        "--found", type=Path, default=Path(".cosydit/fuzz"), help="logs and finds (default %(default)s)"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
