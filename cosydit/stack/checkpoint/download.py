"""Fetches the official checkpoint from public hubs, at commits that a lock file names.

Knows where each part lives and where it belongs in a checkpoint directory; knows nothing of what is in the files
(`cosydit checkpoint verify` does). Nothing is fetched that the lock does not name by commit hash.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from cosydit.bench.report import write_json
from servicekit.extras import install_command, own_command
from servicekit.file_sums import write_sums
from servicekit.logs import PlainError

logger = logging.getLogger(__name__)

ASK_TIMEOUT_S = 20.0
MODELSCOPE_URL = "https://www.modelscope.cn"
LOCK_FILE = "models.lock.json"
RECORD_NAME = ".downloaded.json"
"""File in a checkpoint directory that lists the complete parts and their commits."""
_COMMIT_HASH = re.compile(r"[0-9a-f]{40}")


class HubName(str, Enum):
    """As lock files name them."""

    HUGGINGFACE = "huggingface"
    MODELSCOPE = "modelscope"


class HubError(Exception):
    """A hub is unreachable, refuses, or lacks the repository; or its client library is missing."""


class DownloadError(PlainError):
    """A part can't be fetched; the message says what to do."""


@contextmanager
def _asking(module: str) -> Iterator[None]:
    """Turn whatever a hub's client raises, its own errors and its HTTP library's, into `HubError`."""
    try:
        yield
    except ImportError as error:
        raise HubError(f"{module} is not installed; install it with: {install_command('download')}") from error
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise HubError(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__) from error


class HuggingFaceHub:
    """huggingface.co, or a mirror that speaks the same protocol."""

    def __init__(self, endpoint: str | None = None) -> None:
        """Take the base URL; None leaves it to huggingface_hub (HF_ENDPOINT, else huggingface.co)."""
        self._endpoint = endpoint

    def newest_revision(self, repository: str) -> str:
        """Return the commit hash that the repository's main branch has now.

        Raises:
            HubError: there is no answer.
        """
        with _asking("huggingface_hub"):
            from huggingface_hub import HfApi

            return str(HfApi(endpoint=self._endpoint).model_info(repository, timeout=ASK_TIMEOUT_S).sha)

    def fetch(self, repository: str, revision: str, patterns: Sequence[str], directory: Path) -> None:
        """Fetch the matching files of one commit into `directory`; files that are there and whole are kept.

        Raises:
            HubError: not everything arrived; calling it again resumes.
        """
        with _asking("huggingface_hub"):
            from huggingface_hub import snapshot_download

            snapshot_download(
                repository,
                revision=revision,
                local_dir=directory,
                allow_patterns=list(patterns),
                endpoint=self._endpoint,
                etag_timeout=ASK_TIMEOUT_S,
            )


class ModelScopeHub:
    """modelscope.cn."""

    def __init__(self, url: str = MODELSCOPE_URL) -> None:
        self._url = url

    def newest_revision(self, repository: str) -> str:
        """See `HuggingFaceHub`. Asks git, because ModelScope's own client does not tell commit hashes."""
        command = ["git", "ls-remote", f"{self._url}/{repository}.git", "HEAD"]
        with _asking("git"):
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
            )
            if done.returncode or "\t" not in done.stdout:
                raise OSError(done.stderr.strip() or f"{self._url}/{repository}.git has no HEAD")
            return done.stdout.partition("\t")[0]

    def fetch(self, repository: str, revision: str, patterns: Sequence[str], directory: Path) -> None:
        """See `HuggingFaceHub`."""
        with _asking("modelscope"):
            from modelscope import snapshot_download

            snapshot_download(repository, revision=revision, local_dir=str(directory), allow_patterns=list(patterns))


Hubs = Mapping[HubName, HuggingFaceHub | ModelScopeHub]
PUBLIC_HUBS: Hubs = {HubName.HUGGINGFACE: HuggingFaceHub(), HubName.MODELSCOPE: ModelScopeHub()}


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


