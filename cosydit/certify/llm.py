"""Checks of the LLM behind each backend, asked with the gateway's own streamed request.

The model's float32 computation on the CPU is what greedy answers are compared with.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import statistics
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
from prometheus_client.parser import text_string_to_metric_families

from cosydit.certify.check import CheckFailedError, Findings, NotRunError
from cosydit.certify.checks import LLM_PROGRAMS
from cosydit.certify.context import TEXTS, VOICE, CheckContext
from cosydit.stack.host import find_host, llm_settings, preset_of, served_form
from cosydit.stack.process import ServiceSpec, read_json
from gateway.core import Sampling, Utterance
from gateway.llm.client import SpeechLMClient
from gateway.llm.wire import LLMWire
from llm_service.config import LLMBackend
from llm_service.export.check_server import Question, gap_below_best, source_questions
from llm_service.speech_head import read_speech_head
from llm_service.text_encoder import TextEncoder, load_text_encoder
from llm_service.vocab import SPEECH_TOKEN_COUNT, SPEECH_TOKENS_PER_SECOND, SpeechVocabulary
from servicekit.settings import as_options
from token2wav_service.checkpoint.family import open_features
from token2wav_service.features.audio import load_prompt_audio

START_TIMEOUT_S = 600.0
REQUEST_TIMEOUT_S = 120.0
GREEDY_TOKENS = 12
"""Number of tokens asked one by one for each text."""
GREEDY_ANSWER_TOKENS = 48
TOLERATED_GAP = 1.0
"""Logits by which a choice may be below the float32 model's best: half precision changes near ties."""
LEAST_EQUAL = 0.75
"""Share of choices that must be the float32 model's own."""
LEAST_MARGIN = 0.5
"""Logits by which the bias must decide between two tokens: more than half precision changes."""
LITTLE_PENALTY, MUCH_PENALTY = 1.0, 5.0
EXACT_TOKENS = 40
AT_ONCE = 64
CANCELLED = 4
LONG_TOKENS = 1500
FREED_WITHIN_S = 10.0
POLL_S = 0.05
_RUNNING = ("cosydit_llm_requests_running", "vllm:num_requests_running", "trtllm_num_requests_running")
SERVICE = ["-m", "llm_service"]
_METRICS = {LLMBackend.TRTLLM: "/prometheus/metrics"}

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Server:
    """A running LLM service and how to ask it."""

    url: str
    backend: LLMBackend
    wire: LLMWire
    encoder: TextEncoder
    model: str
    voice: Utterance
    """An utterance with the voice's transcript and tokens; its text is replaced."""
    ready_s: float

    @property
    def vocabulary(self) -> SpeechVocabulary:
        """The model's numbering."""
        return self.encoder.vocabulary

    def body(self, text: str, **fields: Any) -> dict[str, Any]:
        """Return the gateway's own request for a text, some fields replaced."""
        utterance = Utterance(text, self.voice.reference_text, self.voice.reference_tokens)
        request = self.wire.request(utterance, Sampling(), 0, self.model)
        return {**request.body, **fields}

    def ids(self, body: dict[str, Any]) -> tuple[list[int], str]:
        """Ask for an answer in one piece; return its LLM ids, end tokens left out, and why it ended."""
        response = httpx.post(
            f"{self.url}/v1/completions", json={**body, "stream": False}, timeout=REQUEST_TIMEOUT_S, trust_env=False
        )
        if response.status_code != httpx.codes.OK:
            raise CheckFailedError(f"the server answered {response.status_code}: {response.text[:300]}")
        choice = response.json()["choices"][0]
        ends = set(self.vocabulary.end_ids)
        return [int(each) for each in choice["token_ids"] if each not in ends], str(choice["finish_reason"])


@dataclass(frozen=True)
class Answer:
    """What one streamed request brought."""

    speech_ids: tuple[int, ...]
    finish_reason: str
    first_s: float
    total_s: float


