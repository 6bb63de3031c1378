"""Measures the steps themselves: fidelity to float32 at every number of rows, equal bits, and times."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.lib.llm_gpu.model import CONTEXT_TOKENS, Reference
from llm_service.embedded.steps import BANNED, AnswerStart, Ints, PromptPiece, pages_for
from llm_service.gpu.decoder import SlotDecoder
from llm_service.gpu.slot_state import SlotState, StateSizes
from llm_service.gpu.step_runner import RunnerSizes, StepRunner
from llm_service.gpu.weights import Weights
from llm_service.vocab import COSYVOICE2, SPEECH_TOKEN_COUNT

PROMPT_TOKENS = 165
CONTEXT = 400
"""Position of the steps that are timed."""
WINDOW_TOKENS = 512
"""Most tokens of an answer before it is begun anew."""
REFERENCE_TOKENS = 8192
"""Tokens of one reference pass: bounds its memory."""


class StepBench:
    """A step runner whose every slot is a stream of its own."""

    def __init__(self, weights: Weights, sizes: RunnerSizes) -> None:
        """Allocate and capture."""
        self.weights, self.sizes = weights, sizes
        self.slots = sizes.decode_rows[-1]
        self._pages = pages_for(CONTEXT + WINDOW_TOKENS)
        state = StateSizes(self.slots, self.slots * self._pages, CONTEXT_TOKENS, weights.vocabulary.head_rows, 16)
        self.state = SlotState(state, weights.embedding.device)
        with torch.inference_mode():
            self.decoder = SlotDecoder(weights, self.state, sizes.max_rows, sizes.max_draws)
        self.runner = StepRunner(self.decoder, sizes)
        began = time.perf_counter()
        self.runner.warm_up()
        self.warm_up_s = time.perf_counter() - began
        self._random = np.random.default_rng(5)

    def begin(self, slots: range, prompt: Ints, temperature: float = 0.8) -> list[int]:
        """Begin an answer in each slot; return the first head row of each."""
        first: list[int] = []
        for slot in slots:
            start = AnswerStart(
                slot=slot, seed=1000 + slot, prompt_tokens=len(prompt), drawn=0, min_tokens=CONTEXT_TOKENS,
                window=10, repeat_limit=1, top_k=50, temperature=temperature, top_p=0.95, min_p=0.0, penalty=1.1,
                recent_rows=(), pages=tuple(range(1 + slot * self._pages, 1 + (slot + 1) * self._pages)),
                flags=_end_flags(self.weights),
            )  # fmt: skip
            first += self.runner.prompt([PromptPiece(slot, 0, prompt, True, start)]).tokens()
        return first

    def prompt(self) -> Ints:
        """Return a random prompt."""
        text = self._random.integers(0, 151_000, PROMPT_TOKENS - 2)
        return np.array([COSYVOICE2.sos_id, *text, COSYVOICE2.task_id], np.int32)

    def fidelity(self, rows: int, steps: int) -> dict[str, Any]:
        """Compare the logits of `steps` rows' steps, `rows` at a time, with float32 on the same tokens."""
        reference, prompt = Reference(self.weights), self.prompt()
        agree = count = 0
        worst, distances = 0.0, []
        while count < steps:
            length = min(WINDOW_TOKENS, -(-(steps - count) // rows))
            first = self.begin(range(rows), prompt)
            drawn, logits = [first], []
            for _ in range(length):
                drawn.append(self.runner.decode(np.arange(rows, dtype=np.int32)).tokens())
                logits.append(self.decoder.logits[:rows].clone())
            ours = torch.stack(logits, 1)
            speech = torch.tensor(drawn[:-1], device=ours.device).T + self.weights.vocabulary.first_id
            tokens = torch.cat([torch.tensor(prompt, device=ours.device).expand(rows, -1), speech], 1)
            at_once = max(1, REFERENCE_TOKENS // tokens.shape[1])
            for begin in range(0, rows, at_once):
                part = slice(begin, begin + at_once)
                theirs = reference.logits(tokens[part], len(prompt))
                agree += int((ours[part].argmax(-1) == theirs.argmax(-1)).sum())
                worst = max(worst, float((ours[part] - theirs).abs().max()))
                distances.append(_distance(ours[part], theirs).flatten().cpu())
            count += rows * length
        distance = torch.cat(distances)
        return {
            "rows": rows,
            "steps": count,
            "likeliest_agrees": agree / count,
            "largest_logit_difference": worst,
            "total_variation_mean": float(distance.mean()),
            "total_variation_p99": float(distance.quantile(0.99)) if len(distance) < 1 << 24 else None,
        }

    def bits_by_rows(self, steps: int = 24) -> dict[str, Any]:
        """Draw the same stream alone and in every bucket, at the last row, and compare tokens and logits bit by bit."""
        prompt = self.prompt()
        expected: tuple[list[list[int]], Tensor] | None = None
        different: list[int] = []
        for rows in self.sizes.decode_rows:
            # Slot 0 is the stream; the others fill the bucket, and it stands last.
            self.begin(range(1, min(rows, 64)), self.prompt())
            first = self.begin(range(1), prompt)
            order = np.roll(np.arange(rows, dtype=np.int32), -1)
            tokens, logits = [first], []
            for _ in range(steps):
                tokens.append(self.runner.decode(order).tokens()[-1:])
                logits.append(self.decoder.logits[rows - 1].clone())
            found = (tokens, torch.stack(logits))
            expected = expected or found
            if found[0] != expected[0] or not torch.equal(found[1], expected[1]):
                different.append(rows)
        return {"buckets": list(self.sizes.decode_rows), "steps": steps, "buckets_with_other_bits": different}

    def resumed_bits(self, spoken: int = 40, rest: int = 40) -> dict[str, Any]:
        """Compare an answer with one that another server goes on with after some tokens."""
        prompt = self.prompt()
        whole = self.begin(range(1), prompt)
        for _ in range(spoken + rest - 1):
            whole += self.runner.decode(np.zeros(1, np.int32)).tokens()
        heard = np.array(whole[:spoken], np.int32)
        longer = np.concatenate([prompt, heard + self.weights.vocabulary.first_id])
        flags = _end_flags(self.weights)
        flags[heard] |= 1
        start = AnswerStart(
            slot=1, seed=1000, prompt_tokens=len(longer), drawn=spoken, min_tokens=CONTEXT_TOKENS, window=10,
            repeat_limit=1, top_k=50, temperature=0.8, top_p=0.95, min_p=0.0, penalty=1.1,
            recent_rows=tuple(whole[:spoken]), pages=tuple(range(1 + self._pages, 1 + 2 * self._pages)), flags=flags,
        )  # fmt: skip
        again = self.runner.prompt([PromptPiece(1, 0, longer, True, start)]).tokens()
        for _ in range(rest - 1):
            again += self.runner.decode(np.ones(1, np.int32)).tokens()
        equal = sum(one == other for one, other in zip(whole[spoken:], again, strict=True))
        return {"tokens": rest, "equal_tokens": equal}

    def step_ms(self, rows: int, samples: int) -> list[float]:
        """Time steps from their launch to their tokens on the host, at the context's length."""
        slots = np.arange(rows, dtype=np.int32)
        times = []
        for index in range(samples + 20):
            if index % 32 == 0:
                self.state.next_position[: self.slots] = CONTEXT - 16
                torch.cuda.synchronize()
            began = time.perf_counter()
            self.runner.decode(slots).tokens()
            times.append((time.perf_counter() - began) * 1e3)
        return times[20:]

    def prompt_ms(self, prompts: int, samples: int) -> list[float]:
        """Time the prompts of so many streams in one step."""
        pieces = [PromptPiece(slot, 0, self.prompt(), True, None) for slot in range(prompts)]
        times = []
        for _ in range(samples + 5):
            began = time.perf_counter()
            self.runner.prompt(pieces).tokens()
            times.append((time.perf_counter() - began) * 1e3)
        return times[5:]


def _distance(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return the total variation of the two distributions at each place, 0 to 1."""
    return (ours.softmax(-1) - theirs.softmax(-1)).abs().sum(-1) / 2


def _end_flags(weights: Weights) -> Any:
    flags = np.zeros(weights.vocabulary.head_rows, np.int8)
    flags[SPEECH_TOKEN_COUNT:] = BANNED
    return flags
