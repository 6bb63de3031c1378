"""How the services of one machine are described; none is started."""

from __future__ import annotations

from pathlib import Path

from cosydit.local.checkpoints import CheckpointLayout
from cosydit.local.stack import LocalStack, Ports, StackOptions, TritonPorts, assemble_repository, gateway_spec


def _options(tmp_path: Path, *replicas: TritonPorts) -> StackOptions:
    return StackOptions(CheckpointLayout.under(tmp_path / "checkpoint"), tmp_path, Ports(), replicas=replicas)


def test_further_servers_have_ports_of_their_own_and_the_gateway_knows_them_all(tmp_path: Path) -> None:
    options = _options(tmp_path, Ports().triton.shifted(10), Ports().triton.shifted(20))
    stack = LocalStack(options, with_gateway=True)
    names = [service.spec.name for service in stack.services]
    assert names == ["llm_service", "token2wav_service", "token2wav_service_2", "token2wav_service_3", "gateway"]
    urls = list(gateway_spec(options).command)
    assert urls[urls.index("--token2wav-url") + 1] == "127.0.0.1:8001,127.0.0.1:8011,127.0.0.1:8021"
    assert stack.services[2].spec.ready_url == "http://127.0.0.1:18010/v2/health/ready"
    assert len({service.spec.log_path for service in stack.services}) == 5


def test_further_servers_hold_token2wav_alone(tmp_path: Path) -> None:
    options = _options(tmp_path, Ports().triton.shifted(10))
    for part in ("token2wav", "llm", "voices"):
        (tmp_path / "checkpoint" / part).mkdir(parents=True)
    assemble_repository(options)
    assert [model.name for model in options.replica_repository.iterdir()] == ["token2wav_dit"]
    assert len(list(options.repository.iterdir())) == 4
