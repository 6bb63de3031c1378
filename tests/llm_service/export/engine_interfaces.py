"""What the adapters use of engines that can't be installed here, and where each piece is documented.

Paths are within the projects' repositories at the version named.
"""

from __future__ import annotations

# TensorRT-LLM 1.2.1, the last release that builds engines.
_FUNCTIONAL = "tensorrt_llm/functional.py; docs/source/legacy/python-api/tensorrt_llm.functional.rst"
TENSORRT_LLM_IMPORTS = {
    "tensorrt_llm.functional.cast": _FUNCTIONAL,
    "tensorrt_llm.functional.pad": _FUNCTIONAL,
    "tensorrt_llm.layers.ColumnLinear": "tensorrt_llm/layers/linear.py",
    "tensorrt_llm.models.QWenForCausalLM": "tensorrt_llm/models/qwen/model.py",
    "tensorrt_llm._torch.models.modeling_qwen.Qwen2ForCausalLM": "tensorrt_llm/_torch/models/modeling_qwen.py",
    "tensorrt_llm._torch.models.modeling_utils.register_auto_model": "docs/source/models/adding-new-model.md",
}

# Attributes of the engine's objects, beside those of Python, torch and our own classes.
TENSORRT_LLM_ATTRIBUTES = {
    "forward": "tensorrt_llm/layers/linear.py, LinearBase",
    "lm_head": "tensorrt_llm/models/modeling_utils.py, DecoderModelForCausalLM; also _torch/models/modeling_utils.py",
    "epilogue": "tensorrt_llm/_torch/models/modeling_utils.py, DecoderModelForCausalLM",
    "pretrained_config": "docs/source/models/adding-new-model.md, ModelConfig",
    "hidden_size": "docs/source/legacy/architecture/checkpoint.md",
    "vocab_size": "docs/source/legacy/architecture/checkpoint.md",
    "dtype": "docs/source/legacy/architecture/checkpoint.md",
    "torch_dtype": "Transformers' config, as tensorrt_llm/_torch/models/modeling_qwen.py uses it",
}

# vLLM 0.20.2.
VLLM_IMPORTS = {
    "vllm.ModelRegistry": "docs/contributing/model/registration.md; vllm/model_executor/models/registry.py",
    "vllm.distributed.get_pp_group": "vllm/distributed/parallel_state.py",
    "vllm.model_executor.layers.logits_processor.LogitsProcessor": "vllm/model_executor/layers/logits_processor.py",
    "vllm.model_executor.layers.vocab_parallel_embedding.ParallelLMHead": (
        "vllm/model_executor/layers/vocab_parallel_embedding.py"
    ),
    "vllm.model_executor.models.qwen2.Qwen2ForCausalLM": "vllm/model_executor/models/qwen2.py",
}

VLLM_ATTRIBUTES = {
    "get_supported_archs": "docs/design/plugin_system.md; vllm/model_executor/models/registry.py",
    "register_model": "docs/contributing/model/registration.md",
    "is_last_rank": "vllm/distributed/parallel_state.py, GroupCoordinator",
    "config": "vllm/model_executor/models/qwen2.py, Qwen2ForCausalLM",
    "quant_config": "vllm/model_executor/models/qwen2.py, Qwen2ForCausalLM",
    "lm_head": "vllm/model_executor/models/qwen2.py, Qwen2ForCausalLM",
    "logits_processor": "vllm/model_executor/models/qwen2.py, Qwen2ForCausalLM",
    "bias": "vllm/model_executor/layers/vocab_parallel_embedding.py, ParallelLMHead",
    "hidden_size": "Transformers' config, as vllm/model_executor/models/qwen2.py uses it",
    "vocab_size": "Transformers' config, as vllm/model_executor/models/qwen2.py uses it",
}

# Of Python, torch, numpy-like tensors, and keys of the converted form.
OTHER_ATTRIBUTES = {
    *("__init__", "get", "items", "T"),
    *("Tensor", "nn", "Module", "Parameter", "empty", "dtype", "float16", "float32"),
    *("linear", "pad", "float", "new_empty", "new_full", "shape", "data", "copy_", "contiguous"),
    *("speech_head_first_id", "speech_head_rows"),
    *("ids_before", "ids_after", "vocab_size_padded", "weight", "bias", "speech_qwen2"),
}
