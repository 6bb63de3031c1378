"""Building engines with the real TensorRT for RTX, on a CPU. It runs none: what a GPU measures is given."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from onnx import TensorProto, helper

from tests.token2wav_service.export.builds import ARCHITECTURE, build_all
from tests.workers import is_whole
from token2wav_service.checkpoint.family import Family
from token2wav_service.errors import EngineBuildError, EngineUnfitError
from token2wav_service.export.directory import ExportDirectory, ExportTask
from token2wav_service.export.engines import Target, ensure_engine
from token2wav_service.graphs import AxisRange, GraphSpec, Precision, TensorSpec
from token2wav_service.runtime.tensorrt import api
from token2wav_service.runtime.tensorrt.api import TensorRT, load_tensorrt
from token2wav_service.runtime.tensorrt.manifest import (
    TENSORRT_RTX,
    CertifiedCase,
    EngineCertificate,
    EngineManifest,
    GpuHost,
    OutputError,
    installed_libraries,
    misfits,
    read_manifests,
)

pytest.importorskip("tensorrt_rtx_bindings", reason="the extra tensorrt-rtx is not installed")
LIBRARY = next(library for library in installed_libraries() if library.startswith(TENSORRT_RTX))
AHEAD = Target(ARCHITECTURE, LIBRARY, None)
HERE = replace(AHEAD, gpu_name="NVIDIA L4")
WIDTH = 4
SPEC = GraphSpec(
    "product",
    Precision.FLOAT32,
    (TensorSpec("x", "float32", ("rows", WIDTH), ""),),
    (TensorSpec("y", "float32", ("rows", WIDTH), ""),),
    {"rows": AxisRange(1, 8, 64)},
)


class Loading(TensorRT):
    """The real library, which gives out what a GPU would have loaded."""

    def load(self, plan: bytes) -> Any:
        return SimpleNamespace(plan=plan)


class Task(ExportTask):
    """A graph that is exported already."""

    @property
    def is_done(self) -> bool:
        return True


def task_of(path: Path, operator: str = "Mul") -> Task:
    """Write y = x op 3 over [rows, 4]."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", WIDTH]) for name in ("x", "y")]
    weight = helper.make_tensor("factor", TensorProto.FLOAT, [1], [3.0])
    node = helper.make_node(operator, ["x", "factor"], ["y"], name="the_node")
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return Task(SPEC, path, {"flow.pt": "of the weights"}, "abc" * 20)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return task_of(tmp_path / "product.onnx")


def certificate(snr_db: float = 60.0) -> EngineCertificate:
    return EngineCertificate(55.0, (CertifiedCase({"rows": 1}, (OutputError("y", snr_db, 0.0),)),))


def build(
    task: ExportTask, directory: Path, target: Target = AHEAD, snr_db: float = 60.0
) -> tuple[EngineManifest, bool]:
    def load() -> TensorRT:
        real = load_tensorrt(LIBRARY)
        return Loading(real._module, TENSORRT_RTX)

    return ensure_engine(task, None, target, directory, load, lambda _: certificate(snr_db))  # type: ignore[arg-type]


def never(*_: object) -> Any:
    raise AssertionError("there was nothing to do")


@pytest.fixture(scope="module")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Task, Path]:
    folder = tmp_path_factory.mktemp("built")
    task = task_of(folder / "product.onnx")
    build(task, folder / "engines")
    return task, folder / "engines"


@pytest.fixture
def built(built_once: tuple[Task, Path], tmp_path: Path) -> tuple[Task, Path]:
    """A graph, and a folder with its engine, to be changed."""
    return built_once[0], shutil.copytree(built_once[1], tmp_path / "engines")


def test_an_engine_is_built_ahead_for_its_gpu(built: tuple[Task, Path]) -> None:
    _, directory = built
    (manifest,) = read_manifests(directory)
    path = manifest.engine_path(directory)
    assert re.fullmatch(rf"product\.float32\.sm89\.{LIBRARY.replace(' ', '-')}\.(abc){{4}}\.engine", path.name)
    assert b"accelerators={sm89 }" in path.read_bytes() and path.stat().st_size == manifest.engine_bytes
    host = GpuHost(ARCHITECTURE, "NVIDIA L4", (LIBRARY,))
    assert misfits(manifest, directory, host) == [
        "its numerics were not measured: run `cosydit build-engines` on this machine"
    ]


def test_what_is_there_is_not_built_again_and_no_library_is_loaded(built: tuple[Task, Path]) -> None:
    task, directory = built
    _, is_new = ensure_engine(task, None, AHEAD, directory, never, never)  # type: ignore[arg-type]
    assert not is_new


def test_on_its_gpu_an_engine_that_was_built_ahead_is_measured_only(built: tuple[Task, Path]) -> None:
    task, directory = built
    (plan,) = directory.glob("*.engine")
    plan.write_bytes(plan.read_bytes()[::-1])
    manifest, is_new = build(task, directory, HERE)
    assert is_new and plan.stat().st_size == manifest.engine_bytes, "it is the one that was there"
    assert misfits(manifest, directory, GpuHost(ARCHITECTURE, "NVIDIA L4", (LIBRARY,))) == []
    assert list(read_manifests(directory)) == [manifest]
    assert not build(task, directory, HERE)[1]


