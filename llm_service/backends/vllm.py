"""vLLM: `vllm serve` on a Hugging Face checkpoint."""

from __future__ import annotations

import json
import logging
import os
import re
from importlib import metadata
from pathlib import Path

from llm_service.adapters import VLLM_PLUGIN_DIR, VLLM_REPETITION_CONFIG, VLLM_REPETITION_PROCESSOR
from llm_service.backends.base import Capabilities, require_directories, require_program, require_served_form
from llm_service.config import LLMBackend, ServerConfig, VllmConfig
from llm_service.huggingface_layout import has_speech_form

logger = logging.getLogger(__name__)

PROGRAM = "vllm"
GRAPH_TOKENS = 512
"""Tokens of the largest step that runs as CUDA graphs. A step that a prompt enters has about 200. Beyond vLLM's own
bound, twice the batch, kernels are launched one by one: such a step takes five times as long, for everybody in it."""
RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
"""Chooses vLLM's model runner. The newer one ("1") samples on the GPU, seeds and penalties included; in vLLM 0.20.2 it
refuses logits processors."""
_OLDER_RUNNER, _NEWER_RUNNER = "0", "1"
_PROCESSORS_FROM = (0, 10, 1)
"""vLLM's first release with the interface of the logits processor."""
INSTALL = "install it with: pip install vllm (needs a GPU)"


class VllmBackend:
    """Runs `vllm serve`, of the converted form with repetition-aware sampling."""

    name = LLMBackend.VLLM
    capabilities = Capabilities(
        token_id_field="return_token_ids",
        token_id_value=True,
        needs_converted_form=True,
    )

    def __init__(self, vllm_config: VllmConfig | None = None) -> None:
        self.vllm_config = vllm_config or VllmConfig()

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
        return command + self._repetition_flags(config)

    def environment(self, config: ServerConfig) -> dict[str, str]:
        """Return the variables to set unless the user set them: the runner that can draw as asked."""
        return {RUNNER_VARIABLE: _OLDER_RUNNER if self._repetition_flags(config) else _NEWER_RUNNER}

    def check(self, config: ServerConfig) -> None:
        """See `Backend.check`."""
        require_directories(config)
        require_program(PROGRAM, INSTALL)
        require_served_form(self.name, config.model_dir)
        if self.vllm_config.ras_window == 0 or not has_speech_form(config.model_dir):
            return
        if (hindrance := _hindrance()) is not None:
            logger.warning("vllm draws without repetition-aware sampling: %s", hindrance)

    def _repetition_flags(self, config: ServerConfig) -> list[str]:
        """Return the flags that load our logits processor; none where it is off or can't be loaded."""
        own = self.vllm_config
        if own.ras_window == 0 or not has_speech_form(config.model_dir) or _hindrance() is not None:
            return []
        settings = {VLLM_REPETITION_CONFIG: {"ras_window": own.ras_window, "ras_tau": own.ras_tau}}
        return ["--logits-processors", VLLM_REPETITION_PROCESSOR, "--additional-config", json.dumps(settings)]


def _with_plugin(model_dir: Path) -> list[str]:
    """Return what to put before the command so that vLLM knows the converted form's architecture, if it is that."""
    if not has_speech_form(model_dir):
        return []
    paths = [str(VLLM_PLUGIN_DIR), *filter(None, [os.environ.get("PYTHONPATH")])]
    return ["env", f"PYTHONPATH={os.pathsep.join(paths)}"]


def _hindrance() -> str | None:
    """Return why vLLM can't load our logits processor here, and what to do; None if it can."""
    given = os.environ.get(RUNNER_VARIABLE, _OLDER_RUNNER)
    if given != _OLDER_RUNNER:
        return f"{RUNNER_VARIABLE}={given} asks for the runner that has no logits processors; unset it"
    version = _installed_version()
    if version is not None and _release(version) < _PROCESSORS_FROM:
        first = ".".join(map(str, _PROCESSORS_FROM))
        return f"vLLM {version} has no logits processors of this interface; take {first} or later"
    return None


def _installed_version() -> str | None:
    """Return the version of vLLM in this environment; None if the program is from another one."""
    try:
        return metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as 0.20.2rc1."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
