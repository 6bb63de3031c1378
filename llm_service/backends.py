"""The servers of the speech-token LLM behind one HTTP contract: their command lines, and which one this host takes.

`--backend auto`, and `--llm-backend auto` of the commands that start services: on a GPU trtllm-serve where it is
installed and starts, and can have the checkpoint without loss; else our own engine. Without one: our own engine on the
CPU. vLLM is taken by name only. Starts nothing.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from llm_service.adapters import TRTLLM_MODULE_DIR, TRTLLM_SERVE_OPTIONS, VLLM_PLUGIN_DIR
from llm_service.config import LLMBackend, ServerConfig
from llm_service.errors import BackendUnavailableError, CheckpointError
from llm_service.huggingface_layout import has_speech_form, stores_head_bias
from llm_service.text_encoder import TOKENIZER_FILE
from servicekit.extras import install_command, installed_version, own_command

logger = logging.getLogger(__name__)

AUTO = "auto"
GPU_DEVICE = "cuda"
TRTLLM_SERVE, VLLM = "trtllm-serve", "vllm"
GRAPH_TOKENS = 512
"""Tokens of vLLM's largest step that runs as CUDA graphs. A step that a prompt enters has about 200. Beyond vLLM's own
bound, twice the batch, kernels are launched one by one: such a step takes five times as long, for everybody in it."""
RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
"""Chooses vLLM's model runner, unless the user has: the newer one samples on the GPU, seeds and penalties included."""
NEWER_RUNNER = "1"
PENALTY_SAMPLER = "TRTLLMSampler"
"""Sampler that applies penalties; the default one of these releases ignores them (TensorRT-LLM's issue 9442). Later
releases apply them in the default one. The gateway asks in any case (`--llm-sampling-probe`)."""
_PENALTY_SAMPLER_FROM, _PENALTY_SAMPLER_UNTIL = (1, 1), (1, 3)
PROBE_TIMEOUT_S = 180.0
"""Seconds for a probe: TensorRT-LLM takes tens of seconds to import on a cold disk."""
SHOWN_BYTES = 300
_CPU_BUILD = "+cpu"
_INSTALL = {
    VLLM: "install it with: pip install vllm (needs a GPU)",
    TRTLLM_SERVE: "install TensorRT-LLM (pip install tensorrt_llm) or run in the image "
    "nvcr.io/nvidia/tensorrt-llm/release",
}
_MAKE_IT = (
    "give --model-dir and --tokenizer-dir, in a container mount them; "
    "stages 0 and 1 of run_stepaudio2_dit_token2wav.sh make a checkpoint and the form that vllm and trtllm read"
)
_EMBEDDED_MODULES = ("torch", "safetensors")

Succeeds = Callable[[Sequence[str]], bool]


def command_of(backend: LLMBackend, config: ServerConfig) -> list[str]:
    """Return the command line that serves `config`; limits that were not given are left to the engine."""
    if backend is LLMBackend.EMBEDDED:
        return [sys.executable, "-m", "llm_service", "--backend", backend.value, *config.options(backend)]
    return _trtllm_command(config) if backend is LLMBackend.TRTLLM else _vllm_command(config)


def check_backend(backend: LLMBackend, config: ServerConfig) -> None:
    """Check that the command can start.

    Raises:
        BackendUnavailableError: its program is missing; the message says what to install.
        CheckpointError: a directory is missing or incomplete, or the server would lose a part of the checkpoint.
    """
    _require_directories(config)
    if backend is LLMBackend.EMBEDDED:
        missing = [name for name in _EMBEDDED_MODULES if importlib.util.find_spec(name) is None]
        if missing:
            command = install_command("llm-embedded")
            raise BackendUnavailableError(f"the embedded backend needs {', '.join(missing)}; install with: {command}")
        return
    program = TRTLLM_SERVE if backend is LLMBackend.TRTLLM else VLLM
    if shutil.which(program) is None:
        raise BackendUnavailableError(f"{program} is not on PATH; {_INSTALL[program]}")
    _require_served_form(backend, config.model_dir)


def _require_directories(config: ServerConfig) -> None:
    if not config.model_dir.is_dir():
        raise CheckpointError(f"model directory {config.model_dir} does not exist; {_MAKE_IT}")
    path = config.tokenizer_dir / TOKENIZER_FILE
    if not path.is_file():
        raise CheckpointError(f"{path} is missing; {_MAKE_IT}")


def _require_served_form(backend: LLMBackend, model_dir: Path) -> None:
    """Check that stock Qwen2 loses nothing: vLLM refuses a bias of the head, TensorRT-LLM drops it, and speaks text."""
    if not (model_dir / "config.json").is_file() or has_speech_form(model_dir):
        return
    command = own_command(f"convert-llm huggingface {model_dir} DIRECTORY")
    if stores_head_bias(model_dir):
        raise CheckpointError(
            f"{model_dir} is stock Qwen2 with a bias in its speech head, which {backend.value} has no room for; "
            f"convert it once and serve the result: {command}"
        )
    logger.warning(
        "%s serves %s as stock Qwen2; it stores no bias of the speech head. If the model has one, convert it: %s",
        *(backend.value, model_dir, command),
    )


