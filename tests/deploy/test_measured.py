"""What Compose and Kubernetes run is what `cosydit serve` runs on the same GPU, which is what was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from cosydit.cli.serve import _with_gateway
from cosydit.stack import stack
from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from cosydit.stack.gpu_presets import PRESETS, GpuPreset
from cosydit.stack.host import Machine, for_host
from cosydit.stack.stack import StackOptions, assemble_repository, gateway_settings, llm_spec
from llm_service.config import LLMBackend
from servicekit.gpu_host import GpuFacts
from servicekit.settings import as_options
from tests.deploy.tools import DEPLOY, compose_v2, wheel_program

pytestmark = pytest.mark.slow

PLACES = re.compile(r".*_(port|dir|file|repository|base|address)|port|host|in_container|token2wav_url")
"""Settings that name an address or a folder: they differ from place to place."""
STOPS = re.compile(r"(drain|exit)_.*_s")
"""How long a stop may take is said by whoever stops: a person in front of `serve`, or an orchestrator."""
Commands = Mapping[str, Mapping[str, str]]
"""Service -> setting -> value, without places."""


def settings(words: Sequence[str]) -> dict[str, str]:
    """Read a command line; of an LLM's URL the scheme counts, which is the protocol."""
    joined = re.sub(r"(--[a-z]\S*) (?!--)", r"\1=", " ".join(word for word in words if word))
    given: dict[str, str] = {}
    for word in joined.split():
        option, _, value = word.removeprefix("--set=").partition("=")
        name = option.removeprefix("--").replace("-", "_")
        if name == "llm_url":
            value = urlsplit(re.sub(r"^(dns|kubernetes):", "", value)).scheme
        if not PLACES.fullmatch(name) and not STOPS.fullmatch(name):
            given[name] = value
    return given


def served(preset: GpuPreset, monkeypatch: pytest.MonkeyPatch, **gpus: object) -> Commands:
    """Return what `cosydit serve` starts on a host whose GPUs have a preset's memory."""
    gpu = GpuFacts("a GPU", preset.least_mib, preset.least_mib, "580", (9, 0))
    host = Machine((gpu, gpu), choose=lambda *_: LLMBackend.EMBEDDED)
    checkpoint = CheckpointLayout.under(Path("/models/checkpoint"))
    asked = StackOptions(checkpoint, Path("/work"), llm_backend="auto", **gpus)  # type: ignore[arg-type]
    options = _with_gateway(for_host(asked, host), host)
    assembled: list[Mapping[str, str]] = []
    monkeypatch.setattr(stack, "assemble", lambda _, given: assembled.append(given))
    assemble_repository(options)
    gateway = {name: value for name, value in gateway_settings(options).items() if name != "wyoming_port"}
    return {
        "llm": settings(llm_spec(options).command[3:]),
        "token2wav": settings([f"--set={name}={value}" for name, value in assembled[0].items()]),
        "gateway": settings(as_options(gateway)),
    }


def composed(*files: str) -> Commands:
    """Return what Compose starts with these files of variables."""
    given = [word for name in files for word in ("--env-file", name)]
    services = yaml.safe_load(compose_v2().output(*given, "config", cwd=DEPLOY / "compose"))["services"]
    return {name: settings(services[name]["command"][3:]) for name in ("llm", "token2wav", "gateway")}


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_compose_default_is_measured(preset: GpuPreset, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = served(preset, monkeypatch)
    assert composed(f"gpu/{preset.name}.env", "env.example") == measured
    if preset.name == "80gb":
        assert composed("env.example") == measured


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_kubernetes_default_is_what_serve_starts_with_a_gpu_for_each(
    preset: GpuPreset, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = wheel_program("kubectl").output("kustomize", str(DEPLOY / "k8s/overlays" / preset.name))
    commands = {
        each["metadata"]["name"]: settings(each["spec"]["template"]["spec"]["containers"][0]["command"][3:])
        for each in yaml.safe_load_all(text)
        if each["kind"] == "Deployment"
    }
    assert commands == served(preset, monkeypatch, llm_gpu="0", token2wav_gpus=("1",))
