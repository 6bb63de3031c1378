"""The garbage collector's share of a server that runs for days.

A full collection looks at every object there is, and everything else in the process waits for it. Nearly all objects
of our servers are there from the start and stay (modules, grammars of the text front end, models): without them a
collection has only what requests have left behind.

Measured on the gateway: 93 000 objects, 44 ms for a full collection, every ten seconds or so under load; exempted,
under 1 ms.
"""

from __future__ import annotations

import gc


def exempt_startup_objects() -> None:
    """Keep every object that is alive now out of all later collections; for a process that has started completely.

    What dies later is freed as ever by its reference count. Cycles among these objects are not found any more, so this
    is for objects that live as long as the process.
    """
    gc.collect()
    gc.freeze()
