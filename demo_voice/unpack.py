"""Unpacks the bundled demo voice into a checkpoint of the official layout, which the ordinary loaders read.

The bundle holds most weights as int8 and only those rows of the LLM's tables that are used. What is in it:

    bundle.json               sizes of the models, how much the LLM speaks at once, and who taught them
    checkpoint.json           what the checkpoint declares
    flow.safetensors.xz       the flow, packed
    hift.safetensors.xz       the vocoder, packed
    llm.safetensors.xz        tables, decoder and head of the LLM, packed
    aligner.safetensors.xz    which letters a speech token sounds like, packed
    text_tokenizer.json       the LLM's text tokenizer, without special tokens
    campplus.onnx, speech_tokenizer_v2_25hz.onnx    as they are used
"""

from __future__ import annotations

import hashlib
import json
import lzma
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load, save_file

from llm_service.aligner import write_aligner
from llm_service.errors import CheckpointError
from llm_service.huggingface_layout import write_description as write_llm_description
from llm_service.huggingface_layout import write_weights
from llm_service.qwen2 import Qwen2Shape
from llm_service.speech_bounds import SpeechBounds, write_speech_bounds
from llm_service.speech_head import speech_rows
from llm_service.vocab import COSYVOICE2, SPEECH_TOKEN_COUNT
from servicekit.checkpoint_file import CHECKPOINT_FILE
from servicekit.file_sums import write_sums
from servicekit.files import writing
from servicekit.logs import PlainError
from token2wav_service.checkpoint.family import FLOW_WEIGHTS, HIFT_WEIGHTS, SPEAKER_ENCODER, Family
from token2wav_service.checkpoint.make_random import write_description
from token2wav_service.models.config import DiTConfig, EncoderConfig, FlowConfig, HiFTConfig

SPEECH_TOKENIZER = Family.STEP_AUDIO2.files.speech_tokenizer
SIZES_FILE = "bundle.json"
FLOW_FILE, HIFT_FILE, LLM_FILE = "flow.safetensors.xz", "hift.safetensors.xz", "llm.safetensors.xz"
ALIGNER_WEIGHTS = "aligner.safetensors.xz"
TEXT_TOKENIZER_FILE = "text_tokenizer.json"
BUNDLE_FILES = (
    *(SIZES_FILE, CHECKPOINT_FILE, FLOW_FILE, HIFT_FILE, LLM_FILE, ALIGNER_WEIGHTS, TEXT_TOKENIZER_FILE),
    *(SPEAKER_ENCODER, SPEECH_TOKENIZER),
)
DIGEST_FILE = "demo_voice.sha256"
"""File in an unpacked checkpoint with the digest of its bundle and voices."""
LLM_SIZES = {
    "hidden_size": "hidden",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "key_value_heads",
    "intermediate_size": "feed_forward",
    "max_position_embeddings": "max_positions",
}
"""Sizes of the LLM in the bundle, named as in config.json -> field of `Qwen2Shape`."""
BUNDLE = Path(__file__).parent / "weights"
VOICES = Path(__file__).parent / "voices"
ROWS, SCALES = ".int8", ".scale"
"""Endings of the names of a packed tensor: its rows as int8, and one scale for each of them."""

TEXT_TABLE, SPEECH_TABLE, CONTROL_TABLE = "text_embedding", "speech_embedding", "control_embedding"
"""[text rows, C]; [6561, C]; [2, C]: sos, then task_id."""
HEAD_WEIGHT, HEAD_BIAS = "head.weight", "head.bias"
"""[6564, C] and [6564]: speech tokens, then the three end tokens."""
NEVER = -30.0
"""Bias of the two reserved end tokens, which no training text asks for."""

FloatArray = npt.NDArray[np.float32]
HalfArray = npt.NDArray[np.float16]
AnyArray = npt.NDArray[np.generic]


class BundleError(PlainError):
    """The bundle is incomplete or damaged; the message says what to do."""


