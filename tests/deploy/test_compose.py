"""The compose files: docker-compose accepts every combination, and its parts fit each other."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import HTTP_GRACE_S
from gateway.doors.grpc import DEFAULT_GRACE_S
from tests.deploy.commands import check_command
from tests.deploy.tools import DEPLOY, ROOT, Program, compose_v2
from token2wav_service.serving.process import health

pytestmark = pytest.mark.slow

COMPOSE = DEPLOY / "compose"
GUIDE = ROOT / "docs/docker.md"
ENVIRONMENT = ("--env-file", "env.example")
GPU_PROFILES = ("gpu2", "gpu3")
SPANS = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://jaeger:4318", "GRAFANA_PASSWORD": "of this test"}
"""What observability.yaml asks for."""
HTTP_LLM = {"LLM_BACKEND": "vllm", "LLM_URL": "dns:llm:8000", "COSYDIT_LLM": "/srv/cosydit/llm_converted"}
"""What http-llm.yaml asks for."""
COMBINATIONS = [
    pytest.param(("mps",), id="one-gpu"),
    pytest.param(("mps", "observability"), id="observability"),
    pytest.param(("disaggregated", "observability"), id="disaggregated"),
    pytest.param(("cpu",), id="cpu"),
    pytest.param(("http-llm",), id="http-llm"),
]


@pytest.fixture(scope="session")
def compose() -> Program:
    """Version 2 of Docker's."""
    return compose_v2()


def resolved(
    compose: Program,
    overlays: Sequence[str],
    profiles: Sequence[str] = (),
    options: Sequence[str] = ENVIRONMENT,
    variables: Mapping[str, str] = SPANS,
) -> dict[str, Any]:
    """Return the configuration as docker-compose understands it."""
    files = [option for name in ("compose", *overlays) for option in ("-f", f"{name}.yaml")]
    wanted = [option for name in profiles for option in ("--profile", name)]
    variables = {**(HTTP_LLM if "http-llm" in overlays else {}), **variables}
    given = dataclasses.replace(compose, environment=(*compose.environment, *variables.items()))
    config: dict[str, Any] = yaml.safe_load(_printed(given, (*options, *files, *wanted, "config")))
    return config


@cache
def _printed(compose: Program, arguments: tuple[str, ...]) -> str:
    return compose.output(*arguments, cwd=COMPOSE)


def seconds(duration: str) -> int:
    """Read docker-compose's form of a duration."""
    found = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", duration)
    assert found is not None, duration
    minutes, rest = found.groups("0")
    return 60 * int(minutes) + int(rest)


def visible_gpus(service: dict[str, Any]) -> str:
    return str(service["environment"]["NVIDIA_VISIBLE_DEVICES"])


@pytest.mark.parametrize("overlays", COMBINATIONS)
def test_every_combination_is_valid_locked_down_and_starts_commands_that_its_programs_take(
    compose: Program, overlays: tuple[str, ...]
) -> None:
    services = resolved(compose, overlays)["services"]
    for name in ("llm", "token2wav", "gateway"):
        service = services[name]
        check_command(service["command"])
        assert service["healthcheck"]["test"][0] == "CMD"
        check_command(service["healthcheck"]["test"][1:])
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
        assert service["restart"] == "unless-stopped"
        mounts = {mount["target"]: mount for mount in service["volumes"] if isinstance(mount, dict)}
        assert all(mount["read_only"] for target, mount in mounts.items() if target.startswith("/models"))
        assert "/models/checkpoint" in mounts
    assert services["gateway"]["depends_on"]["token2wav"]["condition"] == "service_healthy"
    assert services["token2wav"]["healthcheck"]["test"][1:4] == ["python3", "-m", health.__name__]
    assert "shm_size" in services["token2wav"]
    assert not {"container_name", "ports"} & services["token2wav"].keys(), "it scales"
    assert "--token2wav-url=dns:token2wav:8001" in services["gateway"]["command"]


