"""What the command line says about the gRPC door."""

from __future__ import annotations

import math

import pytest

from gateway.config import parse_args
from gateway.errors import ConfigError

REQUIRED = ["--tokenizer-dir", "tok", "--voices-dir", "voices"]


@pytest.mark.parametrize(("given", "port"), [([], 50051), (["--grpc-port", "9"], 9), (["--grpc-port", "0"], None)])
def test_the_door_is_open_where_rivas_clients_look_unless_said_otherwise(given: list[str], port: int | None) -> None:
    assert parse_args([*REQUIRED, *given]).grpc_port == port


@pytest.mark.parametrize(("given", "run_ahead_s"), [("0.5", 0.5), ("0", math.inf)])
def test_the_run_ahead_is_a_setting(given: str, run_ahead_s: float) -> None:
    assert parse_args([*REQUIRED, "--run-ahead-s", given]).run_ahead_s == run_ahead_s


@pytest.mark.parametrize("given", ["-1", "nan", "soon"])
def test_a_run_ahead_that_is_no_duration_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="--run-ahead-s"):
        parse_args([*REQUIRED, "--run-ahead-s", given])
