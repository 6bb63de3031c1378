"""What this host's GPU changes: the LLM's backend, the form of its checkpoint, and the settings of both services.

One meaning of `--device auto` and `--llm-backend auto` for the run script, `serve`, `say` and `batch`. What the user
gives wins over what is chosen here. `python -m cosydit.stack.host` says the same to the run script.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from cosydit.stack.gpu_presets import STREAM_INTERVAL, GpuPreset, preset_for
from cosydit.stack.stack import EMBEDDED, REPLICA_PORT_STEP, Ports, StackOptions
from llm_service.backends import choose_backend, has_gpu
from llm_service.config import LLMBackend
from llm_service.export.convert import convert
from llm_service.huggingface_layout import has_speech_form
from servicekit.extras import own_command
from servicekit.gpu_host import AUTO, CPU, CUDA, DEVICES, GpuFacts, default_device, read_gpus
from servicekit.settings import Given, as_options

logger = logging.getLogger(__name__)

CONVERTED_FOLDER = "llm_converted"
"""Folder of the working directory with the LLM in the form that vLLM and TensorRT-LLM serve without loss."""
CONVERTED_TYPE = "bfloat16"
ALONE = {"vllm": ("256", "0.8"), "trtllm": ("256", "0.8")}
"""Slots and memory share, by backend, of an LLM that has a GPU to itself; the embedded one has such defaults."""
ROUGHLY_ALL = 0.93
"""Share of free memory below which a GPU has another user; settings are then chosen for what is free."""

ChooseBackend = Callable[[Path, bool], LLMBackend]


@dataclass(frozen=True)
class Machine:
    """The host that settings are chosen for."""

    gpus: tuple[GpuFacts, ...] = ()
    """GPUs that may be used; none: the services run on the CPU."""
    choose: ChooseBackend = field(default=partial(choose_backend, can_convert=True), repr=False)
    """Chooses the backend for `auto`, from the LLM's directory and whether there is a GPU."""


def find_host(device: str) -> Machine:
    """Look at this host for a device: auto, cpu or cuda.

    Raises:
        ValueError: the device is none of these, or cuda where the driver lists no GPU.
    """
    if device not in DEVICES:
        raise ValueError(f"got device {device!r}, expected one of {', '.join(DEVICES)}")
    if device == CPU or (device == AUTO and not has_gpu()):
        return Machine()
    gpus = read_gpus()
    if not gpus and device == CUDA:
        look = own_command("doctor")
        raise ValueError(f"device is cuda, but nvidia-smi lists no GPU that this process may use; run: {look}")
    return Machine(gpus)


def for_host(options: StackOptions, host: Machine, one_stream: bool = False) -> StackOptions:
    """Choose the settings that the user did not give: the LLM's backend, and on a GPU those of both services.

    `one_stream`: the services will have one caller.
    """
    llm_on_gpu = bool(host.gpus) and options.llm.get("device") in (None, CUDA)
    backend = options.llm_backend
    if backend == AUTO:
        backend = host.choose(options.checkpoint.llm_dir, llm_on_gpu).value
    options = dataclasses.replace(options, llm_backend=backend)
    if not host.gpus:
        return options
    preset, shared = preset_of(host), shares_gpu(options)
    token2wav_dir = options.checkpoint.token2wav_dir
    chosen = token2wav_settings(preset, token2wav_dir, options.settings, _servers_a_gpu(options))
    llm = llm_settings(preset, backend, shared, one_stream) if llm_on_gpu else {}
    return dataclasses.replace(options, settings={**chosen, **options.settings}, llm={**llm, **options.llm})


def gateway_processes(host: Machine) -> Given:
    """Return how many processes the gateway has: where there is a GPU, as many as its cores allow."""
    return {"processes": AUTO} if host.gpus else {}


def preset_of(host: Machine) -> GpuPreset:
    """Return the settings for the GPU with the least memory; for what is free of it, if another program uses it."""
    smallest = min(host.gpus, key=_usable_mib)
    return preset_for(_usable_mib(smallest))


def llm_settings(preset: GpuPreset, backend: str, shared: bool, one_stream: bool = False) -> dict[str, str]:
    """Return settings of the LLM service on a GPU, on which token2wav runs too if it is `shared`.

    `one_stream`: there will be one caller.
    """
    if not shared:
        slots, share = ALONE.get(backend, (None, None))
    else:
        slots, share = str(preset.llm[backend].slots), f"{preset.llm[backend].memory_share:g}"
    if one_stream:
        slots = "4"
    settings: dict[str, str | None] = {
        "device": CUDA if backend == EMBEDDED else None,
        "max_batch_size": slots,
        "kv_cache_free_gpu_memory_fraction": share,
        "stream_interval": str(STREAM_INTERVAL) if backend == "vllm" else None,
    }
    return {name: value for name, value in settings.items() if value is not None}


def token2wav_settings(
    preset: GpuPreset, token2wav_dir: Path, given: Mapping[str, str], servers: int = 1
) -> dict[str, str]:
    """Return settings of the model repository on a GPU with so many token2wav servers.

    None if the user sent token2wav to the CPU; the checkpoint's family decides how many streams fit.
    """
    if not given.get("device", CUDA).startswith(CUDA):
        return {}
    return preset.token2wav_settings(servers, _family(token2wav_dir))


