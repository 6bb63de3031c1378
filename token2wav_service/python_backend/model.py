"""What Triton loads of every model here: the assembler copies this file into each, as `1/model.py`.

Which code answers stands in the model's config.pbtxt, as the parameter `entry`: `module:function`. The function takes
`triton_python_backend_utils` and the configuration as JSON, and returns what has `execute` and `finalize`.
"""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from typing import Any

import triton_python_backend_utils as pb_utils

from servicekit.logs import configure_logging, log_format_of
from servicekit.process import exempt_startup_objects, take_turns_often
from token2wav_service.python_backend.server_process import read_entry


class TritonPythonModel:
    """The class that Triton's Python backend looks for, with the methods that it calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model that `args["model_config"]` names."""
        configure_logging(log_format_of())
        module, name = read_entry(args["model_config"])
        self._model: Any = attrgetter(name)(import_module(module))(pb_utils, args["model_config"])
        exempt_startup_objects()
        take_turns_often()

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Answer requests; None where the answers come later."""
        answers: list[Any] | None = self._model.execute(requests)
        return answers

    def finalize(self) -> None:
        """End the model."""
        self._model.finalize()
