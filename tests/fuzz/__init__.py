"""Fuzzing of every parser of bytes from outside: `python -m tests.fuzz` is coverage-guided, the tests are short."""
