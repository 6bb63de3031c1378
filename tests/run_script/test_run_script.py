"""The run script's command line: what it refuses, and which commands its stages are."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.workers import QuietHandler, listening

SCRIPT = ROOT / "run_stepaudio2_dit_token2wav.sh"


def run_script(
    *arguments: str, script: Path = SCRIPT, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the script with a bare environment, so that settings of the machine change nothing."""
    bare = {"PATH": os.environ["PATH"], "HOME": "/nonexistent-home", "COSYDIT_DEVICE": "cpu", **(env or {})}
    return subprocess.run(
        ["bash", str(script), *arguments], capture_output=True, text=True, env=bare, timeout=60, check=False
    )


def copy_script(directory: Path) -> Path:
    """Copy the script and what it sources to a place without an environment."""
    shutil.copytree(ROOT / "deploy", directory / "deploy")
    return Path(shutil.copy(SCRIPT, directory))


def planned(*arguments: str, script: Path = SCRIPT, **env: str) -> list[str]:
    """Return the commands of a dry run."""
    done = run_script("--dry-run", *arguments, script=script, env=env)
    assert done.returncode == 0, done.stderr
    return [line.removeprefix("+ ") for line in done.stdout.splitlines()]


def test_stage_1_converts_the_llm_for_the_server_that_will_run_it() -> None:
    assert not any("convert-llm" in line for line in planned("--llm-backend", "embedded", "1", "1"))
    for_vllm = [line.split()[1:3] for line in planned("--llm-backend", "vllm", "1", "1") if "convert-llm" in line]
    assert for_vllm == [["convert-llm", "huggingface"]]
    served = planned("--llm-backend", "trtllm", "3", "3")
    assert [line.split()[2] for line in served if "convert-llm" in line] == ["huggingface"]
    assert any("-m llm_service" in line and "/llm_converted" in line and "--tokenizer-dir" in line for line in served)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param([], "expected START and STOP", id="nothing"),
        pytest.param(["0"], "expected START and STOP", id="no-stop"),
        pytest.param(["0", "9"], "got 9, expected a stage", id="stage-too-large"),
        pytest.param(["-2", "0"], "got -2, expected a stage", id="stage-too-small"),
        pytest.param(["zero", "1"], "got zero, expected a stage", id="no-number"),
        pytest.param(["0", "1", "2"], "third stage", id="three-stages"),
        pytest.param(["5", "3"], "START 5 is after STOP 3", id="start-after-stop"),
        pytest.param(["--colour", "red", "0", "1"], "unknown option --colour", id="unknown-option"),
        pytest.param(["0", "1", "--llm-port"], "--llm-port needs a value", id="no-value"),
        pytest.param(["--llm-port", "http", "0", "1"], "LLM_PORT is 'http'", id="bad-port"),
        pytest.param(["--model", "huge", "0", "1"], "--model is 'huge'", id="bad-model"),
        pytest.param(["--llm-backend", "abacus", "0", "1"], "--llm-backend is 'abacus'", id="bad-backend"),
        pytest.param(["--device", "tpu", "0", "1"], "--device is 'tpu'", id="bad-device"),
        pytest.param(["--checkpoint", "/none", "-1", "3"], "--checkpoint /none is missing", id="no-checkpoint"),
        pytest.param(["say"], "say needs a TEXT", id="say-nothing"),
    ],
)
def test_bad_arguments_are_refused_with_the_usage(arguments: list[str], complaint: str) -> None:
    done = run_script(*arguments)
    assert done.returncode == 2
    assert "usage:" in done.stderr
    assert complaint in done.stderr.splitlines()[-1]


def test_help_is_printed_on_request() -> None:
    done = run_script("--help")
    assert done.returncode == 0
    assert "START STOP" in done.stdout


