"""A TensorRT-LLM checkpoint, the engine that a stand-in builds of it, and the model class for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from llm_service.adapters import TRTLLM_ENGINE_FILE
from llm_service.errors import BackendUnavailableError, BuildError, CheckpointError
from llm_service.export import convert as conversions
from llm_service.export.convert import TRTLLM, build_trtllm, convert
from llm_service.export.source import SpeechLMSource
from llm_service.export.trtllm import MATRICES, checkpoint_tensors
from llm_service.export.trtllm_build import BuildLimits, build_command
from llm_service.huggingface_layout import FIRST_ID_KEY, ROWS_KEY
from llm_service.qwen2 import qwen2_config
from llm_service.speech_head import speech_rows
from llm_service.vocab import COSYVOICE2, PADDED_VOCABULARY_SIZE, SPEECH_HEAD_ROWS, SPEECH_TOKEN_OFFSET
from tests.file_modes import assert_all_have_the_usual_mode
from tests.llm_service.export.stand_ins import load, stand_in

PROMPT = [158227, 5, 6, 158228, 151700]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_config_json_says_what_the_model_is(stock_dir: Path, tmp_path: Path, dtype: str) -> None:
    assert convert(TRTLLM, stock_dir, tmp_path / "made", dtype)
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    expected = {
        "architecture": "Qwen2ForCausalLM",
        "qwen_type": "qwen2",
        "dtype": dtype,
        "logits_dtype": "float32",
        "vocab_size": 158336,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_size": 16,
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": 1e6,
        "norm_epsilon": 1e-6,
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1, "cp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
        "speech_head_first_id": 151663,
        "speech_head_rows": 6568,
    }
    assert {key: config[key] for key in expected} == expected
    tensors = load_file(tmp_path / "made" / "rank0.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {getattr(torch, dtype)}
    assert (tensors["lm_head.bias"][SPEECH_HEAD_ROWS:] < -29000).all()


@pytest.mark.slow
def test_the_checkpoint_computes_the_sources_logits(stock_dir: Path, source: SpeechLMSource, tmp_path: Path) -> None:
    convert(TRTLLM, stock_dir, tmp_path / "made", "float32")
    tensors = load_file(tmp_path / "made" / "rank0.safetensors")
    decoder = read_back(tensors, source)
    assert decoder.keys() == source.decoder.keys()
    head = (tensors["lm_head.weight"][:SPEECH_HEAD_ROWS], tensors["lm_head.bias"][:SPEECH_HEAD_ROWS])
    got = logits(source, decoder, tensors["transformer.vocab_embedding.weight"], *head)
    assert torch.equal(got, logits(source, source.decoder, source.embedding, source.head.weight, source.head.bias))


def logits(source: SpeechLMSource, decoder: object, embedding: torch.Tensor, *head: torch.Tensor) -> torch.Tensor:
    # NOTE: imported by those who use it: its import takes seconds, and every worker imports this file.
    from transformers import Qwen2Config, Qwen2Model

    model = Qwen2Model(Qwen2Config.from_dict(qwen2_config(source.shape)))
    model.load_state_dict(dict(decoder) | {"embed_tokens.weight": embedding})  # type: ignore[call-overload]
    with torch.inference_mode():
        hidden = model(torch.tensor([PROMPT])).last_hidden_state[0]
        return hidden @ head[0].float().T + head[1].float()


def read_back(tensors: dict[str, torch.Tensor], source: SpeechLMSource) -> dict[str, torch.Tensor]:
    """Return the decoder's tensors by Transformers' names."""
    shape = source.shape
    sizes = [shape.hidden, shape.key_value_size, shape.key_value_size]
    decoder = {"norm.weight": tensors["transformer.ln_f.weight"]}
    for index in range(shape.layers):
        layer = f"transformer.layers.{index}"
        for kind in ("weight", "bias"):
            parts = torch.split(tensors[f"{layer}.attention.qkv.{kind}"], sizes)
            names = [f"layers.{index}.self_attn.{name}_proj.{kind}" for name in "qkv"]
            decoder |= dict(zip(names, parts, strict=True))
        decoder |= {f"layers.{index}.{theirs}": tensors[f"{layer}.{name}"] for name, theirs in MATRICES.items()}
    return decoder


def test_a_rerun_with_nothing_to_do_opens_no_model(
    stock_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    assert convert(TRTLLM, stock_dir, made, "float32")
    assert_all_have_the_usual_mode(made)

    def refuse(*_: object) -> None:
        raise AssertionError("the model was read")

    monkeypatch.setattr(conversions, "read_source", refuse)
    assert not convert(TRTLLM, stock_dir, made, "float32")
    with pytest.raises(AssertionError, match="the model was read"):
        convert(TRTLLM, stock_dir, made, "float16")
    assert json.loads((made / "config.json").read_text())["dtype"] == "float32"


# Takes trtllm-build's documented options. Not the real program, which can't be installed here.
STAND_IN = """#!{python}
import argparse, pathlib, sys
parser = argparse.ArgumentParser()
for name in ("checkpoint_dir", "output_dir", "model_cls_file", "model_cls_name", "gemm_plugin", "max_seq_len"):
    parser.add_argument("--" + name)
for name in ("max_batch_size", "max_num_tokens"):
    parser.add_argument("--" + name, type=int)
