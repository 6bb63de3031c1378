"""How the services of one machine are described; none is started."""

from __future__ import annotations

import dataclasses
import http.server
import ssl
from pathlib import Path

import pytest

from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from cosydit.stack.process import ServiceStartError, answers_ok, cpu_threads
from cosydit.stack.stack import (
    STOP_MARGIN_S,
    LocalStack,
    Ports,
    StackOptions,
    TritonPorts,
    assemble_repository,
    gateway_spec,
    llm_spec,
    metrics_urls,
)
from gateway.config import HTTP_GRACE_S
from gateway.dialects.wyoming.settings import WyomingSettings
from gateway.doors.grpc import DEFAULT_GRACE_S
from servicekit.settings import Given
from tests.gateway.access.door import TLS
from tests.workers import listening


def _options(tmp_path: Path, *replicas: TritonPorts) -> StackOptions:
    return StackOptions(CheckpointLayout.under(tmp_path / "checkpoint"), tmp_path, Ports(), replicas=replicas)


def test_further_servers_have_ports_of_their_own_and_the_gateway_knows_them_all(tmp_path: Path) -> None:
    options = _options(tmp_path, Ports().triton.shifted(10), Ports().triton.shifted(20))
    stack = LocalStack(options, with_gateway=True)
    names = [service.spec.name for service in stack.services]
    assert names == ["llm_service", "token2wav_service", "token2wav_service_2", "token2wav_service_3", "gateway"]
    assert "--token2wav-url 127.0.0.1:8001,127.0.0.1:8011,127.0.0.1:8021 " in " ".join(gateway_spec(options).command)
    assert stack.services[2].spec.ready_url == "http://127.0.0.1:18010/v2/health/ready"
    assert len({service.spec.log_path for service in stack.services}) == 5


def test_the_gateway_takes_our_own_engines_tokens_over_grpc_and_others_over_http(tmp_path: Path) -> None:
    options = _options(tmp_path)
    assert "--llm-url grpc://127.0.0.1:8100 " in " ".join(gateway_spec(options).command)
    assert "--grpc-port 8100 " in " ".join([*llm_spec(options).command, ""])
    other = dataclasses.replace(options, llm_backend="vllm")
    assert "--llm-url http://127.0.0.1:8000 " in " ".join(gateway_spec(other).command)
    assert "--grpc-port" not in llm_spec(other).command


def test_a_taken_port_and_0_are_named_before_anything_starts(tmp_path: Path) -> None:
    named = r"llm [1-9]\d*, triton_http 0(?!.*gateway_grpc)"  # of the gateway's gRPC, 0 means none
    with listening(http.server.BaseHTTPRequestHandler) as port, pytest.raises(ServiceStartError, match=named):
        options = dataclasses.replace(_options(tmp_path), ports=Ports(port, triton_http=0, gateway_grpc=0))
        LocalStack(options, with_gateway=True).start()


def test_further_servers_hold_token2wav_alone(tmp_path: Path) -> None:
    options = _options(tmp_path, Ports().triton.shifted(10))
    for part in ("token2wav", "llm", "voices"):
        (tmp_path / "checkpoint" / part).mkdir(parents=True)
    assemble_repository(options)
    assert [model.name for model in options.replica_repository.iterdir()] == ["token2wav_dit"]
    assert len(list(options.repository.iterdir())) == 4
    assert "count: 1\n" in (options.repository / "cosyvoice2_dit" / "config.pbtxt").read_text()


@pytest.mark.parametrize(
    ("cores", "servers", "llm", "token2wav"), [(1, 1, 1, 1), (2, 1, 1, 1), (8, 1, 4, 4), (8, 3, 4, 1)]
)
def test_without_a_gpu_the_services_share_the_cores(cores: int, servers: int, llm: int, token2wav: int) -> None:
    assert cpu_threads(servers, cores) == (llm, token2wav)


@pytest.mark.parametrize(
    ("asked", "drain_s"),
    [({}, 60), ({"drain_timeout_s": "200"}, 200), ({"drain_delay_s": "5", "drain_timeout_s": "30"}, 35)],
)
def test_the_gateway_may_take_as_long_to_stop_as_it_is_told_to(tmp_path: Path, asked: Given, drain_s: int) -> None:
    spec = gateway_spec(dataclasses.replace(_options(tmp_path), gateway=asked))
    assert spec.stop_timeout_s == drain_s + HTTP_GRACE_S + DEFAULT_GRACE_S + WyomingSettings.grace_s + STOP_MARGIN_S


def test_no_door_gives_answers_more_time_to_end_than_the_streams_had(tmp_path: Path) -> None:
    spec = gateway_spec(dataclasses.replace(_options(tmp_path), gateway={"drain_timeout_s": "0.5"}))
    assert spec.stop_timeout_s == 4 * 0.5 + STOP_MARGIN_S


def test_threads_that_were_asked_for_are_left_alone(tmp_path: Path) -> None:
    asked = dataclasses.replace(_options(tmp_path), llm={"num_threads": "7"})

    assert llm_spec(_options(tmp_path)).command.count("--num-threads") == 1
    assert llm_spec(asked).command[-2:] == ["--num-threads", "7"]
    assert "--num-threads" not in llm_spec(dataclasses.replace(asked, llm={}, llm_backend="vllm")).command


def test_each_service_sees_the_gpu_that_it_is_given(tmp_path: Path) -> None:
    options = _options(tmp_path, *(Ports().triton.shifted(10 * number) for number in (1, 2)))
    on_three = LocalStack(dataclasses.replace(options, llm_gpu="0", token2wav_gpus=("1", "2")))

    assert [service.spec.env for service in LocalStack(options).services] == [{}] * 4
    seen = [(service.spec.env or {})["CUDA_VISIBLE_DEVICES"] for service in on_three.services]
    assert seen == ["0", "1", "2", "1"]


def test_a_run_tells_where_its_metrics_are(tmp_path: Path) -> None:
    options = _options(tmp_path, Ports().triton.shifted(10))
    metrics = metrics_urls(options, with_gateway=True)
    assert metrics["gateway"] == ["http://127.0.0.1:8080/metrics"]
    assert metrics["token2wav"] == ["http://127.0.0.1:8002/metrics", "http://127.0.0.1:8012/metrics"]
    assert metrics["llm"] == ["http://127.0.0.1:8000/metrics"]
    with_port = dataclasses.replace(options, gateway={"metrics_port": "9464"})
    assert metrics_urls(with_port, with_gateway=True)["gateway"] == ["http://127.0.0.1:9464/metrics"]
    assert "gateway" not in metrics_urls(options, with_gateway=False)


@pytest.mark.parametrize(
    ("gateway", "url"),
    [
        ({}, "http://127.0.0.1:8080"),
        ({"host": "0.0.0.0"}, "http://127.0.0.1:8080"),
        ({"host": "::1"}, "http://[::1]:8080"),
        ({"host": "10.0.0.7", "tls_cert": "cert.pem"}, "https://10.0.0.7:8080"),
    ],
)
def test_the_gateway_is_watched_where_it_listens(tmp_path: Path, gateway: Given, url: str) -> None:
    assert dataclasses.replace(_options(tmp_path), gateway=gateway).gateway_url == url


def test_a_gateway_with_a_certificate_of_its_own_is_ready() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS.certificate, TLS.key)
    with listening(http.server.SimpleHTTPRequestHandler, context) as port:
        assert answers_ok(f"https://127.0.0.1:{port}/")
