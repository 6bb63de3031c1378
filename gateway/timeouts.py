"""The one way to wait for no longer than a limit, which loses no cancellation.

`asyncio.wait_for` does lose one, before Python 3.12, that comes together with the result: what was to be stopped goes
on, and whoever waits for its end waits for ever.
"""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout

__all__ = ["timeout"]
