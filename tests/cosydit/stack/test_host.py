"""What a GPU host changes: the LLM's backend and form, and the settings of both services. No GPU is needed."""

from __future__ import annotations

import dataclasses
import itertools
import runpy
from pathlib import Path

import pytest

from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from cosydit.stack.gpu_presets import (
    BLOCK_STREAM_BYTES,
    BLOCK_VOICE_BYTES,
    CONTEXT_BYTES,
    LONGEST_VOICE_BYTES,
    PRESETS,
    STREAM_BYTES,
    TOKEN2WAV_BYTES,
    preset_for,
)
from cosydit.stack.host import (
    Machine,
    describe_choice,
    find_host,
    for_host,
    preset_of,
    script_lines,
    served_form,
    wants_mps,
    with_served_form,
)
from cosydit.stack.stack import Ports, StackOptions, llm_spec
from llm_service.checkpoint import make_random_llm
from llm_service.config import LLMBackend
from llm_service.huggingface_layout import has_speech_form
from servicekit.gpu_host import MIB, GpuFacts
from tests import ROOT
from tests.cosydit.stack.gpu_hosts import A4000, H100, H200, KINDS, L4


def gpu_host(*gpus: GpuFacts, has_trtllm: bool = False) -> Machine:
    return Machine(gpus, lambda _, on_gpu: LLMBackend.TRTLLM if has_trtllm and on_gpu else LLMBackend.EMBEDDED)


def options_of(tmp_path: Path, **changes: object) -> StackOptions:
    options = StackOptions(CheckpointLayout.under(tmp_path / "checkpoint"), tmp_path, Ports(), llm_backend="auto")
    return dataclasses.replace(options, **changes)  # type: ignore[arg-type]


