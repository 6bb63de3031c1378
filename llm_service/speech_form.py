"""The converted form of the LLM: a Hugging Face directory whose head yields speech and end tokens only, bias kept.

Stock Qwen2 has no bias in its head, and drops one without a word. So the form has an architecture of its own: an engine
that does not know it refuses it, and the adapters teach it to the engines. What lies in the directory:

    config.json            Qwen2's, with the architecture and the two keys below
    model.safetensors      the decoder, the whole embedding table, lm_head.weight [6564, hidden], lm_head.bias [6564]
    modeling_speech_qwen2.py   the model for Transformers
    tokenizer files, generation_config.json, manifest.json

Names only; imports nothing but the standard library.
"""

from __future__ import annotations

import json
from pathlib import Path

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
