"""The whole system on one machine: assembles the model repository, starts the services, waits, stops them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from types import TracebackType

from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from cosydit.stack.process import (
    ANSWER_TIMEOUT_S,
    ServiceProcess,
    ServiceSpec,
    ServiceStartError,
    answers,
    answers_ok,
    busy_ports,
    cpu_threads,
    read_json,
)
from servicekit.files import write_text
from servicekit.gpu_host import CPU
from servicekit.settings import Given, as_options
from token2wav_service.contract import TOKEN2WAV_MODEL
from token2wav_service.serving.assemble import assemble
from token2wav_service.serving.process.health import ask_model

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
ALL_ADDRESSES = ("", "0.0.0.0", "::")
EMBEDDED = "embedded"
"""The LLM server that may share the CPU with token2wav."""
STOP_MARGIN_S = 10.0
"""Seconds beyond the gateway's own longest time to stop."""
LLM_METRICS = {"trtllm": "/prometheus/metrics"}
"""Path of the metrics by backend, where it is not /metrics."""
ONE_PROCESS = {"BLS_INSTANCE_NUM": "1", "requests_per_instance": "40"}
"""Settings of a cosyvoice2_dit that streams: it serves as many at once as the usual ten processes, and starts and ends
faster. Triton ends the processes of one model one after the other, in 1.2 s each."""
_OF_BOTH = ("dynamic_chunk_strategy", "token_hop_len", "token_hop_len_first", "token_hop_len_max")
"""Settings that the gateway and cosyvoice2_dit have in common: given once, they hold for both."""
RUNNING_FILE = "running.json"
"""File in the working directory of a running `cosydit serve`: its process, and where its services are read."""
Metrics = dict[str, list[str]]
"""Kind of service (gateway, token2wav or llm) -> URLs of its metrics."""
REPLICA_PORT_STEP = 10
"""Distance between the ports of one token2wav server and those of the next."""


@dataclass(frozen=True)
class Ports:
    """TCP ports; the defaults are the original runtime's."""

    llm: int = 8000
    triton_http: int = 18000
    triton_grpc: int = 8001
    triton_metrics: int = 8002
    gateway: int = 8080
    gateway_grpc: int = 50051
    """Port of the gateway's gRPC; 0: none."""
    llm_grpc: int = 8100
    """Port of the token stream, which our own engine has."""

    @property
    def triton(self) -> TritonPorts:
        return TritonPorts(self.triton_http, self.triton_grpc, self.triton_metrics)


PORT_COUNT = len(fields(Ports))
"""TCP ports of a stack with one Triton server."""


@dataclass(frozen=True)
class TritonPorts:
    """TCP ports of one Triton server."""

    http: int
    grpc: int
    metrics: int

    def shifted(self, step: int) -> TritonPorts:
        """Return the ports that are `step` higher."""
        return TritonPorts(self.http + step, self.grpc + step, self.metrics + step)

    @property
    def address(self) -> str:
        """Of gRPC."""
        return f"{LOOPBACK}:{self.grpc}"


