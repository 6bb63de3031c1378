"""The settings for each size of GPU memory: one table, read by the run script, `serve`, `say` and `batch`.

Pure data and arithmetic: looks at no GPU. `deploy/make_gpu_files.py` writes files of Compose and Kubernetes from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from servicekit.gpu_host import MIB

GB = 1_000_000_000
STREAM_BYTES = 70_470_340
"""Bytes of the pool for one stream at full size; `bytes_per_stream` of benchmarks/results/h200_engine.json."""
LONGEST_VOICE_BYTES = 612_480_000
"""Bytes of a voice with a prompt of 18 s: 170,133,352 for 5 s (`voice_bytes`, the same file), times 18 / 5."""
BLOCK_STREAM_BYTES = {"cosyvoice2": 231_527_620, "cosyvoice3": 183_313_360}
"""Bytes of the pool for one stream of a block-masked flow at full size; `bytes_per_stream` of
benchmarks/results/h200_families.json."""
BLOCK_VOICE_BYTES = {"cosyvoice2": 4_161_367_368, "cosyvoice3": 3_266_982_216}
"""Bytes of its voice with a prompt of 18 s: `voice_bytes` of 5 s, 200 shared frames, times 900 / 200."""
BLOCK_VOICES_SHARE = 0.6
"""Share for voices of the memory that a block-masked flow's streams and voices have: a voice takes as much as four
streams."""
CONTEXT_BYTES = 600_000_000
"""Bytes of CUDA's context and libraries in one process; estimated."""
TOKEN2WAV_BYTES = 4_500_000_000
"""Bytes of token2wav's models, feature models and captured programs at full size; estimated, with room to spare."""
LLM_BYTES = 2_000_000_000
"""Bytes of the LLM's weights, captured steps and working memory at full size; estimated."""
SERVED_TYPE = "float16"
"""Type of token2wav's flow on a GPU. The LLM computes in its checkpoint's own half type, bfloat16 for the official
one."""
OFFLINE_LLM_SHARE = 0.35
"""Share of memory for the LLM of an offline batch, whose token2wav has a small pool."""
STREAM_INTERVAL = 4
"""Tokens in one event of vLLM."""
_CACHE_STEP = GB // 10


@dataclass(frozen=True)
class LLMRoom:
    """What one backend of the LLM gets on a GPU that token2wav shares."""

    slots: int
    """Requests that run together."""
    memory_share: float
    """Share of free memory for the keys and values; vLLM: of all memory, weights included."""


@dataclass(frozen=True)
class GpuPreset:
    """Settings for GPUs with so much memory, both services on one GPU."""

    name: str
    least_mib: int
    """Memory in MiB of the smallest GPU of the preset; GPUs have a little less than their name says."""
    max_streams: int
    step_streams: int
    """Streams in one step of token2wav (TRITON_MAX_BATCH_SIZE)."""
    voice_cache_bytes: int
    llm: Mapping[str, LLMRoom]
    """Settings of the LLM by backend."""
    batch_size: int
    """Utterances of an offline batch in the LLM at once."""
    token2wav_batch_size: int
    """Utterances of an offline batch in token2wav at once."""
    source: str
    """Origin of the numbers."""

    @property
    def memory(self) -> str:
        """In words."""
        return f"{self.name.removesuffix('gb')} GB"

    def token2wav_settings(self, servers: int = 1, family: str | None = None) -> dict[str, str]:
        """Return settings of the model repository, for one of so many token2wav servers on the GPU.

        A family that is not in `BLOCK_STREAM_BYTES` has Step-Audio2's settings.
        """
        streams, cache_bytes = self.max_streams, self.voice_cache_bytes
        if family in BLOCK_STREAM_BYTES:
            streams, cache_bytes = self._block_sizes(family)
        return {
            "device": "cuda",
            "dtype": SERVED_TYPE,
            "TRITON_MAX_BATCH_SIZE": str(self.step_streams),
            "max_streams": str(max(1, streams // servers)),
            "voice_cache_bytes": str(max(LONGEST_VOICE_BYTES, cache_bytes // servers)),
        }

    def _block_sizes(self, family: str) -> tuple[int, int]:
        """Return streams and bytes of voices of a block-masked flow: what the greediest LLM leaves, shared out."""
        memory_bytes = self.least_mib * MIB
        llm_bytes = max(self.llm_bytes(backend, memory_bytes) for backend in self.llm)
        free = int(memory_bytes - llm_bytes - 2 * CONTEXT_BYTES - TOKEN2WAV_BYTES)
        voices = max(int(BLOCK_VOICES_SHARE * free) // _CACHE_STEP * _CACHE_STEP, BLOCK_VOICE_BYTES[family])
        slots = (free - voices) // BLOCK_STREAM_BYTES[family]
        # One slot is the pool's scratch.
        return max(1, min(slots - 1, self.max_streams)), voices

    def llm_bytes(self, backend: str, memory_bytes: int) -> float:
        """Return what the LLM takes of a GPU's memory, at full size."""
        return self.llm[backend].memory_share * memory_bytes + (0 if backend == "vllm" else LLM_BYTES)


def _rooms(embedded: LLMRoom, slots: int, trtllm_share: float) -> dict[str, LLMRoom]:
    return {"embedded": embedded, "vllm": LLMRoom(slots, 0.25), "trtllm": LLMRoom(slots, trtllm_share)}


PRESETS = (
    GpuPreset("16gb", 15_000, 32, 16, 1 * GB, _rooms(LLMRoom(64, 0.1), 64, 0.1), 32, 16, "computed; not run"),
    GpuPreset("24gb", 22_000, 60, 32, 3 * GB, _rooms(LLMRoom(128, 0.1), 64, 0.1), 64, 32, "computed; not run"),
    GpuPreset("48gb", 44_000, 150, 64, 8 * GB, _rooms(LLMRoom(256, 0.12), 64, 0.12), 128, 64, "computed; not run"),
    GpuPreset("80gb", 79_000, 480, 64, 16 * GB, _rooms(LLMRoom(512, 0.15), 64, 0.15), 256, 64, "run on an H100"),
    GpuPreset("141gb", 140_000, 1000, 64, 20 * GB, _rooms(LLMRoom(1024, 0.15), 64, 0.15), 256, 64, "run on an H200"),
)
"""Presets by memory, ascending. With one voice of 18 s each fits its smallest GPU; with a full cache of voices, too."""


def preset_for(memory_mib: int) -> GpuPreset:
    """Return the largest preset that so much memory holds; the smallest one for still smaller GPUs."""
    fitting = [preset for preset in PRESETS if preset.least_mib <= memory_mib]
    return fitting[-1] if fitting else PRESETS[0]
