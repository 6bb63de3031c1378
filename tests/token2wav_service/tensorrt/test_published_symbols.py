"""Everything we use of TensorRT is in the published bindings of versions 10 and 11. No TensorRT runs here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.token2wav_service.tensorrt.fake_tensorrt import offered_names
from tests.token2wav_service.tensorrt.published_symbols import SYMBOLS_FILE, classes_in_use, describe
from tests.token2wav_service.tensorrt.used_symbols import (
    Use,
    api_source,
    declared_module_names,
    declared_uses,
    importers_of_tensorrt,
    undeclared_accesses,
)

PACKAGES = ("cosydit", "token2wav_service", "gateway", "llm_service", "benchmarks")
WHEELS_VARIABLE = "COSYDIT_TENSORRT_WHEELS"
"""A folder with the wheels that the symbol list names; the list is then made anew and compared."""

SYMBOLS = json.loads(SYMBOLS_FILE.read_text())
BINDINGS = [pytest.param(entry, id=min(entry["wheels"])) for entry in SYMBOLS["bindings"]]


def _major_versions() -> set[str]:
    return {name.split("-")[1].split(".")[0] for entry in SYMBOLS["bindings"] for name in entry["wheels"]}


def test_the_list_is_of_both_major_versions() -> None:
    assert _major_versions() == {"10", "11"}


@pytest.mark.parametrize("entry", BINDINGS)
def test_every_member_we_use_is_published_with_its_kind_and_number_of_arguments(entry: dict[str, Any]) -> None:
    problems = [use.problem(entry["classes"].get(use.owner, {})) for use in declared_uses()]
    assert [problem for problem in problems if problem] == []


@pytest.mark.parametrize("entry", BINDINGS)
def test_every_name_of_the_package_we_use_is_published(entry: dict[str, Any]) -> None:
    assert declared_module_names() <= {*entry["classes"], *entry["classes"][""]}


def test_the_calling_module_accesses_nothing_that_is_not_declared() -> None:
    assert undeclared_accesses(api_source()) == set()
    assert undeclared_accesses("builder.platform_has_fast_fp16") == {"platform_has_fast_fp16"}


@pytest.mark.parametrize("entry", BINDINGS)
def test_the_fake_offers_nothing_that_is_not_published(entry: dict[str, Any]) -> None:
    for name, members in offered_names().items():
        assert members <= set(entry["classes"][name]), name


@pytest.mark.slow
def test_one_module_imports_tensorrt() -> None:
    assert importers_of_tensorrt(ROOT, PACKAGES) == {"token2wav_service/runtime/tensorrt/api.py"}


def test_the_comparison_finds_what_version_11_removed_and_wrong_arguments() -> None:
    by_major = {min(e["wheels"]).split("-")[1][:2]: e["classes"] for e in SYMBOLS["bindings"]}
    removed = Use("ICudaEngine", "create_execution_context_without_device_memory", "method", 1)
    assert removed.problem(by_major["10"]["ICudaEngine"]) is None
    assert removed.problem(by_major["11"]["ICudaEngine"]) is not None
    for wrong in (
        Use("Builder", "build_cuda_engine", "method", 3),
        Use("IExecutionContext", "execute_async_v3", "method", 3),
        Use("ICudaEngine", "num_io_tensors", "method", 1),
        Use("IExecutionContext", "infer_shapes", "property"),
    ):
        assert wrong.problem(by_major["10"][wrong.owner]) is not None


@pytest.mark.skipif(WHEELS_VARIABLE not in os.environ, reason=f"{WHEELS_VARIABLE} names no folder of wheels")
def test_the_list_is_what_the_wheels_say() -> None:
    wheels = Path(os.environ[WHEELS_VARIABLE]).glob("*.whl")
    assert describe(wheels, classes_in_use()) == SYMBOLS