_STEP_AUDIO, _COSYVOICE2 = "stepfun-ai/Step-Audio-2-mini", "CosyVoice2-0.5B"
_COSYVOICE3 = "Fun-CosyVoice3-0.5B-2512"
_ORIGINALS_FILES = ("*.yaml", "flow.pt", "hift.pt", "campplus.onnx", "speech_tokenizer_v*.onnx", "spk2info.pt")
"""Files used of the original's own repositories; its compiled graphs and its form of the LLM are not fetched."""
_LLM = ModelSource("llm", ((HubName.HUGGINGFACE, "yuekai/cosyvoice2_llm"),), ("*",), "llm")
_LLM3 = ModelSource("cosyvoice3_llm", ((HubName.HUGGINGFACE, f"yuekai/{_COSYVOICE3}-LLM-HF"),), ("*",), "llm")
_BOTH_HUBS = ((HubName.HUGGINGFACE, _STEP_AUDIO), (HubName.MODELSCOPE, _STEP_AUDIO))
_HUBS_OF_2 = ((HubName.MODELSCOPE, f"iic/{_COSYVOICE2}"), (HubName.HUGGINGFACE, f"FunAudioLLM/{_COSYVOICE2}"))
_HUBS_OF_3 = ((HubName.HUGGINGFACE, f"FunAudioLLM/{_COSYVOICE3}"),)
OFFICIAL_MODELS = (_LLM, ModelSource("token2wav", _BOTH_HUBS, ("token2wav/*",), "."))
OTHER_FAMILIES = {
    "cosyvoice2": (_LLM, ModelSource("cosyvoice2", _HUBS_OF_2, _ORIGINALS_FILES, "token2wav")),
    "cosyvoice3": (_LLM3, ModelSource("cosyvoice3", _HUBS_OF_3, _ORIGINALS_FILES, "token2wav")),
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


def update_lock(lock_path: Path, hubs: Hubs, models: Sequence[ModelSource] = OFFICIAL_MODELS) -> dict[str, LockedModel]:
    """Ask the hubs for the newest commit of each part and write them to the lock file.

    Raises:
        DownloadError: no hub answers for a part; the lock file is left as it was.
    """
    lock = {source.name: _newest(source, hubs) for source in models}
    write_json(lock_path, {"models": {name: asdict(entry) for name, entry in lock.items()}})
    return lock


def first_lock(
    committed: Path, own: Path, hubs: Hubs, *, is_offline: bool, models: Sequence[ModelSource] = OFFICIAL_MODELS
) -> Path:
    """Return the lock file to download by: the committed one, else our own, which is written at first use.

    Raises:
        DownloadError: neither is there, and no hub answers or none may be asked.
    """
    if committed.is_file() or own.is_file():
        return committed if committed.is_file() else own
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
    again = f"write it again with {_lock_command()!r}"
    if not lock_path.is_file():
        raise DownloadError(
            f"{lock_path} is missing, so nothing says which commits to fetch; write it with {_lock_command()!r}"
        )
    try:
        entries = json.loads(lock_path.read_text("utf-8"))["models"]
        lock = {name: LockedModel(HubName(e["hub"]), e["repository"], e["revision"]) for name, e in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise DownloadError(f"{lock_path} is not a lock file ({err!r}); {again}") from err
    if missing := [source.name for source in models if source.name not in lock]:
        raise DownloadError(f"{lock_path} has no entry for {missing}; {again}")
    return {name: _checked(entry, f"{lock_path}, entry {name}") for name, entry in lock.items()}


def download_models(
    directory: Path,
    lock: Mapping[str, LockedModel],
    hubs: Hubs,
    *,
    is_offline: bool,
    models: Sequence[ModelSource] = OFFICIAL_MODELS,
) -> list[str]:
    """Make every part complete at its locked commit, and list the sums of its weights; what already is stays untouched.

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
        advice = "run once without --offline, or give --checkpoint"
        raise DownloadError(f"offline, and {directory} lacks {lacking}; {advice}")
    for source in needed:
        locked = lock[source.name]
        where = f"{locked.repository}@{locked.revision[:12]} on {locked.hub.value}"
        logger.info("fetching %s from %s", source.name, where)
        try:
            target = directory / source.subdirectory
            hubs[locked.hub].fetch(locked.repository, locked.revision, source.patterns, target)
        except HubError as err:
            raise DownloadError(f"could not fetch {source.name} from {where}: {err}; run it again to resume") from err
        record[source.name] = locked.revision
        write_json(directory / RECORD_NAME, record)
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


def _checked(locked: LockedModel, origin: str) -> LockedModel:
    if not _COMMIT_HASH.fullmatch(locked.revision):
        got = f"{origin}: revision is {locked.revision!r}, expected a commit hash of 40 hexadecimal digits"
        raise DownloadError(f"{got}; write the lock with {_lock_command()!r}")
    return locked


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
