"""Makes the Triton language's interpreter cheaper in tests. What a kernel computes is not changed.

The interpreter replaces the language's functions by its own at every launch of a kernel and at every call of a function
inside it, and puts them back after the launch. Here nothing is compiled, so the replacements may stay. It also makes
the table of number types anew for every value, and computes integers a second time in 64 bits to look for overflow,
which the tests' small tensors can't have.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


@functools.cache
def make_the_interpreter_cheap() -> None:
    """Patch the interpreter for the rest of the process; once."""
    _patch_the_language_once()
    _keep_the_number_types()
    object.__setattr__(interpreter.interpreter_builder.options, "sanitize_overflow", False)


def _patch_the_language_once() -> None:
    patch: Callable[[Any], Any] = interpreter._patch_lang
    of_module: dict[int, tuple[bool, bool]] = {}
    patched: set[tuple[bool, bool]] = set()

    def patch_once(function: Any) -> Any:
        names = function.__globals__
        if id(names) not in of_module:
            modules = [value for value in names.values() if inspect.ismodule(value)]
            of_module[id(names)] = (tl in modules, tl.core in modules)
        languages = of_module[id(names)]
        if languages not in patched:
            patch(function)
            patched.add(languages)
        return interpreter._LangPatchScope()  # nothing to put back

    interpreter._patch_lang = patch_once


def _keep_the_number_types() -> None:
    number_type: Callable[[Any], Any] = interpreter._get_np_dtype
    known: dict[str, Any] = {}

    def known_number_type(language_type: Any) -> Any:
        if type(language_type) is not tl.dtype:
            return number_type(language_type)  # pointers and blocks
        if language_type.name not in known:
            known[language_type.name] = number_type(language_type)
        return known[language_type.name]

    interpreter._get_np_dtype = known_number_type