def test_one_gpu_is_shared_by_both_through_one_mps_daemon(compose: Program) -> None:
    services = resolved(compose, ("mps",))["services"]
    assert [visible_gpus(services[name]) for name in ("llm", "token2wav")] == ["0", "0"]
    assert {services[name]["runtime"] for name in ("mps", "llm", "token2wav")} == {"nvidia"}
    assert {services[name]["ipc"] for name in ("llm", "token2wav")} == {"service:mps"}
    pipes = {services[name]["environment"]["CUDA_MPS_PIPE_DIRECTORY"] for name in ("mps", "llm", "token2wav")}
    assert pipes == {"/run/mps"}


def test_disaggregated_gives_the_llm_the_first_gpu_and_each_replica_one_of_the_others(compose: Program) -> None:
    services = resolved(compose, ("disaggregated",), GPU_PROFILES)["services"]
    replicas = ("token2wav", "token2wav-gpu2", "token2wav-gpu3")
    assert visible_gpus(services["llm"]) == "0"
    assert [visible_gpus(services[name]) for name in replicas] == ["1", "2", "3"]
    for name in replicas[1:]:
        assert services[name]["networks"]["default"]["aliases"] == ["token2wav"]
        assert services[name]["command"] == services["token2wav"]["command"]
        assert services[name]["volumes"] == services["token2wav"]["volumes"]


def test_the_cpu_overlay_asks_for_no_gpu(compose: Program) -> None:
    services = resolved(compose, ("cpu",))["services"]
    for name in ("llm", "token2wav"):
        assert services[name]["runtime"] == "runc"
        assert visible_gpus(services[name]) == "void"
        assert services[name]["image"].startswith("cosydit/cpu:")


@pytest.mark.parametrize("backend", ["vllm", "trtllm"])
def test_another_llm_is_chosen_by_variables(compose: Program, backend: str) -> None:
    services = resolved(compose, ("http-llm",), variables={"LLM_BACKEND": backend})["services"]
    assert services["llm"]["image"].startswith(f"cosydit/llm-{backend}:")
    assert services["llm"]["build"]["dockerfile"].endswith(f"llm-{backend}.Dockerfile")
    for name in ("llm", "token2wav", "gateway"):
        check_command(services[name]["command"])
        assert any(f"backend={backend}" in word for word in services[name]["command"])


@pytest.mark.parametrize("overlays", COMBINATIONS)
def test_a_stopping_service_has_time_to_drain_before_it_is_killed(compose: Program, overlays: tuple[str, ...]) -> None:
    services = resolved(compose, overlays)["services"]
    for name in ("token2wav", "gateway"):
        waits = re.findall(r"--(?:drain-delay|drain-timeout|exit-timeout)-s=(\d+)", " ".join(services[name]["command"]))
        closing_s = HTTP_GRACE_S + DEFAULT_GRACE_S if name == "gateway" else 0
        assert waits and seconds(services[name]["stop_grace_period"]) > sum(map(int, waits)) + closing_s


@pytest.mark.parametrize("overlays", COMBINATIONS)
def test_all_services_send_their_spans_where_one_variable_says_and_nowhere_without_it(
    compose: Program, overlays: tuple[str, ...]
) -> None:
    profiles = GPU_PROFILES if "disaggregated" in overlays else ()
    names = ["llm", "token2wav", "gateway", *(f"token2wav-{profile}" for profile in profiles)]
    for expected in ("http://jaeger:4318", ""):
        variables = {**SPANS, "OTEL_EXPORTER_OTLP_ENDPOINT": expected}
        services = resolved(compose, overlays, profiles, variables=variables)["services"]
        environments = {name: services[name]["environment"] for name in names}
        assert {
            name: each["OTEL_EXPORTER_OTLP_ENDPOINT"] or "" for name, each in environments.items()
        } == dict.fromkeys(names, expected)


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://jaeger:4318"),
        ("GRAFANA_PASSWORD", "password of Grafana's admin"),
    ],
)
def test_observability_without_a_setting_that_it_needs_is_refused_with_what_to_set(
    compose: Program, missing: str, told: str
) -> None:
    given = tuple((name, value) for name, value in SPANS.items() if name != missing)
    lacking = dataclasses.replace(compose, environment=(*compose.environment, *given))
    done = lacking.run(*ENVIRONMENT, "-f", "compose.yaml", "-f", "observability.yaml", "config", cwd=COMPOSE)
    assert done.returncode != 0
    assert told in done.stderr


