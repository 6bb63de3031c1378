"""`python -m cosydit.batch.bound_child PARENT-PID COMMAND...` runs a command that ends when its parent does.

A killed batch can't stop the LLM service that it started; left alone, that would keep the GPU's memory from the next
run. Linux sends the command SIGTERM then; elsewhere the command runs as it is.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""Option of prctl, from <linux/prctl.h>; what it sets outlives exec."""


def main() -> None:
    """Become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            return  # the parent ended before it could be watched
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
