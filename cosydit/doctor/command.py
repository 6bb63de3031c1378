"""`cosydit doctor`: what this machine has, what is missing, and the next command. Changes nothing.

It asks metadata and small programs only: no model library is imported, so it works where they are broken.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from cosydit.stack.checkpoint.checkpoints import CheckpointLayout, default_directory
from cosydit.stack.stack import LOOPBACK, Ports, default_work_dir
from servicekit.extras import install_command, installed_from
from servicekit.gpu_host import missing_for_kernels, mps_problem, read_gpus

if TYPE_CHECKING:
    from token2wav_service.runtime.tensorrt.manifest import GpuHost

_PORT_OPTIONS = (
    ("--llm-port", "llm", 8000),
    ("--triton-http-port", "triton_http", 18000),
    ("--triton-grpc-port", "triton_grpc", 8001),
    ("--triton-metrics-port", "triton_metrics", 8002),
    ("--gateway-port", "gateway", 8080),
    ("--gateway-grpc-port", "gateway_grpc", 50051),
    ("--llm-grpc-port", "llm_grpc", 8100),
)
_NAME_WIDTH = 18


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser("doctor", help="say what this machine has, what is missing, and what to do next")
    parser.add_argument("--checkpoint", type=Path, help="directory of the checkpoint (default: the demo voice)")
    parser.add_argument(
        "--work-dir", type=Path, help="directory for logs and the model repository (default: ~/.cache/cosydit)"
    )
    for option, name, default in _PORT_OPTIONS:
        parser.add_argument(option, dest=name, type=int, default=default, help="port to check (default %(default)s)")
    gpu = "also test the GPU, for about a minute: driver, kernels' compiler, imports, memory, MPS"
    parser.add_argument("--gpu", action="store_true", help=gpu)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report; returns 0 if the services can run on this machine's CPU, with --gpu on its GPU, else 1."""
    ports = Ports(**{name: getattr(args, name) for _, name, _ in _PORT_OPTIONS})
    findings = examine(ports, args.checkpoint, args.work_dir or default_work_dir())
    _print_report(findings)
    is_able = can_run_on_cpu(findings)
    print(f"\nthe CPU path {'can run' if is_able else 'can NOT run yet'}")
    print(f"next: {next_command(findings)}")
    return 0 if is_able and (not args.gpu or _can_run_on_gpu(args)) else 1


def _can_run_on_gpu(args: argparse.Namespace) -> bool:
    """Run the checks of the host that `cosydit certify` begins with; a host without a GPU can't."""
    from cosydit.certify.check import Plan, Result
    from cosydit.certify.checks import all_checks, selected
    from cosydit.certify.context import CheckContext
    from cosydit.certify.run import run_here

    work_dir = args.work_dir or default_work_dir()
    plan = Plan(args.checkpoint or default_directory(work_dir), work_dir, work_dir, "cuda")
    print("\nGPU")
    outcomes = []
    for check in selected(all_checks(plan), ["host"]):
        outcomes.append(run_here(CheckContext(plan), check))
        print(f"  {outcomes[-1].describe()}", flush=True)
    failed = [outcome for outcome in outcomes if outcome.result is Result.FAIL]
    has_gpu = any(outcome.check == "host/gpu" and outcome.result is Result.PASS for outcome in outcomes)
    for outcome in failed:
        print(f"{outcome.check}: see docs/{outcome.page}")
    is_able = has_gpu and not failed
    print(f"the GPU path {'can run; prove it with: cosydit certify' if is_able else 'can NOT run yet'}")
    return is_able


def _print_report(findings: list[Finding]) -> None:
    topic = ""
    for finding in findings:
        if finding.topic != topic:
            topic = finding.topic
            print(f"\n{topic}")
        print(f"  {finding.state.value:8} {finding.name:{_NAME_WIDTH}} {finding.value}")