def test_without_a_gpu_nothing_is_set(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    assert for_host(options, Machine()) == dataclasses.replace(options, llm_backend="embedded")
    assert describe_choice(options, Machine()) == []
    assert find_host("cpu") == Machine()
    with pytest.raises(ValueError, match="expected one of auto, cpu, cuda"):
        find_host("tpu")


@pytest.mark.parametrize(("gpu", "streams", "voices"), [(H100, 480, 16), (H200, 1000, 20)], ids=["H100", "H200"])
def test_a_large_gpu_serves_with_the_settings_of_the_published_figures(
    tmp_path: Path, gpu: GpuFacts, streams: int, voices: int
) -> None:
    chosen = for_host(options_of(tmp_path), gpu_host(gpu))
    assert chosen.settings == {
        "device": "cuda",
        "dtype": "float16",
        "TRITON_MAX_BATCH_SIZE": "64",
        "max_streams": str(streams),
        "voice_cache_bytes": str(voices * 10**9),
    }
    assert chosen.llm_backend == "embedded"
    assert chosen.llm["device"] == "cuda"
    assert "--num-threads" not in llm_spec(chosen).command


@pytest.mark.parametrize("family", BLOCK_STREAM_BYTES)
def test_a_block_masked_flow_gets_as_many_streams_as_fit(tmp_path: Path, family: str) -> None:
    options = options_of(tmp_path)
    options.checkpoint.token2wav_dir.mkdir(parents=True)
    (options.checkpoint.token2wav_dir / f"{family}.yaml").touch()
    for gpu in KINDS:
        settings = for_host(options, gpu_host(gpu)).settings
        preset, memory_bytes = preset_of(gpu_host(gpu)), gpu.memory_mib * MIB
        pool = (int(settings["max_streams"]) + 1) * BLOCK_STREAM_BYTES[family]
        services = 2 * CONTEXT_BYTES + TOKEN2WAV_BYTES
        llm = max(room.memory_share for room in preset.llm.values()) * memory_bytes
        assert pool + int(settings["voice_cache_bytes"]) + services + llm < memory_bytes
        assert int(settings["voice_cache_bytes"]) > 0.99 * BLOCK_VOICE_BYTES[family]
    assert int(for_host(options, gpu_host(H200)).settings["max_streams"]) > 150


def test_vllm_gets_the_settings_of_the_published_figures(tmp_path: Path) -> None:
    chosen = for_host(options_of(tmp_path, llm_backend="vllm"), gpu_host(H200))
    assert chosen.llm == {"max_batch_size": "64", "kv_cache_free_gpu_memory_fraction": "0.25", "stream_interval": "4"}


def test_what_the_user_gives_wins(tmp_path: Path) -> None:
    given = options_of(tmp_path, settings={"max_streams": "7"}, llm={"max_batch_size": "3"})
    chosen = for_host(given, gpu_host(H100))
    assert chosen.settings["max_streams"] == "7" and chosen.settings["dtype"] == "float16"
    assert chosen.llm["max_batch_size"] == "3"


def test_a_part_that_was_sent_to_the_cpu_stays_there(tmp_path: Path) -> None:
    given = options_of(tmp_path, settings={"device": "cpu"}, llm={"device": "cpu"})
    chosen = for_host(given, gpu_host(H100, has_trtllm=True))
    assert chosen.settings == {"device": "cpu"}
    assert (chosen.llm_backend, chosen.llm) == ("embedded", {"device": "cpu"})


def test_trtllm_is_taken_where_it_works(tmp_path: Path) -> None:
    chosen = for_host(options_of(tmp_path), gpu_host(H100, has_trtllm=True))
    assert chosen.llm_backend == "trtllm" and "device" not in chosen.llm


def test_servers_that_share_a_gpu_share_its_memory(tmp_path: Path) -> None:
    further = tuple(Ports().triton.shifted(10 * number) for number in (1, 2, 3))
    given = options_of(tmp_path, replicas=further, llm_gpu="0", token2wav_gpus=("1", "2"))
    chosen = for_host(given, gpu_host(H100))
    assert chosen.settings["max_streams"] == "240"
    assert wants_mps(chosen, gpu_host(H100))
    assert "0.15" not in chosen.llm.values(), "the LLM has a GPU to itself"
    one_each = options_of(tmp_path, llm_gpu="0", token2wav_gpus=("1",))
    assert not wants_mps(one_each, gpu_host(H100)) and wants_mps(options_of(tmp_path), gpu_host(H100))
    assert not wants_mps(options_of(tmp_path), Machine())


def test_each_kind_of_gpu_has_its_preset_and_the_preset_fits() -> None:
    assert [preset_of(gpu_host(gpu)).name for gpu in KINDS] == ["16gb", "24gb", "48gb", "80gb", "141gb"]
    for preset in PRESETS:
        memory_bytes = preset.least_mib * MIB
        for backend in preset.llm:
            pool = (preset.max_streams + 1) * STREAM_BYTES + LONGEST_VOICE_BYTES  # the buffers in which a prompt is run
            services = 2 * CONTEXT_BYTES + TOKEN2WAV_BYTES + preset.llm_bytes(backend, memory_bytes)
            assert services + pool + preset.voice_cache_bytes < memory_bytes
    assert preset_for(8_000) is PRESETS[0]


def test_a_gpu_that_others_use_gets_the_settings_of_what_is_free() -> None:
    busy = dataclasses.replace(H200, free_mib=30_000)
    assert preset_of(gpu_host(busy)).name == "24gb"
    assert preset_of(gpu_host(H100, L4)).name == "24gb", "the smallest GPU decides"


def test_the_choice_is_told_with_where_to_change_it(tmp_path: Path) -> None:
    chosen = for_host(options_of(tmp_path), gpu_host(A4000))
    gpu, token2wav, llm = describe_choice(chosen, gpu_host(A4000))
    assert "NVIDIA RTX A4000 (16 GiB)" in gpu and "16gb" in gpu
    assert "max_streams=32" in token2wav and "--token2wav-" in token2wav
    assert "embedded --device cuda" in llm and "--llm-" in llm


def test_the_script_reads_what_it_did_not_give(tmp_path: Path) -> None:
    asked = options_of(tmp_path, settings={"max_streams": "7"})
    lines = script_lines(for_host(asked, gpu_host(H100)), asked, gpu_host(H100))
    assert lines[:3] == ["llm_backend embedded", "llm_option --device", "llm_option cuda"]
    assert [line for line in lines if line.startswith("gateway")] == [
        "gateway_option --processes",
        "gateway_option auto",
    ]
    assert "setting dtype=float16" in lines and not any("max_streams" in line for line in lines)
    assert lines[-3:] == ["batch_size 256", "token2wav_batch_size 64", "mps"]
    assert script_lines(for_host(asked, Machine()), asked, Machine()) == ["llm_backend embedded"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["vllm", "trtllm"])
def test_vllm_and_trtllm_serve_the_converted_form_which_is_made_once(tmp_path: Path, backend: str) -> None:
    make_random_llm(tmp_path / "checkpoint" / "llm", seed=0)
    given = options_of(tmp_path, llm_backend=backend)
    served = with_served_form(given)
    assert served.llm_model_dir is not None and has_speech_form(served.llm_model_dir)
    written = (served.llm_model_dir / "model.safetensors").stat().st_mtime_ns
    command = list(llm_spec(with_served_form(given)).command)
    assert (served.llm_model_dir / "model.safetensors").stat().st_mtime_ns == written
    assert command[command.index("--model-dir") + 1] == str(served.llm_model_dir)
    assert command[command.index("--tokenizer-dir") + 1] == str(given.checkpoint.llm_dir)


def test_the_embedded_server_and_converted_llms_are_served_as_they_are(tmp_path: Path) -> None:
    llm_dir = tmp_path / "checkpoint" / "llm"
    llm_dir.mkdir(parents=True)
    assert served_form(llm_dir, "embedded", tmp_path) == llm_dir
    (llm_dir / "config.json").write_text('{"architectures": ["SpeechQwen2ForCausalLM"]}')
    assert served_form(llm_dir, "vllm", tmp_path) == llm_dir


def test_the_files_in_deploy_are_those_of_the_table() -> None:
    made: dict[Path, str] = runpy.run_path(str(ROOT / "deploy/make_gpu_files.py"))["deploy_files"]()
    for path, text in made.items():
        assert path.read_text("utf-8") == text, "run: python deploy/make_gpu_files.py"


def test_the_page_has_the_table() -> None:
    page = (ROOT / "docs/quick-start-gpu.md").read_text("utf-8")
    for preset in PRESETS:
        values = (preset.max_streams, preset.voice_cache_bytes, preset.step_streams, preset.llm["embedded"].slots)
        assert f"| {preset.memory} | `{preset.name}` | {' | '.join(map(str, values))} | {preset.source}" in page
        sizes = [preset.token2wav_settings(family=family) for family in BLOCK_STREAM_BYTES]
        cells = [f"{each['max_streams']} | {each['voice_cache_bytes']}" for each in sizes]
        assert f"| {preset.memory} | {' | '.join(cells)} |" in page


def test_half_of_a_gpu_holds_token2wav_of_the_next_smaller_preset() -> None:
    for smaller, larger in itertools.pairwise(PRESETS):
        needed = CONTEXT_BYTES + TOKEN2WAV_BYTES + smaller.max_streams * STREAM_BYTES + smaller.voice_cache_bytes
        assert needed < larger.least_mib * MIB / 2