def server(context: CheckContext, backend: str) -> Server:
    """Return the backend's server, started by the first check that asks."""
    return context.shared(f"llm/{backend}", partial(_serving, context, LLMBackend(backend)))


def check_start(context: CheckContext, found: Findings, backend: str) -> None:
    """The service starts, and says which model it serves."""
    program = LLM_PROGRAMS[backend]
    if program is not None and shutil.which(program) is None:
        raise NotRunError(f"{program} is not on PATH: {backend} is not installed in this environment")
    running = server(context, backend)
    found.tell("ready after", running.ready_s, "s")
    found.note(f"model {running.model}, backend {backend}")


def check_ids(context: CheckContext, found: Findings, backend: str) -> None:
    """The gateway's request brings speech tokens and nothing else, as many as the text needs."""
    asked = server(context, backend)
    answers = _ask(asked, TEXTS, seed=1)
    lengths = [len(answer.speech_ids) for answer in answers]
    found.equals("ids outside 0..6560", sum(not 0 <= i < SPEECH_TOKEN_COUNT for a in answers for i in a.speech_ids), 0)
    found.at_least("tokens of the shortest answer", min(lengths), 1)
    letters = [len(text) for text in TEXTS]
    rates = [length / count for length, count in zip(lengths, letters, strict=True)]
    found.tell("tokens a letter", statistics.mean(rates))
    found.tell("different tokens", len({token for answer in answers for token in answer.speech_ids}))


def check_finish_reasons(context: CheckContext, found: Findings, backend: str) -> None:
    """An answer ends by itself or at max_tokens, says which, and never before min_tokens."""
    asked = server(context, backend)
    reasons = [answer.finish_reason for answer in _ask(asked, TEXTS, seed=2)]
    found.equals("reasons that are neither stop nor length", sum(r not in ("stop", "length") for r in reasons), 0)
    if context.plan.is_audible:
        found.at_least("answers that ended by themselves", reasons.count("stop"), 1)
    body = asked.body(TEXTS[0], min_tokens=EXACT_TOKENS, max_tokens=EXACT_TOKENS)
    ids, reason = asked.ids(body)
    found.equals("tokens where min_tokens and max_tokens agree", len(ids), EXACT_TOKENS)
    found.equals("of them said to have ended at the bound", int(reason == "length"), 1)


def check_token_offset(context: CheckContext, found: Findings, backend: str) -> None:
    """Greedy answers are the float32 model's; where they are not, says whether all ids are shifted."""
    asked = server(context, backend)
    questions = _questions(context, asked)
    choices = [_choice(asked, question) for question in questions]
    gaps = [gap_below_best(q, ids, asked.vocabulary) for q, ids in zip(questions, choices, strict=True)]
    found.tell("questions", len(questions))
    found.at_least("share of the float32 model's own choices", gaps.count(0.0) / len(gaps), LEAST_EQUAL)
    found.at_most("worst choice below its best", max(gaps), TOLERATED_GAP, "logits")
    best = [int(question.logits.argmax()) + asked.vocabulary.first_id for question in questions]
    shifts = Counter(ids[0] - own for ids, own in zip(choices, best, strict=True) if ids)
    shift, count = shifts.most_common(1)[0] if shifts else (0, 0)
    if shift and count > LEAST_EQUAL * len(questions):
        raise CheckFailedError(f"every id is off by {shift:+d}: wrong token offset in the server or its tokenizer")


def check_head_bias(context: CheckContext, found: Findings, backend: str) -> None:
    """Where the head's bias decides between two tokens, the server answers with it."""
    asked = server(context, backend)
    bias = read_speech_head(context.checkpoint.llm_dir).bias.float().numpy()
    questions = _questions(context, asked)
    pairs = [(question, *_decided_by(question.logits, bias)) for question in questions]
    clear = [(question, right, wrong) for question, right, wrong, margin in pairs if margin >= LEAST_MARGIN]
    found.tell("answers that the bias decides", len(clear))
    if not clear:
        raise NotRunError("the bias is too small to decide any answer")
    drawn = [_of_two(asked, question, (right, wrong)) for question, right, wrong in clear]
    without = sum(row != right for row, (_, right, _) in zip(drawn, clear, strict=True)) / len(clear)
    found.tell("share of them as if there were none", without)
    if without > 1 - LEAST_EQUAL:
        raise CheckFailedError(
            f"{without:.0%} of {len(clear)} answers are those of a head without its bias: the bias was dropped; serve "
            "the converted form (cosydit convert-llm huggingface)"
        )


