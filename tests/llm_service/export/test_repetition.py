"""vLLM's logits processor draws as the embedded engine does, whatever happens to the batch around it.

vLLM can't be installed here: a stand-in has its documented interface. It proves nothing about vLLM.
"""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from llm_service.adapters import VLLM_PLUGIN_DIR, VLLM_REPETITION_CONFIG, VLLM_REPETITION_PROCESSOR
from llm_service.embedded.sampling import RepetitionGuard, TokenSampler
from llm_service.embedded.types import SamplingParams
from tests.llm_service.export.stand_ins import stand_in

FIRST_ID, ROWS, VOCABULARY = 20, 12, 40
PLUGIN = "speech_qwen2_vllm"


class LogitsProcessor(ABC):
    @abstractmethod
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None: ...

    @abstractmethod
    def apply(self, logits: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def is_argmax_invariant(self) -> bool: ...

    @abstractmethod
    def update_state(self, batch_update: Any) -> None: ...


class MoveDirectionality(Enum):
    UNIDIRECTIONAL = auto()
    SWAP = auto()


@dataclass(frozen=True)
class BatchUpdate:
    batch_size: int
    removed: Sequence[int] = ()
    added: Sequence[tuple[int, Any, list[int] | None, list[int]]] = ()
    moved: Sequence[tuple[int, int, MoveDirectionality]] = ()


class Answer(list[int]):
    """A list that can be watched."""


@dataclass
class Client:
    """One request: its logits depend on nothing but itself and its step."""

    number: int
    params: Any
    ids: Answer = field(default_factory=Answer)

    def logits(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * self.number + len(self.ids))
        return masked(torch.randn(ROWS, generator=generator) * 2)

    def take(self, row: torch.Tensor) -> None:
        assert torch.isfinite(row).sum() == 1
        self.ids.append(int(row.argmax()))


def masked(speech: torch.Tensor) -> torch.Tensor:
    logits = torch.full((VOCABULARY,), float("-inf"))
    logits[FIRST_ID : FIRST_ID + ROWS] = speech
    return logits


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def params(seed: int | None = 1, **fields: Any) -> Any:
    defaults = {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "extra_args": None}
    return SimpleNamespace(seed=seed, **(defaults | fields))


def added(place: int, client: Client) -> tuple[int, Any, list[int], list[int]]:
    return place, client.params, [1, 2], client.ids


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The plugin's module, as `--logits-processors` names it, on a stand-in for what it imports of vLLM."""
    interface = "vllm.v1.sample.logits_processor"
    stand_in(monkeypatch, interface, LogitsProcessor=LogitsProcessor, MoveDirectionality=MoveDirectionality)
    monkeypatch.syspath_prepend(VLLM_PLUGIN_DIR)
    yield __import__(VLLM_REPETITION_PROCESSOR.partition(":")[0], fromlist=["_"])
    for name in [name for name in sys.modules if name.partition(".")[0] == PLUGIN]:
        del sys.modules[name]


def processor_of(plugin: ModuleType, **own: Any) -> Any:
    config = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=SimpleNamespace(speech_head_first_id=FIRST_ID, speech_head_rows=ROWS)),
        additional_config={VLLM_REPETITION_CONFIG: own} if own else {},
    )
    made = getattr(plugin, VLLM_REPETITION_PROCESSOR.partition(":")[2])(config, torch.device("cpu"), False)
    assert isinstance(made, LogitsProcessor)
    return made


def step(processor: Any, clients: Sequence[Client]) -> None:
    """One step of vLLM: every request of the batch draws a token."""
    logits = processor.apply(torch.stack([client.logits() for client in clients]))
    for client, row in zip(clients, logits, strict=True):
        client.take(row)


def alone(plugin: ModuleType, number: int, steps: int, **fields: Any) -> list[int]:
    client = Client(number, params(seed=number, **fields))
    processor = processor_of(plugin)
    processor.update_state(BatchUpdate(1, added=[added(0, client)]))
    for _ in range(steps):
        step(processor, [client])
    return client.ids


@pytest.mark.parametrize("window", [0, 1, 4, 10])
@pytest.mark.parametrize("tau", [0.1, 0.3])
@pytest.mark.parametrize(("top_k", "top_p"), [(25, 0.8), (3, 1.0), (0, 0.5), (1, 1.0), (0, 1.0)])
def test_equal_random_numbers_give_the_embedded_engines_tokens(
    plugin: ModuleType, window: int, tau: float, top_k: int, top_p: float
) -> None:
    drawing = sys.modules[f"{PLUGIN}.drawing"]
    rows, steps, seed, temperature = 30, 60, 7, 0.8
    guard = RepetitionGuard(window, tau)
    sampling = SamplingParams(
        steps, temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=1.0, seed=seed
    )
    sampler = TokenSampler(sampling, guard, rows, (), (), ())
    random, noise = np.random.Generator(np.random.PCG64(seed)), np.random.default_rng(3)
    drawn: list[int] = []
    redrawn = 0
    for _ in range(steps):
        logits = (noise.standard_normal(rows) * 3 + np.linspace(4, 0, rows)).astype(np.float32)
        scores = torch.from_numpy(logits)[None].double() / temperature
        recent = drawing.last_columns([drawn], [window], 0)
        limits = drawing.Limits(torch.tensor([top_k or rows]), numbers(top_p), numbers(float("inf")))
        uniforms = numbers(random.random(), 0.0)[None]
        token = int(drawing.draw(scores, recent, limits, uniforms))
        if guard.is_repeated(token, drawn[-window:] if window else []):
            redrawn += 1
            uniforms[0, 1] = random.random()  # the embedded engine asks for it only now
            token = int(drawing.draw(scores, recent, limits._replace(redrawn_from=numbers(window * tau)), uniforms))
        drawn.append(token)
        assert token == sampler.sample(logits)
    if window == 0 or tau == 0.1:
        assert (redrawn > 0) == (window > 0)


