"""The adapters use nothing of their engines but what is documented, and do what they should with it.

The engines themselves can't be installed here: small stand-ins with the documented interface drive the adapters'
control flow. They prove nothing about the engines.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from llm_service.adapters import TRTLLM_MODULE_DIR, VLLM_PLUGIN_DIR
from llm_service.export.source import SpeechLMSource
from llm_service.huggingface_layout import ARCHITECTURE, FIRST_ID_KEY, ROWS_KEY
from llm_service.qwen2 import qwen2_config
from llm_service.speech_head import speech_rows
from llm_service.vocab import COSYVOICE2


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> ModuleType:
    """Put a module in place of an engine's; its parents appear too."""
    parts = name.split(".")
    for depth in range(1, len(parts)):
        parent = ".".join(parts[:depth])
        if parent not in sys.modules:
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    module = ModuleType(name)
    for member, value in members.items():
        setattr(module, member, value)
    monkeypatch.setitem(sys.modules, name, module)
    return module


SPEECH_ROWS = speech_rows(COSYVOICE2)

VLLM_FILES = sorted(VLLM_PLUGIN_DIR.glob("speech_qwen2_vllm/*.py"))
PROMPT = [158227, 5, 6, 158228, 151700]


def imports_of(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def test_adapters_import_nothing_of_ours() -> None:
    for path in (TRTLLM_MODULE_DIR / "__init__.py", *VLLM_FILES):
        assert not any(name.startswith(("llm_service", "cosydit")) for name in imports_of(path)), path


class StandInDecoder(torch.nn.Module):
    """Transformers' Qwen2 in place of an engine's own."""

    def __init__(self, source: SpeechLMSource) -> None:
        super().__init__()
        # NOTE: imported by those who use it: its import takes seconds, and every worker imports this file.
        from transformers import Qwen2Config, Qwen2Model

        self.config = Qwen2Config.from_dict(
            qwen2_config(source.shape) | {FIRST_ID_KEY: COSYVOICE2.first_id, ROWS_KEY: COSYVOICE2.head_rows}
        )
        self.config.torch_dtype = torch.float32
        self.quant_config = None
        self.model = Qwen2Model(self.config)
        self.model.load_state_dict(dict(source.decoder) | {"embed_tokens.weight": source.embedding})

    def hidden(self) -> torch.Tensor:
        with torch.inference_mode():
            states: torch.Tensor = self.model(torch.tensor([PROMPT])).last_hidden_state[0]
        return states


def expected_logits(decoder: StandInDecoder, source: SpeechLMSource) -> torch.Tensor:
    return decoder.hidden() @ source.head.weight.float().T + source.head.bias


@pytest.fixture
def vllm_model(monkeypatch: pytest.MonkeyPatch, source: SpeechLMSource) -> Iterator[type]:
    """The plugin's model class, on stand-ins for what it imports of vLLM."""

    class Qwen2ForCausalLM(StandInDecoder):
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__(source)
            self.lm_head = self.logits_processor = None

    class ParallelLMHead(torch.nn.Module):
        def __init__(
            self,
            num_embeddings: int,
            embedding_dim: int,
            bias: bool = False,
            quant_config: Any = None,
            prefix: str = "",
        ) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(num_embeddings, embedding_dim))
            self.bias = torch.nn.Parameter(torch.empty(num_embeddings)) if bias else None
            self.prefix = prefix

    class LogitsProcessor(torch.nn.Module):
        def __init__(self, vocab_size: int) -> None:
            super().__init__()
            self.vocab_size = vocab_size

        def forward(self, head: Any, hidden: torch.Tensor | None, bias: torch.Tensor) -> torch.Tensor | None:
            return None if hidden is None else functional.linear(hidden, head.weight, bias)[:, : self.vocab_size]

    layers = "vllm.model_executor.layers"
    stand_in(monkeypatch, "vllm.distributed", get_pp_group=lambda: SimpleNamespace(is_last_rank=True))
    stand_in(monkeypatch, f"{layers}.logits_processor", LogitsProcessor=LogitsProcessor)
    stand_in(monkeypatch, f"{layers}.vocab_parallel_embedding", ParallelLMHead=ParallelLMHead)
    stand_in(monkeypatch, "vllm.model_executor.models.qwen2", Qwen2ForCausalLM=Qwen2ForCausalLM)
    module = load(VLLM_PLUGIN_DIR / "speech_qwen2_vllm" / "speech_qwen2.py", "speech_qwen2")
    yield module.SpeechQwen2ForCausalLM


