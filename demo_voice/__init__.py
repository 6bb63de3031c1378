"""The bundled demo voice: a small trained checkpoint, how it is unpacked, and how it was trained (`train/`)."""

import servicekit  # noqa: F401  which switches off the telemetry of libraries
