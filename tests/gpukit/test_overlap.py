"""On which GPUs kernels start early. No GPU here: a stand-in says which one there is."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from gpukit import overlap


@pytest.fixture(autouse=True)
def _asked_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(overlap, "IS_INTERPRETED", False)
    overlap.starts_early.cache_clear()
    yield
    overlap.starts_early.cache_clear()


def put_in(architecture: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = SimpleNamespace(backend="cuda", arch=architecture)
    monkeypatch.setattr(overlap, "driver", SimpleNamespace(active=SimpleNamespace(get_current_target=lambda: target)))


@pytest.mark.parametrize(("architecture", "overlaps"), [(80, False), (89, False), (90, True), (120, True)])
def test_kernels_overlap_from_hopper_on(architecture: int, overlaps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(architecture, monkeypatch)
    expected = {"OVERLAPS": True, "launch_pdl": True} if overlaps else {"OVERLAPS": False}
    assert overlap.overlap_options(overlaps=True) == expected


def test_kernels_that_must_not_overlap_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(90, monkeypatch)
    assert overlap.overlap_options(overlaps=False) == {"OVERLAPS": False}


def test_the_interpreter_has_no_gpu_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "IS_INTERPRETED", True)
    assert overlap.overlap_options(overlaps=True) == {"OVERLAPS": False}
