"""Defines a backend: a command line and the few ways in which its HTTP dialect differs; and our own. Starts nothing."""

from __future__ import annotations

import importlib.util
import logging
import shutil
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

from llm_service.config import EmbeddedConfig, LLMBackend, ServerConfig
from llm_service.errors import BackendUnavailableError, CheckpointError
from llm_service.huggingface_layout import has_speech_form, stores_head_bias
from llm_service.text_encoder import TOKENIZER_FILE
from servicekit.extras import install_command, own_command

logger = logging.getLogger(__name__)

MODEL_CONFIG = "config.json"
_MAKE_IT = (
    "give --model-dir and --tokenizer-dir, in a container mount them; "
    "stages 0 and 1 of run_stepaudio2_dit_token2wav.sh make a checkpoint and the form that vllm and trtllm read"
)


@dataclass(frozen=True)
class Capabilities:
    """How to ask this backend for what we need."""

    token_id_field: str  # request field that makes /v1/completions answer with token_ids
    token_id_value: bool
    needs_converted_form: bool  # of the LLM (`llm_service.huggingface_layout`), to keep the bias of its head


class Backend(Protocol):
    """One engine behind the OpenAI-compatible contract."""

    @property
    def name(self) -> LLMBackend:
        """Its name on the command line."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """How it differs."""
        ...

    def command(self, config: ServerConfig) -> list[str]:
        """Return the command line that serves `config`, program first."""
        ...

    def check(self, config: ServerConfig) -> None:
        """Check that the command can start.

        Raises:
            BackendUnavailableError: its program is missing; the message says what to install.
            CheckpointError: a directory is missing or incomplete.
        """
        ...


def require_program(program: str, how_to_install: str) -> None:
    """Check that a program is on PATH.

    Raises:
        BackendUnavailableError: it isn't.
    """
    if shutil.which(program) is None:
        raise BackendUnavailableError(f"{program} is not on PATH; {how_to_install}")


def require_directories(config: ServerConfig) -> None:
    """Check that the model directory exists and the tokenizer directory has a tokenizer.

    Raises:
        CheckpointError: one is missing.
    """
    if not config.model_dir.is_dir():
        raise CheckpointError(f"model directory {config.model_dir} does not exist; {_MAKE_IT}")
    path = config.tokenizer_dir / TOKENIZER_FILE
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; {_MAKE_IT}")


def require_served_form(name: LLMBackend, model_dir: Path) -> None:
    """Check that stock Qwen2 of this backend loses nothing of the checkpoint.

    Raises:
        CheckpointError: the directory is of the stock form and stores a bias of the speech head: vLLM refuses to load
            it, and TensorRT-LLM drops it, so that text tokens come out.
    """
    if not (model_dir / MODEL_CONFIG).is_file() or has_speech_form(model_dir) or is_engine(model_dir):
        return
    command = own_command(f"convert-llm huggingface {model_dir} DIRECTORY")
    if stores_head_bias(model_dir):
        raise CheckpointError(
            f"{model_dir} is stock Qwen2 with a bias in its speech head, which {name.value} has no room for; "
            f"convert it once and serve the result: {command}"
        )
    logger.warning(
        "%s serves %s as stock Qwen2; it stores no bias of the speech head. If the model has one, convert it: %s",
        *(name.value, model_dir, command),
    )


def is_engine(model_dir: Path) -> bool:
    """Tell whether a directory holds engines that trtllm-build made."""
    return any(model_dir.glob("*.engine"))


NEEDED_MODULES = ("torch", "safetensors")


class EmbeddedBackend:
    """Runs `llm_service.embedded`."""

    name = LLMBackend.EMBEDDED
    capabilities = Capabilities(
        token_id_field="return_token_ids",
        token_id_value=True,
        needs_converted_form=False,
    )

    def __init__(self, embedded_config: EmbeddedConfig) -> None:
        self.embedded_config = embedded_config

    def command(self, config: ServerConfig) -> list[str]:
        """Return the command line of this launcher with every setting spelled out."""
        command = [sys.executable, "-m", "llm_service", "--backend", self.name.value]
        for config_part in (config, self.embedded_config):
            for entry in fields(config_part):
                value = getattr(config_part, entry.name)
                if value is not None:
                    command += [f"--{entry.name.replace('_', '-')}", str(value)]
        return command

    def check(self, config: ServerConfig) -> None:
        """See `Backend.check`."""
        require_directories(config)
        missing = [name for name in NEEDED_MODULES if importlib.util.find_spec(name) is None]
        if missing:
            command = install_command("llm-embedded")
            raise BackendUnavailableError(f"the embedded backend needs {', '.join(missing)}; install with: {command}")
