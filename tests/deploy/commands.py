"""Checks that a command in an image, a compose file or a manifest is one that its program understands.

Each program's own parser reads it, so that a renamed option is found here and not in a container that won't start.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from unittest.mock import patch

import gateway.config
import gateway.errors
import servicekit.drain
import token2wav_service.serving.__main__ as triton_main
import token2wav_service.serving.assemble
from llm_service.__main__ import _parser as llm_parser
from llm_service.backends import AUTO
from llm_service.config import LLM, LLMBackend, parse_server_config
from servicekit.settings import given_settings
from token2wav_service.serving.process import health
from token2wav_service.serving.settings import SETTINGS

PYTHONS = ("python", "python3")
FOLDER_SETTINGS = ("_dir",)
"""Endings of settings whose value is a folder of the container."""


class BadCommandError(Exception):
    """A command that its program would refuse; says why."""


def check_command(command: Sequence[str]) -> None:
    """Return if the program would take this command line.

    Raises:
        BadCommandError: it wouldn't, or the program is none that we know.
    """
    if tuple(command[:1]) == ("sleep",) and len(command) == 2 and command[1].isdigit():
        return
    if len(command) < 3 or command[0] not in PYTHONS:
        raise BadCommandError(f"got {list(command)}, expected python -m MODULE ... or sleep SECONDS")
    if command[1] == "-c":
        compile(command[2], "<command>", "exec")
        return
    module, arguments = command[2], list(command[3:])
    checks = {
        "llm_service": _check_llm,
        "token2wav_service.serving": _check_token2wav,
        "token2wav_service.serving.process.health": lambda given: health.parser().parse_args(given),
        "gateway": _check_gateway,
        "servicekit.drain": lambda given: servicekit.drain._parser().parse_args(given),
    }
    if command[1] != "-m" or module not in checks:
        raise BadCommandError(f"got {list(command)}, expected one of the modules {', '.join(checks)}")
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            checks[module](arguments)
    except SystemExit:
        raise BadCommandError(f"{module}: {complaint.getvalue().splitlines()[-1]}") from None
    except ValueError as error:
        raise BadCommandError(f"{module}: {error}") from error


def _check_llm(arguments: list[str]) -> None:
    args = llm_parser().parse_args(arguments)
    backend = LLMBackend.EMBEDDED if args.backend == AUTO else LLMBackend(args.backend)
    options = {name: str(value) for name, value in given_settings(LLM, args, {}, has_prefix=False).items()}
    try:
        parse_server_config(backend, options)
    except Exception as error:
        raise ValueError(str(error)) from error


def _check_gateway(arguments: list[str]) -> None:
    is_given_keys = any(argument.startswith("--keys-file") for argument in arguments)
    variables = {} if is_given_keys else {"COSYDIT_API_KEYS": f"anna sha256:{'0' * 64}"}
    with patch.dict("os.environ", variables):
        try:
            gateway.config.parse_args(arguments)
        except gateway.errors.ConfigError as error:
            raise ValueError(str(error)) from error


def _check_token2wav(arguments: list[str]) -> None:
    args = triton_main._parser().parse_args(arguments)
    given = token2wav_service.serving.assemble.parse_pairs(args.settings)
    known = {setting.name: setting for setting in SETTINGS}
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"unknown setting {name}")
        if not name.endswith(FOLDER_SETTINGS):
            known[name].kind.read(value)
    missing = [setting.name for setting in SETTINGS if setting.is_required and setting.name not in given]
    if missing:
        raise ValueError(f"settings {missing} are missing")
