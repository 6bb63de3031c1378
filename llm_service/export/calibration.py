"""Measures the ranges of activations that SmoothQuant needs, while the model speaks.

The model continues each prompt by sampling, so both what it reads and what it says is measured. Knows nothing of
quantisation.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from tqdm import tqdm

from llm_service.errors import ConfigError
from llm_service.export.smooth_quant import LayerRanges, MatrixRange
from llm_service.export.source import SpeechLMSource
from llm_service.prompt import build_prompt
from llm_service.qwen2 import qwen2_config
from llm_service.text_encoder import load_text_encoder
from llm_service.vocab import SPEECH_TOKEN_COUNT

# As the reference draws, but for its repetition guard.
TOP_K = 25


@dataclass
class _Seen:
    """Running ranges of one linear layer."""

    input_max: torch.Tensor | None = None
    output_max: float = 0.0

    def update(self, inputs: torch.Tensor, outputs: torch.Tensor) -> None:
        largest = inputs.detach().abs().flatten(0, -2).amax(dim=0).float()
        self.input_max = largest if self.input_max is None else torch.maximum(self.input_max, largest)
        self.output_max = max(self.output_max, float(outputs.detach().abs().max()))

    def range(self) -> MatrixRange:
        assert self.input_max is not None  # every layer runs at each step
        return MatrixRange(self.input_max.cpu(), self.output_max)


@dataclass
class _Recorder:
    layers: list[dict[str, _Seen]] = field(default_factory=list)


def prompts_of(source: SpeechLMSource, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the model's input for each text, without a voice prompt."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, text in source.tokenizer_files.items():
            (Path(scratch) / name).write_text(text, encoding="utf-8")
        encoder = load_text_encoder(Path(scratch))
    vocabulary = encoder.vocabulary
    return [build_prompt(encoder.encode, "", text, (), vocabulary).token_ids for text in texts]


def measure_ranges(
    source: SpeechLMSource, prompts: Sequence[Sequence[int]], max_tokens: int, seed: int, device: str
) -> list[LayerRanges]:
    """Let the model continue every prompt and return the ranges of each layer.

    Args:
        source: the model; runs in float32.
        prompts: LLM ids, each `sos text task_id` and perhaps prompt speech tokens.
        max_tokens: speech tokens after each prompt, at most.
        seed: equal seeds give equal ranges on equal machines.
        device: torch device.

    Raises:
        ConfigError: there are no prompts.
    """
    if not prompts:
        raise ConfigError("SmoothQuant needs texts to measure activations with; give a file of at least one line")
    model = _model(source).to(device)
    head = (source.head.weight.float().to(device), source.head.bias.float().to(device))
    generator = torch.Generator().manual_seed(seed)
    with _recording(model) as recorder:
        for prompt in tqdm(prompts, desc="measuring activations", unit="text"):
            _speak(model, head, prompt, max_tokens, generator, source.vocabulary.first_id)
    return [_layer_ranges(seen) for seen in recorder.layers]


def _model(source: SpeechLMSource) -> Any:
    # NOTE: imported here, so that others can import this file in no time.
    from transformers import Qwen2Config, Qwen2Model

    config = Qwen2Config.from_dict(qwen2_config(source.shape))
    model: Any = Qwen2Model(config)
    model.eval()
    model.load_state_dict(dict(source.decoder) | {"embed_tokens.weight": source.embedding})
    return model


@contextmanager
def _recording(model: Any) -> Iterator[_Recorder]:
    recorder, handles = _Recorder(), []
    for layer in model.layers:
        seen: dict[str, _Seen] = {}
        for name, module in layer.named_modules():
            if isinstance(module, torch.nn.Linear):
                seen[name] = _Seen()
                handles.append(module.register_forward_hook(_hook(seen[name])))
        recorder.layers.append(seen)
    try:
        yield recorder
    finally:
        for handle in handles:
            handle.remove()


def _hook(seen: _Seen) -> Callable[[Any, tuple[torch.Tensor, ...], torch.Tensor], None]:
    def record(_: Any, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor) -> None:
        seen.update(inputs[0], outputs)

    return record


@torch.inference_mode()
def _speak(
    model: Any,
    head: tuple[torch.Tensor, torch.Tensor],
    prompt: Sequence[int],
    max_tokens: int,
    generator: torch.Generator,
    first_id: int,
) -> None:
    ids, cache = torch.tensor([list(prompt)], device=head[0].device), None
    for _ in range(max_tokens):
        output = model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        logits = functional.linear(output.last_hidden_state[0, -1], *head)
        best = logits.topk(TOP_K)
        drawn = int(best.indices[torch.multinomial(best.values.softmax(dim=0).cpu(), 1, generator=generator)])
        if drawn >= SPEECH_TOKEN_COUNT:
            return  # an end token
        ids = torch.tensor([[first_id + drawn]], device=ids.device)


def _layer_ranges(seen: dict[str, _Seen]) -> LayerRanges:
    queries, keys, values = (seen[f"self_attn.{name}_proj"] for name in ("q", "k", "v"))
    largest = max(queries.output_max, keys.output_max, values.output_max)
    return LayerRanges(
        qkv=MatrixRange(queries.range().input_max, largest),
        dense=seen["self_attn.o_proj"].range(),
        fc=seen["mlp.gate_proj"].range(),
        gate=seen["mlp.up_proj"].range(),
        proj=seen["mlp.down_proj"].range(),
    )
