"""Our own small server on torch; the launcher runs it in its own process."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import fields

from llm_service.backends.base import Capabilities, require_directories
from llm_service.config import EmbeddedConfig, LLMBackend, ServerConfig
from llm_service.errors import BackendUnavailableError
from servicekit.extras import install_command

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