def _vllm_command(config: ServerConfig) -> list[str]:
    """Return `vllm serve`, which has one share for all its memory: kv_cache_free_gpu_memory_fraction becomes that."""
    command = [VLLM, "serve", str(config.model_dir), "--tokenizer", str(config.tokenizer_dir)]
    command += ["--host", config.host, "--port", str(config.port)]
    command += ["--served-model-name", config.served_model_name]
    command += ["--max-num-seqs", str(config.max_batch_size)]
    command += ["--max-cudagraph-capture-size", str(GRAPH_TOKENS)]
    command += ["--gpu-memory-utilization", str(config.kv_cache_free_gpu_memory_fraction)]
    command += _option("--max-num-batched-tokens", config.max_num_tokens)
    command += _option("--max-model-len", config.max_seq_len)
    command += _option("--stream-interval", config.stream_interval)
    if not has_speech_form(config.model_dir):
        return command
    paths = [str(VLLM_PLUGIN_DIR), *filter(None, [os.environ.get("PYTHONPATH")])]
    return ["env", f"PYTHONPATH={os.pathsep.join(paths)}", *command]


def _trtllm_command(config: ServerConfig) -> list[str]:
    command = [TRTLLM_SERVE, "serve", str(config.model_dir), "--tokenizer", str(config.tokenizer_dir)]
    command += ["--host", config.host, "--port", str(config.port)]
    command += ["--max_batch_size", str(config.max_batch_size)]
    command += ["--kv_cache_free_gpu_memory_fraction", str(config.kv_cache_free_gpu_memory_fraction)]
    command += _option("--max_num_tokens", config.max_num_tokens)
    command += _option("--max_seq_len", config.max_seq_len)
    if has_speech_form(config.model_dir):
        command += ["--custom_module_dirs", str(TRTLLM_MODULE_DIR)]
    return [*command, "--extra_llm_api_options", str(_options_file(config))]


def _option(name: str, value: object) -> list[str]:
    return [] if value is None else [name, str(value)]


def serve_options(stream_interval: int | None, version: str | None) -> str:
    """Return what `trtllm-serve` reads beside its command line, for its PyTorch backend: lines of YAML.

    Args:
        stream_interval: tokens in one event; None: its own.
        version: of TensorRT-LLM; None if it is not known here.
    """
    lines = [TRTLLM_SERVE_OPTIONS.read_text(encoding="utf-8").rstrip("\n")]
    release = re.match(r"(\d+)\.(\d+)", version or "")
    if release and _PENALTY_SAMPLER_FROM <= (int(release[1]), int(release[2])) < _PENALTY_SAMPLER_UNTIL:
        lines.append(f"sampler_type: {PENALTY_SAMPLER}")
    if stream_interval is not None:
        lines.append(f"stream_interval: {stream_interval}")
    return "\n".join(lines) + "\n"


def _options_file(config: ServerConfig) -> Path:
    """Return the file of options: the one that is there, or a new one in the folder for temporary files."""
    text = serve_options(config.stream_interval, installed_version("tensorrt_llm"))
    if text == TRTLLM_SERVE_OPTIONS.read_text(encoding="utf-8"):
        return TRTLLM_SERVE_OPTIONS
    # NOTE: no name that others of this machine could have taken before.
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix="cosydit-trtllm-", suffix=".yml", delete=False
    ) as file:
        file.write(text)
    return Path(file.name)


def succeeds(command: Sequence[str]) -> bool:
    """Tell whether a program is there and ends well."""
    if shutil.which(command[0]) is None:
        return False
    try:
        done = subprocess.run(command, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as err:
        logger.warning("%s can't be used: %s", command[0], err)
        return False
    if done.returncode:
        complaint = done.stderr[-SHOWN_BYTES:].decode("utf-8", "replace")
        logger.warning("%s ends with status %d: %s", command[0], done.returncode, complaint)
    return done.returncode == 0


def has_gpu(probe: Succeeds = succeeds) -> bool:
    """Tell whether the driver lists a GPU and torch is not its build for CPUs alone; without torch others may serve."""
    return not (installed_version("torch") or "").endswith(_CPU_BUILD) and probe(("nvidia-smi", "-L"))


def choose_backend(model_dir: Path, on_gpu: bool, probe: Succeeds = succeeds, can_convert: bool = False) -> LLMBackend:
    """Return the backend for a checkpoint on this host.

    Args:
        model_dir: the LLM; trtllm-serve keeps its head's bias only in the converted form.
        on_gpu: whether it is to run on one.
        probe: tells whether a command works.
        can_convert: whether the caller converts a stock LLM before it is served.
    """
    is_served_whole = can_convert or has_speech_form(model_dir)
    if on_gpu and is_served_whole and probe((TRTLLM_SERVE, "--help")):
        return LLMBackend.TRTLLM
    return LLMBackend.EMBEDDED
