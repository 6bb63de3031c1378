"""Checks of the LLM behind each backend, asked with the gateway's own request.

Greedy answers are compared with the model's float32 computation on the CPU, as in `cosydit convert-llm test`. That
finds a head without its bias, weights in a wrong order, or ranks put together wrongly.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from cosydit.certify.check import TEXTS, CheckContext, CheckFailedError, Findings, NotRunError
from cosydit.certify.run import LLM_PROGRAMS
from cosydit.stack.host import find_host, llm_settings, preset_of, served_form
from cosydit.stack.process import read_json, serving_llm
from gateway.core import Sampling, Utterance
from gateway.llm.client import SpeechLMClient
from gateway.llm.wire import LLMWire
from llm_service.config import LLMBackend
from llm_service.embedded.model import DecodeRow, SpeechLanguageModel
from llm_service.text_encoder import load_text_encoder
from llm_service.vocab import SPEECH_TOKEN_COUNT, SPEECH_TOKENS_PER_SECOND, SpeechVocabulary

START_TIMEOUT_S, REQUEST_TIMEOUT_S = 600.0, 120.0
QUESTIONS_PER_TEXT = 12
TOLERANCE, LEAST_EQUAL = 1.0, 0.75
"""Logits by which a choice may lie below the source's best, and share of the choices that must be the source's own."""
EXACT_TOKENS, AT_ONCE = 40, 64


@dataclass(frozen=True)
class Question:
    """A prompt, and what the source would answer."""

    prompt: tuple[int, ...]  # LLM ids
    logits: npt.NDArray[np.float32]  # [rows of the head] after the prompt, the source's


@dataclass(frozen=True)
class Server:
    """A running LLM service and how to ask it."""

    url: str
    wire: LLMWire
    vocabulary: SpeechVocabulary
    model: str

    def body(self, text: str, **fields: Any) -> dict[str, Any]:
        """Return the gateway's own request for a text, some fields replaced."""
        return {**self.wire.request(Utterance(text, "", ()), Sampling(), 0, self.model), **fields}

    def ids(self, body: dict[str, Any]) -> tuple[list[int], str]:
        """Ask for an answer in one piece; return its LLM ids, end tokens left out, and why it ended."""
        url, whole = f"{self.url}/v1/completions", {**body, "stream": False}
        try:
            response = httpx.post(url, json=whole, timeout=REQUEST_TIMEOUT_S, trust_env=False)
        except httpx.HTTPError as error:
            raise CheckFailedError(f"{url}: {error}") from error
        if response.status_code != httpx.codes.OK:
            raise CheckFailedError(f"the server answered {response.status_code}: {response.text[:300]}")
        ends = set(self.vocabulary.end_ids)
        try:
            choice = response.json()["choices"][0]
            return [int(each) for each in choice["token_ids"] if each not in ends], str(choice["finish_reason"])
        except (ValueError, LookupError, TypeError) as error:
            raise CheckFailedError(f"{url} answered what no LLM server does: {response.text[:300]}") from error

    def draw(self, question: Question, count: int = 1, **fields: Any) -> list[int]:
        """Return the ids that the server finds likeliest after a prompt."""
        one = {"temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": count, "min_tokens": count - 1, **fields}
        return self.ids(self.body(TEXTS[0], **one) | {"prompt": list(question.prompt)})[0]

    def prompts(self) -> list[list[int]]:
        """Return the gateway's prompts for the texts, as LLM ids."""
        return [self.body(text)["prompt"] for text in TEXTS]

    def choices(self, questions: Sequence[Question]) -> tuple[list[list[int]], list[float]]:
        """Return the likeliest ids after each prompt, and how far below the source's best they lie."""
        chosen = [self.draw(question) for question in questions]
        gaps = [gap_below_best(each, ids, self.vocabulary) for each, ids in zip(questions, chosen, strict=True)]
        return chosen, gaps


def server_at(url: str, backend: LLMBackend, tokenizer_dir: Path) -> Server:
    """Return a server that is ready, with how to ask it."""
    encoder = load_text_encoder(tokenizer_dir)
    model = str(read_json(f"{url}/v1/models")["data"][0]["id"])
    return Server(url, LLMWire(encoder, backend), encoder.vocabulary, model)