@dataclass(frozen=True)
class StackOptions:
    """What runs and where."""

    checkpoint: CheckpointLayout
    work_dir: Path
    """Folder for logs and the assembled model repository."""
    ports: Ports = Ports()
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further settings of the model repository, by name."""
    ready_timeout_s: float = 300.0
    llm_backend: str = "embedded"
    llm_model_dir: Path | None = None
    """Folder of the LLM to serve, if not the checkpoint's own; the tokenizer is always the checkpoint's."""
    llm: Given = field(default_factory=dict)
    """Further settings of the LLM service, by name."""
    gateway: Given = field(default_factory=dict)
    """Further settings of the gateway, by name."""
    replicas: tuple[TritonPorts, ...] = ()
    """Ports of more Triton servers, which serve token2wav_dit alone and only the gateway."""
    llm_gpu: str | None = None
    """GPU of the LLM, in the form of CUDA_VISIBLE_DEVICES; None: all that are visible."""
    token2wav_gpus: Sequence[str] = ()
    """GPUs of the Triton servers in turn, used again if there are more servers; none: all that are visible."""

    @property
    def llm_url(self) -> str:
        return f"http://{LOOPBACK}:{self.ports.llm}"

    @property
    def has_token_stream(self) -> bool:
        """Tell whether the gateway takes tokens over gRPC, which our own engine speaks."""
        return self.llm_backend == EMBEDDED

    @property
    def token_url(self) -> str:
        """Of the LLM, for the gateway."""
        return f"grpc://{LOOPBACK}:{self.ports.llm_grpc}" if self.has_token_stream else self.llm_url

    @property
    def token2wav_url(self) -> str:
        return self.ports.triton.address

    @property
    def tritons(self) -> list[TritonPorts]:
        """Of all replicas."""
        return [self.ports.triton, *self.replicas]

    @property
    def token2wav_urls(self) -> list[str]:
        """Of all replicas."""
        return [ports.address for ports in self.tritons]

    @property
    def gateway_url(self) -> str:
        asked = str(self.gateway.get("host", LOOPBACK))
        host = LOOPBACK if asked in ALL_ADDRESSES else f"[{asked}]" if ":" in asked else asked
        scheme = "https" if "tls_cert" in self.gateway else "http"
        return f"{scheme}://{host}:{self.ports.gateway}"

    @property
    def repository(self) -> Path:
        return self.work_dir / "model_repository"

    @property
    def replica_repository(self) -> Path:
        return self.work_dir / "model_repository_token2wav"

    @property
    def log_dir(self) -> Path:
        return self.work_dir / "logs"


class LocalStack:
    """The LLM service and the Triton servers, and the gateway if asked for; a context manager."""

    def __init__(self, options: StackOptions, with_gateway: bool = False) -> None:
        self.options = options
        specs = [llm_spec(options), *triton_specs(options)]
        self._has_gateway = with_gateway
        self._backends = [ServiceProcess(spec) for spec in specs]
        self.services = list(self._backends)
        if with_gateway:
            self.services.append(ServiceProcess(gateway_spec(options)))

    def start(self) -> None:
        """Assemble the repository, start the services and wait until all are ready.

        Raises:
            ServiceStartError: a port is taken, or a service did not become ready; the others have been stopped.
        """
        self._check_ports()
        assemble_repository(self.options)
        with contextlib.ExitStack() as stack:
            for service in self.services:
                stack.enter_context(service)
            for service in self.services:
                service.wait_ready(self.options.ready_timeout_s)
                logger.info("%s is ready (pid %d)", service.spec.name, service.pid)
            stack.pop_all()

    def _check_ports(self) -> None:
        ports: dict[str, int] = dataclasses.asdict(self.options.ports)
        if not self._has_gateway:
            del ports["gateway"], ports["gateway_grpc"]
        if not self.options.has_token_stream:
            del ports["llm_grpc"]
        for number, replica in enumerate(self.options.replicas, 2):
            ports |= {f"triton_{name} {number}": port for name, port in dataclasses.asdict(replica).items()}
        bad = {0, *busy_ports(ports.values())}
        names = [f"{name} {port}" for name, port in ports.items() if port in bad and (port or name != "gateway_grpc")]
        if names:
            raise ServiceStartError(f"ports in use, or 0: {', '.join(names)}; stop what listens there, or give others")

    @property
    def kinds(self) -> dict[str, list[ServiceProcess]]:
        """The services by what they do; those of one kind can stand in for each other."""
        llm, *token2wav = self._backends
        kinds = {"the LLM service": [llm], "token2wav": token2wav}
        return kinds | ({"the gateway": [self.services[-1]]} if self._has_gateway else {})

    def describe(self) -> list[str]:
        """Return one line per running service: what it is, where, and the server's own word on its version."""
        options = self.options
        lines = [f"{service.spec.name:18} pid {service.pid}, log {service.spec.log_path}" for service in self.services]
        triton = read_json(f"http://{LOOPBACK}:{options.ports.triton_http}/v2")
        models = [entry["id"] for entry in read_json(f"{options.llm_url}/v1/models")["data"]]
        lines[0] += f", {options.llm_url}, model {models[0]}"
        lines[1] += f", gRPC {options.token2wav_url}, {triton['name']} {triton['version']}"
        for number, ports in enumerate(options.replicas, 2):
            lines[number] += f", gRPC {ports.address}"
        return lines

    def stop(self) -> None:
        """Stop the gateway, then all others at the same time; none is left, whatever interrupts this."""
        try:
            for service in self.services[len(self._backends) :]:
                service.stop()
        finally:
            with ThreadPoolExecutor(len(self._backends)) as pool:
                try:
                    list(pool.map(lambda service: service.stop(), self._backends))
                except BaseException:
                    self.kill()
                    raise

    def kill(self) -> None:
        """Kill all groups now, without waiting for their end; a signal handler may call this at any time."""
        for service in self.services:
            service.kill()

    def __enter__(self) -> LocalStack:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


def assemble_repository(options: StackOptions) -> None:
    """Write the Triton model repository for these options."""
    settings = {
        "model_dir": str(options.checkpoint.token2wav_dir),
        "llm_tokenizer_dir": str(options.checkpoint.llm_dir),
        "voices_dir": str(options.gateway.get("voices_dir", options.checkpoint.voices_dir)),
        **{name: str(options.gateway[name]) for name in _OF_BOTH if name in options.gateway},
        "llm_api_base": options.llm_url,
        "llm_backend": options.llm_backend,
        "triton_grpc_address": options.token2wav_url,
        **({} if "DECOUPLED_MODE" in options.settings else ONE_PROCESS),
        **options.settings,
    }
    if settings.get("device", CPU) == CPU:
        settings.setdefault("num_threads", str(cpu_threads(len(options.tritons))[1]))
    assemble(options.repository, settings)
    if options.replicas:
        assemble(options.replica_repository, settings)
        for model in options.replica_repository.iterdir():
            if model.name != TOKEN2WAV_MODEL:
                shutil.rmtree(model)


