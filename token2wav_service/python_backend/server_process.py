"""What a model knows of the tritonserver it runs in: its parameters, whether the server drains, and how to end it.

The launcher tells the models that the server drains by a file, whose name they find in their environment.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

ENTRY_PARAMETER = "entry"
"""Parameter of a model's config.pbtxt that names the code behind it."""


def read_entry(model_config_json: str) -> tuple[str, str]:
    """Return the module and the name in it of what loads the model.

    Args:
        model_config_json: `args["model_config"]` of the python backend's `initialize`.
    """
    entry = str(json.loads(model_config_json)["parameters"][ENTRY_PARAMETER]["string_value"])
    module, _, name = entry.partition(":")
    return module, name


def read_parameters(model_config_json: str) -> dict[str, str]:
    """Return the model's own parameters by name: all but its entry.

    Args:
        model_config_json: `args["model_config"]` of the python backend's `initialize`.
    """
    parameters = json.loads(model_config_json).get("parameters", {})
    return {name: str(value["string_value"]) for name, value in parameters.items() if name != ENTRY_PARAMETER}


def is_decoupled(model_config_json: str) -> bool:
    """Say whether the model may send any number of responses."""
    return bool(json.loads(model_config_json).get("model_transaction_policy", {}).get("decoupled", False))


DRAIN_FLAG_VARIABLE = "COSYDIT_DRAIN_FLAG"
"""Environment variable with the path of a file; while the file exists, the server drains."""


def is_draining() -> bool:
    """Tell whether the server drains; without the variable it never does."""
    path = os.environ.get(DRAIN_FLAG_VARIABLE)
    return path is not None and Path(path).exists()


END_FLAG = "ended"
"""Name of the file, beside that of `DRAIN_FLAG_VARIABLE`, that says that the server has answered all requests."""


def note_end() -> None:
    """Tell the launcher, if there is one, that a model of its server has ended: Triton ends none before all answers."""
    path = os.environ.get(DRAIN_FLAG_VARIABLE)
    if path:
        Path(path).with_name(END_FLAG).touch()


logger = logging.getLogger(__name__)


def server_ender() -> Callable[[Exception], None]:
    """Return what stops this process's server; call it while the model loads, when the server is sure to be there.

    The server ends as at any stop: requests under way are answered first. `python -m token2wav_service.serving` sees
    that nobody asked for it, and ends with a status other than 0.
    """
    server_pid = os.getppid()

    def end_server(error: Exception) -> None:
        if os.getppid() != server_pid:  # gone already; its process id may be another's
            return
        logger.critical("stopping the server (process %d): %s", server_pid, error)
        os.kill(server_pid, signal.SIGTERM)

    return end_server
