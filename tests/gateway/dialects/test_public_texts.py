"""What callers are told of the services behind the gateway: what to do, and no addresses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway import errors
from gateway.routing.replica import Replica, RoutingSettings
from tests.virtual_time import ManualClock

SECRET = "LLM at http://10.0.0.7:8000 can't be reached (ClientConnectorError: token2wav at 10.0.0.8:8001)"
TOLD_WHOLE = (errors.EmptySpeechError,)


def below(base: type[errors.GatewayError]) -> Iterator[type[errors.GatewayError]]:
    yield base
    for each in base.__subclasses__():
        yield from below(each)


@pytest.mark.parametrize("kind", [*below(errors.LLMError), *below(errors.Token2WavError)])
def test_no_error_of_a_service_tells_more_than_what_to_do(kind: type[errors.GatewayError]) -> None:
    if kind not in TOLD_WHOLE:
        assert "10.0.0" not in errors.public_text(kind(SECRET))


def test_what_callers_did_wrong_is_told_in_full() -> None:
    assert errors.public_text(errors.InvalidTextError("the text is empty")) == "the text is empty"
    assert errors.public_text(errors.OverloadedError("all full", retry_after_s=1.0)) == "all full"


def test_what_nobody_foresaw_tells_nothing() -> None:
    assert errors.public_text(ValueError(SECRET)) == errors.public_text(errors.GatewayError(SECRET))
    assert "10.0.0" not in errors.public_text(ValueError(SECRET))


def test_the_reason_of_a_failure_does_not_grow_with_those_before_it() -> None:
    health = Replica("llm", "a", RoutingSettings(), ManualClock())
    for _ in range(50):
        health.failed(f"it was ejected ({health.last_failure}); see its log")
    assert len(health.last_failure) <= 300
