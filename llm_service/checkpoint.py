"""Writes a random speech-token LLM in Hugging Face layout: the official numbering at a toy or at the official size.

It speaks noise; it is for tests, for seeing the whole path run and, at full size, for measuring speed. What is in the
directory:

    config.json, generation_config.json   a Qwen2, by default of two layers
    model.safetensors, ...index.json      bf16; table of 158,336 rows; head rows of text tokens are zero
    speech_head.safetensors               the speech head with its bias, which stock Qwen2 has no room for:
                                          weight [6564, hidden], bias [6564]; row i is LLM id 151663 + i
    tokenizer.json, tokenizer_config.json, special_tokens_map.json   byte-level text, official special ids

`speech_head.safetensors` is optional in a checkpoint: the embedded server falls back to the rows of lm_head without a
bias. Knows nothing of the server.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from llm_service.config import SPEECH_HEAD_FILE
from llm_service.vocab import (
    END_IDS,
    END_TOKENS,
    INLINE_TAGS,
    PADDED_VOCABULARY_SIZE,
    SOS_ID,
    SOS_TOKEN,
    SPEECH_HEAD_ROWS,
    SPEECH_TOKEN_COUNT,
    SPEECH_TOKEN_OFFSET,
    TASK_ID,
    TASK_TOKEN,
    llm_id_from_speech_id,
    speech_token_text,
)

MAX_POSITIONS = 32768
ROPE_THETA = 1e6

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
ENDOFTEXT = "<|endoftext|>"
# In the official order; their ids end where the speech tokens begin.
INLINE_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endofprompt|>", *INLINE_TAGS)
# `<|sos|>` + user + `<|task_id|>`, the assistant's speech tokens as they are; no system turn, no generation prompt.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{{- '<|sos|>' + message['content'] + '<|task_id|>' }}"
    "{%- elif message['role'] == 'assistant' %}{{- message['content'] }}"
    "{%- else %}{{- raise_exception('only user and assistant messages are possible') }}{%- endif %}"
    "{%- endfor %}"
)

# Spread of the random logits: wide enough that an answer is neither uniform noise nor one repeated token.
LOGIT_STD = 1.5
# An end token with this bias practically never comes.
NEVER_LOGIT = -12.0


@dataclass(frozen=True)
class LLMShape:
    """Sizes of a random LLM, and how it ends."""

    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    feed_forward: int
    end_logit: float  # bias of the first end token, beside the spread of the other logits


# About 43 MB; an answer ends after some tens of tokens.
SMALL_LLM = LLMShape(hidden=64, layers=2, heads=4, key_value_heads=2, feed_forward=128, end_logit=4.2)
# About 1.3 GB, the sizes of CosyVoice2-0.5B; an answer runs to its bound, so that its length is known.
OFFICIAL_LLM = LLMShape(hidden=896, layers=24, heads=14, key_value_heads=2, feed_forward=4864, end_logit=NEVER_LOGIT)


def make_random_llm(directory: Path, seed: int, shape: LLMShape = SMALL_LLM) -> None:
    """Write the random LLM and its tokenizer into `directory` (made if missing).

    Equal seeds and shapes give equal files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", _model_config(shape))
    write_json(directory / "generation_config.json", generation_config())
    write_json(directory / "tokenizer.json", _tokenizer_description())
    write_json(directory / "tokenizer_config.json", tokenizer_config())
    write_json(directory / "special_tokens_map.json", special_tokens_map())
    generator = torch.Generator().manual_seed(seed)
    head = _speech_head(shape, generator)
    save_file(head, directory / SPEECH_HEAD_FILE)
    weights = _weights(shape, generator, head["weight"])
    save_file(weights, directory / WEIGHTS_FILE, metadata={"format": "pt"})
    # NOTE: vLLM reads every *.safetensors of a directory unless an index names the files.
    write_json(directory / INDEX_FILE, {"metadata": {}, "weight_map": dict.fromkeys(weights, WEIGHTS_FILE)})


def _speech_head(shape: LLMShape, generator: torch.Generator) -> dict[str, torch.Tensor]:
    # The final norm leaves hidden states of root mean square 1, so a row's logit has the row's norm as its spread.
    weight = torch.randn(SPEECH_HEAD_ROWS, shape.hidden, generator=generator) * (LOGIT_STD / shape.hidden**0.5)
    bias = torch.randn(SPEECH_HEAD_ROWS, generator=generator) * 0.1
    weight[SPEECH_TOKEN_COUNT:] *= 0.1
    bias[SPEECH_TOKEN_COUNT:] = torch.tensor([shape.end_logit, NEVER_LOGIT, NEVER_LOGIT])
    return {"weight": weight.to(torch.bfloat16), "bias": bias}


