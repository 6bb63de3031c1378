"""The settings for each size of GPU memory: one table, read by the run script, `serve`, `say` and `batch`.

`deploy/compose/gpu/*.env` and `deploy/k8s/gpu/*` are written from it (`python -m cosydit.stack.gpu_presets`). Pure data
and arithmetic: looks at no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GB = 1_000_000_000
STREAM_BYTES = 70_470_340
"""Of the pool, for one stream at full size; `bytes_per_stream` of benchmarks/results/h200_engine.json."""
LONGEST_VOICE_BYTES = 612_480_000
"""Of a voice with a prompt of 18 s: 170,133,352 bytes for 5 s (`voice_bytes`, the same file), times 18 / 5."""
CONTEXT_BYTES = 600_000_000
"""Of CUDA's context and libraries in one process; estimated."""
TOKEN2WAV_BYTES = 4_500_000_000
"""Of token2wav's models, feature models and captured programs at full size; estimated, with room to spare."""
LLM_BYTES = 2_000_000_000
"""Of the LLM's weights, captured steps and working memory at full size; estimated."""
SERVED_TYPE = "float16"
"""Of token2wav's flow on a GPU. The LLM computes in its checkpoint's own half type, bfloat16 for the official one."""
OFFLINE_LLM_SHARE = 0.35
"""Of memory, for the LLM of an offline batch: its token2wav has a small pool."""
STREAM_INTERVAL = 4
"""Tokens in one event of vLLM."""


@dataclass(frozen=True)
class LLMRoom:
    """What one backend of the LLM gets on a GPU that token2wav shares."""

    slots: int
    """Requests that run together."""
    memory_share: float
    """Of free memory for the keys and values; vLLM: of all memory, weights included."""


@dataclass(frozen=True)
class GpuPreset:
    """Settings for GPUs with so much memory, both services on one GPU."""

    name: str
    least_mib: int
    """Memory of the smallest GPU it is for; its kinds have a little less than their name says."""
    max_streams: int
    step_streams: int
    """Streams in one step of token2wav (TRITON_MAX_BATCH_SIZE)."""
    voice_cache_bytes: int
    llm: Mapping[str, LLMRoom]
    """By backend."""
    batch_size: int
    """Of an offline batch: utterances in the LLM at once."""
    token2wav_batch_size: int
    """Of an offline batch."""
    source: str
    """Where the numbers come from."""

    def token2wav_settings(self, servers: int = 1) -> dict[str, str]:
        """Return settings of the model repository, for one of so many servers on the GPU."""
        return {
            "device": "cuda",
            "dtype": SERVED_TYPE,
            "TRITON_MAX_BATCH_SIZE": str(self.step_streams),
            "max_streams": str(max(1, self.max_streams // servers)),
            "voice_cache_bytes": str(max(LONGEST_VOICE_BYTES, self.voice_cache_bytes // servers)),
        }

    def needed_bytes(self, backend: str, memory_bytes: int, voices_bytes: int = LONGEST_VOICE_BYTES) -> int:
        """Return what both services take of a GPU's memory, at full size, with so much for voices."""
        room = self.llm[backend]
        llm = room.memory_share * memory_bytes + (0 if backend == "vllm" else LLM_BYTES)
        pool = (self.max_streams + 1) * STREAM_BYTES
        return int(2 * CONTEXT_BYTES + llm + TOKEN2WAV_BYTES + pool + voices_bytes)


def _rooms(embedded: LLMRoom, slots: int, trtllm_share: float) -> dict[str, LLMRoom]:
    return {"embedded": embedded, "vllm": LLMRoom(slots, 0.25), "trtllm": LLMRoom(slots, trtllm_share)}


PRESETS = (
    GpuPreset("16gb", 15_000, 32, 16, 1 * GB, _rooms(LLMRoom(64, 0.1), 32, 0.1), 32, 16, "computed; not run"),
    GpuPreset("24gb", 22_000, 60, 32, 3 * GB, _rooms(LLMRoom(128, 0.1), 64, 0.1), 64, 32, "computed; not run"),
    GpuPreset("48gb", 44_000, 150, 64, 8 * GB, _rooms(LLMRoom(256, 0.12), 64, 0.12), 128, 64, "computed; not run"),
    GpuPreset("80gb", 79_000, 480, 64, 16 * GB, _rooms(LLMRoom(512, 0.15), 64, 0.15), 256, 64, "computed; not run"),
    GpuPreset("141gb", 140_000, 1000, 64, 20 * GB, _rooms(LLMRoom(1024, 0.15), 64, 0.15), 256, 64, "run on an H200"),
)
"""By memory, ascending. With one voice of 18 s each fits its smallest GPU; with a full cache of voices, too."""


def preset_for(memory_mib: int) -> GpuPreset:
    """Return the largest preset that so much memory holds; the smallest one for still smaller GPUs."""
    fitting = [preset for preset in PRESETS if preset.least_mib <= memory_mib]
    return fitting[-1] if fitting else PRESETS[0]
