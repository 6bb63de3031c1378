"""Checks of the machine: driver, GPU, compiler, imports, memory, MPS, Docker, hubs. Loads no model library itself."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cosydit.certify.check import CheckFailedError, Findings, NotRunError
from cosydit.certify.context import CheckContext
from cosydit.stack.mps import PROGRAM, SYSTEM_PIPES
from cosydit.stack.process import answers_ok
from servicekit.extras import install_command
from servicekit.gpu_host import (
    MIB,
    MPS_CONTROL,
    MPS_VARIABLE,
    GpuFacts,
    missing_for_kernels,
    read_gpus,
    run_program,
    serves_user,
)

IMPORT_TIMEOUT_S = 180.0
MIN_DRIVERS = (((13, 0), 580), ((12, 0), 525), ((11, 8), 520))
"""CUDA release and later -> the least driver branch for Linux, by NVIDIA's table of minor version compatibility."""
MIN_CAPABILITY = 8.0
"""Least compute capability: the fused kernels and bfloat16 need Ampere."""
MIN_SHM_MIB = 64
MIN_RAM_GIB, MIN_FREE_GIB = 1.0, 6.0
"""Least RAM on a CPU; free GPU memory beyond the weights: pool, graphs, voices and two CUDA contexts."""
GIB = 1024**3
HUBS = ("https://huggingface.co", "https://www.modelscope.cn")
_HUB_TIMEOUT_S = 5.0
_NEEDED = ("torch", "transformers", "onnxruntime", "soundfile", "scipy.signal", "tritonclient.grpc", "tokenizers")
_NEEDED_ON_GPU = ("triton",)
_OPTIONAL = ("vllm", "tensorrt_llm", "tensorrt", "s3tokenizer", "torchaudio")
_SHOWN_CHARACTERS = 600


def check_driver(context: CheckContext, found: Findings) -> None:
    """The driver is new enough for the CUDA that torch was built for."""
    line = _gpus()[0].driver
    cuda = torch_cuda_version()
    found.note(f"driver {line}; torch is built for {'CUDA ' + cuda if cuda else 'CPUs alone'}")
    found.at_least("driver branch", int(line.partition(".")[0]), min_driver(cuda))


def min_driver(cuda: str | None) -> int:
    """Return the least driver branch for a CUDA release; None means the oldest that is known."""
    release = tuple(int(part) for part in cuda.split(".")[:2]) if cuda else MIN_DRIVERS[-1][0]
    return next((driver for least, driver in MIN_DRIVERS if release >= least), MIN_DRIVERS[-1][1])


def torch_cuda_version() -> str | None:
    """Return the CUDA release that the installed torch was built for, without importing it; None for none."""
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "version.py"
        if path.is_file() and (match := re.search(r"^cuda\b[^=\n]*= *'([\d.]+)'", path.read_text("utf-8"), re.M)):
            return match[1]
    return None


def check_gpu(context: CheckContext, found: Findings) -> None:
    """Torch sees the GPU, and the GPU can run the kernels."""
    for gpu in _gpus():
        found.note(f"{gpu.name}{', a MIG slice' if gpu.is_slice else ''}, {gpu.memory_mib} MiB")
    program = (
        "import json, torch; d = torch.cuda.get_device_capability(); f, t = torch.cuda.mem_get_info(); "
        "x = torch.ones(64, 64, device='cuda'); assert float((x @ x).sum()) == 64 ** 3; "
        "print(json.dumps({'capability': d[0] + d[1] / 10, 'free': f, 'total': t, 'count': torch.cuda.device_count()}))"
    )
    told = json.loads(_run_python(program).splitlines()[-1])
    found.at_least("GPUs that torch sees", told["count"], 1)
    found.at_least("compute capability", told["capability"], MIN_CAPABILITY)
    found.tell("memory", told["total"] / GIB, "GiB")


def check_compiler(context: CheckContext, found: Findings) -> None:
    """A C compiler and Python's headers are there: the Triton language builds its launcher with them."""
    if not context.plan.is_gpu:
        raise NotRunError("token2wav runs on the CPU, which needs no compiler")
    if missing := missing_for_kernels():
        raise CheckFailedError(
            f"kernels can't be compiled here; install what lacks: apt-get install {' '.join(missing)}"
        )


def check_imports(context: CheckContext, found: Findings) -> None:
    """What the services load can be loaded, each in a process of its own."""
    optional = (name for name in _OPTIONAL if importlib.util.find_spec(name))
    names = (*_NEEDED, *(_NEEDED_ON_GPU if context.plan.is_gpu else ()), *optional)
    with ThreadPoolExecutor(2) as pool:
        reports = dict(zip(names, pool.map(_import_seconds, names), strict=True))
    broken = [f"{name}: {report}" for name, report in reports.items() if isinstance(report, str)]
    for name, report in reports.items():
        if not isinstance(report, str):
            found.tell(f"import {name}", report, "s")
    if broken:
        raise CheckFailedError(f"{'; '.join(broken)}. Install again with: {install_command('demo')}")


