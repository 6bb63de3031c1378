"""Files that other engines load: code with which they serve the converted form of the LLM (see
`llm_service.huggingface_layout`), and options.

None of the code is imported by this package: each piece runs inside its engine, imports nothing of ours, and is given
to the engine by the path below. Knows nothing of who launches the engine.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent

# Put on vLLM's PYTHONPATH: vLLM finds the plugin by its entry point.
VLLM_PLUGIN_DIR = _HERE / "vllm_plugin"

# Given to `trtllm-serve --custom_module_dirs` (PyTorch backend).
TRTLLM_MODULE_DIR = _HERE / "speech_qwen2_trtllm"

# Given to `trtllm-serve --extra_llm_api_options` (PyTorch backend).
TRTLLM_SERVE_OPTIONS = _HERE / "trtllm_serve.yml"