def server(context: CheckContext, backend: str) -> Server:
    """Return the backend's server, started by the first check that asks."""
    return context.shared(f"llm/{backend}", partial(_serving, context, LLMBackend(backend)))


def check_start(context: CheckContext, found: Findings, backend: str) -> None:
    """The service starts, and says which model it serves."""
    program = LLM_PROGRAMS[backend]
    if program is not None and shutil.which(program) is None:
        raise NotRunError(f"{program} is not on PATH: {backend} is not installed in this environment")
    began = time.perf_counter()
    found.notes.append(f"model {server(context, backend).model}, backend {backend}")
    found.tell("ready after", time.perf_counter() - began, "s")


def check_answers(context: CheckContext, found: Findings, backend: str) -> None:
    """Answers are speech tokens, end by themselves or at max_tokens, say which, and never before min_tokens."""
    asked = server(context, backend)
    answers = _ask(asked, TEXTS, seed=1)
    found.tell("tokens of the shortest answer", min(len(ids) for ids, _, _ in answers), least=1)
    found.tell("tokens a letter", sum(len(ids) for ids, _, _ in answers) / sum(map(len, TEXTS)))
    unknown = sum(reason not in ("stop", "length") for _, reason, _ in answers)
    found.tell("reasons that are neither stop nor length", unknown, most=0)
    ids, reason = asked.ids(asked.body(TEXTS[0], min_tokens=EXACT_TOKENS, max_tokens=EXACT_TOKENS))
    found.tell("tokens where min_tokens and max_tokens agree", len(ids), least=EXACT_TOKENS, most=EXACT_TOKENS)
    found.tell("of them said to have ended at the bound", int(reason == "length"), least=1)


def check_token_offset(context: CheckContext, found: Findings, backend: str) -> None:
    """Greedy answers are the float32 model's; where they are not, says whether all ids are shifted."""
    asked = server(context, backend)
    questions = _questions(context, asked)
    choices, gaps = asked.choices(questions)
    found.tell("questions", len(questions))
    found.tell("share of the float32 model's own choices", gaps.count(0.0) / len(gaps), least=LEAST_EQUAL)
    found.tell("worst choice below its best", max(gaps), "logits", most=TOLERANCE)
    best = [int(question.logits.argmax()) + asked.vocabulary.first_id for question in questions]
    shifts = Counter(ids[0] - own for ids, own in zip(choices, best, strict=True) if ids).most_common(1)
    if shifts and shifts[0][0] and shifts[0][1] > LEAST_EQUAL * len(questions):
        raise CheckFailedError(f"every id is off by {shifts[0][0]:+d}: wrong token offset in the server or tokenizer")


def check_repetition(context: CheckContext, found: Findings, backend: str) -> None:
    """Sampling is repetition-aware: of two possible tokens, the one just drawn is not drawn again."""
    if backend != LLMBackend.EMBEDDED.value:
        raise NotRunError(f"{backend} has no repetition-aware sampling")
    asked = server(context, backend)
    questions = _questions(context, asked)
    repeated = 0
    for question in questions:
        rows = [int(row) for row in np.argsort(question.logits[:SPEECH_TOKEN_COUNT])[-2:]]
        allowed = [asked.vocabulary.first_id + row for row in rows]
        sampled = {"temperature": Sampling().temperature, "top_k": 1, "min_tokens": 2, "allowed_token_ids": allowed}
        ids = asked.draw(question, 2, **sampled)
        if len(ids) != 2 or not set(ids) <= set(allowed):
            raise CheckFailedError(f"asked for two of the ids {allowed}, the server answered {ids}")
        repeated += ids[0] == ids[1]
    found.tell("answers", len(questions))
    if repeated:
        raise CheckFailedError(
            f"{repeated} of {len(questions)} answers repeat a token where another is possible: the sampler is not "
            "repetition-aware; --ras-window 0 switches it off"
        )


def check_seeds(context: CheckContext, found: Findings, backend: str) -> None:
    """Equal seeds give equal answers, others don't."""
    first, again, other = (_ask(server(context, backend), TEXTS[:1], seed)[0][0] for seed in (7, 7, 8))
    found.tell("answers that differ with the same seed", int(first != again), most=0)
    found.tell("answers that differ with another seed", int(first != other), least=1)


