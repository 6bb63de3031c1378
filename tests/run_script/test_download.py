"""Nothing is fetched that the lock does not pin; what is complete is not fetched again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path

import pytest

from cosydit.stack.checkpoint.download import (
    RECORD_NAME,
    DownloadError,
    HubError,
    HubName,
    HuggingFaceHub,
    LockedModel,
    ModelScopeHub,
    ModelSource,
    download_models,
    first_lock,
    lock_file_of,
    official_models,
    read_lock,
    update_lock,
)
from tests.workers import QuietHandler, listening
from token2wav_service.checkpoint.family import Family

OLD, NEW = "a" * 40, "b" * 40
MODELS = (
    ModelSource("llm", ((HubName.HUGGINGFACE, "one/llm"),), ("*",), "llm"),
    ModelSource(
        "token2wav", ((HubName.HUGGINGFACE, "two/mini"), (HubName.MODELSCOPE, "two/mini")), ("token2wav/*",), "."
    ),
)


class FakeHub:
    """Answers from a table; a repository that is not in it is unreachable."""

    def __init__(self, revisions: dict[str, str]) -> None:
        self.revisions = revisions
        self.fetched: list[tuple[str, str, Path]] = []

    def newest_revision(self, repository: str) -> str:
        if repository not in self.revisions:
            raise HubError("no route")
        return self.revisions[repository]

    def fetch(self, repository: str, revision: str, patterns: Sequence[str], directory: Path) -> None:
        if repository not in self.revisions:
            raise HubError("connection lost")
        self.fetched.append((repository, revision, directory))


def hubs(huggingface: FakeHub, modelscope: FakeHub | None = None) -> dict[HubName, FakeHub]:
    return {HubName.HUGGINGFACE: huggingface, HubName.MODELSCOPE: modelscope or FakeHub({})}


def locked(revision: str = OLD) -> dict[str, LockedModel]:
    return {source.name: LockedModel(*source.repositories[0], revision) for source in MODELS}


def write_lock(path: Path) -> Path:
    path.write_text(json.dumps({"models": {name: asdict(entry) for name, entry in locked().items()}}))
    return path


def test_the_lock_holds_the_commits_that_the_hub_answers(tmp_path: Path) -> None:
    hub = FakeHub({"one/llm": OLD, "two/mini": NEW})
    written = update_lock(tmp_path / "lock.json", hubs(hub), MODELS)
    assert {name: entry.revision for name, entry in written.items()} == {"llm": OLD, "token2wav": NEW}
    assert read_lock(tmp_path / "lock.json", MODELS) == written


def test_the_second_hub_is_asked_when_the_first_lacks_the_model(tmp_path: Path) -> None:
    both = hubs(FakeHub({"one/llm": OLD}), FakeHub({"two/mini": NEW}))
    assert update_lock(tmp_path / "lock.json", both, MODELS)["token2wav"].hub is HubName.MODELSCOPE


def test_no_answer_leaves_the_lock_as_it_was(tmp_path: Path) -> None:
    before = write_lock(tmp_path / "lock.json").read_text()
    with pytest.raises(DownloadError, match="no hub answers for token2wav"):
        update_lock(tmp_path / "lock.json", hubs(FakeHub({"one/llm": NEW})), MODELS)
    assert (tmp_path / "lock.json").read_text() == before


@pytest.mark.parametrize("answer", ["main", "v1.0", "abc123", "", "None"])
def test_an_answer_that_is_no_commit_hash_is_not_locked(tmp_path: Path, answer: str) -> None:
    with pytest.raises(DownloadError, match="expected a commit hash"):
        update_lock(tmp_path / "lock.json", hubs(FakeHub({"one/llm": answer, "two/mini": NEW})), MODELS)


def test_the_first_use_writes_a_lock_of_our_own_and_later_ones_keep_to_it(tmp_path: Path) -> None:
    committed, own = tmp_path / "deploy" / "lock.json", tmp_path / "work" / "lock.json"
    at_first = first_lock(
        committed, own, hubs(FakeHub({"one/llm": OLD, "two/mini": OLD})), is_offline=False, models=MODELS
    )
    assert at_first == own and read_lock(own, MODELS)["llm"].revision == OLD
    assert not committed.exists(), "the repository is left as it is"
    later = first_lock(committed, own, hubs(FakeHub({"one/llm": NEW, "two/mini": NEW})), is_offline=True, models=MODELS)
    assert later == own and read_lock(own, MODELS)["llm"].revision == OLD


def test_a_committed_lock_wins(tmp_path: Path) -> None:
    committed, own = write_lock(tmp_path / "lock.json"), tmp_path / "own.json"
    own.write_text("{}")
    assert first_lock(committed, own, hubs(FakeHub({})), is_offline=False, models=MODELS) == committed


def test_without_any_lock_and_offline_nothing_is_asked(tmp_path: Path) -> None:
    hub = FakeHub({"one/llm": NEW, "two/mini": NEW})
    with pytest.raises(DownloadError, match="run once without --offline"):
        first_lock(tmp_path / "a.json", tmp_path / "b.json", hubs(hub), is_offline=True, models=MODELS)
    assert not (tmp_path / "b.json").exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "is missing"),
        ('{"models": {}}', "no entry for .*llm"),
        (
            '{"models": {"llm": {"hub": "huggingface", "repository": "one/llm", "revision": "main"}}}',
            "revision is 'main'",
        ),
        *((text, "is not a lock file") for text in ("{", "[]", '{"models": {"llm": 3}}')),
        ('{"models": {"llm": {"hub": "moon"}}}', "is not a lock file"),
    ],
)
def test_a_lock_that_pins_nothing_is_refused_with_the_command_that_writes_it(
    tmp_path: Path, content: str | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "lock.json").write_text(content)
    with pytest.raises(DownloadError, match=rf"{reason}.*cosydit download --update-lock"):
        read_lock(tmp_path / "lock.json", MODELS[:1])


def test_every_part_is_fetched_once_at_its_locked_commit_and_again_at_a_new_one(tmp_path: Path) -> None:
    hub = FakeHub({"one/llm": NEW, "two/mini": NEW})
    download_models(tmp_path, locked(OLD), hubs(hub), is_offline=False, models=MODELS)
    assert hub.fetched == [("one/llm", OLD, tmp_path / "llm"), ("two/mini", OLD, tmp_path)]
    assert download_models(tmp_path, locked(OLD), hubs(FakeHub({})), is_offline=True, models=MODELS) == []
    download_models(tmp_path, locked(NEW), hubs(hub), is_offline=False, models=MODELS)
    assert json.loads((tmp_path / RECORD_NAME).read_text()) == {"llm": NEW, "token2wav": NEW}


def test_an_interrupted_download_goes_on_with_the_part_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"connection lost.*run it again to resume"):
        download_models(tmp_path, locked(), hubs(FakeHub({"one/llm": OLD})), is_offline=False, models=MODELS)
    hub = FakeHub({"one/llm": OLD, "two/mini": OLD})
    assert download_models(tmp_path, locked(), hubs(hub), is_offline=False, models=MODELS) == ["token2wav"]


def test_offline_refuses_what_is_not_complete(tmp_path: Path) -> None:
    hub = FakeHub({"one/llm": OLD, "two/mini": OLD})
    with pytest.raises(DownloadError, match=r"offline, and .* lacks .*llm at a{40}"):
        download_models(tmp_path, locked(), hubs(hub), is_offline=True, models=MODELS)
    assert hub.fetched == []


@pytest.mark.parametrize("family", ["cosyvoice2", "cosyvoice3"])
def test_a_family_s_parts_fill_a_checkpoint_directory_and_have_a_lock_of_their_own(family: str, tmp_path: Path) -> None:
    models = official_models(family)
    assert [source.subdirectory for source in models] == ["llm", "token2wav"]
    needed = Family(family).files.required
    assert all(any(fnmatch(name, pattern) for pattern in models[1].patterns) for name in needed)
    assert not any(fnmatch("flow.decoder.estimator.fp32.onnx", pattern) for pattern in models[1].patterns)
    assert lock_file_of(family) == f"models.{family}.lock.json" and lock_file_of("step_audio2") == "models.lock.json"
    hub = FakeHub({repository: NEW for source in models for _, repository in source.repositories})
    lock = update_lock(tmp_path / "lock.json", hubs(hub, hub), models)
    download_models(tmp_path, lock, hubs(hub, hub), is_offline=False, models=models)
    assert [directory for _, _, directory in hub.fetched] == [tmp_path / "llm", tmp_path / "token2wav"]


FILES = {"config.json": b"{}", "token2wav/flow.pt": b"weights", "notes.md": b"no"}


class FakeHuggingFace(QuietHandler):
    """As much of the hub's HTTP as its client needs: model info, the tree of a commit, and files."""

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/one/llm/tree/"):
            self._json([{"type": "file", "oid": "0" * 40, "path": k, "size": len(v)} for k, v in FILES.items()])
        elif self.path.startswith("/api/models/one/llm"):
            self._json({"id": "one/llm", "sha": NEW, "siblings": [{"rfilename": name} for name in FILES]})
        else:
            self._file()

    def do_HEAD(self) -> None:
        self._file()

    def _file(self) -> None:
        content = FILES.get(self.path.partition(f"/one/llm/resolve/{NEW}/")[2].partition("?")[0])
        if content is None:
            self.send_error(404)
            return
        headers = {"X-Repo-Commit": NEW, "ETag": f'"{len(content):040x}"', "Content-Type": "application/octet-stream"}
        self._answer(content, headers)

    def _json(self, content: object) -> None:
        self._answer(json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _answer(self, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@contextmanager
def fake_huggingface() -> Iterator[str]:
    with listening(FakeHuggingFace) as port:
        yield f"http://127.0.0.1:{port}"


def test_the_real_client_resolves_and_fetches_a_commit_from_a_hub(tmp_path: Path) -> None:
    with fake_huggingface() as endpoint:
        hub = HuggingFaceHub(endpoint)
        assert hub.newest_revision("one/llm") == NEW
        hub.fetch("one/llm", NEW, ["token2wav/*"], tmp_path)
    assert (tmp_path / "token2wav" / "flow.pt").read_bytes() == b"weights"
    assert not (tmp_path / "config.json").exists()


def test_a_hub_that_lacks_the_repository_is_a_typed_error() -> None:
    with fake_huggingface() as endpoint, pytest.raises(HubError):
        HuggingFaceHub(endpoint).newest_revision("no/such")


def test_modelscope_that_is_out_of_reach_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(HubError):
        ModelScopeHub(f"file://{tmp_path}").newest_revision("no/such")