def check_memory(context: CheckContext, found: Findings) -> None:
    """The GPU has room for the weights, the streams' pool and the graphs."""
    folders = (context.checkpoint.token2wav_dir, context.checkpoint.llm_dir)
    weights = sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
    found.tell("weights", weights / GIB, "GiB")
    if context.plan.is_gpu:
        free, name, least = max(gpu.free_mib for gpu in _gpus()) * MIB, "free GPU memory", MIN_FREE_GIB
    else:
        free, name, least = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "RAM", MIN_RAM_GIB
    found.at_least(f"{name} beyond the weights", (free - weights) / GIB, least, "GiB")


def check_mps(context: CheckContext, found: Findings) -> None:
    """A daemon of MPS that CUDA will turn to is alive, and takes clients of this user."""
    pipes = Path(os.environ.get(MPS_VARIABLE, SYSTEM_PIPES))
    control, daemons = pipes / MPS_CONTROL, list(_processes(PROGRAM))
    if not control.exists():
        if MPS_VARIABLE in os.environ:
            raise CheckFailedError(f"{MPS_VARIABLE} is {pipes}, where no daemon is; start it, or unset it")
        raise NotRunError(f"no daemon of MPS was started ({control} is not there); {PROGRAM} -d starts one")
    if not daemons and not _is_answered(control):
        raise CheckFailedError(
            f"the MPS daemon of {pipes} is dead: nobody reads {control}, and CUDA waits for it or fails. Start it "
            f"with {PROGRAM} -d, or remove {pipes}"
        )
    owner = control.stat().st_uid
    found.note(f"daemon {daemons or 'of another container'}, owner {owner}, we are {os.getuid()}")
    if not serves_user(owner, os.getuid()):
        got = f"the MPS daemon belongs to user {owner}, and does not serve user {os.getuid()}"
        raise CheckFailedError(f"{got}; start it as root or as the services' user")


def check_shared_memory(context: CheckContext, found: Findings) -> None:
    """/dev/shm has room for Triton's Python backend."""
    usage = shutil.disk_usage("/dev/shm")
    found.at_least("free in /dev/shm", usage.free / MIB, MIN_SHM_MIB, "MiB")


def check_tritonserver(context: CheckContext, found: Findings) -> None:
    """There is a Triton server, and the libpython that it embeds."""
    from token2wav_service.serving.process.installation import (
        TritonNotFoundError,
        find_installation,
        find_shared_libpython,
    )

    try:
        found.note(f"{find_installation().binary}, {find_shared_libpython()}")
    except TritonNotFoundError as error:
        raise CheckFailedError(str(error)) from error


def check_docker(context: CheckContext, found: Findings) -> None:
    """Docker can hand the GPU to a container."""
    if shutil.which("docker") is None:
        raise NotRunError("docker is not installed; nothing but Compose needs it")
    told = _output(["docker", "info", "--format", "{{json .Runtimes}}"])
    if told is None:
        raise NotRunError("docker does not answer; is its daemon running, and are we in its group?")
    found.note(f"runtimes: {told.strip()[:_SHOWN_CHARACTERS]}")
    if context.plan.is_gpu and "nvidia" not in told:
        raise CheckFailedError("Docker has no runtime `nvidia`; install nvidia-container-toolkit, then restart Docker")


def check_hubs(context: CheckContext, found: Findings) -> None:
    """The hubs of models can be reached."""
    reached = [hub for hub in HUBS if answers_ok(hub, _HUB_TIMEOUT_S)]
    if not reached:
        raise NotRunError("no hub can be reached; the official checkpoint can't be fetched here")
    found.note(f"reached: {', '.join(reached)}")


def _gpus() -> tuple[GpuFacts, ...]:
    """Ask the driver.

    Raises:
        NotRunError: it lists no GPU.
    """
    if gpus := read_gpus():
        return gpus
    raise NotRunError("nvidia-smi lists no GPU")


def _output(command: Sequence[str]) -> str | None:
    try:
        return run_program(command)
    except (OSError, subprocess.SubprocessError):
        return None


def _run_python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise CheckFailedError(f"python ended with status {done.returncode}: {done.stderr[-_SHOWN_CHARACTERS:]}")
    return done.stdout


def _import_seconds(name: str) -> float | str:
    """Return how long an import takes in a process of its own, or what it said."""
    began = time.perf_counter()
    try:
        _run_python(f"import {name}")
    except (CheckFailedError, subprocess.TimeoutExpired) as error:
        return str(error)
    return time.perf_counter() - began


def _processes(name: str) -> Iterator[int]:
    """Yield the ids of processes by the beginning of their command's name, which the kernel cuts to 15 characters."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                if (folder / "cmdline").read_bytes().split(b"\0")[0].rpartition(b"/")[2].decode() == name:
                    yield int(folder.name)
            except OSError:
                continue


def _is_answered(control: Path) -> bool:
    """Tell whether somebody reads the daemon's pipe; it may live in another container, out of our sight."""
    if not stat.S_ISFIFO(control.stat().st_mode):
        return _output(["sh", "-c", f"echo get_server_list | timeout 5 {PROGRAM}"]) is not None
    try:
        os.close(os.open(control, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        return error.errno == errno.EACCES
    return True
