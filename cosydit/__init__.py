"""The `cosydit` command, and the few things all services share (the injected clock)."""

import servicekit  # noqa: F401  which switches off the telemetry of libraries
