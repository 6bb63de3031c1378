"""Faults that the self-test plants, and what must find each: real services with one part spoiled, two faked hosts."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cosydit.certify.check import Check
from cosydit.certify.context import CheckContext


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong on purpose."""

    name: str
    check: str
    """Path of the check that must fail."""
    said: str
    """Text that the check's reason must contain."""


WRONG_FILE = "a wrong weight in a file"
WRONG_WEIGHT = "a wrong weight in the engine"
NO_BIAS = "a dropped bias"
NO_PENALTY = "a sampler without penalty"
WRONG_OFFSET = "a wrong token offset"
DEAD_MPS = "a dead MPS daemon"
OLD_DRIVER = "a driver too old"
FAULTS = (
    Fault(WRONG_FILE, "checkpoint/sums", "SHA-256"),
    Fault(WRONG_WEIGHT, "token2wav/reference", "log-mel distance"),
    Fault(NO_BIAS, "llm/embedded/head-bias", "bias was dropped"),
    Fault(NO_PENALTY, "llm/embedded/penalty", "no penalty"),
    Fault(WRONG_OFFSET, "llm/embedded/token-offset", "wrong token offset"),
    Fault(DEAD_MPS, "host/mps", "MPS daemon"),
    Fault(OLD_DRIVER, "host/driver", "driver branch"),
)

_SPOILED_FILE = "token2wav/hift.pt"
_WEIGHT_FACTOR = 1.5
_OLD_DRIVER = "470.57.02"
_SPOILED_SERVER = """
import dataclasses
from llm_service.embedded import model, sequence
{patch}
from llm_service.__main__ import main
raise SystemExit(main())
"""
_PATCHES = {
    NO_BIAS: """
read = model.read_speech_head
def without(directory):
    head = read(directory)
    return dataclasses.replace(head, bias=head.bias * 0)
model.read_speech_head = without
""",
    NO_PENALTY: """
sampler = sequence.TokenSampler
def plain(params, *rest, **named):
    return sampler(dataclasses.replace(params, repetition_penalty=1.0), *rest, **named)
sequence.TokenSampler = plain
""",
    WRONG_OFFSET: """
advance = sequence.Sequence.advance
def shifted(self, logits):
    made = advance(self, logits)
    return dataclasses.replace(made, token_ids=tuple(token + 1 for token in made.token_ids))
sequence.Sequence.advance = shifted
""",
}


def server_program(fault: str) -> list[str]:
    """Return the Python arguments that start the LLM service, with one part spoiled if the fault is in it."""
    if fault not in _PATCHES:
        return ["-m", "llm_service"]
    return ["-c", _SPOILED_SERVER.format(patch=_PATCHES[fault])]


@contextmanager
def planted(context: CheckContext, check: Check) -> Iterator[None]:
    """Have a check's fault while it runs: those of files and of the host here, the others where they are started."""
    context.fault = check.fault
    with ExitStack() as stack:
        if check.fault == WRONG_FILE:
            stack.enter_context(_spoiled_file(context))
        elif check.fault == DEAD_MPS:
            stack.enter_context(_environment(CUDA_MPS_PIPE_DIRECTORY=str(_dead_mps(context.scratch("mps")))))
        elif check.fault == OLD_DRIVER:
            folder = _fake_driver(context.scratch("driver"))
            stack.enter_context(_environment(PATH=f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"))
        yield
    context.fault = ""


@contextmanager
def wrong_weight(fault: str) -> Iterator[None]:
    """Have what `token2wav_service.build` loads while this lasts hold one wrong matrix, if that is the fault."""
    if fault != WRONG_WEIGHT:
        yield
        return
    build: Any = importlib.import_module("token2wav_service.build")
    load = build.load_models

    def spoiled(model_dir: Path) -> Any:
        models = load(model_dir)
        largest = max(models.flow.decoder.parameters(), key=lambda parameter: parameter.numel())
        largest.data *= _WEIGHT_FACTOR
        return models

    build.load_models = spoiled
    try:
        yield
    finally:
        build.load_models = load


@contextmanager
def _spoiled_file(context: CheckContext) -> Iterator[None]:
    """Give the checks a copy of the checkpoint with one byte changed in the middle of a weight file."""
    copy = context.scratch("checkpoint") / "checkpoint"
    shutil.copytree(context.plan.checkpoint_dir, copy)
    path = copy / _SPOILED_FILE
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    plan = context.plan
    context.plan = replace(plan, checkpoint_dir=copy)
    try:
        yield
    finally:
        context.plan = plan


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _dead_mps(folder: Path) -> Path:
    """Leave what a daemon that was killed leaves: its pipe, which nobody reads."""
    os.mkfifo(folder / "control")
    return folder


def _fake_driver(folder: Path) -> Path:
    """Write an nvidia-smi that tells of an old driver."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho {_OLD_DRIVER}\n", encoding="utf-8")
    program.chmod(0o755)
    return folder
