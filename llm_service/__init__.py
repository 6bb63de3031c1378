"""Text to speech tokens: knows nothing of audio or Triton."""

import servicekit  # noqa: F401  which switches off the telemetry of libraries
