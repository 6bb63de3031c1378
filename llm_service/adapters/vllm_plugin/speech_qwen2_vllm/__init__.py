"""Teaches vLLM the speech-token LLM: Qwen2 with a head of speech and end tokens only, its bias kept.

vLLM calls `register` in each of its processes (entry point group `vllm.general_plugins`, in the dist-info beside this
package). Written to vLLM 0.20.2; imports nothing of the project it comes from.
"""

from __future__ import annotations

ARCHITECTURE = "SpeechQwen2ForCausalLM"


def register() -> None:
    """Make the architecture known to vLLM; harmless when it is known already."""
    from vllm import ModelRegistry

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        # By name: importing the model here would touch CUDA in processes that must not.
        ModelRegistry.register_model(ARCHITECTURE, f"{__name__}.speech_qwen2:{ARCHITECTURE}")
