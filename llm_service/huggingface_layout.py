"""The Hugging Face layout of the speech-token LLM: stock, and the converted form that engines serve. Needs no torch.

Stock, beside the weights:

    config.json, generation_config.json   a Qwen2 of the official vocabulary
    model.safetensors, ...index.json      the weights; the index names the one file
    speech_head.safetensors               the speech head with its bias, which stock Qwen2 has no room for:
                                          weight [6564, hidden], bias [6564]; row i is LLM id 151663 + i
    tokenizer.json, tokenizer_config.json, special_tokens_map.json   byte-level text, official special ids

`speech_head.safetensors` is optional in a checkpoint: the embedded server falls back to the rows of lm_head without a
bias.

The converted form has a head of speech and end tokens only, its bias kept. Stock Qwen2 has no bias in its head, and
drops one without a word. So the form has an architecture of its own: an engine that does not know it refuses it, and
the adapters teach it to the engines. The directory holds:

    config.json            Qwen2's, with the architecture and the two keys below
    model.safetensors      the decoder, the whole embedding table, lm_head.weight [6564, hidden], lm_head.bias [6564]
    tokenizer files, generation_config.json, manifest.json
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llm_service.config import SPEECH_HEAD_FILE
from llm_service.errors import CheckpointError
from llm_service.qwen2 import Qwen2Shape, qwen2_config
from llm_service.text_encoder import PHONEME_TOKENS
from llm_service.vocab import (
    COSYVOICE2,
    COSYVOICE3,
    ENDOFTEXT_ID,
    INLINE_TAGS,
    SPEECH_TOKEN_COUNT,
    SpeechVocabulary,
    speech_token_text,
)
from servicekit.files import usual_mode

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_POSITIONS = 32768
ENDOFTEXT = "<|endoftext|>"
# In the official order, behind `<|endoftext|>`; CosyVoice2's end where the speech tokens begin.
INLINE_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endofprompt|>", *INLINE_TAGS)
# `<|sos|>` + user + `<|task_id|>`, the assistant's speech tokens as they are; no system turn, no generation prompt.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{{- '<|sos|>' + message['content'] + '<|task_id|>' }}"
    "{%- elif message['role'] == 'assistant' %}{{- message['content'] }}"
    "{%- else %}{{- raise_exception('only user and assistant messages are possible') }}{%- endif %}"
    "{%- endfor %}"
)


def write_description(
    directory: Path,
    shape: Qwen2Shape,
    tokenizer: Mapping[str, Any],
    dtype: str,
    vocabulary: SpeechVocabulary = COSYVOICE2,
) -> None:
    """Write everything but the weights into `directory`.

    Args:
        directory: exists.
        shape: of the decoder.
        tokenizer: a text tokenizer as the `tokenizers` library saves it; its special tokens are added here.
        dtype: of the weights, as config.json names it.
        vocabulary: the family's numbering.
    """
    config = {"architectures": ["Qwen2ForCausalLM"], **qwen2_config(shape, vocabulary, dtype)}
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", generation_config(vocabulary))
    write_json(directory / "tokenizer.json", with_special_tokens(tokenizer, vocabulary))
    write_json(directory / "tokenizer_config.json", tokenizer_config(vocabulary))
    write_json(directory / "special_tokens_map.json", special_tokens_map(vocabulary))


def write_weights(
    directory: Path, weights: Mapping[str, Any], head: Mapping[str, Any], save: Callable[..., None]
) -> None:
    """Write the weights, the index of their one file, and the speech head, by safetensors' `save_file` for their kind.

    vLLM reads every *.safetensors of a directory unless an index names the files.
    """
    for name, tensors, metadata in ((WEIGHTS_FILE, weights, {"format": "pt"}), (SPEECH_HEAD_FILE, head, None)):
        with usual_mode(directory / name) as path:
            save(tensors, path, metadata)
    write_json(directory / INDEX_FILE, {"metadata": {}, "weight_map": dict.fromkeys(weights, WEIGHTS_FILE)})


def with_special_tokens(tokenizer: Mapping[str, Any], vocabulary: SpeechVocabulary = COSYVOICE2) -> dict[str, Any]:
    """Add the special tokens with their official ids to a text tokenizer."""
    ids = special_ids(vocabulary)
    # They stand in the vocabulary too: only so may ids have holes.
    model = {**tokenizer["model"], "vocab": {**tokenizer["model"]["vocab"], **ids}}
    return {
        **tokenizer,
        "added_tokens": [_added_token(token, number, vocabulary) for token, number in ids.items()],
        "model": model,
    }


def generation_config(vocabulary: SpeechVocabulary = COSYVOICE2) -> dict[str, Any]:
    """Return generation_config.json: stop ids, and how the original runtime samples."""
    return {
        "bos_token_id": vocabulary.sos_id,
        "eos_token_id": list(vocabulary.end_ids),
        "pad_token_id": ENDOFTEXT_ID,
        "do_sample": True,
        "temperature": 0.8,
        "top_p": 0.95,
        "top_k": 50,
        "repetition_penalty": 1.1,
    }


def text_tokens(vocabulary: SpeechVocabulary = COSYVOICE2) -> tuple[str, ...]:
    """Return the special tokens of a family's text tokenizer, in the order of their ids."""
    more = ("<|endofsystem|>", *PHONEME_TOKENS) if vocabulary is COSYVOICE3 else ()
    return (ENDOFTEXT, *INLINE_TOKENS, *more)