def _weights(shape: LLMShape, generator: torch.Generator, head: torch.Tensor) -> dict[str, torch.Tensor]:
    def normal(*shape: int) -> torch.Tensor:
        spread: float = shape[-1] ** -0.5
        return (torch.randn(*shape, generator=generator) * spread).to(torch.bfloat16)

    hidden, feed_forward = shape.hidden, shape.feed_forward
    speech_rows = slice(SPEECH_TOKEN_OFFSET, SPEECH_TOKEN_OFFSET + SPEECH_HEAD_ROWS)
    lm_head = torch.zeros(PADDED_VOCABULARY_SIZE, hidden, dtype=torch.bfloat16)
    lm_head[speech_rows] = head
    weights = {
        "model.embed_tokens.weight": _embedding(hidden, generator),
        "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
        "lm_head.weight": lm_head,
    }
    key_value = hidden // shape.heads * shape.key_value_heads
    for index in range(shape.layers):
        layer = {
            "input_layernorm.weight": torch.ones(hidden, dtype=torch.bfloat16),
            "post_attention_layernorm.weight": torch.ones(hidden, dtype=torch.bfloat16),
            "self_attn.q_proj.weight": normal(hidden, hidden),
            "self_attn.q_proj.bias": normal(hidden),
            "self_attn.k_proj.weight": normal(key_value, hidden),
            "self_attn.k_proj.bias": normal(key_value),
            "self_attn.v_proj.weight": normal(key_value, hidden),
            "self_attn.v_proj.bias": normal(key_value),
            "self_attn.o_proj.weight": normal(hidden, hidden),
            "mlp.gate_proj.weight": normal(feed_forward, hidden),
            "mlp.up_proj.weight": normal(feed_forward, hidden),
            "mlp.down_proj.weight": normal(hidden, feed_forward),
        }
        weights |= {f"model.layers.{index}.{name}": tensor for name, tensor in layer.items()}
    return weights


def _embedding(hidden: int, generator: torch.Generator) -> torch.Tensor:
    """Rows that no token uses stay zero, so that the file compresses well."""
    table = torch.zeros(PADDED_VOCABULARY_SIZE, hidden, dtype=torch.bfloat16)
    used = torch.tensor(sorted(_vocabulary().values()))
    table[used] = torch.randn(len(used), hidden, generator=generator).to(torch.bfloat16)
    return table


def _model_config(shape: LLMShape) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": PADDED_VOCABULARY_SIZE,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_value_heads,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-6,
        "rope_theta": ROPE_THETA,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "attention_dropout": 0.0,
        "bos_token_id": SOS_ID,
        "eos_token_id": END_IDS[0],
        "torch_dtype": "bfloat16",
    }


def generation_config() -> dict[str, Any]:
    """Return generation_config.json: stop ids, and how the original runtime samples."""
    return {
        "bos_token_id": SOS_ID,
        "eos_token_id": list(END_IDS),
        "pad_token_id": _special_ids()[ENDOFTEXT],
        "do_sample": True,
        "temperature": 0.8,
        "top_p": 0.95,
        "top_k": 50,
        "repetition_penalty": 1.1,
    }


def _special_ids() -> dict[str, int]:
    """Ids of every token that is not plain text; the text tokenizer's come last before the speech tokens."""
    text_tokens = (ENDOFTEXT, *INLINE_TOKENS)
    first = SPEECH_TOKEN_OFFSET - len(text_tokens)
    ids = {token: first + index for index, token in enumerate(text_tokens)}
    ids |= {speech_token_text(index): llm_id_from_speech_id(index) for index in range(SPEECH_TOKEN_COUNT)}
    return ids | dict(zip(END_TOKENS, END_IDS, strict=True)) | {SOS_TOKEN: SOS_ID, TASK_TOKEN: TASK_ID}


def _vocabulary() -> dict[str, int]:
    return {character: index for index, character in enumerate(_byte_alphabet())} | _special_ids()


def _byte_alphabet() -> list[str]:
    """The 256 characters that byte-level BPE writes bytes as, in Qwen2's order: printable ones first.

    Source: GPT-2's byte alphabet.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = 256 - len(printable)
    return [chr(code) for code in printable] + [chr(256 + index) for index in range(others)]


def _tokenizer_description() -> dict[str, Any]:
    special_ids = _special_ids()
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(token, token_id) for token, token_id in special_ids.items()],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        # The special tokens stand in the vocabulary too: only so may ids have holes.
        "model": {"type": "BPE", "vocab": _vocabulary(), "merges": [], "byte_fallback": False, "ignore_merges": False},
    }


def _added_token(token: str, token_id: int) -> dict[str, Any]:
    # As in the official tokenizer: the text tokenizer's own are special; speech tokens are not, and so show in text.
    return {
        "id": token_id,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": token_id < SPEECH_TOKEN_OFFSET,
    }


def tokenizer_config() -> dict[str, Any]:
    """Return tokenizer_config.json, chat template included."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
        **special_tokens_map(),
    }


def special_tokens_map() -> dict[str, Any]:
    """Return special_tokens_map.json."""
    return {
        "eos_token": END_TOKENS[0],
        "pad_token": ENDOFTEXT,
        "additional_special_tokens": list(INLINE_TOKENS),
    }


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a value as one line of JSON."""
    path.write_text(json.dumps(value, ensure_ascii=False, indent=None, separators=(",", ":")) + "\n", encoding="utf-8")