def llm_spec(options: StackOptions) -> ServiceSpec:
    """Return how the LLM service is started."""
    command = [sys.executable, "-m", "llm_service", "--backend", options.llm_backend]
    llm_dir = options.checkpoint.llm_dir
    command += ["--model-dir", str(options.llm_model_dir or llm_dir), "--tokenizer-dir", str(llm_dir)]
    command += ["--port", str(options.ports.llm)]
    if options.llm_backend == EMBEDDED and not {"num_threads", "device"} & set(options.llm):
        command += ["--num-threads", str(cpu_threads()[0])]
    if options.has_token_stream:
        command += ["--grpc-port", str(options.ports.llm_grpc)]
    command += as_options(options.llm)
    ready, log = f"{options.llm_url}/health", options.log_dir / "llm_service.log"
    lives = partial(answers_ok, ready, ANSWER_TIMEOUT_S)
    return ServiceSpec("llm_service", command, ready, log, _on_gpu(options.llm_gpu), lives=lives)


def triton_specs(options: StackOptions) -> list[ServiceSpec]:
    """Return how the Triton servers are started: the first with all models, the replicas with token2wav's alone."""
    return [_server_spec(options, index, ports) for index, ports in enumerate(options.tritons)]


def _server_spec(options: StackOptions, index: int, ports: TritonPorts) -> ServiceSpec:
    repository = options.replica_repository if index else options.repository
    name = f"token2wav_service_{index + 1}" if index else "token2wav_service"
    gpus = options.token2wav_gpus
    command = [sys.executable, "-m", "token2wav_service.serving", "--model-repository", str(repository)]
    command += ["--http-port", str(ports.http), "--grpc-port", str(ports.grpc), "--metrics-port", str(ports.metrics)]
    ready = f"http://{LOOPBACK}:{ports.http}/v2/health/ready"
    gpu = _on_gpu(gpus[index % len(gpus)] if gpus else None)

    def lives() -> bool:
        return ask_model(f"{LOOPBACK}:{ports.http}") is None

    return ServiceSpec(name, command, ready, options.log_dir / f"{name}.log", gpu, lives=lives)


def _on_gpu(gpu: str | None) -> dict[str, str]:
    return {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}


def gateway_spec(options: StackOptions) -> ServiceSpec:
    """Return how the gateway is started in front of the two services."""
    from gateway.config import gateway_config

    given = gateway_settings(options)
    command = [sys.executable, "-m", "gateway", *as_options(given)]
    ready, log = f"{options.gateway_url}/readyz", options.log_dir / "gateway.log"
    stop_timeout_s = gateway_config(given, os.environ).longest_stop_s + STOP_MARGIN_S
    lives = partial(answers, f"{options.gateway_url}/healthz")
    return ServiceSpec("gateway", command, ready, log, stop_timeout_s=stop_timeout_s, lives=lives)


def gateway_settings(options: StackOptions) -> Given:
    """Return the gateway's settings in front of these services."""
    checkpoint = options.checkpoint
    return {
        "port": str(options.ports.gateway),
        "grpc_port": str(options.ports.gateway_grpc),
        "llm_url": options.token_url,
        "token2wav_url": ",".join(options.token2wav_urls),
        "tokenizer_dir": str(checkpoint.llm_dir),
        "voices_dir": str(checkpoint.voices_dir),
        "llm_backend": options.llm_backend,
        **({"llm_slots": options.llm["max_batch_size"]} if "max_batch_size" in options.llm else {}),
        **options.gateway,
    }


def metrics_urls(options: StackOptions, with_gateway: bool) -> Metrics:
    """Return where the services of these options are read."""
    urls = {
        "token2wav": [f"http://{LOOPBACK}:{ports.metrics}/metrics" for ports in options.tritons],
        "llm": [f"{options.llm_url}{LLM_METRICS.get(options.llm_backend, '/metrics')}"],
    }
    if with_gateway:
        port = options.gateway.get("metrics_port")
        urls["gateway"] = [f"http://{LOOPBACK}:{port}/metrics" if port else f"{options.gateway_url}/metrics"]
    return urls


@contextlib.contextmanager
def announced(work_dir: Path, metrics: Metrics) -> Iterator[None]:
    """Tell other commands where these services are read until the context is left."""
    path = work_dir / RUNNING_FILE
    write_text(path, json.dumps({"pid": os.getpid(), "metrics": metrics}))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def running_metrics(work_dir: Path) -> Metrics:
    """Return where the services of the running `serve` with this working directory are read; empty if none runs."""
    try:
        told = json.loads((work_dir / RUNNING_FILE).read_text("utf-8"))
        found: Metrics = told["metrics"] if Path("/proc", str(told["pid"])).exists() else {}
    except (OSError, ValueError):
        return {}
    return found


def default_work_dir() -> Path:
    """Return where logs and assembled files go: COSYDIT_HOME, else ~/.cache/cosydit."""
    return Path(os.environ.get("COSYDIT_HOME", Path.home() / ".cache" / "cosydit"))