def _decided_by(logits: FloatArray, bias: FloatArray) -> tuple[int, int, float]:
    """Return the row that wins with the bias, one that wins over it without, and how clearly either does."""
    wrong = int(bias.argmin())
    lead, swing = logits - logits[wrong], bias - bias[wrong]
    margins = np.minimum(lead, swing - lead)
    right = int(margins.argmax())
    return right, wrong, float(margins[right])


def _choice(asked: Server, question: Question, **flags: Any) -> list[int]:
    """Return the id that the server draws greedily after a prompt; none for an end token."""
    one = {"temperature": 0.0, "repetition_penalty": LITTLE_PENALTY, "max_tokens": 1, "min_tokens": 0}
    return asked.ids(asked.body(TEXTS[0], **one) | {"prompt": list(question.prompt)} | flags)[0]


def _of_two(asked: Server, question: Question, rows: Sequence[int], **flags: Any) -> int | None:
    """Return the row that the server draws of these alone; None for an end token."""
    if asked.backend is LLMBackend.TRTLLM:
        raise NotRunError("trtllm-serve takes no allowed_token_ids, so that two tokens can't be compared")
    first_id = asked.vocabulary.first_id
    ids = _choice(asked, question, allowed_token_ids=[first_id + row for row in rows], **flags)
    return ids[0] - first_id if ids else None


def check_penalty(context: CheckContext, found: Findings, backend: str) -> None:
    """The repetition penalty is applied: a large one changes a greedy answer."""
    asked = server(context, backend)
    flags = {"temperature": 0.0, "min_tokens": GREEDY_ANSWER_TOKENS, "max_tokens": GREEDY_ANSWER_TOKENS}
    plain, penalised = (
        asked.ids(asked.body(TEXTS[0], repetition_penalty=penalty, **flags))[0]
        for penalty in (LITTLE_PENALTY, MUCH_PENALTY)
    )
    changed = _differences(plain, penalised)
    found.tell("repeated tokens without a penalty", len(plain) - len(set(plain)))
    found.tell("repeated tokens with a penalty of 5", len(penalised) - len(set(penalised)))
    found.tell("tokens that the penalty changes", changed)
    if not changed:
        # Perhaps no token was likely twice, so test a case where the likelier of two tokens was heard before.
        _check_penalty_of_heard(context, asked)


def _check_penalty_of_heard(context: CheckContext, asked: Server) -> None:
    question = _questions(context, asked)[0]
    heard, other, margin = _decided_by_penalty(question, asked.vocabulary)
    if margin < LEAST_MARGIN:
        raise NotRunError("no token would come twice, so that a penalty has nothing to change")
    pair = (heard, other)
    drawn = [_of_two(asked, question, pair, repetition_penalty=each) for each in (LITTLE_PENALTY, MUCH_PENALTY)]
    if drawn != [heard, other]:
        raise CheckFailedError("repetition_penalty 1 and 5 give the same greedy answer: the sampler applies no penalty")


def _decided_by_penalty(question: Question, vocabulary: SpeechVocabulary) -> tuple[int, int, float]:
    """Return a row of the prompt, one that wins over it once it is penalised, and how clearly either wins."""
    logits = question.logits[:SPEECH_TOKEN_COUNT]
    rows = sorted({i - vocabulary.first_id for i in question.prompt if vocabulary.is_speech(i)})
    if not rows:
        return 0, 0, 0.0
    heard = max(rows, key=lambda row: float(logits[row]))
    best = float(logits[heard])
    penalised = best / MUCH_PENALTY if best > 0 else best * MUCH_PENALTY
    margins = np.minimum(best - logits, logits - penalised)
    margins[rows] = -np.inf
    other = int(margins.argmax())
    return heard, other, float(margins[other])


