"""Fetches the official checkpoint from public hubs, at commits that a lock file names.

Knows where each part lives and where it belongs in a checkpoint directory; knows nothing of what is in the files
(`cosydit checkpoint verify` does). Nothing is fetched that the lock does not name by commit hash.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cosydit.stack.checkpoint.hubs import HubError, HubName, ModelHub
from servicekit.extras import own_command
from servicekit.file_sums import write_sums
from servicekit.files import write_text

logger = logging.getLogger(__name__)

LOCK_FILE = "models.lock.json"
RECORD_NAME = ".downloaded.json"
"""File in a checkpoint directory that lists the complete parts and their commits."""

_COMMIT_HASH = re.compile(r"[0-9a-f]{40}")


class DownloadError(Exception):
    """A part can't be fetched; the message says what to do."""


@dataclass(frozen=True)
class ModelSource:
    """One part of the official checkpoint."""

    name: str
    repositories: tuple[tuple[HubName, str], ...]
    """Hub and owner/name, the preferred first; the next one is asked if a hub does not have it."""
    patterns: tuple[str, ...]
    """Patterns of the files to fetch."""
    subdirectory: str
    """Folder of the checkpoint directory for the repository's files."""


_ORIGINALS_FILES = ("*.yaml", "flow.pt", "hift.pt", "campplus.onnx", "speech_tokenizer_v*.onnx", "spk2info.pt")
"""Files used of the original's own repositories; its compiled graphs and its form of the LLM are not fetched."""
OFFICIAL_MODELS = (
    ModelSource("llm", ((HubName.HUGGINGFACE, "yuekai/cosyvoice2_llm"),), ("*",), "llm"),
    ModelSource(
        "token2wav",
        (
            (HubName.HUGGINGFACE, "stepfun-ai/Step-Audio-2-mini"),
            (HubName.MODELSCOPE, "stepfun-ai/Step-Audio-2-mini"),
        ),
        ("token2wav/*",),
        ".",
    ),
)
OTHER_FAMILIES = {
    "cosyvoice2": (
        OFFICIAL_MODELS[0],
        ModelSource(
            "cosyvoice2",
            ((HubName.MODELSCOPE, "iic/CosyVoice2-0.5B"), (HubName.HUGGINGFACE, "FunAudioLLM/CosyVoice2-0.5B")),
            _ORIGINALS_FILES,
            "token2wav",
        ),
    ),
    "cosyvoice3": (
        ModelSource(
            "cosyvoice3_llm", ((HubName.HUGGINGFACE, "yuekai/Fun-CosyVoice3-0.5B-2512-LLM-HF"),), ("*",), "llm"
        ),
        ModelSource(
            "cosyvoice3",
            ((HubName.HUGGINGFACE, "FunAudioLLM/Fun-CosyVoice3-0.5B-2512"),),
            _ORIGINALS_FILES,
            "token2wav",
        ),
    ),
}
"""The parts of the other families' checkpoints."""


def official_models(family: str) -> tuple[ModelSource, ...]:
    """Return the parts of a family's official checkpoint."""
    return OTHER_FAMILIES.get(family, OFFICIAL_MODELS)


def lock_file_of(family: str) -> str:
    """Return what a family's lock file is called: each has one of its own."""
    return f"models.{family}.lock.json" if family in OTHER_FAMILIES else LOCK_FILE


@dataclass(frozen=True)
class LockedModel:
    """Where one part comes from, exactly."""

    hub: HubName
    repository: str
    revision: str
    """Commit hash, 40 hexadecimal digits."""


Hubs = Mapping[HubName, ModelHub]


def update_lock(lock_path: Path, hubs: Hubs, models: Sequence[ModelSource] = OFFICIAL_MODELS) -> dict[str, LockedModel]:
    """Ask the hubs for the newest commit of each part and write them to the lock file.

    Raises:
        DownloadError: no hub answers for a part; the lock file is left as it was.
    """
    lock = {source.name: _newest(source, hubs) for source in models}
    content = {name: asdict(entry) for name, entry in lock.items()}
    lock_path.parent.mkdir(parents=True, exist_ok=True)
    _write_json(lock_path, {"models": content})
    return lock


def first_lock(
    committed: Path, own: Path, hubs: Hubs, *, is_offline: bool, models: Sequence[ModelSource] = OFFICIAL_MODELS
) -> Path:
    """Return the lock file to download by: the committed one, else our own, which is written at first use.

    Args:
        committed: wins where it is there.
        own: in the working directory; names what the hubs had when it was written.
        is_offline: touch no network.

    Raises:
        DownloadError: neither is there, and no hub answers or none may be asked.
    """
    if committed.is_file():
        return committed
    if not own.is_file():
        if is_offline:
            raise DownloadError(
                f"offline, and neither {committed} nor {own} says which commits belong to the checkpoint; run once "
                "without --offline, or give --checkpoint"
            )
        update_lock(own, hubs, models)
        logger.info("there is no %s: wrote %s with the newest commits; later downloads keep to them", committed, own)
    return own


