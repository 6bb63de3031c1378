"""Whose fault an error is: the request's own, which no replica can help, or the replica's."""

from __future__ import annotations

from gateway import errors

REPLICA_FAULTS: tuple[type[errors.GatewayError], ...] = (
    errors.Token2WavUnavailableError,
    errors.Token2WavInterruptedError,
    errors.Token2WavDeadlineError,
    errors.Token2WavFailedError,
    errors.LLMUnavailableError,
    errors.LLMInterruptedError,
    errors.LLMDeadlineError,
    errors.LLMFailedError,
)
"""Another replica, or the same one later, may do better."""
_HEALTHY = (errors.Token2WavStoppingError, errors.StreamLostError, errors.LLMBusyError)
"""Said by a replica that works: it stops, it had to end this one stream, it has too much to do."""


def is_replica_fault(error: BaseException) -> bool:
    """Say whether the stream may go on elsewhere."""
    return isinstance(error, REPLICA_FAULTS)


def is_sickness(error: BaseException) -> bool:
    """Say whether the error speaks against the replica's health."""
    return is_replica_fault(error) and not isinstance(error, _HEALTHY)
