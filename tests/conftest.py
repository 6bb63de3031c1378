"""What holds for every test."""

from __future__ import annotations

import os

# Kernels in the Triton language run here without a GPU, by the language's own interpreter. Its library reads this when
# it is imported, and several packages import it.
os.environ["TRITON_INTERPRET"] = "1"
