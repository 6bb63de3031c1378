"""Kernels run in the Triton language's interpreter."""

from __future__ import annotations

from tests.triton_interpreter import make_the_interpreter_cheap

make_the_interpreter_cheap()
