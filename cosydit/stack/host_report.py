"""Looks at this host for `cosydit doctor` and the area `host` of `cosydit certify`. Changes nothing.

It asks metadata and small programs only, and imports no model library itself, so it works where those are broken.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from cosydit.bench.report import cpu_model, output_of, ram_bytes
from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from cosydit.stack.engines import next_engine_command, report_engines
from cosydit.stack.mps import PROGRAM, SYSTEM_PIPES
from cosydit.stack.process import answers_ok, busy_ports
from cosydit.stack.stack import Ports
from servicekit.extras import install_command, installed_from, installed_version
from servicekit.gpu_host import (
    CUDA,
    MIB,
    MPS_CONTROL,
    MPS_VARIABLE,
    missing_for_kernels,
    read_gpus,
    serves_user,
)
from token2wav_service.errors import EngineUnfitError
from token2wav_service.runtime.tensorrt.manifest import ENGINES_FOLDER, probe_host
from token2wav_service.serving.process.installation import (
    TritonNotFoundError,
    find_installation,
    find_shared_libpython,
)

GIB = 1024**3
MIN_PYTHON, MAX_PYTHON = (3, 10), (3, 12)
MIN_SHM_MIB = 64
"""Least size of /dev/shm for ten processes of cosyvoice2_dit and the feature models; Docker's default is just this."""
IMPORT_TIMEOUT_S, HUB_TIMEOUT_S = 180.0, 5.0
MIN_DRIVERS = (((13, 0), 580), ((12, 0), 525), ((11, 8), 520))
"""CUDA release and later -> the least driver branch for Linux, by NVIDIA's table of minor version compatibility."""
MIN_CAPABILITY = 8.0
"""Least compute capability: the fused kernels and bfloat16 need Ampere."""
MIN_RAM_GIB, MIN_FREE_GIB = 1.0, 6.0
"""Least RAM on a CPU; free GPU memory beyond the weights: pool, graphs, voices and two CUDA contexts."""
HUBS = ("https://huggingface.co", "https://www.modelscope.cn")
NEEDED = ("torch", "transformers", "onnxruntime", "soundfile", "scipy.signal", "tritonclient.grpc", "tokenizers")
NEEDED_ON_GPU = ("triton",)
OPTIONAL = ("vllm", "tensorrt_llm", "tensorrt")
LIBPYTHON = "shared libpython"
GATEWAY_PACKAGES = (
    *("numpy", "grpcio", "protobuf", "tritonclient", "aiohttp", "httpx", "fastapi", "uvicorn", "tokenizers"),
    *("grpcio-health-checking", "grpcio-reflection"),
)
PACKAGES_BY_ROLE: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("gateway", GATEWAY_PACKAGES, True),
    ("token2wav", ("torch", "safetensors", "PyYAML", "soundfile", "scipy"), True),
    ("LLM, embedded", ("torch", "safetensors"), True),
    ("Triton, embedded", ("nvidia-pytriton",), False),
    ("checkpoint", ("onnx", "transformers"), False),
    ("download", ("huggingface_hub", "modelscope"), False),
    ("benchmarks", ("matplotlib", "datasets"), False),
    ("GPU hosts", ("tensorrt", "tensorrt_llm", "vllm"), False),
)
"""Role, its distributions, and whether the CPU path can't run without them."""
ONNX_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
"""Exactly one of them: both install the same module."""
_GPU_TEST = (
    "import json, torch; d = torch.cuda.get_device_capability(); x = torch.ones(64, 64, device='cuda'); "
    "assert float((x @ x).sum()) == 64 ** 3; print(json.dumps([d[0] + d[1] / 10, torch.cuda.mem_get_info()[1]]))"
)
_SHOWN_CHARACTERS = 600


class State(str, Enum):
    """What a finding means for the device that was asked about."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing fails because of it."""
    MISSING = "MISSING"
    """The services can't run on the device."""


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    topic: str
    name: str
    value: str
    state: State = State.OK


@dataclass(frozen=True)
class Look:
    """What a host is looked at for."""

    device: str
    """cpu or cuda."""
    checkpoint: Path
    """Directory with token2wav/ and llm/, which need not be there."""

    @property
    def is_gpu(self) -> bool:
        """Tell whether the services are to run on a GPU."""
        return self.device == CUDA

    def judge(self, name: str, value: str, is_good: bool, advice: str = "") -> Finding:
        """Return a finding that, if it is not good, is missing for a GPU, and for a CPU only worth knowing."""
        bad = State.MISSING if self.is_gpu else State.NOTE
        return Finding("GPU", name, value if is_good else f"{value}{advice}", State.OK if is_good else bad)


