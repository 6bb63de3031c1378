"""What goes over the wire to token2wav: Triton model and tensor names, error codes, token limits.

Imported by clients, so it needs numpy at most and never torch.

A stream's life on the model `token2wav_dit` (decoupled; `operation` selects the row):

    operation       inputs                                      responses
    register_voice  reference_wav | reference_audio             voice_id, prompt_speech_tokens, silence_cut_s
                                                                with FINAL, before the voice is ready: pushes
                                                                and an export of it wait
    export_voice    voice_id                                    voice_file with FINAL
    import_voice    voice_file                                  voice_id, prompt_speech_tokens with FINAL
    open            voice_id [seed, priority]                   stream_id; stays open until the stream ends,
                                                                then stream_summary with FINAL
    push            stream_id, chunk_index, token_ids, is_last  waveform with FINAL
    abort           stream_id                                   FINAL
    status                                                      status with FINAL: `ServerStatus` as JSON

An `open` request may have the parameter `traceparent` (W3C), which token2wav's spans of the stream hang under, and
`CALLER_HAS_SHARE`: its caller has its share of streams, so it gets none of the room kept for callers with few.
Cancelling the `open` request, or losing the connection that carries it, aborts the stream. A voice_file is what
`voice_file.py` reads and writes; importing one runs no feature model.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import TypeAdapter

TOKEN2WAV_MODEL = "token2wav_dit"
DROP_IN_MODEL = "cosyvoice2_dit"
DROP_IN_MODELS = {"flow.yaml": DROP_IN_MODEL, "cosyvoice2.yaml": "cosyvoice2", "cosyvoice3.yaml": "cosyvoice3"}
"""File that describes a family's flow -> the original runtime's name of the drop-in."""
LLM_MODEL = "tensorrt_llm"
"""Name of the LLM inside Triton in the original's run.sh."""
ORIGINAL_MODELS = {
    "cosyvoice2": {"token2wav_of_cosyvoice2": "token2wav", LLM_MODEL: LLM_MODEL},
    "cosyvoice3": {"token2wav_of_cosyvoice3": "token2wav", "vocoder_of_cosyvoice3": "vocoder"},
}
"""Drop-in's name -> templates of the models that the original's run.sh and run_cosyvoice3.sh offer beside it, with the
original's names. A name means another contract in each, so a repository holds those of one family."""
AUDIO_TOKENIZER_MODEL = "audio_tokenizer"
SPEAKER_EMBEDDING_MODEL = "speaker_embedding"

SPEECH_VOCAB_SIZE = 6561
"""Number of speech tokens: 0..6560 (finite scalar quantisation, 3 levels in 8 dimensions)."""
TOKEN_RATE_HZ = 25
SAMPLE_RATE_HZ = 24_000
SAMPLES_PER_TOKEN = SAMPLE_RATE_HZ // TOKEN_RATE_HZ
PROMPT_SAMPLE_RATE_HZ = 16_000
MAX_PROMPT_SECONDS = 18.0
"""Seconds of the longest prompt: 900 mel frames, with 100 of history the most that the estimator's engines are built
for."""
LOOKAHEAD_TOKENS = 3
"""Tokens of context at the end of every chunk but the last, which it does not speak."""
CHUNK_SIZES_TOKENS = (15, 25, 50, 100)
"""Spoken tokens of the chunks that token2wav batches best on a GPU: any other costs as much as the next larger one."""
DEFAULT_PRIORITY = 10
"""Default priority class; classes are 1 (first) to 10, as Triton counts them."""


CALLER_HAS_SHARE = "caller_has_share"
"""Name of a parameter of `open`; any value means yes."""


class Operation(str, Enum):
    """Value of the `operation` tensor."""

    REGISTER_VOICE = "register_voice"
    EXPORT_VOICE = "export_voice"
    IMPORT_VOICE = "import_voice"
    OPEN = "open"
    PUSH = "push"
    ABORT = "abort"
    STATUS = "status"


class ErrorCode(str, Enum):
    """Machine-readable cause; stands before the first colon of every error message on the wire."""

    INVALID_REQUEST = "INVALID_REQUEST"
    INVALID_PROMPT = "INVALID_PROMPT"
    INVALID_CHUNK = "INVALID_CHUNK"
    INVALID_VOICE_FILE = "INVALID_VOICE_FILE"
    VOICE_MODEL_MISMATCH = "VOICE_MODEL_MISMATCH"
    VOICE_NOT_FOUND = "VOICE_NOT_FOUND"
    STREAM_NOT_FOUND = "STREAM_NOT_FOUND"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNAVAILABLE = "UNAVAILABLE"
    CANCELLED = "CANCELLED"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True)
class ServerStatus:
    """How busy a token2wav server is; what a caller with several servers chooses by."""

    max_streams: int
    """Streams that the server admits at once now: as many as it serves in time, never more than it has slots."""
    open_streams: int
    """Open streams of all callers."""
    steps: int
    """Steps run since the start."""
    step_seconds: float | None
    """Mean seconds of the newest steps; None before the first."""
    is_draining: bool
    """Whether the server finishes its streams and takes no new ones."""
    hop_multiple: int = 1
    """Tokens of one block of the mask; every chunk but a stream's first and last should speak a multiple of it."""
    next_end_s: float = 1.0
    """Expected seconds until a stream ends that leaves room for another one."""

    def to_json(self) -> str:
        """Write it for the wire."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ServerStatus:
        """Read it; names that this version does not know are left out.

        Raises:
            ValueError: not JSON, a name without a default is missing, or a value is of another kind.
        """
        return _statuses().validate_json(text, strict=True)


@cache
def _statuses() -> TypeAdapter[ServerStatus]:
    from pydantic import TypeAdapter  # processes that read no status need not load it

    return TypeAdapter(ServerStatus)


def encode_error(code: ErrorCode, message: str) -> str:
    """Write an error for a channel that carries text only (Triton's stream responses)."""
    return f"{code.value}: {message}"


def decode_error(text: str) -> tuple[ErrorCode, str]:
    """Read what `encode_error` wrote; text in any other form is INTERNAL."""
    head, _, rest = text.partition(": ")
    try:
        return ErrorCode(head), rest
    except ValueError:
        return ErrorCode.INTERNAL, text
