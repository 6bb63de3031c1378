"""The page of all options and settings, from the parsers and tables that read them."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import gateway.config
import llm_service.__main__
import token2wav_service.serving.__main__ as token2wav_process
from cosydit.cli.main import build_parser
from sources.markdown import WARNING, attribute_docs, code, table
from token2wav_service.config import SynthesisPolicy, Token2WavConfig
from token2wav_service.serving.settings import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
_SAID_DEFAULT = re.compile(r"(.*?),? \(default:? ([^()]*)\)", re.DOTALL)
_INTRODUCTION = """# Configuration

Every option of every program, as the programs themselves know them. Each program also prints them with `--help`.

Where to begin: [settings one must know](../README.DIT.md#settings-one-must-know) on the deployment page. How options
reach the services:

- `cosydit serve --llm-options "..."` and `--gateway-options "..."` pass options on to the LLM service and the gateway;
  `--set NAME=VALUE` passes a setting on to token2wav and the model repository.
- The run script takes `--set NAME=VALUE` too.
- In Compose and Kubernetes the options stand in the `command` of each service.

An unknown option or setting is an error, never ignored.

## Environment variables
"""
_ENVIRONMENT = (
    (
        "COSYDIT_HOME",
        "work directory of the script and of `cosydit`: checkpoints, model repository, logs",
        "~/.cache/cosydit",
    ),
    (
        "COSYDIT_DEVICE",
        "`auto`, `cpu` or `cuda`, where `--device` of the script, `serve`, `say` and `batch` says nothing; `auto` is "
        "the GPU where there is one",
        "auto",
    ),
    ("COSYDIT_MPS", "`off`: `serve`, `batch` and the script neither start nor use NVIDIA's MPS", ""),
    ("COSYDIT_API_KEYS", "the gateway's API keys, as lines of a keys file or separated by `; `", ""),
    ("COSYDIT_API_KEY", "the key that `cosydit client http` sends", ""),
    ("COSYDIT_LOG_FORMAT", "`text` or `json`, for all services", "text"),
    ("COSYDIT_GATEWAY_WORKER", "set by a gateway of several processes for each of them", ""),
    ("COSYDIT_DRAIN_FLAG", "set by the token2wav process for its models: a file that says the server is stopping", ""),
    ("COSYDIT_SERVICE", "set for a service by what starts it: all that it starts is found by it when it must end", ""),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "base URL of an OTLP/HTTP receiver of spans, for all services", ""),
)
"""Read by the Python programs; the run script's own stand in its manual below."""


RUN_SCRIPT = "run_stepaudio2_dit_token2wav.sh"
_OTHER_SCRIPTS = """`run_cosyvoice2.sh` and `run_cosyvoice3.sh` take the same options, but for the verbs and stage 7's.
They differ in their stages and ports: [the deployment guide](../README.DIT.md#stages-of-the-other-families) lists both.
"""


def page() -> str:
    """Return the page."""
    parts = [WARNING, _INTRODUCTION + "\n" + _environment()]
    parts.append(f"## The run scripts\n\nThe manual that `bash {RUN_SCRIPT} --help` prints:\n")
    parts.append(f"```text\n{_script_manual()}\n```")
    parts.append(_OTHER_SCRIPTS)
    parts.append("## The gateway\n")
    parts += _parser_section(gateway.config._parser())
    parts.append("## The LLM service\n\nOptions in [brackets] are for that backend only.\n")
    parts += _parser_section(llm_service.__main__._parser())
    parts.append("## token2wav\n")
    parts += _parser_section(token2wav_process._parser())
    parts += ["### Settings of the model repository\n", _settings()]
    parts.append("## The command `cosydit`\n")
    parts += _commands()
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _environment() -> str:
    return table(("variable", "meaning", "default"), [(code(n), meaning, code(d)) for n, meaning, d in _ENVIRONMENT])


def _script_manual() -> str:
    """What the script prints on any machine: its manual depends on no setting of the environment."""
    command = ["bash", str(ROOT / RUN_SCRIPT), "--help"]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.rstrip("\n")


def _parser_section(parser: argparse.ArgumentParser) -> list[str]:
    return [f"`{parser.prog}`", table(("option", "default", "meaning"), _rows(parser))]


def _commands() -> list[str]:
    subparsers = next(action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    helps = {action.dest: action.help or "" for action in subparsers._choices_actions}
    parts = []
    for name in sorted(subparsers.choices):
        parts.append(f"### cosydit {name}\n\n{_sentence(helps.get(name, ''))}")
        parts += [table(("option", "default", "meaning"), rows) for rows in _command_rows(subparsers.choices[name])]
    return parts


def _command_rows(parser: argparse.ArgumentParser) -> Iterator[list[tuple[str, str, str]]]:
    """Yield the rows of a command, and those of its own subcommands in one table with it."""
    rows = list(_rows(parser))
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            for name, inner in action.choices.items():
                rows.append((f"**{name}**", "", _sentence(helps.get(name, ""))))
                rows += _rows(inner)
    if rows:
        yield rows


def _rows(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, str]]:
    formatter = argparse.HelpFormatter(parser.prog)
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        text = formatter._expand_help(action) if action.help else ""
        meaning, said = _split_default(text)
        yield _name(action), code(said or _default(action)), meaning


def _split_default(text: str) -> tuple[str, str]:
    """Return a help text without its closing "(default X)", and that X."""
    found = _SAID_DEFAULT.fullmatch(text)
    return (found[1], found[2]) if found else (text, "")


def _name(action: argparse.Action) -> str:
    if not action.option_strings:
        return code(action.metavar if isinstance(action.metavar, str) else action.dest.upper())
    value = ""
    if action.nargs != 0:
        choices = "|".join(map(str, action.choices)) if action.choices else None
        metavar = action.metavar if isinstance(action.metavar, str) else None
        value = " " + (choices or metavar or _kind(action))
    return code(f"{action.option_strings[-1]}{value}") + (" (required)" if action.required else "")


def _kind(action: argparse.Action) -> str:
    if action.type is Path:
        return "PATH"
    return "TEXT" if action.type in (None, str) else "N"


def _default(action: argparse.Action) -> str:
    default = action.default
    if default is None or default is False or default == argparse.SUPPRESS or default in ([], ()):
        return ""
    if isinstance(default, list | tuple):
        return " ".join(map(str, default))
    if isinstance(default, float):
        return f"{default:g}"
    return "on" if default is True else str(default).replace(str(Path.home()), "~")


def _settings() -> str:
    docs = attribute_docs(Token2WavConfig) | attribute_docs(SynthesisPolicy)
    rows = []
    for setting in SETTINGS:
        meaning = docs.get(setting.name, "") if setting.help.startswith("token2wav engine:") else setting.help
        default = "required" if setting.is_required else code(setting.default or "")
        rows.append((code(setting.name), default, meaning or setting.help))
    return table(("name", "default", "meaning"), rows)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
