"""Building engines. FAKE TensorRT with the documented interface, computing in ONNX Runtime on the CPU."""

from __future__ import annotations

import io
import json
import multiprocessing
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.token2wav_service.tensorrt.fake_tensorrt import FOREIGN_CACHE, FakeTensorRT, ParserError
from tests.token2wav_service.tensorrt.small import HOST, Steps, certifier, profile, request, tensorrt, write_onnx
from token2wav_service.errors import EngineBuildError, EngineUnfitError
from token2wav_service.export.tensorrt.build import LOCK_NAME, BuildResult, EngineRequest, ProgressBars, ensure_engine
from token2wav_service.runtime.tensorrt.api import TensorRT
from token2wav_service.runtime.tensorrt.manifest import GpuHost, read_manifests


@pytest.fixture
def onnx(tmp_path: Path) -> Path:
    return write_onnx(tmp_path / "product.onnx")


@pytest.fixture
def fake() -> FakeTensorRT:
    return FakeTensorRT()


def build(
    wanted: EngineRequest, directory: Path, fake: FakeTensorRT, host: GpuHost = HOST, **changes: object
) -> BuildResult:
    arguments = {"certify": certifier(), "progress": Steps(), "lock_timeout_s": 0.2, **changes}
    return ensure_engine(wanted, host, directory, lambda: tensorrt(fake), **arguments)  # type: ignore[arg-type]


def never_loaded() -> TensorRT:
    raise AssertionError("TensorRT was loaded although there was nothing to build")


@pytest.mark.parametrize("version", ["10.16.1.11", "11.4.0.106"])
def test_an_engine_is_named_for_what_it_is_and_has_a_certificate(onnx: Path, tmp_path: Path, version: str) -> None:
    host = replace(HOST, tensorrt=version)
    made = build(request(onnx), tmp_path / "engines", FakeTensorRT(version), host)
    path = made.manifest.engine_path(tmp_path / "engines")
    assert made.was_built and path.stat().st_size == made.manifest.engine_bytes
    assert re.fullmatch(rf"product\.float32\.sm90\.trt{version}\.[0-9a-f]{{12}}\.[0-9a-f]{{12}}\.engine", path.name)
    written = json.loads(path.with_suffix(".json").read_text())
    assert written["key"]["onnx_sha256"].startswith(path.stem.split(".")[-1])
    assert [case["sizes"] for case in written["certificate"]["cases"]] == [{"rows": 1}, {"rows": 5}]
    assert all(error["snr_db"] > 100 for case in written["certificate"]["cases"] for error in case["outputs"])
    assert list(read_manifests(tmp_path / "engines")) == [made.manifest]


def test_what_is_there_is_not_built_again_and_tensorrt_is_not_loaded(
    onnx: Path, tmp_path: Path, fake: FakeTensorRT
) -> None:
    first = build(request(onnx), tmp_path, fake)
    again = ensure_engine(request(onnx), HOST, tmp_path, never_loaded, certifier(), Steps())
    assert (again.was_built, again.manifest) == (False, first.manifest)


def test_whatever_is_in_the_key_makes_another_engine(onnx: Path, tmp_path: Path, fake: FakeTensorRT) -> None:
    wanted = request(onnx)
    build(wanted, tmp_path, fake)
    others: list[tuple[EngineRequest, GpuHost, FakeTensorRT]] = [
        (request(onnx, profile("default", 1, 16)), HOST, fake),
        (request(onnx, level=5), HOST, fake),
        (replace(wanted, precision="float16"), HOST, fake),
        (replace(wanted, onnx_sha256="0" * 64), HOST, fake),
        (wanted, replace(HOST, architecture="sm80"), fake),
        (wanted, replace(HOST, tensorrt="11.4.0.106"), FakeTensorRT("11.4.0.106")),
    ]
    for other, host, package in others:
        assert build(other, tmp_path, package, host).was_built
    assert len(list(tmp_path.glob("*.engine"))) == 1 + len(others)


@pytest.mark.parametrize("damage", ["cut short", "gone", "manifest unreadable"])
def test_a_damaged_engine_is_built_again(onnx: Path, tmp_path: Path, fake: FakeTensorRT, damage: str) -> None:
    path = build(request(onnx), tmp_path, fake).manifest.engine_path(tmp_path)
    if damage == "cut short":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "gone":
        path.unlink()
    else:
        path.with_suffix(".json").write_text("{")
    assert build(request(onnx), tmp_path, fake).was_built
    assert not build(request(onnx), tmp_path, fake).was_built


@pytest.mark.parametrize("factor", [2.9, float("nan"), float("inf")])
def test_an_engine_out_of_tolerance_is_refused_and_leaves_nothing(
    tmp_path: Path, fake: FakeTensorRT, factor: float
) -> None:
    onnx = write_onnx(tmp_path / "wrong.onnx", factor)
    with pytest.raises(EngineBuildError, match=r"too far from float32:\n  y has -?\d+\.\d dB at \{'rows': 1\}"):
        build(request(onnx), tmp_path / "engines", fake)
    left = {path.name for path in (tmp_path / "engines").iterdir()}
    assert left == {LOCK_NAME, "timings.sm90.trt10.16.1.11.cache"}


