"""Asks a running server and compares it with the model that it was made of: prompt in, speech tokens out.

Two questions for each text. Answering freely, does the server say nothing but speech and end tokens? And after each
part of an answer, is its likeliest next token one that the source also finds likeliest, or nearly? The latter finds a
head without its bias, weights in a wrong order, or ranks put together wrongly. The source computes in float32 on the
CPU. Works with every backend: only the OpenAI-compatible HTTP is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt

from llm_service.backends import TOKEN_ID_FLAGS
from llm_service.config import LLMBackend
from llm_service.embedded.model import DecodeRow, SpeechLanguageModel
from llm_service.errors import BuildError
from llm_service.prompt import build_prompt
from llm_service.text_encoder import load_text_encoder
from llm_service.vocab import SPEECH_TOKEN_COUNT, SpeechVocabulary

REQUEST_TIMEOUT_S = 120.0
SHOWN_CHARACTERS = 300  # of an error's body


@dataclass(frozen=True)
class Expectation:
    """How close a server must come."""

    tokens_per_text: int = 8  # asked one by one
    answer_tokens: int = 64  # said freely
    tolerance: float = 1.0  # logits by which a choice may lie below the source's best
    least_equal: float = 0.75  # share of choices that must be the source's own


@dataclass(frozen=True)
class ServerFindings:
    """What was found."""

    questions: int
    equal: int  # choices that are the source's own
    worst_gap: float  # logits by which the worst choice lies below the source's best
    foreign_ids: tuple[int, ...]  # ids said that are neither speech nor end tokens
    spoken_tokens: int  # said freely, in all
    passed: bool


@dataclass(frozen=True)
class Question:
    """A prompt, and what the source would answer."""

    prompt: tuple[int, ...]  # LLM ids
    logits: npt.NDArray[np.float32]  # [rows of the head] after the prompt, the source's


def certify(
    base_url: str, backend: LLMBackend, source_dir: Path, texts: Sequence[str], expectation: Expectation
) -> ServerFindings:
    """Ask the server at `base_url` about every text.

    Args:
        base_url: of a server that is ready.
        backend: what it is.
        source_dir: the model in Hugging Face form, with its tokenizer.
        texts: what to speak.
        expectation: how close it must come.

    Raises:
        BuildError: the server does not answer as an LLM server does.
        CheckpointError: the source can't be read.
    """
    encoder = load_text_encoder(source_dir)
    vocabulary = encoder.vocabulary
    prompts = [build_prompt(encoder.encode, "", text, (), vocabulary).token_ids for text in texts]
    questions = list(source_questions(source_dir, prompts, expectation.tokens_per_text))
    with httpx.Client(base_url=base_url, timeout=REQUEST_TIMEOUT_S, trust_env=False) as client:
        asker = _Asker(client, backend, vocabulary)
        free = [asker.answer(prompt, expectation.answer_tokens) for prompt in prompts]
        choices = [asker.answer(question.prompt, 1) for question in questions]
    return _judge(questions, choices, free, expectation, vocabulary)


class _Asker:
    """Sends completion requests that leave nothing to chance."""

    def __init__(self, client: httpx.Client, backend: LLMBackend, vocabulary: SpeechVocabulary) -> None:
        self._client = client
        self._end_ids = list(vocabulary.end_ids)
        self._ids_flag = TOKEN_ID_FLAGS[backend]
        self._model = str(self._first("GET", "/v1/models", "data")["id"])

    def answer(self, prompt: Sequence[int], max_tokens: int) -> list[int]:
        """Return the LLM ids of the likeliest answer; an end token may be left out."""
        body = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "repetition_penalty": 1.0,
            "stop_token_ids": self._end_ids,
            **self._ids_flag,
        }
        choice = self._first("POST", "/v1/completions", "choices", body)
        ids = choice.get("token_ids")
        if not isinstance(ids, list):
            raise BuildError(f"the server sent no token_ids but {str(choice)[:SHOWN_CHARACTERS]}")
        return [int(token_id) for token_id in ids]

    def _first(self, method: str, path: str, key: str, body: dict[str, object] | None = None) -> dict[str, object]:
        """Return the first entry of the list that an answer has under `key`."""
        try:
            response = self._client.request(method, path, json=body)
        except httpx.HTTPError as err:
            raise BuildError(f"{self._client.base_url}{path}: {err}") from err
        text = response.text[:SHOWN_CHARACTERS]
        if response.status_code != httpx.codes.OK:
            raise BuildError(f"{response.request.url} answered {response.status_code}: {text}")
        try:
            entry: dict[str, object] = response.json()[key][0]
        except (ValueError, LookupError, TypeError) as err:
            raise BuildError(f"{response.request.url} answered what no LLM server does: {text}") from err
        return entry


def source_questions(source_dir: Path, prompts: Sequence[Sequence[int]], count: int) -> Iterator[Question]:
    """Yield the source's logits after each prompt, and after each of its own next tokens, `count` for each prompt."""
    model = SpeechLanguageModel.load(source_dir, "cpu", "float32")
    longest = max(len(prompt) for prompt in prompts) + count
    model.allocate_cache(model.cache_shape(1, longest), rows_per_forward=1)
    for prompt in prompts:
        ids = list(prompt)
        logits = model.prefill(0, ids)
        for _ in range(count):
            yield Question(tuple(ids), logits)
            row = int(logits.argmax())
            ids.append(model.vocabulary.first_id + row)
            if row >= SPEECH_TOKEN_COUNT:
                break
            logits = model.decode([DecodeRow(0, ids[-1], len(ids) - 1)])[0]


def _judge(
    questions: Sequence[Question],
    choices: Sequence[list[int]],
    free: Sequence[list[int]],
    expectation: Expectation,
    vocabulary: SpeechVocabulary,
) -> ServerFindings:
    said = [token_id for answer in (*choices, *free) for token_id in answer]
    first_id, rows = vocabulary.first_id, vocabulary.head_rows
    foreign = sorted({token_id for token_id in said if not 0 <= token_id - first_id < rows})
    gaps = [gap_below_best(question, choice, vocabulary) for question, choice in zip(questions, choices, strict=True)]
    equal = sum(gap == 0 for gap in gaps)
    is_close = max(gaps) <= expectation.tolerance and equal >= expectation.least_equal * len(gaps)
    spoken = sum(len(answer) for answer in free)
    passed = is_close and not foreign and spoken > 0
    return ServerFindings(len(gaps), equal, max(gaps), tuple(foreign), spoken, passed)


def gap_below_best(question: Question, choice: Sequence[int], vocabulary: SpeechVocabulary) -> float:
    """Return how far below the source's best a choice lies; infinity for a foreign one. No id is an end token."""
    ends = range(SPEECH_TOKEN_COUNT, vocabulary.head_rows)
    rows = [token_id - vocabulary.first_id for token_id in choice[:1]] or list(ends)
    if not all(0 <= row < vocabulary.head_rows for row in rows):
        return float("inf")
    return float(question.logits.max() - question.logits[rows].max())