GIB = 1024**3
MIB = 1024**2
MIN_PYTHON = (3, 10)
MAX_PYTHON = (3, 12)
MIN_SHM_BYTES = 64 * MIB
"""Least size of /dev/shm for ten processes of cosyvoice2_dit and the feature models; Docker's default is just this."""
COMMAND_TIMEOUT_S = 20.0

_LIBPYTHON = "shared libpython"
RUN_SCRIPT = "bash run_stepaudio2_dit_token2wav.sh"

PACKAGES_BY_ROLE: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    (
        "gateway",
        (
            "numpy",
            "grpcio",
            "protobuf",
            "tritonclient",
            "aiohttp",
            "httpx",
            "fastapi",
            "uvicorn",
            "tokenizers",
            "grpcio-health-checking",
            "grpcio-reflection",
        ),
        True,
    ),
    ("token2wav", ("torch", "safetensors", "PyYAML", "soundfile", "scipy"), True),
    ("LLM, embedded", ("torch", "safetensors"), True),
    ("Triton, embedded", ("nvidia-pytriton",), False),
    ("checkpoint", ("onnx", "transformers"), False),
    ("download", ("huggingface_hub", "modelscope"), False),
    ("benchmarks", ("matplotlib", "datasets"), False),
    ("GPU hosts", ("tensorrt", "tensorrt_llm", "vllm", "s3tokenizer"), False),
)
"""Role, its distributions, and whether the CPU path can't run without them."""
ONNX_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
"""Exactly one of them: both install the same module."""


class State(str, Enum):
    """What a finding means for the CPU path."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing fails because of it."""
    MISSING = "MISSING"
    """The CPU path can't run."""


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    topic: str
    name: str
    value: str
    state: State = State.OK


def examine(ports: Ports, checkpoint: Path | None, work_dir: Path) -> list[Finding]:
    """Return every finding, in the order of the report.

    Args:
        checkpoint: directory to look at; None looks at the one that is used when none is named.
    """
    from token2wav_service.runtime.tensorrt.manifest import probe_host

    findings = [*_machine(work_dir), *_gpu(), *_import_path(), *_packages(), *_services(), *_ports(ports)]
    directory = checkpoint or default_directory(work_dir)
    findings.append(_checkpoint(directory, checkpoint is not None))
    return [*findings, *_engines(CheckpointLayout.under(directory).token2wav_dir, probe_host())]


def can_run_on_cpu(findings: Sequence[Finding]) -> bool:
    """Say whether nothing that the CPU path needs is missing."""
    return all(finding.state is not State.MISSING for finding in findings)


def next_command(findings: Sequence[Finding]) -> str:
    """Return the command to run next, with its reason."""
    missing = [finding.name for finding in findings if finding.state is State.MISSING]
    if not installed_from().is_repository:
        return _next_command_of_a_wheel(missing)
    if "checkpoint" in missing:
        return f"{RUN_SCRIPT} 0 1    (download or make a checkpoint)"
    if missing:
        return f"{RUN_SCRIPT} -1 -1    (sets up .venv; missing now: {', '.join(missing)})"
    return f"{RUN_SCRIPT} 0 3    (checkpoint, model repository, services; or: cosydit say TEXT)"


def _next_command_of_a_wheel(missing: Sequence[str]) -> str:
    if _LIBPYTHON in missing:
        return f"apt-get install libpython{sys.version_info[0]}.{sys.version_info[1]}    (Triton embeds Python)"
    if missing == ["checkpoint"]:
        return "cosydit checkpoint unpack-demo DIRECTORY    (or name a whole checkpoint)"
    if missing:
        return f"{install_command('demo')}    (missing now: {', '.join(missing)})"
    return "cosydit say TEXT    (or: cosydit serve)"