def engine_settings(preset: GpuPreset, token2wav_dir: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Return settings of an engine in this process, which has its batch as its pool; see `token2wav_settings`."""
    chosen = token2wav_settings(preset, token2wav_dir, given)
    return {name: value for name, value in chosen.items() if name not in ("TRITON_MAX_BATCH_SIZE", "max_streams")}


def shares_gpu(options: StackOptions) -> bool:
    """Tell whether the LLM and a token2wav server run on one GPU."""
    return options.llm_gpu is None or not options.token2wav_gpus or options.llm_gpu in options.token2wav_gpus


def wants_mps(options: StackOptions, host: Machine) -> bool:
    """Tell whether several processes share a GPU."""
    return bool(host.gpus) and (shares_gpu(options) or _servers_a_gpu(options) > 1)


def with_served_form(options: StackOptions) -> StackOptions:
    """Have the LLM in the form that its backend serves without loss, converted on first use.

    Raises:
        LLMServiceError: it can't be converted.
        OSError: the working directory can't be written.
    """
    return dataclasses.replace(
        options, llm_model_dir=served_form(options.checkpoint.llm_dir, options.llm_backend, options.work_dir)
    )


def served_form(llm_dir: Path, backend: str, work_dir: Path) -> Path:
    """Return the directory that a backend serves; converts a stock LLM for vLLM and TensorRT-LLM, once.

    Stock Qwen2 has no bias in its head: vLLM refuses a checkpoint with one, and TensorRT-LLM drops it, so that text
    tokens come out.

    Raises:
        LLMServiceError: it can't be converted.
        OSError: the working directory can't be written.
    """
    if backend == EMBEDDED or has_speech_form(llm_dir) or not (llm_dir / "config.json").is_file():
        return llm_dir
    directory = work_dir / CONVERTED_FOLDER
    if convert(llm_dir, directory, CONVERTED_TYPE):
        logger.info("converted %s into %s, the form that %s serves with its head's bias", llm_dir, directory, backend)
    return directory


def describe_choice(options: StackOptions, host: Machine) -> list[str]:
    """Return what was chosen for this host and where to change it, a line each; nothing on a CPU."""
    if not host.gpus:
        return []
    names = [*preset_of(host).token2wav_settings(), "runner", "engines_dir"]
    shown = " ".join(f"{name}={options.settings[name]}" for name in names if name in options.settings)
    return [
        gpu_line(host),
        f"token2wav {shown}    (change: --token2wav-...)",
        f"LLM       {options.llm_backend} {' '.join(as_options(options.llm))}    (change: --llm-...)",
    ]


def gpu_line(host: Machine) -> str:
    """Say which GPU settings were chosen for, and which ones."""
    gpu, preset = min(host.gpus, key=_usable_mib), preset_of(host)
    memory = f"{gpu.memory_mib / 1024:.0f} GiB" + (" slice" if gpu.is_slice else "")
    if _usable_mib(gpu) < gpu.memory_mib:
        memory += f", {gpu.free_mib / 1024:.0f} GiB free"
    return f"GPU       {gpu.name} ({memory}), driver {gpu.driver}: settings {preset.name} ({preset.source})"


def _usable_mib(gpu: GpuFacts) -> int:
    return gpu.memory_mib if gpu.free_mib >= ROUGHLY_ALL * gpu.memory_mib else gpu.free_mib


def _servers_a_gpu(options: StackOptions) -> int:
    gpus = len(set(options.token2wav_gpus)) or 1
    return -(-len(options.tritons) // gpus)


def _family(token2wav_dir: Path) -> str | None:
    from token2wav_service.checkpoint.family import find_family  # which needs an extra

    family = find_family(token2wav_dir)
    return family.value if family else None


def main(argv: Sequence[str] | None = None) -> int:
    """Write what is chosen for this host, a line each, for the run script; what a person wants to know goes to stderr.

    The lines: `llm_backend NAME`, `llm_option WORD`, `gateway_option WORD`, `setting NAME=VALUE`, `batch_size N`,
    `token2wav_batch_size N`, `mps`.
    """
    args = _parser().parse_args(argv)
    try:
        host = find_host(args.device)
    except ValueError as err:
        sys.stderr.write(f"error: {err}\n")
        return 2
    asked = _asked(args)
    options = for_host(asked, host)
    sys.stderr.write("".join(f"{line}\n" for line in describe_choice(options, host)))
    sys.stdout.write("".join(f"{line}\n" for line in script_lines(options, asked, host)))
    return 0


def script_lines(options: StackOptions, asked: StackOptions, host: Machine) -> list[str]:
    """Return what the run script reads: see `main`."""
    lines = [f"llm_backend {options.llm_backend}", *(f"llm_option {word}" for word in as_options(options.llm))]
    lines += [f"gateway_option {word}" for word in as_options(gateway_processes(host))]
    lines += [f"setting {name}={value}" for name, value in options.settings.items() if name not in asked.settings]
    if host.gpus:
        preset = preset_of(host)
        lines += [f"batch_size {preset.batch_size}", f"token2wav_batch_size {preset.token2wav_batch_size}"]
    return [*lines, "mps"] if wants_mps(options, host) else lines


def _asked(args: argparse.Namespace) -> StackOptions:
    """Return the script's settings as those of a stack: GPUs and servers are only counted here."""
    extra = [Ports().triton.shifted(REPLICA_PORT_STEP * number) for number in range(1, args.servers_a_gpu)]
    return StackOptions(
        CheckpointLayout.under(args.checkpoint),
        args.work_dir,
        settings=dict(pair.partition("=")[::2] for pair in args.set),
        llm_backend=args.llm_backend,
        replicas=tuple(extra),
        llm_gpu="llm" if args.alone else None,
        token2wav_gpus=("token2wav",) if args.alone else (),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cosydit.stack.host", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=DEVICES, default=default_device())
    parser.add_argument("--llm-backend", choices=(AUTO, *(name.value for name in LLMBackend)), default=AUTO)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--work-dir", type=Path, required=True)
    parser.add_argument("--alone", action="store_true", help="the LLM has a GPU to itself")
    parser.add_argument("--servers-a-gpu", type=int, default=1, metavar="N", help="token2wav servers on each GPU")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="setting that the user gave")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