def test_the_law_is_the_nucleus_where_new_and_all_others_where_repeated(plugin: ModuleType) -> None:
    drawing = sys.modules[f"{PLUGIN}.drawing"]
    scores = torch.tensor([2.0, 1.5, 1.0, 0.0, -1.0, float("-inf")]).double()
    recent = torch.tensor([[0, 2, drawing.NO_TOKEN, drawing.NO_TOKEN]])
    grid = 400
    each = (torch.arange(grid).double() + 0.5) / grid
    uniforms = torch.cartesian_prod(each, each)
    count = len(uniforms)
    limits = drawing.Limits(torch.full((count,), 4), numbers(*[0.75] * count), numbers(*[1.0] * count))
    drawn = drawing.draw(scores.expand(count, -1), recent.expand(count, -1), limits, uniforms)
    share = torch.bincount(drawn, minlength=len(scores)).double() / count

    whole = torch.softmax(scores, -1)
    nucleus = torch.where(torch.arange(6) < 3, whole, 0.0)  # 0.51, 0.31 and what crosses 0.75
    nucleus /= nucleus.sum()
    expected = nucleus.clone()
    for repeated in (0, 2):
        others = whole.clone()
        others[repeated] = 0.0
        expected += nucleus[repeated] * others / others.sum()
        expected[repeated] -= nucleus[repeated]
    torch.testing.assert_close(share, expected, atol=2 / grid, rtol=0)
    assert share[-1] == 0


def test_a_repeated_token_stays_if_no_other_is_possible(plugin: ModuleType) -> None:
    drawing = sys.modules[f"{PLUGIN}.drawing"]
    scores = torch.tensor([[float("-inf"), 3.0, float("-inf")]])
    limits = drawing.Limits(torch.tensor([3]), numbers(1.0), numbers(1.0))
    assert drawing.draw(scores, torch.tensor([[1, 1]]), limits, numbers(0.3, 0.6)[None]).tolist() == [1]


def test_random_numbers_are_even_and_those_of_seed_and_place(plugin: ModuleType) -> None:
    drawing = sys.modules[f"{PLUGIN}.drawing"]
    seeds, counts = [-1, 0, 1, 2**63 - 1], list(range(5000))
    table = torch.stack([drawing.uniforms_of([seed] * len(counts), counts) for seed in seeds])
    assert table.dtype == torch.float64 and 0 <= table.min() and table.max() < 1
    assert len(set(table.flatten().tolist())) == table.numel()
    histogram = torch.histc(table, 20, 0, 1) / table.numel()
    torch.testing.assert_close(histogram, torch.full((20,), 0.05).double(), atol=0.004, rtol=0)
    correlation = torch.corrcoef(table.permute(0, 2, 1).reshape(8, -1))
    assert (correlation - torch.eye(8)).abs().max() < 0.06
    assert torch.equal(drawing.uniforms_of([1, 2], [7, 9])[1], drawing.uniforms_of([2], [9])[0])


def test_a_batch_that_changes_gives_each_request_the_tokens_it_draws_alone(plugin: ModuleType) -> None:
    processor = processor_of(plugin)
    clients = [Client(number, params(seed=number)) for number in range(6)]
    batch = clients[:4]
    processor.update_state(BatchUpdate(4, added=[added(place, client) for place, client in enumerate(batch)]))
    step(processor, batch)
    processor.update_state(None)
    step(processor, batch)
    # Two swap places.
    batch[0], batch[2] = batch[2], batch[0]
    processor.update_state(BatchUpdate(4, moved=[(0, 2, MoveDirectionality.SWAP)]))
    step(processor, batch)
    # One leaves, and the last takes its place.
    batch = [batch[0], batch[3], batch[2]]
    processor.update_state(BatchUpdate(3, removed=[1], moved=[(3, 1, MoveDirectionality.UNIDIRECTIONAL)]))
    step(processor, batch)
    # One comes where another was, one at the end.
    batch = [clients[4], batch[1], batch[2], clients[5]]
    processor.update_state(BatchUpdate(4, added=[added(0, clients[4]), added(3, clients[5])]))
    for _ in range(12):
        step(processor, batch)
    assert [len(client.ids) for client in clients] == [16, 3, 4, 16, 12, 12]
    for client in clients:
        assert client.ids == alone(plugin, client.number, len(client.ids))