def test_a_build_that_fails_leaves_no_engine(onnx: Path, tmp_path: Path, fake: FakeTensorRT) -> None:
    def interrupted(engine: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(request(onnx), tmp_path, fake, certify=interrupted)
    assert list(tmp_path.glob("*.engine")) == list(tmp_path.glob("*.partial")) == []


def test_nodes_that_can_not_be_parsed_are_listed(onnx: Path, tmp_path: Path) -> None:
    errors = [
        ParserError(3, "/blocks.0/Einsum", "Einsum", "unsupported"),
        ParserError(9, "/out/Foo", "Foo", "no plugin"),
    ]
    with pytest.raises(EngineBuildError) as caught:
        build(request(onnx), tmp_path, FakeTensorRT(parse_errors=errors))
    assert "node 3 '/blocks.0/Einsum' (Einsum): unsupported" in str(caught.value)
    assert "node 9 '/out/Foo' (Foo): no plugin" in str(caught.value)


def test_the_builders_own_message_says_which_node_failed(onnx: Path, tmp_path: Path) -> None:
    message = "could not find any implementation for node {/blocks.1/attn/MatMul}"
    with pytest.raises(EngineBuildError, match=re.escape(message)):
        build(request(onnx), tmp_path, FakeTensorRT(build_error=message))


def test_a_profile_of_other_inputs_than_the_graphs_is_refused(onnx: Path, tmp_path: Path, fake: FakeTensorRT) -> None:
    wrong = replace(profile("default", 1, 8), inputs={"z": profile("default", 1, 8).inputs["x"]})
    with pytest.raises(EngineBuildError, match=r"has inputs \['x'\], the profile gives \['z'\]"):
        build(request(onnx, wrong), tmp_path, fake)


def test_options_reach_the_builder(onnx: Path, tmp_path: Path, fake: FakeTensorRT) -> None:
    wanted = request(onnx)
    build(replace(wanted, options=replace(wanted.options, workspace_bytes=1 << 30)), tmp_path, fake)
    assert fake._journal.pool_limits == {"WORKSPACE": 1 << 30}


def test_timings_are_kept_for_the_next_build(onnx: Path, tmp_path: Path, fake: FakeTensorRT) -> None:
    (timings,) = (tmp_path / f"timings.sm90.trt{HOST.tensorrt}.cache",)
    build(request(onnx), tmp_path, fake)
    build(request(onnx, level=4), tmp_path, fake)
    assert timings.read_bytes() == b"++"
    timings.write_bytes(FOREIGN_CACHE)
    build(request(onnx, level=5), tmp_path, fake)
    assert timings.read_bytes() == b"+"


def test_progress_is_reported_and_shown(onnx: Path, tmp_path: Path, fake: FakeTensorRT) -> None:
    steps, screen = Steps(), io.StringIO()
    build(request(onnx), tmp_path / "a", fake, progress=steps)
    assert steps.events[:2] == ["start Building in None of 2", "start Timing in Building of 1"]
    assert steps.events[-1] == "finish Building"
    bars = ProgressBars("product", screen)
    build(request(onnx), tmp_path / "b", fake, progress=bars)
    bars.close()
    assert "product: Building: 100%" in screen.getvalue() and "Timing: " in screen.getvalue()


def test_an_interrupt_cancels_the_build_and_comes_out_again(onnx: Path, tmp_path: Path, fake: FakeTensorRT) -> None:
    class Impatient(Steps):
        def step(self, phase: str, index: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(request(onnx), tmp_path, fake, progress=Impatient())
    assert list(tmp_path.glob("*.engine")) == []


@pytest.mark.parametrize(
    ("host", "missing"),
    [
        pytest.param(GpuHost(None, None, "10.16.1.11"), "GPU none", id="no GPU"),
        pytest.param(GpuHost("sm90", "NVIDIA H200", None), "TensorRT none", id="no TensorRT"),
    ],
)
def test_a_host_that_can_not_build_is_told_what_is_missing(
    onnx: Path, tmp_path: Path, fake: FakeTensorRT, host: GpuHost, missing: str
) -> None:
    with pytest.raises(EngineBuildError, match=f"{missing}.*cosydit doctor"):
        build(request(onnx), tmp_path, fake, host)


def test_another_version_loaded_than_installed_is_refused(onnx: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineUnfitError, match=r"10\.1\.0 was loaded, the installed package says 10\.16\.1\.11"):
        build(request(onnx), tmp_path, FakeTensorRT("10.1.0"))
    with pytest.raises(EngineUnfitError, match=r"TensorRT 12\.0 is installed, expected version 10 or 11"):
        build(request(onnx), tmp_path, FakeTensorRT("12.0"))


def _hold(directory: str, is_held: object, may_end: object) -> None:
    from filelock import FileLock

    with FileLock(Path(directory) / LOCK_NAME):
        is_held.set()  # type: ignore[attr-defined]
        may_end.wait()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_two_builders_take_turns_and_a_dead_one_holds_nothing(onnx: Path, tmp_path: Path, fake: FakeTensorRT) -> None:
    spawn = multiprocessing.get_context("spawn")
    is_held, may_end = spawn.Event(), spawn.Event()
    other = spawn.Process(target=_hold, args=(str(tmp_path), is_held, may_end))
    other.start()
    try:
        assert is_held.wait(60)
        with pytest.raises(EngineBuildError, match="another build has held"):
            build(request(onnx), tmp_path, fake)
    finally:
        other.kill()
        other.join()
    assert (tmp_path / LOCK_NAME).exists()
    assert build(request(onnx), tmp_path, fake).was_built
