"""Offline batch synthesis as a script: `python -m benchmarks.offline_batch`, the same as `cosydit batch`."""

import sys

from cosydit.batch.command import main

if __name__ == "__main__":
    sys.exit(main())
