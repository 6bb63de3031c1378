"""Ends gRPC calls that their clients have reset, before anything is done for them.

A client may open and reset thousands of calls in a second (CVE-2023-44487). gRPC hands them over like all others, and
reading their message fails. grpcio loses 80 bytes with each such read (also in 1.85.3; grpc/grpc#43360), and these
keep the freed memory around them from going back to the kernel. Measured on one process: 240,000 such calls lost 11 MiB
and kept 240 MiB of freed memory.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

_PAUSE_S = 0.001
"""Seconds in which a thread of gRPC tells the event loop of a reset: it does so only once a call is handed over."""


class ResetInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Waits for a moment, in which gRPC cancels a call that was reset; goes before all others."""

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        await asyncio.sleep(_PAUSE_S)
        return await continuation(handler_call_details)