def _machine(work_dir: Path) -> Iterator[Finding]:
    version = platform.python_version()
    is_supported = MIN_PYTHON <= sys.version_info[:2] <= MAX_PYTHON
    python = f"{version} ({sys.executable})" + ("" if is_supported else "; expected 3.10, 3.11 or 3.12")
    yield Finding("machine", "Python", python, State.OK if is_supported else State.MISSING)
    source = installed_from()
    yield Finding(
        "machine", "installed from", f"{'the repository' if source.is_repository else 'a wheel'}, {source.requirement}"
    )
    yield Finding("machine", "platform", platform.platform())
    yield Finding("machine", "CPU", f"{_cpu_name()}, {len(os.sched_getaffinity(0))} cores usable")
    yield Finding("machine", "RAM", f"{_memory_bytes() / GIB:.1f} GiB")
    existing = next(path for path in (work_dir, *work_dir.parents) if path.exists())
    yield Finding("machine", "disk", f"{shutil.disk_usage(existing).free / GIB:.1f} GiB free for {work_dir}")
    yield _shared_memory()


def _shared_memory() -> Finding:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Finding("machine", "/dev/shm", "not there; Triton's python backend needs it", State.MISSING)
    usage = shutil.disk_usage(folder)
    text = f"{usage.free / MIB:.0f} of {usage.total / MIB:.0f} MiB free"
    if usage.free >= MIN_SHM_BYTES:
        return Finding("machine", "/dev/shm", text)
    return Finding(
        "machine", "/dev/shm", f"{text}; in a container raise --shm-size, or lower BLS_INSTANCE_NUM", State.NOTE
    )


def _gpu() -> Iterator[Finding]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    lines = _output_lines(query) if shutil.which("nvidia-smi") else []
    if not lines:
        yield Finding("GPU", "GPU", "none seen (nvidia-smi); the services run on the CPU", State.NOTE)
    for number, line in enumerate(lines):
        yield Finding("GPU", f"GPU {number}", line)
    if lines:
        yield from _gpu_host()
    torch_version = _version("torch") or ""
    if lines and torch_version.endswith("+cpu"):
        again = "make .venv again on this host" if installed_from().is_repository else "install the index's own torch"
        yield Finding("GPU", "torch", f"{torch_version} can't use the GPU; {again}", State.NOTE)


def _gpu_host() -> Iterator[Finding]:
    """What token2wav and the LLM need of a GPU host, beside the GPU."""
    from cosydit.certify.host import min_driver, torch_cuda_version

    missing = missing_for_kernels()
    told = f"install {' '.join(missing)}: token2wav can't start without" if missing else "a C compiler and Python.h"
    yield Finding("GPU", "compiler", told, State.NOTE if missing else State.OK)
    gpus = read_gpus()
    cuda = torch_cuda_version()
    if gpus and cuda is not None:
        branch, least = int(gpus[0].driver.partition(".")[0]), min_driver(cuda)
        text = f"{gpus[0].driver}; torch is built for CUDA {cuda}, which needs R{least}"
        is_new = branch >= least
        yield Finding("GPU", "driver", text if is_new else f"{text}: update it", State.OK if is_new else State.NOTE)
    if (problem := mps_problem()) is not None:
        yield Finding("GPU", "MPS", problem, State.NOTE)


def _import_path() -> Iterator[Finding]:
    """Where modules come from: an image's own packages must not stand before the environment's."""
    yield Finding("imports", "sys.path", " ".join(path for path in sys.path if path))
    named = os.environ.get("PYTHONPATH")
    if named:
        text = f"{named} stands before the environment's packages; unset it unless you mean it"
        yield Finding("imports", "PYTHONPATH", text, State.NOTE)
    for name in ("numpy", "torch"):
        spec = importlib.util.find_spec(name)
        if spec is not None:
            inside = str(spec.origin).startswith(sys.prefix)
            text = f"{spec.origin}" + ("" if inside else f", which is not of {sys.prefix}")
            yield Finding("imports", name, text, State.OK if inside else State.NOTE)