def test_stage_two_hands_the_settings_of_the_original_to_the_assembler() -> None:
    command = planned("2", "2", "--set", "ode_steps=5", BLS_INSTANCE_NUM="3", DECOUPLED_MODE="False")[0]
    assert "-m token2wav_service.serving.assemble" in command
    assert {"BLS_INSTANCE_NUM=3", "DECOUPLED_MODE=False", "ode_steps=5"} <= set(command.split())


def test_stage_three_starts_both_services_and_the_gateway_on_the_ports_of_the_original() -> None:
    llm, triton, gateway = planned("3", "3")
    assert "-m llm_service --backend embedded" in llm and "--port 8000 --device cpu --num-threads " in llm
    assert triton.endswith("--http-port 18000 --grpc-port 8001 --metrics-port 8002")
    assert "-m gateway --port 8080" in gateway


def test_ports_are_settings() -> None:
    ports = ("--llm-port", "1", "--triton-grpc-port", "2", "--llm-grpc-port", "4")
    llm, triton, gateway = planned("3", "3", *ports, GATEWAY_PORT="3")
    assert "--port 1 " in llm and "--grpc-port 4" in llm
    assert "--grpc-port 2 " in triton
    assert "--port 3 --llm-url grpc://127.0.0.1:4 " in gateway and "--token2wav-url 127.0.0.1:2 " in gateway


def test_stage_seven_starts_one_llm_and_each_token2wav_server_on_ports_of_its_own() -> None:
    commands = planned("7", "7", "--token2wav-servers", "3")
    servers = [command for command in commands if "-m token2wav_service.serving --model-repository" in command]
    assert sum("-m llm_service" in command for command in commands) == 1
    assert [server.partition("--http-port")[2].split()[::2] for server in servers] == [
        ["17000", "18000", "16000"],
        ["17001", "18001", "16001"],
        ["17002", "18002", "16002"],
    ]
    assert "triton_grpc_address=127.0.0.1:18002" in commands[5]


def test_whole_waveform_mode_reaches_the_benchmark() -> None:
    assert "--mode offline" in planned("4", "4", DECOUPLED_MODE="False")[0]
    assert "--mode streaming" in planned("4", "4")[0]


def test_official_weights_come_through_the_lock_file() -> None:
    commands = planned("0", "0", "--model", "official", "--offline")
    download = next(command for command in commands if "cosydit download" in command)
    assert "--lock" in download and download.endswith("--offline") and "pip install" not in str(commands)
    assert re.search(r"--lock \S*/deploy/models.lock.json --own-lock \S*/models.lock.json", download)


def test_a_stage_without_its_environment_says_which_stage_makes_it(tmp_path: Path) -> None:
    done = run_script("2", "3", script=copy_script(tmp_path))
    assert done.returncode == 1
    assert "-1 3" in done.stderr


def test_only_python_310_to_312_makes_the_environment(tmp_path: Path) -> None:
    script = copy_script(tmp_path)
    (tmp_path / "old-python").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "old-python").chmod(0o755)
    done = run_script("-1", "-1", script=script, env={"COSYDIT_PYTHON": str(tmp_path / "old-python")})
    assert done.returncode == 1
    assert "no Python 3.10, 3.11 or 3.12" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_a_manifest_reaches_the_benchmarks() -> None:
    streaming, batch = planned("4", "5", "--manifest", "texts.txt")
    assert "--manifest-path texts.txt" in streaming and "--manifest-path texts.txt" in batch


FAKE_PIP = """#!/usr/bin/env bash
echo "pip: $* with $PYTHONWARNINGS" >&2
dd if=/dev/zero of="$(dirname "$0")/../big" bs=1M count=3 status=none
sleep 2.5
[[ $* != *broken* ]]
"""
INSTALL = """
set -euo pipefail
log() { printf '%s\n' "$*" >&2; }
ROOT=$1 VENV=$2 PYTHON=$2/bin/python DEVICE=cpu INSTALL_REPORT_S=1
source "$ROOT/deploy/lib/environment.sh"
announce_install "token2wav,cpu$4"
pip_install "$3" || echo "pip failed with $?" >&2
log "ready: $(installed_mb) MB"
"""


