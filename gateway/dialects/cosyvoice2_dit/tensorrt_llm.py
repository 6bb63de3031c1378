"""The Triton model `tensorrt_llm` of the original's run.sh: token ids in and out, answered by the LLM service.

For programs that ask the original's LLM inside Triton for tokens. Ids are the LLM's own; end tokens don't come out.

Source: tensors and defaults of the specification of the flows, section 11; those of TensorRT-LLM's Triton backend.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gateway.core import Sampling, Utterance
from gateway.dialects.cosyvoice2_dit.drop_in import PipelineRunner, StreamingModel, Tensors, WholeModel
from gateway.dialects.cosyvoice2_dit.settings import DropInConfig
from gateway.llm.client import SpeechLMClient
from gateway.llm.wire import LLMWire
from llm_service.config import LLMBackend
from llm_service.text_encoder import load_text_encoder
from llm_service.vocab import SpeechVocabulary
from token2wav_service.errors import InvalidRequestError
from token2wav_service.python_backend.inputs import PbUtils, RequestInputs
from token2wav_service.python_backend.server_process import is_decoupled, read_parameters

MAX_REQUESTS = 256
"""Most requests of a decoupled model at once; the LLM service has a queue of its own."""
_MAX_SEED = (1 << 63) - 1


@dataclass(frozen=True)
class TokenRequest:
    """What one request asks for."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    seed: int
    is_streaming: bool


@dataclass(frozen=True)
class _Prompt(Utterance):
    """A prompt that is token ids already; the fields of an utterance stay empty."""

    request: TokenRequest | None = None


class _TokenWire(LLMWire):
    """Writes such prompts as they are."""

    def request(self, utterance: Utterance, sampling: Sampling, seed: int, model: str) -> dict[str, Any]:
        assert isinstance(utterance, _Prompt) and utterance.request is not None
        ids_flag = {"detokenize": False} if self.backend is LLMBackend.TRTLLM else {"return_token_ids": True}
        body = {"model": model, "stream": True, "prompt": list(utterance.request.prompt_ids), "seed": seed}
        lengths = {"max_tokens": utterance.request.max_tokens, "stop_token_ids": list(self._vocabulary.end_ids)}
        return body | lengths | asdict(sampling) | ids_flag


class TokenRequests:
    """Requests for tokens."""

    def __init__(self, pb_utils: PbUtils, vocabulary: SpeechVocabulary, *, can_stream: bool) -> None:
        self._pb_utils, self._vocabulary, self._can_stream = pb_utils, vocabulary, can_stream

    def read(self, request: Any) -> TokenRequest:
        """Read and check everything at once; what is left out is as the original's client sets it.

        Raises:
            InvalidRequestError: a tensor that can't be used.
        """
        inputs = RequestInputs(self._pb_utils, request)
        ids = inputs.integers("input_ids")
        length = inputs.integer("input_lengths", np.int32) if inputs.has("input_lengths") else len(ids)
        if not 1 <= length <= len(ids):
            raise InvalidRequestError(f"input_lengths is {length}: expected 1 to {len(ids)}, the input_ids sent")
        max_tokens = inputs.integer("request_output_len", np.int32)
        if max_tokens < 1:
            raise InvalidRequestError(f"request_output_len is {max_tokens}: expected at least 1")
        self._check_end(inputs)
        is_streaming = inputs.has("streaming") and inputs.boolean("streaming")
        if is_streaming and not self._can_stream:
            expected = "assemble it with DECOUPLED_MODE=True"
            raise InvalidRequestError(f"streaming is true, but the model answers once: {expected}")
        return TokenRequest(
            prompt_ids=tuple(ids[:length].tolist()),
            max_tokens=max_tokens,
            sampling=_sampling(inputs),
            seed=int(inputs.scalar("random_seed", np.uint64)) & _MAX_SEED if inputs.has("random_seed") else 0,
            is_streaming=is_streaming,
        )

    async def answers(self, pipeline: SpeechLMClient, asked: TokenRequest) -> AsyncGenerator[Tensors]:
        """Yield LLM ids without end tokens, piece by piece where `streaming` asks for that, else all at once."""
        whole: list[int] = []
        prompt = _Prompt("", "", (), request=asked)
        async with aclosing(pipeline.generate(prompt, asked.sampling, asked.seed)) as deltas:
            async for delta in deltas:
                piece = [self._vocabulary.llm_id(token) for token in delta.token_ids]
                if piece and asked.is_streaming:
                    yield _answer(piece)
                whole += piece
        if not asked.is_streaming:
            yield _answer(whole)

    def _check_end(self, inputs: RequestInputs) -> None:
        """The LLM ends at each of its end tokens, so a caller may name any of them and no other."""
        if not inputs.has("end_id"):
            return
        end_id, known = inputs.integer("end_id", np.int32), self._vocabulary.end_ids
        if end_id not in known:
            raise InvalidRequestError(f"end_id is {end_id}: expected an end token of this LLM, one of {list(known)}")


def load_model(pb_utils: PbUtils, model_config_json: str) -> StreamingModel | WholeModel:
    """Build the model that its config.pbtxt describes; `decoupled` there selects which.

    Raises:
        ConfigError: a parameter can't work.
    """
    config = DropInConfig.from_parameters(read_parameters(model_config_json))
    encoder = load_text_encoder(config.llm_tokenizer_dir)
    wire = _TokenWire(encoder, config.llm_backend)
    runner = PipelineRunner(lambda: _open(wire, config))
    can_stream = is_decoupled(model_config_json)
    parts = (pb_utils, runner, TokenRequests(pb_utils, encoder.vocabulary, can_stream=can_stream))
    return StreamingModel(*parts, max_requests=MAX_REQUESTS) if can_stream else WholeModel(*parts)


@asynccontextmanager
async def _open(wire: LLMWire, config: DropInConfig) -> AsyncIterator[SpeechLMClient]:
    client = SpeechLMClient(config.llm_api_base, wire, config.llm_model)
    try:
        yield client
    finally:
        await client.close()


def _sampling(inputs: RequestInputs) -> Sampling:
    usual = Sampling()

    def number(name: str, default: float) -> float:
        return float(inputs.scalar(name, np.float32)) if inputs.has(name) else default

    return Sampling(
        temperature=number("temperature", usual.temperature),
        top_p=number("runtime_top_p", usual.top_p),
        top_k=inputs.integer("runtime_top_k", np.int32) if inputs.has("runtime_top_k") else usual.top_k,
        repetition_penalty=number("repetition_penalty", usual.repetition_penalty),
    )


def _answer(ids: list[int]) -> Tensors:
    """Lay ids out as [batch, beams, ids], both of the former 1."""
    return {"output_ids": np.array([[ids]], np.int32), "sequence_length": np.array([[len(ids)]], np.int32)}
