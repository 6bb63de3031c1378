"""The page of all options and settings, from the parsers and tables that read them."""

from __future__ import annotations

from collections.abc import Sequence

from cosydit.cli.serve import GATEWAY_SERVED
from cosydit.cli.stack_options import STACK
from gateway.settings import GATEWAY
from llm_service.config import LLM
from servicekit.settings import Section, Setting
from sources.markdown import WARNING, code, listing
from token2wav_service.serving.settings import TOKEN2WAV

_INTRODUCTION = """# Configuration

Every setting of the services, with its default in parentheses. `COMMAND --help` lists those of the other commands and
of the run scripts. Where to begin: [settings one must know](../README.DIT.md#settings-one-must-know).

`cosydit serve` takes the settings of all three services as options, as variables, or from one file. The services' own
programs take the same. In Compose and Kubernetes the options stand in the `command` of each service. The command line
wins, then the environment, then the file:

```toml
# cosydit serve --config cosydit.toml
device = "cpu"

[llm]
max_batch_size = 8

[token2wav]
BLS_INSTANCE_NUM = 1
max_streams = 32

[gateway]
port = 8080
keys_file = "keys.txt"
voice_alias = ["reader=default"]
```

In the file a setting has the name of its option, with underscores and without `llm-` or `token2wav-`. Its variable is
`COSYDIT_` and the option in capitals, such as `COSYDIT_LLM_MAX_BATCH_SIZE`; names in capitals are variables
themselves. An option that may be repeated also takes several values with commas. An unknown option or setting is an
error.

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
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "base URL of an OTLP/HTTP receiver of spans, for all services", ""),
)
"""Read by the Python programs; README.DIT.md lists those of the run script."""


_INTERNAL = "The programs set `COSYDIT_GATEWAY_WORKER`, `COSYDIT_DRAIN_FLAG` and `COSYDIT_SERVICE` for each other."
_TRITON = """`--help` lists its ports, timeouts and paths. `--set NAME=VALUE` takes the settings of token2wav above, by
their names in the file, and these:
"""


def page() -> str:
    """Return the page."""
    parts = [WARNING, _INTRODUCTION + "\n" + listing((code(n), meaning, code(d)) for n, meaning, d in _ENVIRONMENT)]
    parts.append(_INTERNAL)
    parts.append("## cosydit serve\n\n`cosydit say` takes the first three lists.\n")
    for section in (*STACK, GATEWAY_SERVED):
        parts.append(f"### {f'[{section.name}]' if section.name else 'Head of the file'}\n")
        parts.append(_settings(section, section.settings))
    parts.append("## The services' own programs\n\nBeside the settings above (without `llm-` in front):\n")
    for program, section in (("python -m gateway", GATEWAY), ("python -m llm_service", LLM)):
        alone = [setting for setting in section.settings if not setting.in_serve]
        parts += [f"### {program}\n", _settings(section, alone, has_prefix=False)]
    parts += ["### python -m token2wav_service.serving\n", _TRITON]
    parts.append(_names([setting for setting in TOKEN2WAV.settings if not setting.in_serve]))
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _settings(section: Section, settings: Sequence[Setting], has_prefix: bool = True) -> str:
    """Return the list of some settings of a section."""
    rows = []
    for setting in settings:
        value = f" {setting.kind.shown}".rstrip()
        meaning = setting.meaning if setting.default is None else setting.help
        if setting.alias:
            meaning += f"; also {code(setting.alias)}"
        rows.append((code(f"{section.option(setting, has_prefix)}{value}"), meaning, code(setting.default or "")))
    return listing(rows)


def _names(settings: Sequence[Setting]) -> str:
    """Return the list of settings that `--set` takes."""
    return listing((code(setting.name), setting.help, code(setting.default or "")) for setting in settings)
