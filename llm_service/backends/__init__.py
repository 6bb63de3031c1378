"""The engines that can serve the speech-token LLM, behind one HTTP contract."""

from __future__ import annotations

from llm_service.backends.base import Backend, Capabilities
from llm_service.backends.embedded import EmbeddedBackend
from llm_service.backends.trtllm import TrtllmBackend
from llm_service.backends.vllm import VllmBackend

__all__ = ["Backend", "Capabilities", "EmbeddedBackend", "TrtllmBackend", "VllmBackend"]
