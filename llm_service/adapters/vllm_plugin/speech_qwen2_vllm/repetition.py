"""Repetition-aware sampling in vLLM: a logits processor that draws, written to vLLM 0.20.2.

`vllm serve --logits-processors speech_qwen2_vllm.repetition:RepetitionAwareSampling` loads it. It must be named there:
for processors that vLLM finds by an entry point it leaves placeholders where an answer's last token belongs. It needs
the model runner of `VLLM_USE_V2_MODEL_RUNNER=0`; the other one has no logits processors.

The processor stands behind penalties, bans and temperature, and before `top_k` and `top_p`. It draws by itself and
leaves a row in which only the drawn token is possible, so that what follows can't choose another. Greedy answers stay
vLLM's. A window and a share of one request are given as `ras_window` and `ras_tau` of `vllm_xargs`; 0 is off.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality

from .drawing import NO_TOKEN, Limits, draw, last_columns, uniforms_of

logger = logging.getLogger(f"vllm.{__name__}")  # vLLM shows what is below its own name

CONFIG_KEY = "repetition_aware_sampling"
WINDOW_KEY, TAU_KEY = "ras_window", "ras_tau"
DEFAULT_WINDOW, DEFAULT_TAU = 10, 0.1
_MAX_WINDOW = 1 << 16
_GREEDY_BELOW = 1e-5
"""Temperature below which vLLM draws greedily."""


class GuardParameters(NamedTuple):
    """Which tokens are drawn again: those that hold a share `tau` of the last `window` tokens."""

    window: int
    tau: float


class Request(NamedTuple):
    """What the processor keeps of a request."""

    guard: GuardParameters
    seed: int
    top_k: int
    top_p: float
    answer: Sequence[int]
    """Ids drawn so far; vLLM appends to it."""


class RepetitionAwareSampling(LogitsProcessor):  # type: ignore[misc]  # vLLM is not there where types are checked
    """Draws the tokens of all requests that are not greedy."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Check a request's own window and share.

        Raises:
            ValueError: one of them is out of range.
        """
        _guard_of(sampling_params.extra_args or {}, GuardParameters(DEFAULT_WINDOW, DEFAULT_TAU))

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        """Make the processor of one worker.

        Args:
            vllm_config: its `additional_config` may hold `repetition_aware_sampling` with `ras_window` and `ras_tau`.
            device: where logits lie.
            is_pin_memory: unused.
        """
        model = vllm_config.model_config.hf_config
        self._first_id, self._rows = int(model.speech_head_first_id), int(model.speech_head_rows)
        self._device = device
        own = vllm_config.additional_config.get(CONFIG_KEY, {})
        self._guard = _guard_of(own, GuardParameters(DEFAULT_WINDOW, DEFAULT_TAU))
        self._requests: dict[int, Request] = {}
        self._is_warned = False
        self._places = torch.empty(0, dtype=torch.int64, device=device)
        self._limits = self._limits_now()

    def is_argmax_invariant(self) -> bool:
        """Return True: greedy answers are not changed, and the processor is called behind the temperature."""
        return True

    def update_state(self, batch_update: Any | None) -> None:
        """Follow requests that leave, come and move within the batch; rows of those that left are forgotten."""
        if batch_update is None:
            return
        for place in batch_update.removed:
            self._requests.pop(place, None)
        for place, params, _, answer in batch_update.added:
            self._put(place, self._request(params, answer))
        for source, target, direction in batch_update.moved:
            moved, replaced = self._requests.pop(source, None), self._requests.pop(target, None)
            self._put(target, moved)
            if direction == MoveDirectionality.SWAP:
                self._put(source, replaced)
        self._places = torch.tensor(list(self._requests), dtype=torch.int64, device=self._device)
        self._limits = self._limits_now()

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Leave only the drawn token in each row that draws.

        Args:
            logits: [batch, vocabulary] float32, changed in place.
        """
        if not self._requests:
            return logits
        requests = self._requests.values()
        answers = [request.answer for request in requests]
        self._warn_of_placeholders(answers)
        recent = last_columns(answers, [request.guard.window for request in requests], self._first_id)
        uniforms = uniforms_of([request.seed for request in requests], [len(answer) for answer in answers])
        scores = logits[self._places, self._first_id : self._first_id + self._rows]
        drawn = draw(scores, recent.to(self._device), self._limits, uniforms.to(self._device))
        logits[self._places] = float("-inf")
        logits[self._places, drawn + self._first_id] = 0.0
        return logits

    def _put(self, place: int, request: Request | None) -> None:
        if request is None:
            self._requests.pop(place, None)
        else:
            self._requests[place] = request

    def _request(self, params: Any, answer: Sequence[int]) -> Request | None:
        """Return what to keep of a request; None if vLLM draws its tokens."""
        guard = _guard_of(params.extra_args or {}, self._guard)
        if guard.window == 0 or params.temperature < _GREEDY_BELOW:
            return None
        # By torch's own generator: vLLM seeds it alike in all workers of one model.
        seed = int(torch.randint(1 << 62, ())) if params.seed is None else int(params.seed)
        top_k = params.top_k if 0 < params.top_k < self._rows else self._rows
        return Request(guard, seed, top_k, params.top_p, answer)

    def _warn_of_placeholders(self, answers: Sequence[Sequence[int]]) -> None:
        if not self._is_warned and any(answer and answer[-1] == NO_TOKEN for answer in answers):
            self._is_warned = True
            logger.warning("answers lack their last token, so repetitions are missed; use --logits-processors")

    def _limits_now(self) -> Limits:
        requests = self._requests.values()
        return Limits(
            top_k=torch.tensor([request.top_k for request in requests], dtype=torch.int64, device=self._device),
            top_p=self._numbers([request.top_p for request in requests]),
            redrawn_from=self._numbers([request.guard.window * request.guard.tau for request in requests]),
        )

    def _numbers(self, values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self._device)


def _guard_of(given: dict[str, Any], default: GuardParameters) -> GuardParameters:
    """Return the guard that is asked for.

    Raises:
        ValueError: window or share is out of range.
    """
    window, tau = given.get(WINDOW_KEY, default.window), given.get(TAU_KEY, default.tau)
    if isinstance(window, bool) or not isinstance(window, int) or not 0 <= window <= _MAX_WINDOW:
        raise ValueError(f"{WINDOW_KEY} is {window!r}; expected a whole number of 0..{_MAX_WINDOW}")
    if isinstance(tau, bool) or not isinstance(tau, (int, float)) or not 0.0 < tau <= 1.0:
        raise ValueError(f"{TAU_KEY} is {tau!r}; expected more than 0 and at most 1")
    return GuardParameters(window, float(tau))