def test_vllms_logits_are_the_sources_and_nothing_else_can_come_out(vllm_model: type, source: SpeechLMSource) -> None:
    model: Any = vllm_model(vllm_config=None, prefix="outer")
    assert model.lm_head.prefix == "outer.lm_head"
    model.lm_head.load_state_dict({"weight": source.head.weight, "bias": source.head.bias})
    with torch.inference_mode():
        logits = model.compute_logits(model.hidden())
        torch.testing.assert_close(logits[:, SPEECH_ROWS], expected_logits(model, source), atol=1e-5, rtol=0)
        assert logits.shape == (len(PROMPT), COSYVOICE2.table_rows)
        assert torch.isneginf(logits).sum() == len(PROMPT) * (COSYVOICE2.table_rows - COSYVOICE2.head_rows)
    assert model.compute_logits(None) is None


@pytest.mark.slow
def test_a_process_of_vllm_finds_and_registers_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text(
        "class ModelRegistry:\n"
        "    known = {}\n"
        "    get_supported_archs = classmethod(lambda cls: cls.known.keys())\n"
        "    register_model = classmethod(lambda cls, name, where: cls.known.update({name: where}))\n"
    )
    script = (
        "import json, vllm\n"
        "from importlib.metadata import entry_points\n"
        "plugins = [p for p in entry_points(group='vllm.general_plugins') if p.name == 'speech_qwen2']\n"
        "for plugin in plugins * 2: plugin.load()()\n"
        "print(json.dumps([len(plugins), vllm.ModelRegistry.known]))\n"
    )
    paths = os.pathsep.join([str(VLLM_PLUGIN_DIR), str(tmp_path)])
    run = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout) == [1, {ARCHITECTURE: f"speech_qwen2_vllm.speech_qwen2:{ARCHITECTURE}"}]


def test_tensorrt_llms_pytorch_backend_gives_the_sources_logits(
    monkeypatch: pytest.MonkeyPatch, source: SpeechLMSource
) -> None:
    registered: dict[str, type] = {}

    class Qwen2ForCausalLM(StandInDecoder):
        def __init__(self, model_config: Any) -> None:
            super().__init__(source)
            self.epilogue: list[Any] = []
            self.lm_head = None
            model_config.pretrained_config = self.config

    def register_auto_model(name: str) -> Any:
        return lambda model: registered.setdefault(name, model)

    models = "tensorrt_llm._torch.models"
    stand_in(monkeypatch, f"{models}.modeling_qwen", Qwen2ForCausalLM=Qwen2ForCausalLM)
    stand_in(monkeypatch, f"{models}.modeling_utils", register_auto_model=register_auto_model)
    load(TRTLLM_MODULE_DIR / "__init__.py", "speech_qwen2_trtllm")
    model: Any = registered[ARCHITECTURE](SimpleNamespace())
    model.lm_head.load_weights([{"weight": source.head.weight, "bias": source.head.bias}])
    with torch.inference_mode():
        logits = model.lm_head(model.hidden())
        torch.testing.assert_close(logits[:, SPEECH_ROWS], expected_logits(model, source), atol=1e-5, rtol=0)
        assert (logits == -30000).sum() == len(PROMPT) * (COSYVOICE2.table_rows - COSYVOICE2.head_rows)
        assert model.lm_head.skip_forward(model.hidden()).shape == logits.shape
    assert model.epilogue == [model.lm_head]
    assert model.lm_head.vocab_size_padded == COSYVOICE2.table_rows
