"""The streaming benchmark as a script: `python -m benchmarks.streaming_grpc`, the same as `cosydit bench`."""

import sys

from cosydit.bench.command import main

if __name__ == "__main__":
    sys.exit(main())