@pytest.mark.parametrize(
    ("package", "is_good", "extras", "size_mb"), [("something", True, "", 1700), ("broken", False, ",test,docs", 3700)]
)
def test_an_install_says_what_comes_and_how_far_it_is(
    tmp_path: Path, package: str, is_good: bool, extras: str, size_mb: int
) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(FAKE_PIP)
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", INSTALL, "install", str(ROOT), str(tmp_path), package, extras],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = done.stderr.splitlines()
    assert "Triton" in said[0] and f"{size_mb} MB on disk" in said[0] and "3 to 10 minutes" in said[1]
    assert any(line.endswith(f"{package} with ignore:Editable installation") for line in said), said
    reports = [line for line in said if re.fullmatch(r"environment: \d+ MB after \d+ s", line)]
    assert reports, said
    assert re.fullmatch(r"ready: [3-9] MB", said[-1]), "the reporter has ended before"
    assert ("pip failed with 1" in said) is not is_good


def test_an_old_pip_will_do_where_no_other_is_within_reach(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/usr/bin/env bash\nif [[ $* == *install* ]]; then exit 1; fi\necho pip 23\n")
    python.chmod(0o755)
    script = INSTALL[: INSTALL.index("announce_install")] + "upgrade_pip\n"
    done = subprocess.run(
        ["bash", "-c", script, "install", str(ROOT), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert re.search(r"pip==[\d.]+ is not within reach; going on with pip 23", done.stderr)


def test_stages_convert_the_llm_before_they_serve_it() -> None:
    for stage in ("3", "7"):
        commands = planned(stage, stage, "--llm-backend", "vllm")
        convert = next(index for index, line in enumerate(commands) if "convert-llm huggingface" in line)
        serve = next(index for index, line in enumerate(commands) if "-m llm_service" in line)
        assert convert < serve and "/llm_converted" in commands[serve]


FAKE_PYTHON = """#!/usr/bin/env bash
if [[ $* == *cosydit.stack.host* ]]; then
  echo "$*" >>"$(dirname "$0")/asked"
  printf '%s\\n' 'llm_backend vllm' 'llm_option --max-batch-size' 'llm_option 64' 'setting device=cuda' \\
    'setting max_streams=400' 'setting TRITON_MAX_BATCH_SIZE=64' 'batch_size 256' mps
fi
"""


@pytest.fixture
def gpu_script(tmp_path: Path) -> Path:
    """Return a copy of the script whose environment answers as on a GPU host."""
    script = copy_script(tmp_path)
    program = tmp_path / ".venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(FAKE_PYTHON)
    program.chmod(0o755)
    return script


def test_on_a_gpu_every_stage_takes_what_the_host_chooses(gpu_script: Path) -> None:
    done = run_script("--dry-run", "--device", "cuda", "--model", "random", "1", "7", script=gpu_script)
    assert done.returncode == 0, done.stderr
    commands = done.stdout.splitlines()
    asked = (gpu_script.parent / ".venv" / "bin" / "asked").read_text().splitlines()
    assert len(asked) == 2 and "--servers-a-gpu 2" in asked[1], "stage 7 shares a GPU otherwise"
    assert all("--device cuda --llm-backend auto" in line for line in asked)
    assembled = next(line for line in commands if "serving.assemble" in line)
    assert assembled.split().count("device=cuda") == 1 and "max_streams=400" in assembled
    llm = next(line for line in commands if "-m llm_service" in line)
    assert "--backend vllm" in llm and "--max-batch-size 64" in llm
    batch = next(line for line in commands if "benchmarks.offline_batch" in line)
    assert "--batch-size" not in batch, "the batch chooses by the GPU's memory"
    alone = next(line for line in commands if "benchmarks.token2wav" in line)
    assert "--set max_streams=400" in alone and "TRITON" not in alone


def test_on_a_cpu_nothing_is_asked_and_batches_are_small() -> None:
    assert "--batch-size 4 --token2wav-batch-size 4" in planned("5", "5")[0]
    assert "--batch-size 9" in planned("5", "5", "--batch-size", "9")[0]


COMPILER = """
set -euo pipefail
log() { printf '%s\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }
PYTHON=$2/python DEVICE=$3
source "$1/deploy/lib/environment.sh"
apt-get() { echo "apt-get $*" >>"$CALLS"; touch "$CALLS.brought"; }
ensure_compiler
"""
FAKE_LOOK = """#!/usr/bin/env bash
if [[ $* == *missing_for_kernels* && ! -f $CALLS.brought ]]; then echo gcc libpython3.11-dev; fi
"""


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_on_a_gpu_host_the_environment_stage_brings_or_names_a_compiler(tmp_path: Path, device: str) -> None:
    (tmp_path / "python").write_text(FAKE_LOOK)
    (tmp_path / "python").chmod(0o755)
    calls = tmp_path / "calls"
    done = subprocess.run(
        ["bash", "-c", COMPILER, "ensure", str(ROOT), str(tmp_path), device],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "CALLS": str(calls)},
        timeout=60,
        check=False,
    )
    if device == "cpu":
        assert done.returncode == 0 and not calls.exists()
    elif os.geteuid() == 0:
        assert "gcc libpython3.11-dev" in calls.read_text() and done.returncode == 0, done.stderr
    else:
        assert done.returncode == 1 and "install the packages gcc libpython3.11-dev" in done.stderr


def test_packages_of_an_image_do_not_stand_before_those_of_the_environment() -> None:
    done = run_script("--dry-run", "3", "3", env={"PYTHONPATH": "/opt/image/packages"})
    assert done.returncode == 0 and "PYTHONPATH=/opt/image/packages is not passed on" in done.stderr


UNET, ROTARY = ROOT / "run_cosyvoice2.sh", ROOT / "run_cosyvoice3.sh"


@pytest.mark.parametrize(
    ("script", "ports"),
    [
        pytest.param(UNET, ("8003", "8000", "8001", "8002"), id="cosyvoice2"),
        pytest.param(ROTARY, ("8000", "18000", "18001", "18002"), id="cosyvoice3"),
    ],
)
def test_a_family_is_served_on_the_ports_of_its_original_script(script: Path, ports: tuple[str, ...]) -> None:
    assemble, llm, triton, gateway = planned("2", "3", script=script)
    llm_port, http, grpc, metrics = ports
    assert (
        f"llm_api_base=http://127.0.0.1:{llm_port}" in assemble and f"triton_grpc_address=127.0.0.1:{grpc}" in assemble
    )
    assert "ORIGINAL_MODELS=True" in assemble and "-random-checkpoint-0/token2wav" in assemble
    assert f"--port {llm_port} " in llm and "--grpc-port 8100" in llm
    assert triton.endswith(f"--http-port {http} --grpc-port {grpc} --metrics-port {metrics}")
    assert "--llm-url grpc://127.0.0.1:8100 " in gateway and f"--token2wav-url 127.0.0.1:{grpc} " in gateway


@pytest.mark.parametrize("script", [UNET, ROTARY], ids=lambda script: script.stem)
def test_stage_0_of_a_family_makes_downloads_and_accepts_that_family_alone(script: Path) -> None:
    family = script.stem.removeprefix("run_")
    make, verify = planned("0", "0", script=script)
    assert f"checkpoint make-random /nonexistent-home/.cache/cosydit/{family}-random-checkpoint-0" in make
    assert make.endswith(f"--family {family}") and verify.endswith(f"--family {family}")
    download = planned("0", "0", "--model", "official", script=script)[-2]
    assert f"--family {family} " in download and f"/deploy/models.{family}.lock.json" in download
    assert not any("--family" in line for line in planned("0", "0", "--model", "demo"))


def test_cosyvoice2_s_stages_are_those_of_the_originals_run_sh() -> None:
    (benchmark,) = planned("5", "5", script=UNET)
    assert "--model-name cosyvoice2 --mode streaming --num-tasks 4" in benchmark and "--server-port 8001" in benchmark
    assert planned("4", "4", script=UNET) == [], "a model that streams takes no plain HTTP"
    (http,) = planned("4", "4", script=UNET, DECOUPLED_MODE="False")
    assert "client triton-http --server-url 127.0.0.1:8000 --model-name cosyvoice2" in http
    (batch,) = planned("6", "6", script=UNET)
    assert "--batch-size 4 --token2wav-batch-size 4" in batch
    assert "BLS_INSTANCE_NUM=4" in planned("2", "2", script=UNET)[0].split()


def test_cosyvoice3_s_stages_are_those_of_the_original_script() -> None:
    benchmark, batch = planned("4", "5", script=ROTARY)
    assert "--server-port 18001 --model-name cosyvoice3" in benchmark
    assert "benchmarks.offline_batch" in batch
    refused = run_script("6", "6", script=ROTARY)
    assert refused.returncode == 2 and "got 6, expected a stage, -1 to 5" in refused.stderr


def test_with_the_cache_of_voices_the_repository_has_them_and_no_reference_is_sent() -> None:
    takes_over, assemble = planned("2", "2", script=UNET, USE_SPK2INFO_CACHE="True")
    assert "import-voices" in takes_over and "/token2wav/spk2info.pt --out " in takes_over
    assert "USE_SPK2INFO_CACHE=True" in assemble and "default_voice=001" in assemble
    assert takes_over.split("--out ")[1].split()[0] == assemble.split("created_voices_dir=")[1].split()[0]
    (benchmark,) = planned("5", "5", script=UNET, USE_SPK2INFO_CACHE="True")
    assert "--use-spk2info-cache True" in benchmark and "--voices-dir" not in benchmark


def test_on_a_gpu_a_family_is_measured_in_the_originals_batch_sizes(gpu_script: Path) -> None:
    script = Path(shutil.copy(UNET, gpu_script.parent))
    done = run_script("--dry-run", "--device", "cuda", "--model", "random", "6", "6", script=script)
    assert done.returncode == 0, done.stderr
    sizes = re.findall(r"offline_batch_(\d+) .* --batch-size (\d+) --token2wav-batch-size 1", done.stdout)
    assert sizes == [(size, size) for size in ("16", "8", "4", "2", "1")]


def test_the_last_value_of_a_repository_setting_counts() -> None:
    (command,) = planned("2", "2", "--set", "ORIGINAL_MODELS=False", script=UNET)
    assert command.count("ORIGINAL_MODELS=") == 1 and "ORIGINAL_MODELS=False" in command


def test_a_family_s_script_has_stages_alone() -> None:
    refused = run_script("say", "hello", script=ROTARY)
    assert refused.returncode == 2 and "got say, expected a stage" in refused.stderr


@pytest.mark.slow
def test_an_interrupt_while_a_service_is_awaited_leaves_no_traceback() -> None:
    class Interrupting(QuietHandler):
        def do_GET(self) -> None:
            os.killpg(waiting.pid, signal.SIGINT)

    with listening(Interrupting) as port:
        words = ["bash", "-c", 'source deploy/lib/services.sh; answers "$1"', "wait", f"http://127.0.0.1:{port}/"]
        pipe, env = subprocess.PIPE, {**os.environ, "PYTHON": sys.executable}
        waiting = subprocess.Popen(words, stderr=pipe, text=True, env=env, cwd=ROOT, start_new_session=True)
        assert waiting.communicate(timeout=60)[1] == ""
    assert waiting.returncode != 0
