"""TensorRT-LLM: `trtllm-serve serve` on a Hugging Face checkpoint or a built engine."""

from __future__ import annotations

from llm_service.adapters import TRTLLM_MODULE_DIR, TRTLLM_SERVE_OPTIONS
from llm_service.backends.base import (
    Capabilities,
    is_engine,
    require_directories,
    require_program,
    require_served_form,
)
from llm_service.config import LLMBackend, ServerConfig
from llm_service.errors import ConfigError
from llm_service.huggingface_layout import has_speech_form

PROGRAM = "trtllm-serve"
TENSORRT = "tensorrt"
INSTALL = "install TensorRT-LLM (pip install tensorrt_llm) or run in the image nvcr.io/nvidia/tensorrt-llm/release"


class TrtllmBackend:
    """Runs `trtllm-serve`."""

    name = LLMBackend.TRTLLM
    capabilities = Capabilities(
        token_id_field="detokenize",
        token_id_value=False,
        needs_converted_form=True,
    )

    def command(self, config: ServerConfig) -> list[str]:
        """Return the command line; limits that were not given are left to the engine.

        NOTE: an engine of trtllm-build gets no options and so has no metrics: trtllm-serve takes
        `enable_iter_perf_stats` for its PyTorch backend only, and with `return_perf_metrics` it ended at its start
        (its issue 9678, of 1.2.0rc2).
        """
        command = [PROGRAM, "serve", str(config.model_dir), "--tokenizer", str(config.tokenizer_dir)]
        command += ["--host", config.host, "--port", str(config.port)]
        command += ["--max_batch_size", str(config.max_batch_size)]
        command += ["--kv_cache_free_gpu_memory_fraction", str(config.kv_cache_free_gpu_memory_fraction)]
        if config.max_num_tokens is not None:
            command += ["--max_num_tokens", str(config.max_num_tokens)]
        if config.max_seq_len is not None:
            command += ["--max_seq_len", str(config.max_seq_len)]
        if has_speech_form(config.model_dir):
            command += ["--custom_module_dirs", str(TRTLLM_MODULE_DIR)]
        engine_backend = config.engine_backend or (TENSORRT if is_engine(config.model_dir) else None)
        if engine_backend != TENSORRT:
            command += ["--extra_llm_api_options", str(TRTLLM_SERVE_OPTIONS)]
        if engine_backend is not None:
            command += ["--backend", engine_backend]
        return command

    def check(self, config: ServerConfig) -> None:
        """See `Backend.check`."""
        require_directories(config)
        if config.engine_backend == TENSORRT and has_speech_form(config.model_dir):
            raise ConfigError(
                f"{config.model_dir} is no engine; build one with cosydit convert-llm trtllm and build, or leave "
                "engine_backend to pytorch"
            )
        require_program(PROGRAM, INSTALL)
        require_served_form(self.name, config.model_dir)
