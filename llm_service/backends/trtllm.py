"""TensorRT-LLM: `trtllm-serve serve` on a Hugging Face checkpoint or a built engine."""

from __future__ import annotations

from llm_service.backends.base import Capabilities, require_directories, require_program, warn_about_lost_bias
from llm_service.config import BackendName, ServerConfig

PROGRAM = "trtllm-serve"
INSTALL = "install TensorRT-LLM (pip install tensorrt_llm) or run in the image nvcr.io/nvidia/tensorrt-llm/release"


class TrtllmBackend:
    """Runs `trtllm-serve`."""

    name = BackendName.TRTLLM
    capabilities = Capabilities(
        token_id_field="detokenize",
        token_id_value=False,
        health_path="/health",
        has_repetition_aware_sampling=False,
        has_biased_speech_head=False,
    )

    def command(self, config: ServerConfig) -> list[str]:
        """Return the command line; limits that were not given are left to the engine."""
        command = [PROGRAM, "serve", str(config.model_dir), "--tokenizer", str(config.tokenizer_dir)]
        command += ["--host", config.host, "--port", str(config.port)]
        command += ["--max_batch_size", str(config.max_batch_size)]
        command += ["--kv_cache_free_gpu_memory_fraction", str(config.kv_cache_free_gpu_memory_fraction)]
        if config.max_num_tokens is not None:
            command += ["--max_num_tokens", str(config.max_num_tokens)]
        if config.max_seq_len is not None:
            command += ["--max_seq_len", str(config.max_seq_len)]
        if config.engine_backend is not None:
            command += ["--backend", config.engine_backend]
        return command

    def check(self, config: ServerConfig) -> None:
        """See `Backend.check`."""
        require_directories(config)
        require_program(PROGRAM, INSTALL)
        warn_about_lost_bias(self.name, config.model_dir)