def check_repetition(context: CheckContext, found: Findings, backend: str) -> None:
    """Sampling is repetition-aware: of two possible tokens, the one just drawn is not drawn again."""
    asked = server(context, backend)
    if asked.backend is LLMBackend.TRTLLM:
        raise NotRunError("trtllm-serve has no repetition-aware sampling")
    questions = _questions(context, asked)
    repeated = sum(first == second for first, second in (_two_of_two(asked, question) for question in questions))
    found.tell("answers", len(questions))
    found.equals("answers that repeat their first token at once", repeated, 0)
    if repeated:
        raise CheckFailedError(
            f"{repeated} of {len(questions)} answers repeat a token where another is possible: the sampler is not "
            "repetition-aware; the LLM service's log says why, --ras-window 0 switches it off"
        )


def _two_of_two(asked: Server, question: Question) -> tuple[int, int]:
    """Return the ids that the server draws after a prompt if only the two likeliest speech tokens are possible."""
    likeliest = np.argsort(question.logits[:SPEECH_TOKEN_COUNT])[-2:]
    only = [asked.vocabulary.first_id + int(row) for row in likeliest]
    flags = {"top_k": 1, "repetition_penalty": LITTLE_PENALTY, "max_tokens": 2, "min_tokens": 2}
    ids, _ = asked.ids(asked.body(TEXTS[0], **flags) | {"prompt": list(question.prompt), "allowed_token_ids": only})
    if len(ids) != 2 or not set(ids) <= set(only):
        raise CheckFailedError(f"asked for two of the ids {only}, the server answered {ids}")
    return ids[0], ids[1]


def check_seeds(context: CheckContext, found: Findings, backend: str) -> None:
    """Equal seeds give equal answers, others don't."""
    asked = server(context, backend)
    first, again, other = (_ask(asked, TEXTS[:1], seed=seed)[0].speech_ids for seed in (7, 7, 8))
    found.equals("tokens that differ with the same seed", _differences(first, again), 0)
    found.at_least("tokens that differ with another seed", _differences(first, other), 1)


def check_cancel(context: CheckContext, found: Findings, backend: str) -> None:
    """A caller who hangs up frees the slot."""
    asked = server(context, backend)
    before = _running(asked)
    if before is None:
        raise NotRunError(f"{backend} shows no number of running requests at {_metrics_url(asked)}")
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(httpx.Client(timeout=REQUEST_TIMEOUT_S, trust_env=False))
        body = asked.body(TEXTS[0], min_tokens=LONG_TOKENS, max_tokens=LONG_TOKENS)
        for _ in range(CANCELLED):
            response = stack.enter_context(client.stream("POST", f"{asked.url}/v1/completions", json=body))
            next(response.iter_lines())
    began = time.perf_counter()
    running = _running(asked)
    while running and time.perf_counter() - began < FREED_WITHIN_S:
        time.sleep(POLL_S)
        running = _running(asked)
    found.equals("requests that still run", running if running is not None else -1, 0)
    found.at_most("freed after", time.perf_counter() - began, FREED_WITHIN_S, "s")


def check_at_once(context: CheckContext, found: Findings, backend: str) -> None:
    """Many requests at once all end well; says how fast one and all of them are."""
    asked = server(context, backend)
    alone = _ask(asked, TEXTS[:1], seed=3)[0]
    found.tell("first token, alone", 1000 * alone.first_s, "ms")
    spoken = len(alone.speech_ids) / alone.total_s
    if context.plan.is_gpu:
        found.at_least("tokens a second, alone", spoken, SPEECH_TOKENS_PER_SECOND)
    else:
        found.tell("tokens a second, alone", spoken)
    began = time.perf_counter()
    answers = _ask(asked, [TEXTS[i % len(TEXTS)] for i in range(AT_ONCE)], seed=4)
    seconds = time.perf_counter() - began
    found.equals(f"answers of {AT_ONCE} requests at once", len(answers), AT_ONCE)
    found.tell("tokens a second, all together", sum(len(a.speech_ids) for a in answers) / seconds)
    found.series["first token (ms), all at once"] = sorted(1000 * answer.first_s for answer in answers)


