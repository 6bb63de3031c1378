"""What every process of the system uses: clock, logs, tracing, heap, timeouts, drain. Imports nothing of ours.

Importing it switches off the telemetry of libraries, here and in processes that this one starts. ONNX Runtime writes
a device id into the home folder as soon as it is imported, and sends it to its maker after ten seconds; vLLM and
Hugging Face's libraries obey DO_NOT_TRACK. A user who sets one of them keeps that value.
"""

import os

for _name in ("ORT_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
    os.environ.setdefault(_name, "1")