def machine(work_dir: Path) -> Iterator[Finding]:
    """Python, platform, CPU, memory, disk."""
    is_supported = MIN_PYTHON <= sys.version_info[:2] <= MAX_PYTHON
    python = f"{platform.python_version()} ({sys.executable})" + ("" if is_supported else "; expected 3.10 to 3.12")
    yield Finding("machine", "Python", python, State.OK if is_supported else State.MISSING)
    source = installed_from()
    kind = "the repository" if source.is_repository else "a wheel"
    yield Finding("machine", "installed from", f"{kind}, {source.requirement}")
    yield Finding("machine", "platform", platform.platform())
    yield Finding("machine", "CPU", f"{cpu_model()}, {len(os.sched_getaffinity(0))} cores usable")
    yield Finding("machine", "RAM", f"{ram_bytes() / GIB:.1f} GiB")
    existing = next(path for path in (work_dir, *work_dir.parents) if path.exists())
    yield Finding("machine", "disk", f"{shutil.disk_usage(existing).free / GIB:.1f} GiB free for {work_dir}")


def shared_memory(look: Look) -> Iterator[Finding]:
    """/dev/shm has room for Triton's Python backend."""
    folder = Path("/dev/shm")
    if not folder.is_dir():
        yield Finding("machine", "/dev/shm", "not there; Triton's python backend needs it", State.MISSING)
        return
    usage = shutil.disk_usage(folder)
    text, is_good = f"{usage.free / MIB:.0f} of {usage.total / MIB:.0f} MiB free", usage.free >= MIN_SHM_MIB * MIB
    advice = "" if is_good else "; in a container raise --shm-size, or lower BLS_INSTANCE_NUM"
    yield Finding("machine", "/dev/shm", text + advice, State.OK if is_good else State.NOTE)


def packages() -> Iterator[Finding]:
    """Versions of what is installed, by role."""
    for role, names, is_needed in PACKAGES_BY_ROLE:
        for name in names:
            version = installed_version(name)
            absent = State.MISSING if is_needed else State.NOTE
            yield Finding(f"packages: {role}", name, version or "not installed", State.OK if version else absent)
        if role == "token2wav":
            yield _onnx_runtime()


def _onnx_runtime() -> Finding:
    found = [f"{name} {version}" for name in ONNX_RUNTIMES if (version := installed_version(name))]
    text = " and ".join(found) or "not installed; the extras `cpu` and `gpu` bring it"
    if len(found) > 1:
        text += " overwrite each other; uninstall both, then install one"
    return Finding("packages: token2wav", "ONNX Runtime", text, State.OK if len(found) == 1 else State.MISSING)


def programs() -> Iterator[Finding]:
    """LLM servers that may be used in place of the embedded one."""
    for program in ("trtllm-serve", "vllm"):
        path = shutil.which(program)
        state = State.OK if path else State.NOTE
        yield Finding("services", program, path or "not on PATH; the embedded LLM server works without it", state)


def tritonserver(look: Look) -> Iterator[Finding]:
    """There is a Triton server, and the libpython that it embeds."""
    for name, find in ((LIBPYTHON, find_shared_libpython), ("tritonserver", lambda: find_installation().binary)):
        try:
            yield Finding("services", name, str(find()))
        except TritonNotFoundError as error:
            yield Finding("services", name, str(error), State.MISSING)


def ports(chosen: Ports) -> Iterator[Finding]:
    """Whether the services' ports are free."""
    busy = busy_ports(vars(chosen).values())
    for name, port in vars(chosen).items():
        text = f"{port} is in use; stop what holds it, or choose another" if port in busy else f"{port} is free"
        yield Finding("ports", name.replace("_", " "), text, State.NOTE if port in busy else State.OK)


def checkpoint(directory: Path, is_named: bool) -> Finding:
    """Return whether the checkpoint's folders are there."""
    missing = CheckpointLayout.under(directory).missing()
    if not missing:
        text = f"{directory} (check it with: cosydit checkpoint verify {directory})"
        return Finding("checkpoint", "checkpoint", text)
    if is_named:
        lacking = ", ".join(path.name for path in missing)
        return Finding("checkpoint", "checkpoint", f"{directory} lacks {lacking}", State.MISSING)
    text = f"the demo voice; it is unpacked into {directory} on first use"
    return Finding("checkpoint", "checkpoint", text, State.NOTE)