@contextmanager
def _serving(context: CheckContext, backend: LLMBackend) -> Iterator[Server]:
    model_dir = served_form(context.checkpoint.llm_dir, backend.value, context.plan.work_dir)
    host, port = find_host(context.plan.device), context.ports(1)[0]
    command = [sys.executable, *SERVICE, "--backend", backend.value]
    command += ["--model-dir", str(model_dir), "--port", str(port)]
    command += as_options(llm_settings(preset_of(host), backend.value, shared=True)) if host.gpus else []
    url = f"http://127.0.0.1:{port}"
    log = context.log_dir / f"llm_{backend.value}.log"
    began = time.perf_counter()
    with context.running(ServiceSpec("llm_service", command, f"{url}/health", log), START_TIMEOUT_S):
        ready_s = time.perf_counter() - began
        encoder = load_text_encoder(context.checkpoint.llm_dir)
        model = str(read_json(f"{url}/v1/models")["data"][0]["id"])
        yield Server(url, backend, LLMWire(encoder, backend), encoder, model, _voice(context), ready_s)


def _voice(context: CheckContext) -> Utterance:
    """Return the default voice's transcript and speech tokens."""
    folder = context.checkpoint.voices_dir
    transcript = (folder / f"{VOICE}.txt").read_text("utf-8").strip()
    samples = load_prompt_audio((folder / f"{VOICE}.wav").read_bytes())
    tokens = open_features(context.checkpoint.token2wav_dir, 1, "cpu").tokens(samples)
    return Utterance("", transcript, tuple(int(token) for token in tokens))


def _ask(asked: Server, texts: Sequence[str], seed: int) -> list[Answer]:
    """Send the gateway's streamed request for every text at once."""

    async def all_of_them() -> list[Answer]:
        client = SpeechLMClient(asked.url, asked.wire)
        try:
            return await asyncio.gather(*(_answer(client, asked, text, seed + i) for i, text in enumerate(texts)))
        finally:
            await client.close()

    return asyncio.run(all_of_them())


async def _answer(client: SpeechLMClient, asked: Server, text: str, seed: int) -> Answer:
    utterance = Utterance(text, asked.voice.reference_text, asked.voice.reference_tokens)
    began = time.perf_counter()
    ids: list[int] = []
    first_s, reason = 0.0, ""
    async for delta in client.generate(utterance, Sampling(), seed):
        if delta.token_ids and not ids:
            first_s = time.perf_counter() - began
        ids += delta.token_ids
        reason = delta.finish_reason or reason
    return Answer(tuple(ids), reason, first_s, time.perf_counter() - began)


def _questions(context: CheckContext, asked: Server) -> list[Question]:
    """Return the gateway's prompts with the float32 model's logits, after each of its own next tokens too."""

    def ask_the_model() -> list[Question]:
        prompts = [asked.body(text)["prompt"] for text in TEXTS]
        return list(source_questions(context.checkpoint.llm_dir, prompts, GREEDY_TOKENS))

    return context.kept("llm/questions", ask_the_model)


def _differences(first: Sequence[int], second: Sequence[int]) -> int:
    return sum(a != b for a, b in zip(first, second, strict=False)) + abs(len(first) - len(second))


def _metrics_url(asked: Server) -> str:
    return asked.url + _METRICS.get(asked.backend, "/metrics")


def _running(asked: Server) -> float | None:
    """Return how many requests the server says that it runs; None where it does not say."""
    try:
        with urllib.request.urlopen(_metrics_url(asked), timeout=REQUEST_TIMEOUT_S) as answer:
            text = answer.read().decode()
    except OSError:
        return None
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples if s.name in _RUNNING]
    return sum(sample.value for sample in samples) if samples else None
