"""Assembles a model repository from the configurations in `token2wav_service/model_repository` and a set of settings.

`python -m token2wav_service.serving.assemble --output DIR NAME=VALUE...`; names are in `settings.py`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from token2wav_service.contract import (
    AUDIO_TOKENIZER_MODEL,
    DROP_IN_MODEL,
    DROP_IN_MODELS,
    ORIGINAL_MODELS,
    SPEAKER_EMBEDDING_MODEL,
    TOKEN2WAV_MODEL,
)
from token2wav_service.serving.settings import (
    ORIGINAL_MODELS_SETTING,
    SETTINGS,
    SPK2INFO_SETTING,
    ModelConfigMessage,
    RepositorySettingsError,
    resolve_settings,
)

TEMPLATES = Path(__file__).parent.parent / "model_repository"
CONFIG_NAME = "config.pbtxt"
MODEL_FILE = Path(__file__).parent.parent / "python_backend" / "model.py"
_VERSION = "1"
_USAGE_ERROR = 2


def assemble(output: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Write a complete model repository to `output`, replacing a repository that is there.

    Nothing is written unless every setting is good; readers see the old repository or the new, never half of one.

    Args:
        given: settings by name; see `SETTINGS`.

    Returns:
        Every setting in effect with its value, in the order of `SETTINGS`.

    Raises:
        RepositorySettingsError: unknown names, missing or bad values; or `output` holds what is no repository.
    """
    values = resolve_settings(given)
    drop_in = find_drop_in_name(Path(values["model_dir"]))
    names = _choose_models(values, drop_in)
    _refuse_foreign_folder(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    try:
        _write(staging / "new", values, names)
        _swap(staging / "new", output, staging / "old")
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return values


def find_drop_in_name(model_dir: Path) -> str:
    """Return what the drop-in is called for the family of a checkpoint, which holds the files of one family."""
    named = (name for description, name in DROP_IN_MODELS.items() if (model_dir / description).is_file())
    return next(named, DROP_IN_MODEL)


def read_config(path: Path) -> ModelConfigMessage:
    """Parse one config.pbtxt.

    Raises:
        RepositorySettingsError: it is not a valid model configuration.
    """
    try:
        return text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
    except text_format.ParseError as err:
        raise RepositorySettingsError(f"{path} is not a valid model configuration: {err}") from err


def count_instances(model_repository: Path) -> int:
    """Return how many model processes a repository starts.

    Raises:
        RepositorySettingsError: a config.pbtxt in it is not valid.
    """
    configs = [read_config(path) for path in sorted(model_repository.glob(f"*/{CONFIG_NAME}"))]
    return sum(max(group.count, 1) for config in configs for group in config.instance_group)


def format_table(values: Mapping[str, str], given: Mapping[str, str]) -> str:
    """Lay the settings in effect out as text, one line each, with whether the user gave them."""
    rows = [("setting", "value", "from"), *((n, v, "given" if n in given else "default") for n, v in values.items())]
    names, texts = (max(len(row[column]) for row in rows) for column in range(2))
    return "\n".join(f"{name:{names}}  {value:{texts}}  {origin}" for name, value, origin in rows)


def main(argv: list[str] | None = None) -> int:
    """Assemble from the command line and print the settings in effect."""
    args = _parser().parse_args(argv)
    try:
        given = parse_pairs(args.settings)
        applied = assemble(args.output, given)
    except RepositorySettingsError as err:
        sys.stderr.write(f"{err}\n")
        return _USAGE_ERROR
    sys.stdout.write(f"{format_table(applied, given)}\nassembled {args.output}\n")
    return 0


def _choose_models(values: Mapping[str, str], drop_in: str) -> dict[str, str]:
    """Return the templates to write, and what their models are called.

    Raises:
        RepositorySettingsError: the original has no other models of the checkpoint's family.
    """
    features = () if values[SPK2INFO_SETTING] == "True" else (AUDIO_TOKENIZER_MODEL, SPEAKER_EMBEDDING_MODEL)
    names = {DROP_IN_MODEL: drop_in} | {name: name for name in (TOKEN2WAV_MODEL, *features)}
    if values[ORIGINAL_MODELS_SETTING] != "True":
        return names
    if drop_in not in ORIGINAL_MODELS:
        raise RepositorySettingsError(
            f"{ORIGINAL_MODELS_SETTING}=True: the original offers no other models beside {drop_in}; expected a "
            f"checkpoint of {' or '.join(ORIGINAL_MODELS)}"
        )
    return names | ORIGINAL_MODELS[drop_in]


def _write(repository: Path, values: Mapping[str, str], names: Mapping[str, str]) -> None:
    configs = {template: read_config(TEMPLATES / template / CONFIG_NAME) for template in names}
    for setting in SETTINGS:
        for target in setting.targets if setting.name in values else ():
            if target.model in configs:
                target.apply(configs[target.model], values[setting.name])
    for template, config in configs.items():
        config.name = names[template]
        model = repository / config.name
        version = model / _VERSION
        version.mkdir(parents=True)
        text = text_format.MessageToString(config, as_utf8=True)
        (model / CONFIG_NAME).write_text(text, encoding="utf-8")
        shutil.copy(MODEL_FILE, version / MODEL_FILE.name)


def _refuse_foreign_folder(output: Path) -> None:
    if output.exists() and not (output.is_dir() and all((child / CONFIG_NAME).exists() for child in output.iterdir())):
        raise RepositorySettingsError(f"{output} exists and is no model repository: give a new or empty folder")


def _swap(new: Path, output: Path, old: Path) -> None:
    if output.exists():
        output.rename(old)
    new.rename(output)


def parse_pairs(pairs: list[str]) -> dict[str, str]:
    """Return the settings that the command line gave as NAME=VALUE.

    Raises:
        RepositorySettingsError: one is no such pair, or its name comes twice.
    """
    given: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise RepositorySettingsError(f"got {pair!r}, expected NAME=VALUE")
        if name in given:
            raise RepositorySettingsError(f"{name} is given twice")
        given[name] = value
    return given


def _parser() -> argparse.ArgumentParser:
    lines = [f"  {s.name:30} {s.help}" + (f" (default {s.default})" if s.default is not None else "") for s in SETTINGS]
    parser = argparse.ArgumentParser(
        prog="python -m token2wav_service.serving.assemble",
        description="Assemble a Triton model repository.",
        epilog="settings:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