def engines(token2wav_dir: Path) -> Iterator[Finding]:
    """TensorRT and its engines; nothing but `runner=tensorrt` needs them."""
    topic, host = "TensorRT (engines were built on a CPU, and never run where this is developed)", probe_host()
    found = ", ".join(host.libraries) or "not installed; only runner=tensorrt needs it"
    yield Finding(topic, "version", found, State.OK if host.libraries else State.NOTE)
    reports = report_engines(token2wav_dir, host)
    for report in reports:
        text = "; ".join(report.problems) or report.note
        yield Finding(topic, "engine", f"{report.name}: {text}", State.NOTE if report.problems else State.OK)
    if not reports:
        yield Finding(topic, "engine", f"none in {token2wav_dir / ENGINES_FOLDER}", State.NOTE)
    command = next_engine_command(token2wav_dir, reports)
    if command is None or host.architecture is None:
        return
    text = f"run: {command}"
    try:
        host.library(host.architecture)
    except EngineUnfitError as err:
        text = str(err)
    yield Finding(topic, "for runner=tensorrt", text, State.NOTE)


def gpus(look: Look) -> Iterator[Finding]:
    """The GPUs that the driver lists, and whether torch was built for them."""
    found = read_gpus()
    if not found:
        yield Finding("GPU", "GPU", "none seen (nvidia-smi); the services run on the CPU", State.NOTE)
    for number, gpu in enumerate(found):
        kind = ", a MIG slice" if gpu.is_slice else ""
        yield Finding("GPU", f"GPU {number}", f"{gpu.name}{kind}, {gpu.driver}, {gpu.memory_mib} MiB")
    version = installed_version("torch") or ""
    if found and version.endswith("+cpu"):
        again = "make .venv again on this host" if installed_from().is_repository else "install the index's own torch"
        yield look.judge("torch", version, False, f" can't use the GPU; {again}")


def driver(look: Look) -> Iterator[Finding]:
    """The driver is new enough for the CUDA that torch was built for."""
    cuda = torch_cuda_version()
    if (found := read_gpus()) and cuda is not None:
        least = min_driver(cuda)
        text = f"{found[0].driver}; torch is built for CUDA {cuda}, which needs R{least}"
        yield look.judge("driver", text, int(found[0].driver.partition(".")[0]) >= least, ": update it")


def min_driver(cuda: str) -> int:
    """Return the least driver branch for a CUDA release."""
    release = tuple(int(part) for part in cuda.split(".")[:2])
    return next((driver for least, driver in MIN_DRIVERS if release >= least), MIN_DRIVERS[-1][1])


def torch_cuda_version() -> str | None:
    """Return the CUDA release that the installed torch was built for, without importing it; None for none."""
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "version.py"
        if path.is_file() and (match := re.search(r"^cuda\b[^=\n]*= *'([\d.]+)'", path.read_text("utf-8"), re.M)):
            return match[1]
    return None


def compiler(look: Look) -> Iterator[Finding]:
    """A C compiler and Python's headers are there: the Triton language builds its launchers with them."""
    if look.is_gpu or read_gpus():
        missing = " ".join(missing_for_kernels())
        advice = f"install {missing}: token2wav can't start without (apt-get install {missing})"
        yield look.judge("compiler", "" if missing else "a C compiler and Python.h", not missing, advice)


def torch_on_gpu(look: Look) -> Iterator[Finding]:
    """Torch computes on the GPU, and the GPU can run the kernels."""
    if not read_gpus():
        yield Finding("GPU", "torch on it", "nvidia-smi lists no GPU", State.NOTE)
        return
    answer = _python(_GPU_TEST)
    if not answer.startswith("["):
        yield look.judge("torch on it", answer, False)
        return
    capability, memory = json.loads(answer.splitlines()[-1])
    text = f"compute capability {capability}, {memory / GIB:.1f} GiB"
    yield look.judge("torch on it", text, capability >= MIN_CAPABILITY, f"; expected at least {MIN_CAPABILITY}")


def imports(look: Look) -> Iterator[Finding]:
    """What the services load can be loaded, each in a process of its own."""
    optional = (name for name in OPTIONAL if importlib.util.find_spec(name))
    names = (*NEEDED, *(NEEDED_ON_GPU if look.is_gpu else ()), *optional)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda name: _python(f"import {name}\nprint('ok')"), names))
        for name, answer in zip(names, answers, strict=True):
            is_good = answer.splitlines()[-1:] == ["ok"]
            text = "can be imported" if is_good else f"{answer}. Install again with: {install_command('demo')}"
            yield Finding("imports", name, text, State.OK if is_good else State.MISSING)


