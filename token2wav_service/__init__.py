"""Speech tokens to waveform: models, the batching engine, and its Triton face."""

import servicekit  # noqa: F401  which switches off the telemetry of libraries