args = parser.parse_args()
print("[TensorRT-LLM] building", flush=True)
out = pathlib.Path(args.output_dir)
(pathlib.Path(__file__).parent / "calls").open("a").write(" ".join(sys.argv[1:]) + chr(10))
{body}
"""
BUILDS = "(out / 'rank0.engine').write_bytes(b'engine'); (out / 'config.json').write_text('{}')"
FAILS = "print('Error Code 4: no kernel for layer lm_head', file=sys.stderr); sys.exit(3)"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """What the converter writes, without the weights."""
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"dtype": "bfloat16"}))
    (directory / "rank0.safetensors").write_bytes(b"weights")
    return directory


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """Put a stand-in on PATH; return the file that lists its calls."""
    programs = tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    program = programs / "trtllm-build"
    program.write_text(STAND_IN.format(python=sys.executable, body=body))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    return programs / "calls"


def test_the_command_is_the_documented_one(checkpoint: Path) -> None:
    command = build_command(checkpoint, Path("engine"), BuildLimits())
    expected = (
        f"trtllm-build --checkpoint_dir {checkpoint} --output_dir engine --model_cls_file {TRTLLM_ENGINE_FILE} "
        "--model_cls_name SpeechQwen2ForCausalLM --max_batch_size 64 --max_num_tokens 32768 --gemm_plugin bfloat16"
    )
    assert command == expected.split()
    other = " ".join(build_command(checkpoint, Path("engine"), BuildLimits(8, 64, 1024)))
    assert "--max_batch_size 8 --max_num_tokens 64" in other
    assert other.endswith("--max_seq_len 1024")


def test_an_engine_is_built_once(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install(tmp_path, monkeypatch, BUILDS)
    engine = tmp_path / "engine"
    assert build_trtllm(checkpoint, engine, BuildLimits())
    assert not build_trtllm(checkpoint, engine, BuildLimits())
    assert len(calls.read_text().splitlines()) == 1
    assert build_trtllm(checkpoint, engine, BuildLimits(max_batch_size=8))
    assert len(calls.read_text().splitlines()) == 2
    assert (engine / "rank0.engine").read_bytes() == b"engine"
    assert "building" in (tmp_path / "engine.build.log").read_text()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(FAILS, r"status 3; .*engine\.build\.log:\n(.|\n)*no kernel for layer lm_head", id="fails"),
        pytest.param("pass", "wrote no engine", id="forgets"),
    ],
)
def test_a_failed_build_says_why_and_leaves_no_engine(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, message: str
) -> None:
    install(tmp_path, monkeypatch, body)
    with pytest.raises(BuildError, match=message):
        build_trtllm(checkpoint, tmp_path / "engine", BuildLimits())
    assert not (tmp_path / "engine").exists()


def test_a_missing_builder_is_named_with_the_version_that_has_it(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BackendUnavailableError, match=r"trtllm-build is not on PATH.*1\.2\.1"):
        build_trtllm(checkpoint, tmp_path / "engine", BuildLimits())


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no TensorRT-LLM checkpoint"):
        build_trtllm(tmp_path, tmp_path / "engine", BuildLimits())


SPEECH_ROWS = speech_rows(COSYVOICE2)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The model class that trtllm-build loads, on stand-ins that compute at once with torch."""

    class ColumnLinear:
        def __init__(self, in_features: int, out_features: int, **options: Any) -> None:
            self.options = options
            self.weight, self.bias = torch.zeros(out_features, in_features), torch.zeros(out_features)

        def forward(self, x: torch.Tensor, lora_runtime_params: Any = None) -> torch.Tensor:
            return functional.linear(x, self.weight, self.bias)

    class QWenForCausalLM:
        def __init__(self, config: Any) -> None:
            self.lm_head: Any = None

    def cast(x: torch.Tensor, dtype: str) -> torch.Tensor:
        return x.to(getattr(torch, dtype))

    def pad(x: torch.Tensor, pad: list[int], mode: str = "constant", value: float | None = None) -> torch.Tensor:
        return functional.pad(x, pad, mode, value)

    stand_in(monkeypatch, "tensorrt_llm.functional", cast=cast, pad=pad)
    stand_in(monkeypatch, "tensorrt_llm.layers", ColumnLinear=ColumnLinear)
    stand_in(monkeypatch, "tensorrt_llm.models", QWenForCausalLM=QWenForCausalLM)
    yield load(TRTLLM_ENGINE_FILE, "models")


def test_an_engines_logits_are_the_sources_and_nothing_else_can_come_out(
    engine: ModuleType, source: SpeechLMSource
) -> None:
    tensors = checkpoint_tensors(source, torch.float32)
    sizes = {"hidden_size": 64, "vocab_size": PADDED_VOCABULARY_SIZE, "dtype": "bfloat16"}
    head = {FIRST_ID_KEY: SPEECH_TOKEN_OFFSET, ROWS_KEY: len(tensors["lm_head.bias"])}
    model = engine.SpeechQwen2ForCausalLM(SimpleNamespace(**sizes, **head))
    assert model.lm_head.options["bias"] is True
    model.lm_head.weight, model.lm_head.bias = tensors["lm_head.weight"], tensors["lm_head.bias"]
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    logits = model.lm_head.forward(hidden)
    assert logits.shape == (3, PADDED_VOCABULARY_SIZE)
    assert logits.dtype == torch.float32
    expected = hidden @ source.head.weight.float().T + source.head.bias.float()
    torch.testing.assert_close(logits[:, SPEECH_ROWS], expected, atol=1e-5, rtol=0)
    others = torch.cat([logits[:, : SPEECH_ROWS.start], logits[:, SPEECH_ROWS.stop :]], dim=1)
    assert (others == -30000).all()
