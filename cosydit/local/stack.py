"""The whole system on one machine: assembles the model repository, starts the services, waits, stops them."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from cosydit.local.checkpoints import CheckpointLayout
from cosydit.local.process import ServiceProcess, ServiceSpec, ServiceStartError, busy_ports, read_json

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
NUM_SERVICES_WITHOUT_GATEWAY = 2


@dataclass(frozen=True)
class Ports:
    """TCP ports; the defaults are the original runtime's."""

    llm: int = 8000
    triton_http: int = 18000
    triton_grpc: int = 8001
    triton_metrics: int = 8002
    gateway: int = 8080
    gateway_grpc: int = 50051
    """0: none."""


@dataclass(frozen=True)
class StackOptions:
    """What runs and where."""

    checkpoint: CheckpointLayout
    work_dir: Path
    """Logs and the assembled model repository go here."""
    ports: Ports = Ports()
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the model repository beyond where things are, by name."""
    ready_timeout_s: float = 300.0
    llm_backend: str = "embedded"
    llm_options: Sequence[str] = ()
    """Further arguments of `python -m llm_service`."""
    gateway_options: Sequence[str] = ()
    """Further arguments of `python -m gateway`."""

    @property
    def llm_url(self) -> str:
        return f"http://{LOOPBACK}:{self.ports.llm}"

    @property
    def token2wav_url(self) -> str:
        return f"{LOOPBACK}:{self.ports.triton_grpc}"

    @property
    def gateway_url(self) -> str:
        return f"http://{LOOPBACK}:{self.ports.gateway}"

    @property
    def repository(self) -> Path:
        return self.work_dir / "model_repository"

    @property
    def log_dir(self) -> Path:
        return self.work_dir / "logs"


class LocalStack:
    """The LLM service and Triton, and the gateway if asked for; a context manager."""

    def __init__(self, options: StackOptions, with_gateway: bool = False) -> None:
        self.options = options
        specs = [llm_spec(options), triton_spec(options)]
        if with_gateway:
            specs.append(gateway_spec(options))
        self.services = [ServiceProcess(spec) for spec in specs]

    def start(self) -> None:
        """Assemble the repository, start the services and wait until all are ready.

        Raises:
            ServiceStartError: a port is taken, or a service did not become ready; the others have been stopped.
        """
        self._check_ports()
        assemble_repository(self.options)
        with contextlib.ExitStack() as stack:
            for service in self.services[:NUM_SERVICES_WITHOUT_GATEWAY]:
                stack.enter_context(service)
            for service in self.services:
                if service not in self.services[:NUM_SERVICES_WITHOUT_GATEWAY]:
                    # The gateway warms both services up, so it comes after they are ready.
                    stack.enter_context(service)
                service.wait_ready(self.options.ready_timeout_s)
                logger.info("%s is ready (pid %d)", service.spec.name, service.pid)
            stack.pop_all()

    def _check_ports(self) -> None:
        ports = dataclasses.asdict(self.options.ports)
        if len(self.services) == NUM_SERVICES_WITHOUT_GATEWAY:
            del ports["gateway"], ports["gateway_grpc"]
        busy = busy_ports(ports.values())
        if busy:
            names = [f"{name} {port}" for name, port in ports.items() if port in busy]
            raise ServiceStartError(f"ports in use: {', '.join(names)}; stop what listens there, or give other ports")

    def describe(self) -> list[str]:
        """Return one line per running service: what it is, where, and the server's own word on its version."""
        options = self.options
        lines = [f"{service.spec.name:18} pid {service.pid}, log {service.spec.log_path}" for service in self.services]
        triton = read_json(f"http://{LOOPBACK}:{options.ports.triton_http}/v2")
        models = [entry["id"] for entry in read_json(f"{options.llm_url}/v1/models")["data"]]
        lines[0] += f", {options.llm_url}, model {models[0]}"
        lines[1] += f", gRPC {options.token2wav_url}, {triton['name']} {triton['version']}"
        return lines

    def stop(self) -> None:
        """Stop every service, the last started first."""
        for service in reversed(self.services):
            service.stop()

    def __enter__(self) -> LocalStack:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


def assemble_repository(options: StackOptions) -> None:
    """Write the Triton model repository for these options."""
    from token2wav_service.triton.assemble import assemble

    settings = {
        "model_dir": str(options.checkpoint.token2wav_dir),
        "llm_tokenizer_dir": str(options.checkpoint.llm_dir),
        "voices_dir": str(options.checkpoint.voices_dir),
        "llm_api_base": options.llm_url,
        "llm_backend": options.llm_backend,
        "triton_grpc_address": options.token2wav_url,
        **options.settings,
    }
    assemble(options.repository, settings)


def llm_spec(options: StackOptions) -> ServiceSpec:
    """Return how the LLM service is started."""
    command = [sys.executable, "-m", "llm_service", "--backend", options.llm_backend]
    command += ["--model-dir", str(options.checkpoint.llm_dir), "--port", str(options.ports.llm), *options.llm_options]
    return ServiceSpec("llm_service", command, f"{options.llm_url}/health", options.log_dir / "llm_service.log")


def triton_spec(options: StackOptions) -> ServiceSpec:
    """Return how Triton is started on the assembled repository."""
    ports = options.ports
    command = [sys.executable, "-m", "token2wav_service.triton", "--model-repository", str(options.repository)]
    command += ["--http-port", str(ports.triton_http), "--grpc-port", str(ports.triton_grpc)]
    command += ["--metrics-port", str(ports.triton_metrics)]
    ready = f"http://{LOOPBACK}:{ports.triton_http}/v2/health/ready"
    return ServiceSpec("token2wav_service", command, ready, options.log_dir / "token2wav_service.log")


def gateway_spec(options: StackOptions) -> ServiceSpec:
    """Return how the gateway is started in front of the two services."""
    checkpoint = options.checkpoint
    command = [sys.executable, "-m", "gateway", "--port", str(options.ports.gateway)]
    command += ["--grpc-port", str(options.ports.gateway_grpc)]
    command += ["--llm-url", options.llm_url, "--token2wav-url", options.token2wav_url]
    command += ["--tokenizer-dir", str(checkpoint.llm_dir), "--voices-dir", str(checkpoint.voices_dir)]
    command += ["--llm-backend", options.llm_backend, *options.gateway_options]
    return ServiceSpec("gateway", command, f"{options.gateway_url}/readyz", options.log_dir / "gateway.log")


def default_work_dir() -> Path:
    """Return where logs and assembled files go: COSYDIT_HOME, else ~/.cache/cosydit."""
    return Path(os.environ.get("COSYDIT_HOME", Path.home() / ".cache" / "cosydit"))
