"""vLLM: `vllm serve` on a Hugging Face checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

from llm_service.adapters import VLLM_PLUGIN_DIR
from llm_service.backends.base import Capabilities, require_directories, require_program, require_served_form
from llm_service.config import LLMBackend, ServerConfig
from llm_service.huggingface_layout import has_speech_form

PROGRAM = "vllm"
GRAPH_TOKENS = 512
"""Tokens of the largest step that runs as CUDA graphs. A step that a prompt enters has about 200. Beyond vLLM's own
bound, twice the batch, kernels are launched one by one: such a step takes five times as long, for everybody in it."""
RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
"""Chooses vLLM's model runner, unless the user has: the newer one samples on the GPU, seeds and penalties included."""
NEWER_RUNNER = "1"
INSTALL = "install it with: pip install vllm (needs a GPU)"


class VllmBackend:
    """Runs `vllm serve`."""

    name = LLMBackend.VLLM
    capabilities = Capabilities(
        token_id_field="return_token_ids",
        token_id_value=True,
        needs_converted_form=True,
    )

    def command(self, config: ServerConfig) -> list[str]:
        """Return the command line.

        vLLM has one share for all its memory: kv_cache_free_gpu_memory_fraction becomes that.
        """
        command = [*_with_plugin(config.model_dir), PROGRAM, "serve", str(config.model_dir)]
        command += ["--tokenizer", str(config.tokenizer_dir)]
        command += ["--host", config.host, "--port", str(config.port)]
        command += ["--served-model-name", config.served_model_name]
        command += ["--max-num-seqs", str(config.max_batch_size)]
        command += ["--max-cudagraph-capture-size", str(GRAPH_TOKENS)]
        command += ["--gpu-memory-utilization", str(config.kv_cache_free_gpu_memory_fraction)]
        if config.max_num_tokens is not None:
            command += ["--max-num-batched-tokens", str(config.max_num_tokens)]
        if config.max_seq_len is not None:
            command += ["--max-model-len", str(config.max_seq_len)]
        if config.stream_interval is not None:
            command += ["--stream-interval", str(config.stream_interval)]
        return command

    def check(self, config: ServerConfig) -> None:
        """See `Backend.check`."""
        require_directories(config)
        require_program(PROGRAM, INSTALL)
        require_served_form(self.name, config.model_dir)


def _with_plugin(model_dir: Path) -> list[str]:
    """Return what to put before the command so that vLLM knows the converted form's architecture, if it is that."""
    if not has_speech_form(model_dir):
        return []
    paths = [str(VLLM_PLUGIN_DIR), *filter(None, [os.environ.get("PYTHONPATH")])]
    return ["env", f"PYTHONPATH={os.pathsep.join(paths)}"]