def test_the_settings_choose_files_and_profiles_for_every_command(compose: Program, tmp_path: Path) -> None:
    text = (COMPOSE / "env.example").read_text()
    chosen = "COMPOSE_FILE=compose.yaml:disaggregated.yaml\nCOMPOSE_PROFILES=gpu2"
    (tmp_path / "env").write_text(text.replace("COMPOSE_FILE=compose.yaml:mps.yaml\n#COMPOSE_PROFILES=", chosen))
    config = yaml.safe_load(compose.output("--env-file", str(tmp_path / "env"), "config", cwd=COMPOSE))
    assert visible_gpus(config["services"]["token2wav-gpu2"]) == "2"
    assert "mps" not in config["services"]


def test_the_guides_commands_keep_to_those_files_and_to_the_scale() -> None:
    commands = [line for line in GUIDE.read_text().splitlines() if "docker compose" in line]
    assert any("docker compose up" in line for line in commands)
    assert not any("docker compose -f" in line for line in commands)
    recreating = [line for line in commands if "--no-deps" in line]
    assert recreating and all("--scale token2wav=" in line for line in recreating)


def test_the_settings_that_are_listed_as_defaults_are_those_of_compose_yaml(compose: Program, tmp_path: Path) -> None:
    text = re.sub(r"(?m)^#(?=[A-Z0-9_]+=)", "", (COMPOSE / "env.example").read_text())
    (tmp_path / "env").write_text(text)
    (tmp_path / "bare").write_text((COMPOSE / "env.example").read_text())
    listed = resolved(compose, (), options=("--env-file", str(tmp_path / "env")))
    assert listed == resolved(compose, (), options=("--env-file", str(tmp_path / "bare")))


def test_a_default_that_an_overlay_changes_is_listed_with_it() -> None:
    settings = (COMPOSE / "env.example").read_text()
    changed = re.findall(r"\$\{(\w+):-([^}]+)\}", (COMPOSE / "disaggregated.yaml").read_text())
    listed = dict(re.findall(r"(?m)^#([A-Z0-9_]+)=(.*)$", settings))
    for name, default in changed:
        if listed[name] != default:
            assert f"# With disaggregated.yaml the default is {default}\n#{name}=" in settings


@pytest.mark.parametrize("overlays", [pytest.param((), id="one-gpu"), pytest.param(("disaggregated",), id="several")])
def test_the_llms_batch_and_memory_are_set_by_variables(compose: Program, overlays: tuple[str, ...]) -> None:
    variables = {"LLM_MAX_BATCH_SIZE": "17", "LLM_MEMORY_FRACTION": "0.3"}
    command = resolved(compose, overlays, variables=variables)["services"]["llm"]["command"]
    assert {"--max-batch-size=17", "--kv-cache-free-gpu-memory-fraction=0.3"} <= set(command)


def test_what_the_observability_overlay_mounts_is_there(compose: Program) -> None:
    services = resolved(compose, ("observability",))["services"]
    for name in ("prometheus", "grafana"):
        mounts = [mount for mount in services[name]["volumes"] if isinstance(mount, dict) and mount["type"] == "bind"]
        assert mounts and all(Path(mount["source"]).exists() for mount in mounts)


def test_a_missing_setting_is_named(compose: Program, tmp_path: Path) -> None:
    (tmp_path / "env").write_text("COSYDIT_CHECKPOINT=/a\n")
    done = compose.run("--env-file", str(tmp_path / "env"), "-f", "compose.yaml", "config", cwd=COMPOSE)
    assert done.returncode != 0
    assert "cosydit keys new" in done.stderr
