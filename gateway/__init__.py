"""The thin client between users and the two services; imports no torch."""

import servicekit  # noqa: F401  which switches off the telemetry of libraries
