"""Steps as graphs: what they read lies still, equal shapes share a graph, and nothing is lost where there is none."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from lab.train.models.flow import LOOKAHEAD_TOKENS, TrainableFlow
from lab.train.models.flow_masks import WindowCut, blocks_of, history_of, plans_for
from lab.train.models.llm import TrainableLLM
from lab.train.models.llm_data import (
    ASKED,
    IGNORED,
    PLACES,
    TokenUtterance,
    UtteranceBank,
    train_text_tokenizer,
)
from lab.train.replay import Graph, Inputs, Losses, Replayer
from lab.train.sizes import TINY
from lab.train.trainer import EMA_DECAY, MAX_GRADIENT_NORM, WARM_UP_STEPS, Updater

CPU = torch.device("cpu")
TEXTS = ["The boat sailed at dawn.", "A gull cried over the harbour.", "Was it late? It was 1984."]


class Recorder:
    """Stands in for CUDA: a capture launches nothing that counts, a replay launches the same again."""

    def __init__(self, fails: bool = False) -> None:
        self.captures = 0
        self.replays = 0
        self._fails = fails

    def __call__(self, run: Callable[[], None]) -> Graph:
        self.captures += 1
        if self._fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        recorder = self

        class Recorded:
            def replay(self) -> None:
                recorder.replays += 1
                run()

        return Recorded()


def add_up(total: torch.Tensor) -> Callable[[Inputs], Losses]:
    def step(inputs: Inputs) -> Losses:
        total.add_(inputs["value"].sum())
        return {"loss": total * 1.0}

    return step


def test_steps_are_run_twice_then_captured_and_replayed_and_none_counts_double() -> None:
    recorder, total = Recorder(), torch.zeros(())
    replayer = Replayer(CPU, recorder)

    losses = [float(replayer.run("sum", {"value": torch.tensor([float(n)])}, add_up(total))["loss"]) for n in range(5)]

    assert losses == [0, 1, 3, 6, 10]
    assert (recorder.captures, recorder.replays) == (1, 3)


def test_each_name_and_shape_has_a_graph_of_its_own() -> None:
    recorder, total = Recorder(), torch.zeros(())
    replayer = Replayer(CPU, recorder)

    for name, size in [("a", 1), ("a", 2), ("b", 1)] * 3:
        replayer.run(name, {"value": torch.ones(size)}, add_up(total))

    assert recorder.captures == 3
    assert float(total) == 12


def test_a_capture_that_fails_costs_no_step_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    recorder, total = Recorder(fails=True), torch.zeros(())
    replayer = Replayer(CPU, recorder)

    with caplog.at_level(logging.WARNING):
        for name in ("a", "b") * 4:
            replayer.run(name, {"value": torch.ones(1)}, add_up(total))

    assert float(total) == 8
    assert recorder.captures == 1
    assert [record.message for record in caplog.records if "one by one: step a" in record.message]


def test_what_a_step_reads_stays_where_it_is() -> None:
    seen = set()

    def step(inputs: Inputs) -> Losses:
        seen.add(inputs["value"].data_ptr())
        return {}

    replayer = Replayer(CPU)
    for n in range(3):
        replayer.run("look", {"value": torch.full((4,), float(n))}, step)

    assert len(seen) == 1


def test_updates_are_those_of_adamw_with_an_average_of_the_weights() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    other = copy.deepcopy(module)
    updater = Updater(module, rate=0.01)
    matrices = [p for p in other.parameters() if p.dim() > 1]
    vectors = [p for p in other.parameters() if p.dim() == 1]
    plain = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}], betas=(0.9, 0.98)
    )
    average = copy.deepcopy(other)
    for step in range(6):
        x = torch.randn(16, 6)
        updater.prepare(progress=0.0)
        updater.update(10 * module(x).square().mean())
        plain.zero_grad()
        (10 * other(x).square().mean()).backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), MAX_GRADIENT_NORM)
        for group in plain.param_groups:
            group["lr"] = 0.01 * (step + 1) / WARM_UP_STEPS
        plain.step()
        kept = min(EMA_DECAY, (1 + step) / (10 + step)) if step else 0.0
        with torch.no_grad():
            for mean, value in zip(average.parameters(), other.parameters(), strict=True):
                mean.mul_(kept).add_((1 - kept) * value)

    torch.testing.assert_close(dict(module.state_dict()), dict(other.state_dict()))
    torch.testing.assert_close(list(updater.average.parameters()), list(average.parameters()))
    assert torch.equal(updater.average.get_buffer("1.running_mean"), module.get_buffer("1.running_mean"))


@pytest.fixture(scope="module")
def text_tokenizer() -> Tokenizer:
    return train_text_tokenizer(TEXTS, TINY.llm.text_tokens)


def bank_of(tokenizer: Tokenizer) -> UtteranceBank:
    draw = np.random.default_rng(0)
    lengths = draw.integers(20, 120, 200)
    ids = [draw.integers(0, 6561, length).astype(np.uint16) for length in lengths]
    return UtteranceBank([TokenUtterance(n % 2, TEXTS[n % 3], row) for n, row in enumerate(ids)], tokenizer, 0)


def test_asked_places_are_all_that_are_asked_and_shapes_are_few(text_tokenizer: Tokenizer) -> None:
    bank = bank_of(text_tokenizer)

    shapes = set()
    for _ in range(20):
        batch = bank.batch(64, CPU)
        shapes.add((batch.kinds.shape, batch.asked.shape))
        wanted = batch.targets[batch.targets != IGNORED]
        got = batch.targets.flatten()[batch.asked]
        assert torch.equal(got[got != IGNORED], wanted)
        assert batch.kinds.shape[1] % PLACES == 0 and len(batch.asked) % (64 * ASKED) == 0

    assert len(shapes) < 8


def test_the_llm_s_layers_one_by_one_are_the_decoder_itself(text_tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    model = TrainableLLM(TINY.llm).eval()
    batch = bank_of(text_tokenizer).batch(3, CPU)

    with torch.no_grad():
        got = model(batch)
        whole = model.decoder(inputs_embeds=model.embed(batch), use_cache=False).last_hidden_state

    torch.testing.assert_close(got, whole)


def test_a_last_row_hears_no_token_behind_its_end() -> None:
    torch.manual_seed(0)
    model = TrainableFlow(TINY.flow).eval()
    cut = WindowCut(8, (5, 12), None)
    plans = plans_for(blocks_of(cut), history_of(cut), cut.prompt_tokens)
    tokens = torch.randint(0, 6561, (2, 20 + LOOKAHEAD_TOKENS))
    others = tokens.clone()
    others[:, 20:] = 7

    with torch.no_grad():
        mu, changed = (model.encode(ids, torch.tensor([True, False]), 40, plans) for ids in (tokens, others))
        lengths = torch.tensor([20])
        embedded = torch.nn.functional.embedding(tokens[:1, :20], model.codes())
        ended, _, _ = model.flow.encoder(embedded, lengths, torch.tensor([True]), plans=plans.encoder)

    torch.testing.assert_close(mu[0], changed[0])
    torch.testing.assert_close(mu[0], model.flow.encoder_proj(ended)[0].T, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(mu[1], changed[1])