@pytest.mark.parametrize("snr_db", [54.9, float("nan"), -300.0])
def test_an_engine_out_of_tolerance_is_refused_and_leaves_nothing(built: tuple[Task, Path], snr_db: float) -> None:
    task, directory = built
    with pytest.raises(EngineBuildError, match=r"too far from float32:\n  y has \S+ dB at \{'rows': 1\}"):
        build(task, directory, HERE, snr_db)
    assert list(directory.iterdir()) == []


def test_whatever_is_in_the_key_makes_another_engine(built: tuple[Task, Path]) -> None:
    task, directory = built
    halves = replace(task, spec=replace(SPEC, precision=Precision.FLOAT16))
    for other, target in (
        (halves, AHEAD),
        (replace(task, key="def" * 20), AHEAD),
        (task, replace(AHEAD, architecture="sm80")),
    ):
        assert build(other, directory, target)[1]
    assert len(list(directory.glob("*.engine"))) == 4


@pytest.mark.parametrize("damage", ["cut short", "gone", "manifest unreadable"])
def test_a_damaged_engine_is_built_again(built: tuple[Task, Path], damage: str) -> None:
    task, directory = built
    (path,) = directory.glob("*.engine")
    if damage == "cut short":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "gone":
        path.unlink()
    else:
        path.with_suffix(".json").write_text("{")
    assert build(task, directory)[1]
    assert not build(task, directory)[1]


def test_nodes_that_can_not_be_parsed_are_named(tmp_path: Path) -> None:
    with pytest.raises(EngineBuildError, match=r"can't parse .*\n  node 0 'the_node' \(Unheard\): "):
        build(task_of(tmp_path / "wrong.onnx", "Unheard"), tmp_path / "engines")
    assert list((tmp_path / "engines").glob("*.engine")) == []


def test_sizes_of_other_inputs_than_the_graph_s_are_refused(task: Task, tmp_path: Path) -> None:
    (x,) = SPEC.inputs
    other = replace(task, spec=replace(SPEC, inputs=(replace(x, name="z"),)))
    with pytest.raises(EngineBuildError, match=r"has inputs \['x'\], its sizes are of \['z'\]"):
        build(other, tmp_path / "engines")


def test_an_interrupt_cancels_the_build_and_comes_out_again(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api.tqdm, "update", stop)
    with pytest.raises(KeyboardInterrupt):
        build(task, tmp_path / "engines")
    assert list((tmp_path / "engines").glob("*.engine")) == []


@pytest.mark.parametrize(
    ("libraries", "architecture", "name", "said"),
    [
        ((LIBRARY,), "sm90", None, r"not for sm90 .* takes TensorRT; found tensorrt_rtx .*\[tensorrt\]"),
        ((LIBRARY,), "sm90", TENSORRT_RTX, "not for sm90"),
        ((), "sm89", None, r"expected the library tensorrt or tensorrt_rtx, found neither: .*\[tensorrt\]"),
        (("tensorrt 11.4.0",), "sm89", TENSORRT_RTX, r"tensorrt_rtx, found tensorrt 11.4.0: .*\[tensorrt-rtx\]"),
    ],
    ids=["Hopper", "ahead for Hopper", "nothing", "ahead without RTX"],
)  # fmt: skip
def test_a_host_whose_libraries_have_no_engines_for_a_gpu_is_told_what_to_install(
    libraries: tuple[str, ...], architecture: str, name: str | None, said: str
) -> None:
    with pytest.raises(EngineUnfitError, match=said):
        GpuHost(architecture, None, libraries).library(architecture, name)
    assert GpuHost(None, None, ("tensorrt 11.4.0", LIBRARY)).library("sm90") == "tensorrt 11.4.0"


def test_the_builder_refuses_hopper_itself(task: Task) -> None:
    with pytest.raises(EngineBuildError, match=r"builds for sm75 .*, not for sm90"):
        load_tensorrt(LIBRARY).build(task.path, SPEC.shape_ranges(), "sm90")


def test_a_plan_that_the_library_refuses_is_an_error_with_its_message() -> None:
    with pytest.raises(EngineUnfitError, match=f"{LIBRARY} refuses the engine:\n  .*Serialization"):
        load_tensorrt(LIBRARY).load(b"x" * 100)


def test_another_version_than_installed_or_supported_is_refused() -> None:
    with pytest.raises(EngineUnfitError, match=r"was loaded, the installed package says tensorrt_rtx 1\.0"):
        load_tensorrt("tensorrt_rtx 1.0")
    with pytest.raises(EngineUnfitError, match=r"can't load tensorrt 11\.4 .*; install it again"):
        load_tensorrt("tensorrt 11.4")
    newer: Mapping[str, Any] = {"__version__": "12.0"}
    with pytest.raises(EngineUnfitError, match=r"tensorrt 12\.0 is installed, expected version 10 or 11"):
        TensorRT(SimpleNamespace(**newer))  # type: ignore[arg-type]


@pytest.mark.slow
def test_graphs_of_a_checkpoint_build(exported: ExportDirectory, tmp_path: Path) -> None:
    """Two of twelve; the others take minutes to export."""
    for task in exported.plan():
        assert build(task, tmp_path)[1]


@pytest.mark.slow
@pytest.mark.skipif(not is_whole(), reason="12 exports and builds take minutes; the nightly run has them")
@pytest.mark.parametrize("family", Family)
def test_every_graph_that_a_runner_serves_builds(family: Family, tmp_path: Path) -> None:
    made = list(build_all(tmp_path, [family], "small", list(Precision)))
    assert [build.failure for build in made] == [""] * 4
