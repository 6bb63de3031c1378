"""One open stream at one replica, and its slot there."""

from __future__ import annotations

import contextlib
from contextlib import AbstractAsyncContextManager

from gateway import errors
from gateway.core import Token2WavStream
from gateway.routing.faults import is_sickness
from gateway.routing.fleet import SlotLease


def give_back(slot: SlotLease, error: BaseException | None, is_begun: bool = False) -> None:
    """Give a stream's slot back and tell the fleet what it must know of how it ended.

    Args:
        slot: of the stream.
        error: what ended it; None if it went well.
        is_begun: the stream was open there.
    """
    if isinstance(error, errors.Token2WavBusyError) and not is_begun:
        slot.refuse()
    elif isinstance(error, errors.Token2WavStoppingError):
        slot.leave_draining()
    elif error is not None and is_sickness(error):
        slot.fail(str(error))
    else:
        slot.end(is_whole=is_begun)


class Lease:
    """A stream that is open at a replica; closed exactly once."""

    def __init__(
        self, slot: SlotLease, context: AbstractAsyncContextManager[Token2WavStream], stream: Token2WavStream
    ) -> None:
        """Own the slot and the entered context that gave the stream."""
        self.slot = slot
        self.stream = stream
        self._context: AbstractAsyncContextManager[Token2WavStream] | None = context

    async def close(self, fault: errors.GatewayError | None, is_cut: bool) -> None:
        """Free the stream at the replica and its slot; harmless the second time.

        Args:
            fault: what the replica did wrong, if it did.
            is_cut: the stream is dropped; else its summary is waited for, but not for long.
        """
        context, self._context = self._context, None
        if context is None:
            return
        reason = fault if fault is not None or not is_cut else errors.Token2WavInterruptedError("the caller left")
        try:
            # NOTE: the context raises the error that it is given.
            with contextlib.suppress(errors.GatewayError):
                await context.__aexit__(None if reason is None else type(reason), reason, None)
        finally:
            give_back(self.slot, fault, is_begun=True)