def check_at_once(context: CheckContext, found: Findings, backend: str) -> None:
    """Many requests at once all end well; says how fast one and all of them are."""
    asked = server(context, backend)
    real_time = SPEECH_TOKENS_PER_SECOND if context.plan.is_gpu else 0
    for name, count, least in (("alone", 1, real_time), (f"{AT_ONCE} at once", AT_ONCE, 0)):
        began = time.perf_counter()
        answers = _ask(asked, [TEXTS[i % len(TEXTS)] for i in range(count)], seed=3)
        spoken = sum(len(ids) for ids, _, _ in answers) / (time.perf_counter() - began)
        found.tell(f"tokens a second, {name}", spoken, least=least)
        found.tell(f"slowest first token, {name}", 1000 * max(first_s for _, _, first_s in answers), "ms")


@contextmanager
def _serving(context: CheckContext, backend: LLMBackend) -> Iterator[Server]:
    llm_dir, host = context.checkpoint.llm_dir, find_host(context.plan.device)
    served = served_form(llm_dir, backend.value, context.plan.work_dir)
    options = llm_settings(preset_of(host), backend.value, shared=True) if host.gpus else {}
    log = context.log_dir / f"llm_{backend.value}.log"
    log.unlink(missing_ok=True)
    with serving_llm(backend.value, served, log, START_TIMEOUT_S, **options) as url:
        yield server_at(url, backend, llm_dir)


def _ask(asked: Server, texts: Sequence[str], seed: int) -> list[tuple[list[int], str, float]]:
    """Send the gateway's streamed request for every text at once; return speech ids, reason, seconds to the first."""

    async def answer(client: SpeechLMClient, text: str, seed: int) -> tuple[list[int], str, float]:
        ids: list[int] = []
        reason, first_s, began = "", 0.0, time.perf_counter()
        async for delta in client.generate(Utterance(text, "", ()), Sampling(), seed):
            first_s = first_s or time.perf_counter() - began
            ids += delta.token_ids
            reason = delta.finish_reason or reason
        return ids, reason, first_s

    async def all_of_them() -> list[tuple[list[int], str, float]]:
        client = SpeechLMClient(asked.url, asked.wire)
        try:
            return await asyncio.gather(*(answer(client, text, seed + i) for i, text in enumerate(texts)))
        finally:
            await client.close()

    return asyncio.run(all_of_them())


def _questions(context: CheckContext, asked: Server) -> list[Question]:
    asked_once = source_questions(context.checkpoint.llm_dir, asked.prompts())
    return context.shared("llm/questions", lambda: nullcontext(list(asked_once)))


def source_questions(source_dir: Path, prompts: Sequence[Sequence[int]]) -> Iterator[Question]:
    """Yield the float32 model's logits after each prompt, and after some of its own next tokens."""
    model = SpeechLanguageModel.load(source_dir, "cpu", "float32")
    longest = max(len(prompt) for prompt in prompts) + QUESTIONS_PER_TEXT
    model.allocate_cache(1, longest, rows_per_forward=1)
    for prompt in prompts:
        ids = list(prompt)
        logits = model.prefill(0, ids)
        for _ in range(QUESTIONS_PER_TEXT):
            yield Question(tuple(ids), logits)
            row = int(logits.argmax())
            ids.append(model.vocabulary.first_id + row)
            if row >= SPEECH_TOKEN_COUNT:
                break
            logits = model.decode([DecodeRow(0, ids[-1], len(ids) - 1)])[0]


def gap_below_best(question: Question, choice: Sequence[int], vocabulary: SpeechVocabulary) -> float:
    """Return how far below the source's best a choice lies; infinity for a foreign one. No id is an end token."""
    ends = range(SPEECH_TOKEN_COUNT, vocabulary.head_rows)
    rows = [token_id - vocabulary.first_id for token_id in choice[:1]] or list(ends)
    if not all(0 <= row < vocabulary.head_rows for row in rows):
        return float("inf")
    return float(question.logits.max() - question.logits[rows].max())
