"""The public hubs that models come from, behind one small interface. Knows nothing of which models we use."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Protocol

from servicekit.extras import install_command

ASK_TIMEOUT_S = 20.0
MODELSCOPE_URL = "https://www.modelscope.cn"


class HubName(str, Enum):
    """As lock files name them."""

    HUGGINGFACE = "huggingface"
    MODELSCOPE = "modelscope"


class HubError(Exception):
    """A hub is unreachable, refuses, or lacks the repository; or its client library is missing."""


class ModelHub(Protocol):
    """What we need of a hub."""

    def newest_revision(self, repository: str) -> str:
        """Return the commit hash that the repository's main branch has now.

        Raises:
            HubError: there is no answer.
        """
        ...

    def fetch(self, repository: str, revision: str, patterns: Sequence[str], directory: Path) -> None:
        """Fetch the matching files of one commit into `directory`; files that are there and whole are kept.

        Raises:
            HubError: not everything arrived; calling it again resumes.
        """
        ...


class HuggingFaceHub:
    """huggingface.co, or a mirror that speaks the same protocol."""

    def __init__(self, endpoint: str | None = None) -> None:
        """Prepare.

        Args:
            endpoint: base URL; None leaves it to huggingface_hub (HF_ENDPOINT, else huggingface.co).
        """
        self._endpoint = endpoint

    def newest_revision(self, repository: str) -> str:
        """See `ModelHub`."""
        try:
            from huggingface_hub import HfApi
        except ImportError as err:
            raise _missing("huggingface_hub") from err
        try:
            return str(HfApi(endpoint=self._endpoint).model_info(repository, timeout=ASK_TIMEOUT_S).sha)
        except Exception as err:  # the client raises its own errors and its HTTP library's
            raise HubError(_first_line(err)) from err

    def fetch(self, repository: str, revision: str, patterns: Sequence[str], directory: Path) -> None:
        """See `ModelHub`."""
        try:
            from huggingface_hub import snapshot_download
        except ImportError as err:
            raise _missing("huggingface_hub") from err
        try:
            snapshot_download(
                repository,
                revision=revision,
                local_dir=directory,
                allow_patterns=list(patterns),
                endpoint=self._endpoint,
                etag_timeout=ASK_TIMEOUT_S,
            )
        except Exception as err:
            raise HubError(_first_line(err)) from err


class ModelScopeHub:
    """modelscope.cn."""

    def __init__(self, url: str = MODELSCOPE_URL) -> None:
        self._url = url

    def newest_revision(self, repository: str) -> str:
        """See `ModelHub`. Asks git, because ModelScope's own client does not tell commit hashes."""
        command = ["git", "ls-remote", f"{self._url}/{repository}.git", "HEAD"]
        try:
            answer = subprocess.run(
                command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=True, stdin=subprocess.DEVNULL
            )
        except subprocess.CalledProcessError as err:
            raise HubError(str(err.stderr).strip() or f"git ended with status {err.returncode}") from err
        except (subprocess.TimeoutExpired, OSError) as err:
            raise HubError(_first_line(err)) from err
        revision, _, _ = answer.stdout.partition("\t")
        if not revision:
            raise HubError(f"{self._url}/{repository}.git has no HEAD")
        return revision

    def fetch(self, repository: str, revision: str, patterns: Sequence[str], directory: Path) -> None:
        """See `ModelHub`."""
        try:
            from modelscope import snapshot_download
        except ImportError as err:
            raise _missing("modelscope") from err
        try:
            snapshot_download(repository, revision=revision, local_dir=str(directory), allow_patterns=list(patterns))
        except Exception as err:
            raise HubError(_first_line(err)) from err


def public_hubs() -> dict[HubName, ModelHub]:
    """Return the hubs of the open internet."""
    return {HubName.HUGGINGFACE: HuggingFaceHub(), HubName.MODELSCOPE: ModelScopeHub()}


def _missing(module: str) -> HubError:
    return HubError(f"{module} is not installed; install it with: {install_command('download')}")


def _first_line(err: BaseException) -> str:
    lines = str(err).strip().splitlines()
    return f"{type(err).__name__}: {lines[0]}" if lines else type(err).__name__