def special_ids(vocabulary: SpeechVocabulary = COSYVOICE2) -> dict[str, int]:
    """Return the ids of the tokens that are not plain text."""
    ids = {token: ENDOFTEXT_ID + index for index, token in enumerate(text_tokens(vocabulary))}
    ids |= {speech_token_text(index): vocabulary.llm_id(index) for index in range(SPEECH_TOKEN_COUNT)}
    return ids | vocabulary.control_ids


def tokenizer_config(vocabulary: SpeechVocabulary = COSYVOICE2) -> dict[str, Any]:
    """Return tokenizer_config.json, chat template included."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
        **special_tokens_map(vocabulary),
    }


def special_tokens_map(vocabulary: SpeechVocabulary = COSYVOICE2) -> dict[str, Any]:
    """Return special_tokens_map.json."""
    return {
        "eos_token": vocabulary.eos_token,
        "pad_token": ENDOFTEXT,
        "additional_special_tokens": list(text_tokens(vocabulary)[1:]),
    }


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a value as one line of JSON."""
    path.write_text(json.dumps(value, ensure_ascii=False, indent=None, separators=(",", ":")) + "\n", encoding="utf-8")


def _added_token(token: str, token_id: int, vocabulary: SpeechVocabulary) -> dict[str, Any]:
    # As in the official tokenizer: the text tokenizer's own are special; speech tokens are not, and so show in text.
    return {
        "id": token_id,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": token_id < vocabulary.first_id,
    }


def stores_head_bias(model_dir: Path) -> bool:
    """Tell whether a stock directory stores a bias of the speech head, which engines of stock Qwen2 have no room for.

    Raises:
        CheckpointError: a weight file can't be read.
    """
    from safetensors import SafetensorError, safe_open  # comes with the engines, not with the gateway

    if (model_dir / SPEECH_HEAD_FILE).is_file():
        return True
    try:
        for path in model_dir.glob("*.safetensors"):
            with safe_open(path, framework="np") as file:
                if HEAD_BIAS in list(file.keys()):
                    return True
        return False
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"the weights in {model_dir} can't be read: {error}; download or make them again"
        ) from error


HEAD_BIAS = "lm_head.bias"

ARCHITECTURE = "SpeechQwen2ForCausalLM"

# In config.json: the LLM id of the head's first row, and its number of rows.
FIRST_ID_KEY = "speech_head_first_id"
ROWS_KEY = "speech_head_rows"


def has_speech_form(model_dir: Path) -> bool:
    """Tell whether a model directory is of the converted form; False for anything that can't be read."""
    try:
        config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("architectures") == [ARCHITECTURE]