def test_a_request_that_is_put_back_goes_on_as_it_would_have(plugin: ModuleType) -> None:
    processor, client = processor_of(plugin), Client(3, params(seed=3))
    processor.update_state(BatchUpdate(1, added=[added(0, client)]))
    step(processor, [client])
    processor.update_state(BatchUpdate(0, removed=[0]))
    processor.update_state(BatchUpdate(1, added=[added(0, client)]))
    for _ in range(9):
        step(processor, [client])
    assert client.ids == alone(plugin, 3, 10)


def test_no_token_comes_twice_within_the_window_where_two_are_possible(plugin: ModuleType) -> None:
    for own, comes_twice in (({}, False), ({"ras_window": 0}, True), ({"ras_tau": 1.0}, True)):
        processor, client = processor_of(plugin), Client(0, params(top_k=1, extra_args=own or None))
        processor.update_state(BatchUpdate(1, added=[added(0, client)]))
        logits = masked(torch.tensor([5.0, 0.0] + [float("-inf")] * (ROWS - 2)))
        for _ in range(2):
            client.ids.append(int(processor.apply(logits[None].clone())[0].argmax()))
        assert (client.ids[0] == client.ids[1]) is comes_twice, own


def test_each_token_of_an_answer_is_drawn_anew(plugin: ModuleType) -> None:
    processor, client = processor_of(plugin, ras_window=1), Client(0, params(top_k=0, top_p=1.0))
    processor.update_state(BatchUpdate(1, added=[added(0, client)]))
    steps = 3000
    for _ in range(steps):
        client.take(processor.apply(masked(torch.zeros(ROWS))[None])[0])
    counts = np.bincount(np.array(client.ids) - FIRST_ID, minlength=ROWS)
    np.testing.assert_allclose(counts / steps, 1 / ROWS, atol=0.02)
    pairs = {(first, second) for first, second in zip(client.ids, client.ids[1:], strict=False)}
    assert len(pairs) == ROWS * (ROWS - 1)  # all but a token twice


def test_only_requests_that_draw_with_awareness_are_touched(plugin: ModuleType) -> None:
    processor = processor_of(plugin)
    clients = [
        Client(0, params(temperature=0.0)),
        Client(1, params()),
        Client(2, params(extra_args={"ras_window": 0})),
    ]
    logits = torch.stack([client.logits() for client in clients])
    given = logits.clone()
    assert processor.apply(logits) is logits and torch.equal(logits, given)
    processor.update_state(BatchUpdate(3, added=[added(place, client) for place, client in enumerate(clients)]))
    after = processor.apply(logits)
    assert torch.equal(after[[0, 2]], given[[0, 2]])
    assert torch.isfinite(after[1]).sum() == 1 and torch.isfinite(given[1, after[1].argmax()])
    assert processor.is_argmax_invariant()
    off = processor_of(plugin, ras_window=0)
    off.update_state(BatchUpdate(1, added=[added(0, clients[1])]))
    assert torch.equal(off.apply(given.clone()), given)


def test_a_request_without_a_seed_draws_by_torchs_generator(plugin: ModuleType) -> None:
    def draws(state: int) -> list[int]:
        torch.manual_seed(state)
        processor, client = processor_of(plugin), Client(1, params(seed=None))
        processor.update_state(BatchUpdate(1, added=[added(0, client)]))
        for _ in range(20):
            step(processor, [client])
        return client.ids

    assert draws(5) == draws(5) != draws(6)


def test_nothing_is_kept_of_a_request_that_left_or_was_replaced(plugin: ModuleType) -> None:
    processor = processor_of(plugin)
    clients = [Client(number, params()) for number in range(3)]
    kept = [weakref.ref(client.ids) for client in clients]
    processor.update_state(BatchUpdate(3, added=[added(place, client) for place, client in enumerate(clients)]))
    processor.update_state(BatchUpdate(1, removed=[0], moved=[(2, 1, MoveDirectionality.UNIDIRECTIONAL)]))
    del clients
    gc.collect()
    assert [reference() is None for reference in kept] == [True, True, False]
    processor.update_state(BatchUpdate(0, removed=[1]))
    gc.collect()
    assert kept[2]() is None


@pytest.mark.parametrize("own", [{"ras_window": -1}, {"ras_window": 2.5}, {"ras_tau": 0}, {"ras_tau": "much"}])
def test_a_guard_out_of_range_is_refused(plugin: ModuleType, own: dict[str, Any]) -> None:
    processor = processor_of(plugin)
    processor.validate_params(params())
    with pytest.raises(ValueError, match=f"{next(iter(own))} is"):
        processor.validate_params(params(extra_args=own))
    with pytest.raises(ValueError, match=f"{next(iter(own))} is"):
        processor_of(plugin, **own)


def test_a_placeholder_for_the_last_token_is_reported_once(
    plugin: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    processor, client = processor_of(plugin), Client(1, params(), Answer([FIRST_ID, -1]))
    processor.update_state(BatchUpdate(1, added=[added(0, client)]))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            processor.apply(client.logits()[None])
    assert caplog.text.count("lack their last token") == 1
