"""The table of all checks, in the order in which they run: area, name, function, page of the documentation.

A function is named, and its module imported when the check runs: a package that can't be imported fails the checks
that need it, and no other.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator, Sequence
from functools import partial

from cosydit.certify.check import Check, CheckFailedError, Findings, NotRunError, Plan
from cosydit.certify.context import CheckContext
from servicekit.extras import missing_extra

LONG_S, LONGEST_S = 900.0, 3600.0
"""Seconds for a check that computes much on the CPU or starts services, and for one that speaks much."""
_GPU, _TROUBLE, _VOICES, _SPEED = "quick-start-gpu.md", "troubleshooting.md", "voices.md", "performance.md"
STACK = "stack"
"""Group of the checks that need the whole system."""
_TABLE: tuple[tuple[str, str, str, str, float, str], ...] = (
    ("host", "driver", "host.check_driver", _GPU, 0, ""),
    ("host", "gpu", "host.check_gpu", _GPU, 0, ""),
    ("host", "compiler", "host.check_compiler", _GPU, 0, ""),
    ("host", "imports", "host.check_imports", "quick-start-cpu.md", LONG_S, ""),
    ("host", "memory", "host.check_memory", _GPU, 0, ""),
    ("host", "mps", "host.check_mps", _SPEED, 0, ""),
    ("host", "shared-memory", "host.check_shared_memory", "docker.md", 0, ""),
    ("host", "tritonserver", "host.check_tritonserver", _TROUBLE, 0, ""),
    ("host", "docker", "host.check_docker", "docker.md", 0, ""),
    ("host", "hubs", "host.check_hubs", "checkpoints.md", 0, ""),
    ("checkpoint", "lock", "checkpoint.check_lock", "checkpoints.md", 0, ""),
    ("checkpoint", "sums", "checkpoint.check_sums", "checkpoints.md", LONG_S, ""),
    ("checkpoint", "parts", "checkpoint.check_parts", "checkpoints.md", LONG_S, ""),
    ("checkpoint", "ids", "checkpoint.check_ids", "checkpoints.md", 0, ""),
    ("checkpoint", "head-bias", "checkpoint.check_head_bias", "llm.md", 0, ""),
    ("checkpoint", "forms", "checkpoint.check_forms", "llm.md", LONG_S, ""),
    ("llm", "*", "", "llm.md", LONG_S, ""),
    ("token2wav", "golden", "token2wav.check_golden", "architecture.md", LONG_S, ""),
    ("token2wav", "reference", "token2wav.check_reference", _SPEED, LONG_S, ""),
    ("token2wav", "speech-tokens", "token2wav.check_speech_tokens", _VOICES, 0, ""),
    ("token2wav", "prompts", "token2wav.check_prompts", _VOICES, LONG_S, ""),
    ("token2wav", "two-voices", "token2wav.check_two_voices", _SPEED, LONG_S, ""),
    ("token2wav", "chunked", "token2wav.check_chunked", _SPEED, LONG_S, ""),
    ("token2wav", "buckets", "token2wav.check_buckets", _SPEED, LONG_S, ""),
    ("token2wav", "export", "token2wav.check_export", "checkpoints.md", LONGEST_S, ""),
    ("token2wav", "tensorrt", "token2wav.check_tensorrt", _SPEED, LONG_S, ""),
    ("end-to-end", "start", "end_to_end.check_start", _TROUBLE, LONG_S, STACK),
    ("end-to-end", "openai", "end_to_end.check_door", "api/index.md", LONG_S, STACK),
    ("end-to-end", "elevenlabs", "end_to_end.check_door", "api/index.md", LONG_S, STACK),
    ("end-to-end", "speech-socket", "end_to_end.check_door", "api/index.md", LONG_S, STACK),
    ("end-to-end", "elevenlabs-socket", "end_to_end.check_door", "api/index.md", LONG_S, STACK),
    ("end-to-end", "grpc", "end_to_end.check_door", "api/grpc.md", LONG_S, STACK),
    ("end-to-end", "riva", "end_to_end.check_door", "api/grpc.md", LONG_S, STACK),
    ("end-to-end", "wyoming", "end_to_end.check_door", "smart-home.md", LONG_S, STACK),
    ("end-to-end", "triton", "end_to_end.check_door", "api/triton.md", LONG_S, STACK),
    ("quality", "words", "quality.check_words", _SPEED, LONGEST_S, STACK),
    ("quality", "speaker", "quality.check_speaker", _VOICES, LONGEST_S, STACK),
    ("load", "steady", "load.check_steady", "operation.md", LONGEST_S, STACK),
)
_OF_BACKENDS = (
    *("start", "ids", "finish-reasons", "token-offset", "head-bias", "penalty", "repetition", "seeds", "cancel"),
    "at-once",
)
LLM_PROGRAMS = {"embedded": None, "vllm": "vllm", "trtllm": "trtllm-serve"}
"""Backends, and the program that each needs on PATH."""


def all_checks(plan: Plan) -> list[Check]:
    """Return the checks of a plan, each with a name of its own."""
    return [check for row in _TABLE for check in _checks_of(row, plan)]


def selected(checks: Sequence[Check], only: Sequence[str]) -> list[Check]:
    """Return the checks that `--only` means; all of them without it.

    Raises:
        ValueError: a value that means none.
    """
    for prefix in only:
        if not any(check.is_under(prefix) for check in checks):
            areas = ", ".join(sorted({check.area for check in checks}))
            raise ValueError(f"got --only {prefix}, expected AREA or AREA/NAME with AREA one of {areas}; see --list")
    return [check for check in checks if not only or any(check.is_under(prefix) for prefix in only)]


def _checks_of(row: tuple[str, str, str, str, float, str], plan: Plan) -> Iterator[Check]:
    area, name, function, page, timeout_s, shares = row
    timeout = timeout_s or Check.timeout_s
    if area != "llm":
        arguments = (name,) if function.endswith(".check_door") else ()
        yield Check(area, name, partial(_run, function, arguments), page, timeout, shares)
        return
    for backend, program in LLM_PROGRAMS.items():
        if program is None or plan.is_gpu:
            is_there = program is None or shutil.which(program)
            for each in _OF_BACKENDS if is_there else _OF_BACKENDS[:1]:
                run = partial(_run, f"llm.check_{each.replace('-', '_')}", (backend,))
                yield Check(area, f"{backend}/{each}", run, page, timeout)


def _run(function: str, arguments: Sequence[str], context: CheckContext, found: Findings) -> None:
    module, _, name = function.partition(".")
    try:
        imported = importlib.import_module(f"cosydit.certify.{module}")
    except Exception as error:  # a broken package raises whatever it likes
        hint = missing_extra(error) if isinstance(error, ImportError) else None
        if hint is not None:
            raise NotRunError(hint) from error
        told = f"what this check needs can't be imported: {type(error).__name__}: {error}"
        raise CheckFailedError(told) from error
    getattr(imported, name)(context, found, *arguments)
