"""How kernels compile side by side, and how a kernel's launch overlaps the one before."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from triton import knobs

from gpukit import overlap
from gpukit.graphs import UNINTERRUPTED_S, compiling_side_by_side


class _Kernel:
    """Stands in for a kernel of Triton's and for what it compiles to."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.asked, self.loads = fails, list[str](), 0

    def preload(self, specialization: str) -> _Kernel:
        assert not knobs.runtime.jit_cache_hook(fn=None, key="", compile={}, is_manual_warmup=True)
        self.asked.append(specialization)
        if self.fails:
            raise RuntimeError("the compiler found an error")
        return self

    @property
    def run(self) -> None:
        self.loads += 1


def test_kernels_that_launches_lack_compile_in_threads_once_and_the_launches_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    good, bad, interval_s = _Kernel(), _Kernel(fails=True), sys.getswitchinterval()
    with compiling_side_by_side():
        assert sys.getswitchinterval() == UNINTERRUPTED_S
        for kernel, key in ((good, "a"), (good, "b"), (good, "a"), (bad, "a")):
            fn, given = SimpleNamespace(jit_function=kernel), {"specialization_data": key}
            assert knobs.runtime.jit_cache_hook(fn=fn, key=key, compile=given, is_manual_warmup=False)
    assert sorted(good.asked) == ["a", "b"] and good.loads == 2
    assert bad.asked == ["a"] and bad.loads == 0
    assert knobs.runtime.jit_cache_hook is None
    assert sys.getswitchinterval() == pytest.approx(interval_s, abs=2e-6)  # Python keeps whole microseconds


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