def _packages() -> Iterator[Finding]:
    for role, names, is_needed in PACKAGES_BY_ROLE:
        for name in names:
            version = _version(name)
            absent = State.MISSING if is_needed else State.NOTE
            yield Finding(f"packages: {role}", name, version or "not installed", State.OK if version else absent)
        if role == "token2wav":
            yield _onnx_runtime()


def _onnx_runtime() -> Finding:
    found = [f"{name} {version}" for name in ONNX_RUNTIMES if (version := _version(name))]
    if len(found) == 1:
        return Finding("packages: token2wav", "ONNX Runtime", found[0])
    if found:
        text = f"{' and '.join(found)} overwrite each other; uninstall both, then install one"
        return Finding("packages: token2wav", "ONNX Runtime", text, State.MISSING)
    return Finding(
        "packages: token2wav", "ONNX Runtime", "not installed; the extras `cpu` and `gpu` bring it", State.MISSING
    )


def _services() -> Iterator[Finding]:
    from token2wav_service.serving.process.installation import (
        TritonNotFoundError,
        find_installation,
        find_shared_libpython,
    )

    yield _found("services", _LIBPYTHON, lambda: str(find_shared_libpython()), TritonNotFoundError)
    yield _found("services", "tritonserver", lambda: str(find_installation().binary), TritonNotFoundError)
    for program in ("trtllm-serve", "vllm"):
        path = shutil.which(program)
        state = State.OK if path else State.NOTE
        yield Finding("services", program, path or "not on PATH; the embedded LLM server works without it", state)


def _ports(ports: Ports) -> Iterator[Finding]:
    for name, port in vars(ports).items():
        is_free = _is_free(port)
        text = f"{port} is free" if is_free else f"{port} is in use; stop what holds it, or choose another"
        yield Finding("ports", name.replace("_", " "), text, State.OK if is_free else State.NOTE)


def _checkpoint(directory: Path, is_named: bool) -> Finding:
    missing = CheckpointLayout.under(directory).missing()
    if not missing:
        return Finding(
            "checkpoint", "checkpoint", f"{directory} (check it with: cosydit checkpoint verify {directory})"
        )
    if is_named:
        lacking = ", ".join(path.name for path in missing)
        return Finding("checkpoint", "checkpoint", f"{directory} lacks {lacking}", State.MISSING)
    text = f"the demo voice; it is unpacked into {directory} on first use"
    return Finding("checkpoint", "checkpoint", text, State.NOTE)


def _engines(token2wav_dir: Path, host: GpuHost) -> Iterator[Finding]:
    """TensorRT and its engines; nothing but `runner=tensorrt` needs them."""
    from cosydit.stack.engines import next_engine_command, report_engines, serves_engines
    from token2wav_service.runtime.tensorrt.manifest import ENGINES_FOLDER

    topic = "TensorRT (written to its documentation, not run where this is developed)"
    version = host.tensorrt or "not installed; only runner=tensorrt needs it"
    yield Finding(topic, "version", version, State.OK if host.tensorrt else State.NOTE)
    reports = report_engines(token2wav_dir, host)
    for report in reports:
        text = "; ".join(report.problems) or report.note
        yield Finding(topic, "engine", f"{report.name}: {text}", State.NOTE if report.problems else State.OK)
    if not reports:
        yield Finding(topic, "engine", f"none in {token2wav_dir / ENGINES_FOLDER}", State.NOTE)
    if not serves_engines(token2wav_dir):
        yield Finding(topic, "runner=tensorrt", "does not serve this checkpoint's family", State.NOTE)
    command = next_engine_command(token2wav_dir, reports)
    if command is not None and host.architecture is not None:
        yield Finding(topic, "for runner=tensorrt", f"run: {command}", State.NOTE)


def _found(topic: str, name: str, look: Callable[[], str], error: type[Exception]) -> Finding:
    try:
        return Finding(topic, name, look())
    except error as err:
        return Finding(topic, name, str(err), State.MISSING)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text("utf-8", errors="replace").splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _output_lines(command: Sequence[str]) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
