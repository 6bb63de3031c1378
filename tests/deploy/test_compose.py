"""The compose files: both generations of docker-compose accept every combination, and mean the same by it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.commands import check_command
from tests.deploy.tools import DEPLOY, Program, compose_v2, debian_compose

COMPOSE = DEPLOY / "compose"
ENVIRONMENT = ("--env-file", "env.example")
GPU_PROFILES = ("gpu2", "gpu3")
COMBINATIONS = [
    pytest.param((), id="one-gpu"),
    pytest.param(("mps",), id="one-gpu-mps"),
    pytest.param(("disaggregated",), id="disaggregated"),
    pytest.param(("observability",), id="observability"),
    pytest.param(("disaggregated", "observability"), id="disaggregated-observability"),
    pytest.param(("cpu",), id="cpu"),
    pytest.param(("cpu", "observability"), id="cpu-observability"),
]


@pytest.fixture(scope="session", params=["debian", "v2"])
def compose(request: pytest.FixtureRequest, tool_cache: Path) -> Program:
    """Debian's docker-compose (1.29 on bookworm), and version 2 of Docker's."""
    return debian_compose(tool_cache) if request.param == "debian" else compose_v2()


def resolved(compose: Program, overlays: Sequence[str], profiles: Sequence[str] = ()) -> dict[str, Any]:
    """Return the configuration as docker-compose understands it."""
    files = [option for name in ("compose", *overlays) for option in ("-f", f"{name}.yaml")]
    wanted = [option for name in profiles for option in ("--profile", name)]
    text = compose.output(*ENVIRONMENT, *files, *wanted, "config", cwd=COMPOSE)
    config: dict[str, Any] = yaml.safe_load(text)
    return config


def visible_gpus(service: dict[str, Any]) -> str:
    return str(service["environment"]["NVIDIA_VISIBLE_DEVICES"])


@pytest.mark.parametrize("overlays", COMBINATIONS)
def test_every_combination_is_valid_and_each_command_is_one_that_its_program_takes(
    compose: Program, overlays: tuple[str, ...]
) -> None:
    services = resolved(compose, overlays)["services"]
    for name in ("llm", "token2wav", "gateway"):
        check_command(services[name]["command"])
        assert services[name]["healthcheck"]["test"][0] == "CMD"
        check_command(services[name]["healthcheck"]["test"][1:])


@pytest.mark.parametrize("overlays", COMBINATIONS)
def test_our_services_are_locked_down_and_start_on_what_is_mounted_read_only(
    compose: Program, overlays: tuple[str, ...]
) -> None:
    services = resolved(compose, overlays)["services"]
    for name in ("llm", "token2wav", "gateway"):
        service = services[name]
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
        assert service["environment"]["PYTHONIOENCODING"] == "utf-8"
        assert service["restart"] == "unless-stopped"
        mounts = {mount["target"]: mount for mount in service["volumes"] if isinstance(mount, dict)}
        assert all(mount["read_only"] for target, mount in mounts.items() if target.startswith("/models"))
        assert "/models/checkpoint" in mounts
    assert services["gateway"]["depends_on"]["token2wav"]["condition"] == "service_healthy"
    assert all("shm_size" in services[name] for name in ("llm", "token2wav"))


@pytest.mark.parametrize("overlays", COMBINATIONS)
def test_token2wav_scales(compose: Program, overlays: tuple[str, ...]) -> None:
    services = resolved(compose, overlays)["services"]
    assert not {"container_name", "ports"} & services["token2wav"].keys()
    assert "--token2wav-url=dns:token2wav:8001" in services["gateway"]["command"]


def test_one_gpu_is_shared_by_both(compose: Program) -> None:
    services = resolved(compose, ())["services"]
    assert [visible_gpus(services[name]) for name in ("llm", "token2wav")] == ["0", "0"]
    assert {services[name]["runtime"] for name in ("llm", "token2wav")} == {"nvidia"}


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


def test_trtllm_is_chosen_by_one_variable(compose: Program, tmp_path: Path) -> None:
    environment = tmp_path / "env"
    environment.write_text((COMPOSE / "env.example").read_text() + "\nLLM_BACKEND=trtllm\n")
    text = compose.output("--env-file", str(environment), "-f", "compose.yaml", "config", cwd=COMPOSE)
    services = yaml.safe_load(text)["services"]
    assert services["llm"]["image"].startswith("cosydit/llm-trtllm:")
    assert services["llm"]["build"]["dockerfile"].endswith("llm-trtllm.Dockerfile")
    for name in ("llm", "token2wav", "gateway"):
        check_command(services[name]["command"])
        assert any("backend=trtllm" in word for word in services[name]["command"])


@pytest.mark.parametrize("overlays", COMBINATIONS)
def test_a_stopping_service_has_time_to_drain_before_it_is_killed(compose: Program, overlays: tuple[str, ...]) -> None:
    services = resolved(compose, overlays)["services"]
    for name in ("token2wav", "gateway"):
        waits = re.findall(r"--(?:drain-delay|drain-timeout|exit-timeout)-s=(\d+)", " ".join(services[name]["command"]))
        minutes, seconds = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", services[name]["stop_grace_period"]).groups("0")
        assert waits and 60 * int(minutes) + int(seconds) > sum(map(int, waits))


def test_what_the_observability_overlay_mounts_is_there(compose: Program) -> None:
    services = resolved(compose, ("observability",))["services"]
    for name in ("prometheus", "grafana"):
        mounts = [mount for mount in services[name]["volumes"] if isinstance(mount, dict) and mount["type"] == "bind"]
        assert mounts and all(Path(mount["source"]).exists() for mount in mounts)


def test_an_invalid_file_is_refused(compose: Program, tmp_path: Path) -> None:
    text = (COMPOSE / "compose.yaml").read_text()
    (tmp_path / "compose.yaml").write_text(text.replace("stop_grace_period", "stop_grace_periods"))
    (tmp_path / "env").write_text((COMPOSE / "env.example").read_text())
    done = compose.run("--env-file", "env", "-f", "compose.yaml", "config", cwd=tmp_path)
    assert done.returncode != 0
    assert "stop_grace_periods" in done.stderr


def test_a_missing_setting_is_named(compose: Program, tmp_path: Path) -> None:
    (tmp_path / "env").write_text("COSYDIT_CHECKPOINT=/a\nCOSYDIT_LLM=/b\n")
    done = compose.run("--env-file", str(tmp_path / "env"), "-f", "compose.yaml", "config", cwd=COMPOSE)
    assert done.returncode != 0
    assert "cosydit keys new" in done.stderr
