"""TensorRT-LLM: `trtllm-serve serve` on a Hugging Face checkpoint or a built engine."""

from __future__ import annotations

import re
import tempfile
from importlib import metadata
from pathlib import Path

from llm_service.adapters import TRTLLM_MODULE_DIR, TRTLLM_SERVE_OPTIONS
from llm_service.backends.base import (
    Capabilities,
    is_engine,
    require_directories,
    require_program,
    require_served_form,
)
from llm_service.config import LLMBackend, ServerConfig
from llm_service.errors import LLMConfigError
from llm_service.huggingface_layout import has_speech_form

PROGRAM = "trtllm-serve"
TENSORRT = "tensorrt"
PENALTY_SAMPLER = "TRTLLMSampler"
"""Sampler that applies penalties; the default one of these releases ignores them (TensorRT-LLM's issue 9442). Later
releases apply them in the default one. The gateway asks in any case (`--llm-sampling-probe`)."""
_PENALTY_SAMPLER_FROM, _PENALTY_SAMPLER_UNTIL = (1, 1), (1, 3)
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
            command += ["--extra_llm_api_options", str(_options_file(config))]
        if engine_backend is not None:
            command += ["--backend", engine_backend]
        return command

    def check(self, config: ServerConfig) -> None:
        """See `Backend.check`."""
        require_directories(config)
        is_tensorrt = config.engine_backend == TENSORRT or is_engine(config.model_dir)
        if is_tensorrt and config.stream_interval not in (None, 1):
            raise LLMConfigError(
                "stream_interval is for trtllm's pytorch backend; an engine streams every token: give 1"
            )
        if config.engine_backend == TENSORRT and has_speech_form(config.model_dir):
            raise LLMConfigError(
                f"{config.model_dir} is no engine; build one with cosydit convert-llm trtllm and build, or leave "
                "engine_backend to pytorch"
            )
        require_program(PROGRAM, INSTALL)
        require_served_form(self.name, config.model_dir)


def serve_options(stream_interval: int | None, version: str | None) -> str:
    """Return what `trtllm-serve` reads beside its command line, for its PyTorch backend: lines of YAML.

    Args:
        stream_interval: tokens in one event; None: its own.
        version: of TensorRT-LLM; None if it is not known here.
    """
    lines = [TRTLLM_SERVE_OPTIONS.read_text(encoding="utf-8").rstrip("\n")]
    if version is not None and _PENALTY_SAMPLER_FROM <= _release(version) < _PENALTY_SAMPLER_UNTIL:
        lines.append(f"sampler_type: {PENALTY_SAMPLER}")
    if stream_interval is not None:
        lines.append(f"stream_interval: {stream_interval}")
    return "\n".join(lines) + "\n"


def _options_file(config: ServerConfig) -> Path:
    """Return the file of options: the one that is there, or a new one in the folder for temporary files."""
    text = serve_options(config.stream_interval, _installed_version())
    if text == TRTLLM_SERVE_OPTIONS.read_text(encoding="utf-8"):
        return TRTLLM_SERVE_OPTIONS
    # NOTE: no name that others of this machine could have taken before.
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix="cosydit-trtllm-", suffix=".yml", delete=False
    ) as file:
        file.write(text)
    return Path(file.name)


def _installed_version() -> str | None:
    try:
        return metadata.version("tensorrt_llm")
    except metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, int]:
    """Return major and minor of a version such as 1.2.0rc3."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)