def memory(look: Look) -> Iterator[Finding]:
    """There is room for the weights, and on a GPU for the streams' pool and the graphs."""
    layout = CheckpointLayout.under(look.checkpoint)
    files = (path for folder in (layout.token2wav_dir, layout.llm_dir) for path in folder.rglob("*"))
    weights = sum(path.stat().st_size for path in files if path.is_file()) / GIB
    free, name, least = ram_bytes() / GIB, "RAM", MIN_RAM_GIB
    if look.is_gpu:
        free_mib = max((gpu.free_mib for gpu in read_gpus()), default=0)
        free, name, least = free_mib / 1024, "free GPU memory", MIN_FREE_GIB
    text = f"{free - weights:.1f} GiB of {name} beyond {weights:.1f} GiB of weights"
    is_good = free - weights >= least
    advice = "" if is_good else f"; expected at least {least:g}"
    yield Finding("memory", name, text + advice, State.OK if is_good else State.MISSING)


def mps(look: Look) -> Iterator[Finding]:
    """A daemon of MPS that CUDA will turn to is alive, and takes clients of this user."""
    pipes = Path(os.environ.get(MPS_VARIABLE, SYSTEM_PIPES))
    control = pipes / MPS_CONTROL
    if not control.exists():
        if MPS_VARIABLE in os.environ:
            yield look.judge("MPS", f"{MPS_VARIABLE} is {pipes}, where no daemon is", False, "; start it, or unset it")
        else:
            text = f"no daemon was started ({control} is not there); {PROGRAM} -d starts one"
            yield Finding("GPU", "MPS", text, State.NOTE)
    elif not _is_answered(control):
        dead = f"the MPS daemon of {pipes} is dead: nobody reads {control}, and CUDA waits for it or fails"
        yield look.judge("MPS", dead, False, f". Start it with {PROGRAM} -d, or remove {pipes}")
    else:
        owner, user = control.stat().st_uid, os.getuid()
        text = f"the MPS daemon belongs to user {owner}, this process is of user {user}"
        advice = "; it serves nobody else: start it as root or as the services' user"
        yield look.judge("MPS", text, serves_user(owner, user), advice)


def docker(look: Look) -> Iterator[Finding]:
    """Docker can hand the GPU to a container."""
    if shutil.which("docker") is None:
        yield Finding("Docker", "docker", "not installed; nothing but Compose needs it", State.NOTE)
        return
    told = output_of("docker", "info", "--format", "{{json .Runtimes}}")
    if told is None:
        text = "does not answer; is its daemon running, and are we in its group?"
        yield Finding("Docker", "docker", text, State.NOTE)
        return
    is_good = not look.is_gpu or "nvidia" in told
    text = f"runtimes: {told.strip()[:_SHOWN_CHARACTERS]}"
    advice = "" if is_good else "; none is `nvidia`: install nvidia-container-toolkit, then restart Docker"
    yield Finding("Docker", "docker", text + advice, State.OK if is_good else State.MISSING)


def hubs(look: Look) -> Iterator[Finding]:
    """The hubs of models can be reached."""
    reached = [hub for hub in HUBS if answers_ok(hub, HUB_TIMEOUT_S)]
    text = ", ".join(reached) or "none can be reached; the official checkpoint can't be fetched here"
    yield Finding("hubs", "reached", text, State.OK if reached else State.NOTE)


PROBES: dict[str, Callable[[Look], Iterator[Finding]]] = {
    "driver": driver,
    "gpu": torch_on_gpu,
    "compiler": compiler,
    "imports": imports,
    "memory": memory,
    "mps": mps,
    "shared-memory": shared_memory,
    "tritonserver": tritonserver,
    "docker": docker,
    "hubs": hubs,
}
"""The checks of a host by name: what `cosydit certify` begins with, and `cosydit doctor --gpu` ends with."""


def _python(program: str) -> str:
    """Return what a program prints in a Python of its own, else the end of its error."""
    command = [sys.executable, "-c", program]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"did not end within {IMPORT_TIMEOUT_S:.0f} s"
    if done.returncode == 0:
        return done.stdout
    return f"ended with status {done.returncode}: {done.stderr[-_SHOWN_CHARACTERS:].strip()}"


def _is_answered(control: Path) -> bool:
    """Tell whether a daemon reads the pipe; it may live in another container, out of our sight."""
    if not stat.S_ISFIFO(control.stat().st_mode):
        return output_of("sh", "-c", f"echo get_server_list | timeout 5 {PROGRAM}") is not None
    try:
        os.close(os.open(control, os.O_WRONLY | os.O_NONBLOCK))
    except PermissionError:
        return True
    except OSError:
        return False
    return True