@dataclass(frozen=True)
class BundleSizes:
    """Sizes of the models in a bundle, and how long the LLM speaks well."""

    flow: FlowConfig
    hift: HiFTConfig
    llm: Qwen2Shape
    bounds: SpeechBounds

    @classmethod
    def from_json(cls, text: str) -> BundleSizes:
        """Read the text of bundle.json.

        Raises:
            BundleError: it is something else.
        """
        try:
            values = json.loads(text)
            flow = values["flow"]
            encoder, estimator = EncoderConfig(**flow.pop("encoder")), DiTConfig(**flow.pop("estimator"))
            return cls(
                FlowConfig(**flow, encoder=encoder, estimator=estimator),
                HiFTConfig.from_mapping(values["hift"]),
                Qwen2Shape(**{field: values["llm"][name] for name, field in LLM_SIZES.items()}),
                SpeechBounds(**values["bounds"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, CheckpointError) as err:
            raise BundleError(f"{SIZES_FILE} can't be read ({err!r}); check the files out again") from err


def provide(directory: Path, bundle: Path = BUNDLE, voices: Path = VOICES) -> bool:
    """Have the demo voice lie unpacked in `directory`; returns whether it had to be unpacked.

    What lies there of another bundle is replaced.

    Raises:
        BundleError: a file of the bundle is missing or damaged, or the directory holds something else.
        OSError: the directory can't be written.
    """
    digest = _digest(bundle, voices)
    found = _digest_of(directory)
    if found == digest:
        return False
    if found is None and directory.exists():
        raise BundleError(f"{directory} is no unpacked demo voice; remove it, or name another directory")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as scratch:
        made = Path(scratch) / "made"
        with writing(directory):
            unpack(made, bundle, voices)
        (made / DIGEST_FILE).write_text(digest + "\n", encoding="utf-8")
        if directory.exists():
            directory.rename(Path(scratch) / "old")
        try:
            made.rename(directory)
        except OSError:
            # Another process was faster: what lies there now must be the same.
            if _digest_of(directory) != digest:
                raise
    return True


def _digest(bundle: Path, voices: Path) -> str:
    """Return what tells this demo voice from others; missing files are left to `unpack`."""
    found = hashlib.sha256()
    for path in (*(bundle / name for name in BUNDLE_FILES), *sorted(voices.iterdir())):
        if path.is_file():
            found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def _digest_of(directory: Path) -> str | None:
    path = directory / DIGEST_FILE
    return path.read_text("utf-8").strip() if path.is_file() else None


def unpack(directory: Path, bundle: Path = BUNDLE, voices: Path = VOICES) -> None:
    """Write token2wav/, llm/, voices/ and their SHA256SUMS, piece by piece, into a new directory; see `provide`.

    Raises:
        BundleError: a file of the bundle is missing or damaged.
        FileExistsError: the directory is there.
    """
    missing = [name for name in BUNDLE_FILES if not (bundle / name).is_file()]
    if missing:
        raise BundleError(f"{bundle} lacks {missing}; check the files out again")
    directory.mkdir(parents=True)
    sizes = BundleSizes.from_json((bundle / SIZES_FILE).read_text("utf-8"))
    _unpack_token2wav(directory / "token2wav", bundle, sizes)
    text_tokenizer: dict[str, Any] = json.loads((bundle / TEXT_TOKENIZER_FILE).read_text("utf-8"))
    write_llm(directory / "llm", sizes.llm, read_packed(bundle / LLM_FILE), text_tokenizer)
    write_speech_bounds(directory / "llm", sizes.bounds)
    write_aligner(directory / "llm", read_packed(bundle / ALIGNER_WEIGHTS))
    shutil.copytree(voices, directory / "voices")
    for name in (CHECKPOINT_FILE, SIZES_FILE):
        shutil.copyfile(bundle / name, directory / name)
    write_sums(directory)


def _unpack_token2wav(directory: Path, bundle: Path, sizes: BundleSizes) -> None:
    directory.mkdir(parents=True)
    write_description(directory, sizes.flow, sizes.hift)
    for source, target in ((FLOW_FILE, FLOW_WEIGHTS), (HIFT_FILE, HIFT_WEIGHTS)):
        weights = {name: torch.from_numpy(value) for name, value in read_packed(bundle / source).items()}
        torch.save(weights, directory / target)
    for name in (SPEAKER_ENCODER, SPEECH_TOKENIZER):
        shutil.copyfile(bundle / name, directory / name)


def write_llm(
    directory: Path, shape: Qwen2Shape, tensors: Mapping[str, FloatArray], text_tokenizer: Mapping[str, Any]
) -> None:
    """Write weights, configuration and tokenizer into `directory` (made if missing).

    Args:
        tensors: the tables and the head under the names above, the decoder's weights under Qwen2's own.
        text_tokenizer: a byte-level BPE as the `tokenizers` library saves it, without special tokens.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_llm_description(directory, shape, text_tokenizer, "float16")
    head = {"weight": tensors[HEAD_WEIGHT].astype(np.float16), "bias": _bias(tensors[HEAD_BIAS])}
    write_weights(directory, _llm_weights(tensors), head, save_file)


def _llm_weights(tensors: Mapping[str, FloatArray]) -> dict[str, HalfArray]:
    tables = {TEXT_TABLE, SPEECH_TABLE, CONTROL_TABLE, HEAD_WEIGHT, HEAD_BIAS}
    weights: dict[str, HalfArray] = {
        f"model.{name}": value.astype(np.float16) for name, value in tensors.items() if name not in tables
    }
    width = tensors[HEAD_WEIGHT].shape[1]
    embedding = np.zeros((COSYVOICE2.table_rows, width), np.float16)
    embedding[: len(tensors[TEXT_TABLE])] = tensors[TEXT_TABLE]
    embedding[COSYVOICE2.first_id : COSYVOICE2.first_id + SPEECH_TOKEN_COUNT] = tensors[SPEECH_TABLE]
    embedding[[COSYVOICE2.sos_id, COSYVOICE2.task_id]] = tensors[CONTROL_TABLE]
    head = np.zeros_like(embedding)
    head[speech_rows(COSYVOICE2)] = tensors[HEAD_WEIGHT]
    return {**weights, "model.embed_tokens.weight": embedding, "lm_head.weight": head}


def _bias(bias: FloatArray) -> FloatArray:
    changed = bias.astype(np.float32).copy()
    changed[SPEECH_TOKEN_COUNT + 1 :] = NEVER
    return changed


def read_packed(path: Path) -> dict[str, FloatArray]:
    """Return the weights in a file of packed weights, as float32.

    Raises:
        BundleError: the file is missing or damaged.
    """
    try:
        weights = load(lzma.decompress(path.read_bytes()))
        return {name.removesuffix(ROWS): _unpacked(name, weights) for name in weights if not name.endswith(SCALES)}
    except Exception as err:  # lzma and safetensors raise their own kinds for a damaged file
        raise BundleError(f"{path} can't be read ({err!r}); check the files out again") from err


def _unpacked(name: str, weights: Mapping[str, AnyArray]) -> FloatArray:
    value = weights[name].astype(np.float32)
    if not name.endswith(ROWS):
        return value
    scales = weights[name.removesuffix(ROWS) + SCALES].astype(np.float32)
    rows: FloatArray = value * scales.reshape(-1, *[1] * (value.ndim - 1))
    return rows
