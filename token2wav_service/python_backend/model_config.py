"""Reads the string parameters of a model's config.pbtxt, as Triton hands them to the model when it starts."""

from __future__ import annotations

import json


def read_parameters(model_config_json: str) -> dict[str, str]:
    """Return the model's parameters by name.

    Args:
        model_config_json: `args["model_config"]` of the python backend's `initialize`.
    """
    parameters = json.loads(model_config_json).get("parameters", {})
    return {name: str(value["string_value"]) for name, value in parameters.items()}


def is_decoupled(model_config_json: str) -> bool:
    """Say whether the model may send any number of responses."""
    return bool(json.loads(model_config_json).get("model_transaction_policy", {}).get("decoupled", False))