def read_lock(lock_path: Path, models: Sequence[ModelSource] = OFFICIAL_MODELS) -> dict[str, LockedModel]:
    """Read the lock file; every part must be in it.

    Raises:
        DownloadError: the file or an entry is missing, or an entry is not pinned to a commit.
    """
    if not lock_path.is_file():
        raise DownloadError(
            f"{lock_path} is missing, so nothing says which commits to fetch; write it with {_lock_command()!r}"
        )
    try:
        entries = json.loads(lock_path.read_text("utf-8"))["models"]
        lock = {name: _parse_entry(lock_path, name, entry) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise DownloadError(
            f"{lock_path} is not a lock file ({err!r}); write it again with {_lock_command()!r}"
        ) from err
    missing = [source.name for source in models if source.name not in lock]
    if missing:
        raise DownloadError(f"{lock_path} has no entry for {missing}; write it again with {_lock_command()!r}")
    return lock


def download_models(
    directory: Path,
    lock: Mapping[str, LockedModel],
    hubs: Hubs,
    *,
    is_offline: bool,
    models: Sequence[ModelSource] = OFFICIAL_MODELS,
) -> list[str]:
    """Make every part complete at its locked commit, and list the sums of its weights; what already is stays untouched.

    Args:
        directory: the checkpoint directory, made if missing.
        is_offline: touch no network.

    Returns:
        Names of the parts that were fetched now.

    Raises:
        DownloadError: a part could not be fetched, or offline and not complete. Run again to resume.
    """
    directory.mkdir(parents=True, exist_ok=True)
    record = _read_record(directory)
    needed = [source for source in models if record.get(source.name) != lock[source.name].revision]
    if needed and is_offline:
        lacking = [f"{source.name} at {lock[source.name].revision}" for source in needed]
        raise DownloadError(
            f"offline, and {directory} lacks {lacking}; run once without --offline, or give --checkpoint"
        )
    for source in needed:
        _fetch(directory / source.subdirectory, source, lock[source.name], hubs)
        record[source.name] = lock[source.name].revision
        _write_json(directory / RECORD_NAME, record)
    if needed:
        write_sums(directory)
    return [source.name for source in needed]


def _newest(source: ModelSource, hubs: Hubs) -> LockedModel:
    problems = []
    for hub_name, repository in source.repositories:
        try:
            revision = hubs[hub_name].newest_revision(repository)
        except HubError as err:
            problems.append(f"{hub_name.value}: {err}")
            continue
        return _checked(LockedModel(hub_name, repository, revision), f"{hub_name.value}'s answer for {repository}")
    raise DownloadError(f"no hub answers for {source.name}: {'; '.join(problems)}; check the network and run it again")


def _parse_entry(lock_path: Path, name: str, entry: Mapping[str, str]) -> LockedModel:
    locked = LockedModel(HubName(entry["hub"]), entry["repository"], entry["revision"])
    return _checked(locked, f"{lock_path}, entry {name}")


def _checked(locked: LockedModel, origin: str) -> LockedModel:
    if not _COMMIT_HASH.fullmatch(locked.revision):
        raise DownloadError(
            f"{origin}: revision is {locked.revision!r}, expected a commit hash of 40 hexadecimal digits; "
            f"write the lock with {_lock_command()!r}"
        )
    return locked


def _fetch(directory: Path, source: ModelSource, locked: LockedModel, hubs: Hubs) -> None:
    where = f"{locked.repository}@{locked.revision[:12]} on {locked.hub.value}"
    logger.info("fetching %s from %s", source.name, where)
    try:
        hubs[locked.hub].fetch(locked.repository, locked.revision, source.patterns, directory)
    except HubError as err:
        raise DownloadError(f"could not fetch {source.name} from {where}: {err}; run it again to resume") from err


def _read_record(directory: Path) -> dict[str, str]:
    path = directory / RECORD_NAME
    if not path.is_file():
        return {}
    try:
        return {str(name): str(revision) for name, revision in json.loads(path.read_text("utf-8")).items()}
    except (ValueError, AttributeError):
        logger.warning("%s is unreadable: everything is checked against the hub again", path)
        return {}


def _lock_command() -> str:
    return own_command("download --update-lock")


def _write_json(path: Path, content: object) -> None:
    """Readers see the old file or the new, never half of one."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True) + "\n")
