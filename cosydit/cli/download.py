"""`cosydit download`: the official checkpoint, at the commits of the lock file."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from cosydit.cli.plan import FAMILIES
from cosydit.stack.checkpoint import download
from cosydit.stack.stack import default_work_dir
from servicekit.checkpoint_file import CHECKPOINT_FILE, find_declaration, write_declaration

LOCK_FOLDER = Path("deploy")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("download", help="fetch the official checkpoint at pinned revisions")
    parser.add_argument("directory", type=Path, nargs="?", help="checkpoint directory to fill")
    parser.add_argument("--family", choices=FAMILIES, default=FAMILIES[0], help="family of the checkpoint")
    lock = "deploy/models.lock.json, of other families deploy/models.FAMILY.lock.json"
    parser.add_argument("--lock", type=Path, help=f"lock file with the pinned commits (default: {lock})")
    own = "lock file used if --lock is missing, written at first use with the newest commits"
    place = "of the same name in COSYDIT_HOME, else in ~/.cache/cosydit"
    parser.add_argument("--own-lock", type=Path, help=f"{own} (default: {place})")
    parser.add_argument("--offline", action="store_true", help="touch no network: fail unless everything is there")
    parser.add_argument("--update-lock", action="store_true", help="ask the hubs for commits and write the lock file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the lock, fill the directory, or both; returns the exit status."""
    logging.getLogger("cosydit").setLevel(logging.INFO)
    if args.directory is None and not args.update_lock:
        raise ValueError("give a DIRECTORY to fill, or --update-lock")
    if args.offline and args.update_lock:
        raise ValueError("--update-lock asks the hubs, --offline forbids it; give one of them")
    if args.update_lock:
        _update_lock(args.family, args.lock)
    if args.directory is not None:
        _download(args.family, args.directory, args.lock, args.own_lock, args.offline)
    return 0


def _update_lock(family: str, lock_path: Path | None) -> None:
    lock_path, models = lock_path or LOCK_FOLDER / download.lock_file_of(family), download.official_models(family)
    for name, locked in download.update_lock(lock_path, download.PUBLIC_HUBS, models).items():
        print(f"{name:14} {locked.hub.value} {locked.repository} {locked.revision}")
    print(f"wrote {lock_path}")


def _download(family: str, directory: Path, committed: Path | None, own: Path | None, is_offline: bool) -> None:
    hubs, models, name = download.PUBLIC_HUBS, download.official_models(family), download.lock_file_of(family)
    committed, own = committed or LOCK_FOLDER / name, own or default_work_dir() / name
    lock = download.read_lock(download.first_lock(committed, own, hubs, is_offline=is_offline, models=models), models)
    fetched = download.download_models(directory, lock, hubs, is_offline=is_offline, models=models)
    print(f"{directory}: fetched {', '.join(fetched)}" if fetched else f"{directory}: complete at the locked commits")
    _ensure_voices(directory / "voices")
    _ensure_declaration(directory)


def _ensure_voices(directory: Path) -> None:
    """The official repositories bring no prompt voices; without any the services could not start."""
    if any(directory.glob("*.wav")):
        return
    from token2wav_service.checkpoint.make_voices import make_voices

    make_voices(directory, 0)
    print(f"{directory}: synthetic prompt voices; put your own <name>.wav and <name>.txt (what it says) beside them")


def _ensure_declaration(directory: Path) -> None:
    """The official repositories bring no checkpoint.json."""
    if not (directory / CHECKPOINT_FILE).exists():
        declaration = find_declaration(directory)
        print(f"{write_declaration(directory, declaration)}: {declaration.describe()}")
