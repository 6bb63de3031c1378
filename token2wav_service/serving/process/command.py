"""The command line of tritonserver: where it listens, and the options we always give.

Pure: starts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from token2wav_service.serving.process.installation import TritonInstallation, has_gpu

DEFAULT_HTTP_PORT = 18000
DEFAULT_GRPC_PORT = 8001
DEFAULT_METRICS_PORT = 8002

MIB = 1024 * 1024
SHM_REGION_BYTES = MIB
"""First size of a model process's shared memory, and its growth step: the least the python backend takes."""
DEFAULT_DRAIN_TIMEOUT_S = 20.0
"""Seconds for open streams before the server is told to stop."""
DEFAULT_EXIT_TIMEOUT_S = 10
_STUB_TIMEOUT_S = 120
_KEEPALIVE_TIME_MS = 30_000
"""Milliseconds of silence after which a client is pinged: a vanished host must not hold a stream."""
_KEEPALIVE_TIMEOUT_MS = 10_000


@dataclass(frozen=True)
class ServerOptions:
    """Where the server finds its models and where it listens."""

    model_repository: Path
    host: str = "127.0.0.1"
    http_port: int = DEFAULT_HTTP_PORT
    grpc_port: int = DEFAULT_GRPC_PORT
    metrics_port: int = DEFAULT_METRICS_PORT
    exit_timeout_s: int = DEFAULT_EXIT_TIMEOUT_S
    """Seconds that a stopping server waits for requests under way."""
    otlp_endpoint: str | None = None
    """Base URL of an OTLP/HTTP receiver, for Triton's own spans of requests that come with a traceparent."""

    @property
    def http_address(self) -> str:
        return f"{self.host}:{self.http_port}"

    @property
    def grpc_address(self) -> str:
        return f"{self.host}:{self.grpc_port}"

    @property
    def metrics_address(self) -> str:
        return f"{self.host}:{self.metrics_port}"


def server_command(
    installation: TritonInstallation, options: ServerOptions, backends: Path | None, shm_prefix: str
) -> list[str]:
    """Return the argument list that starts the server in the foreground.

    Args:
        backends: folder from `lay_out_backends`, None for the server's own.
        shm_prefix: names this server's shared-memory regions, so that they can be told from others'.
    """
    command = [
        str(installation.binary),
        f"--model-repository={options.model_repository}",
        "--model-control-mode=none",
        "--exit-on-error=true",
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={options.exit_timeout_s}",
        "--log-verbose=0",
        f"--http-address={options.host}",
        f"--http-port={options.http_port}",
        f"--grpc-address={options.host}",
        f"--grpc-port={options.grpc_port}",
        f"--grpc-keepalive-time={_KEEPALIVE_TIME_MS}",
        f"--grpc-keepalive-timeout={_KEEPALIVE_TIMEOUT_MS}",
        f"--metrics-address={options.host}",
        f"--metrics-port={options.metrics_port}",
        f"--allow-gpu-metrics={str(has_gpu()).lower()}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
        f"--backend-config=python,shm-default-byte-size={SHM_REGION_BYTES}",
        f"--backend-config=python,shm-growth-byte-size={SHM_REGION_BYTES}",
        f"--backend-config=python,stub-timeout-seconds={_STUB_TIMEOUT_S}",
    ]
    command += _trace_options(options.otlp_endpoint)
    return command if backends is None else [*command, f"--backend-directory={backends}"]


def _trace_options(otlp_endpoint: str | None) -> list[str]:
    """Have requests traced whose callers ask for it, and no others (rate 0)."""
    if otlp_endpoint is None:
        return []
    settings = (
        "mode=opentelemetry",
        f"opentelemetry,url={otlp_endpoint.rstrip('/')}/v1/traces",
        "opentelemetry,resource=service.name=triton",
        "rate=0",
        "count=-1",
        "level=TIMESTAMPS",
    )
    return [f"--trace-config={setting}" for setting in settings]
