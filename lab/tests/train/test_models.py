"""The models as they are trained compute what the served ones will."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from demo_voice.unpack import SPEECH_TABLE, write_llm
from lab.train.models.flow import TrainableFlow
from lab.train.models.flow_masks import WindowCut, blocks_of, draw_cut, history_of, plans_for
from lab.train.models.llm import TrainableLLM
from lab.train.models.llm_data import (
    IGNORED,
    SPEECH,
    TEXT,
    Noise,
    TokenUtterance,
    UtteranceBank,
    train_text_tokenizer,
)
from lab.train.models.mel_reader import Judge, TrueSpeech
from lab.train.models.onnx_export import export_speaker_encoder, export_tokenizer
from lab.train.models.speaker import SpeakerNet
from lab.train.models.tokenizer import (
    CodeTable,
    SpeechTokenizerNet,
    code_digits,
    per_sound,
    rounded,
    soft_digits,
    token_ids,
)
from lab.train.models.vocoder import JUDGED_SAMPLES, judged_places
from lab.train.models.vocoder_losses import MelLoss
from lab.train.package import llm_arrays, llm_shape
from lab.train.sizes import DEMO, TINY, DemoSizes
from llm_service.embedded.model import SpeechLanguageModel
from llm_service.prompt import build_prompt
from llm_service.text_encoder import load_text_encoder
from tests.token2wav_service.streaming.flow_factory import whole_mel
from token2wav_service.checkpoint.loader import read_config
from token2wav_service.checkpoint.make_random import write_description
from token2wav_service.config import HistoryPolicy, SynthesisPolicy
from token2wav_service.features.mel import flow_mel_24k
from token2wav_service.features.prompt_models import OnnxSpeechTokenizer, SpeakerEncoder
from token2wav_service.models.causal import FlowInput
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.noise import NoiseDomain, counter_normal

TEXTS = ["The boat sailed at dawn.", "A gull cried over the harbour.", "Was it late? It was 1984."]


@pytest.fixture(scope="module")
def text_tokenizer() -> Tokenizer:
    return train_text_tokenizer(TEXTS, TINY.llm.text_tokens)


def randomised(module: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Give every parameter a value: training starts some at zero, where nothing could be told apart."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return module.eval()


def test_the_exported_tokenizer_gives_the_trained_one_s_tokens(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = SpeechTokenizerNet(TINY.tokenizer)
    for _ in range(40):  # batch norm's statistics settle
        net(torch.randn(4, 128, 60))
    export_tokenizer(net, tmp_path / "tokenizer.onnx")
    log_mel = torch.randn(128, 57)

    exported = OnnxSpeechTokenizer(tmp_path / "tokenizer.onnx").tokenize(log_mel.numpy())
    trained = token_ids(net.eval()(log_mel[None]))[0].numpy()

    assert len(exported) == 15
    assert len(set(trained.tolist())) > 5
    assert (exported == trained).mean() > 0.85  # int8 weights move a value over a level now and then


def test_a_token_is_its_digits_in_base_three() -> None:
    digits = code_digits(torch.device("cpu"))

    assert torch.equal(token_ids((digits.float() - 1).T[None])[0], torch.arange(6561))


def test_soft_digits_are_the_digits_and_let_the_gradient_through() -> None:
    codes = code_digits(torch.device("cpu"))[::97].float().T[None] - 1
    codes.requires_grad_(True)

    digits = soft_digits(codes)
    (digits[..., 2] - digits[..., 0]).sum().backward()  # type: ignore[no-untyped-call]

    assert torch.equal(digits.argmax(-1)[0], code_digits(torch.device("cpu"))[::97])
    assert torch.equal(digits.sum(-1), torch.ones_like(digits[..., 0]))
    assert codes.grad is not None and (codes.grad == 1).all()  # a step up makes the higher digit likelier


def test_rounding_lets_the_gradient_through() -> None:
    codes = torch.tensor([0.2, 0.7, -0.9], requires_grad=True)

    values = rounded(codes)
    values.sum().backward()  # type: ignore[no-untyped-call]

    assert values.tolist() == [0.0, 1.0, -1.0]
    assert codes.grad is not None and codes.grad.tolist() == [1.0, 1.0, 1.0]


def test_a_short_sound_counts_as_much_as_a_long_one() -> None:
    phones = torch.tensor([[4, 4, 4, 4, 4, 7, 7, 4, 0, 0], [0] * 10])
    logits = torch.full((2, 9, 10), -9.0).scatter_(1, phones[:, None], 9.0)
    wrong_short = logits.clone()
    wrong_short[0, :, 7] = logits[0, :, 6]
    wrong_edge = logits.clone()
    wrong_edge[0, :, 5] = 0.5 * logits[0, :, 4]

    losses, shares = zip(*(per_sound(each, phones) for each in (logits, wrong_short, wrong_edge)), strict=True)

    assert [float(share) for share in shares] == pytest.approx([1.0, 0.8, 1.0])
    assert float(losses[0]) < 1e-6
    assert float(losses[1]) == pytest.approx(18 / 5, rel=1e-3)  # one of five sounds is 18 below the wrong one
    assert float(losses[0]) < float(losses[2]) < 0.1


def test_a_judge_has_nothing_against_true_mel_and_hears_what_is_made_alone() -> None:
    torch.manual_seed(0)
    judge = Judge(torch.device("cpu"))
    speech = TrueSpeech(3 * torch.randn(2, 80, 30) - 6, torch.randint(0, 9, (2, 30)), 10)
    judge.prepare(0.0)
    judge.learn(speech)
    weights = torch.ones(1)  # of the first row alone

    true = judge.losses(speech.mel[:1], speech, weights)
    made = (speech.mel[:1] + torch.randn(1, 80, 30)).requires_grad_()
    wrong = judge.losses(made, speech, weights)
    (wrong["phones"] + wrong["layers"]).backward()  # type: ignore[no-untyped-call]

    assert true["layers"].item() == 0 < wrong["layers"].item()
    assert made.grad is not None and (made.grad[:, :, :10] == 0).all() and (made.grad[:, :, 10:] != 0).all()
    assert judge.losses(made, speech, torch.zeros(1))["phones"].item() == 0


def test_the_exported_speaker_encoder_gives_the_trained_one_s_embedding(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = SpeakerNet(TINY.speaker)
    net(torch.randn(8, 60, 80))
    export_speaker_encoder(net, tmp_path / "campplus.onnx")
    energies = torch.randn(90, 80)

    exported = SpeakerEncoder(tmp_path / "campplus.onnx").embed_fbank(energies.numpy())
    trained = net.eval()(energies[None])[0].detach().numpy()

    cosine = exported @ trained / np.linalg.norm(exported) / np.linalg.norm(trained)
    assert cosine > 0.999


def test_training_masks_are_what_streaming_sees() -> None:
    """One masked pass over [prompt | target] equals preparing the voice and streaming the target."""
    model = randomised(TrainableFlow(TINY.flow), 0)
    assert isinstance(model, TrainableFlow)
    stream = StreamFlow(model.finished(), SynthesisPolicy(history=HistoryPolicy.PROMPT_AND_RECENT, ode_steps=2))
    generator = torch.Generator().manual_seed(1)
    prompt, target = (torch.randint(0, 6561, (n,), generator=generator) for n in (20, 43))
    target[:3] = prompt[:3]  # a prepared voice takes its own beginning for look-ahead
    mel, speaker = torch.randn(40, 80, generator=generator), torch.randn(192, generator=generator)
    state, pieces = stream.run_prompt(prompt, mel, speaker), []
    for start, end, is_last in ((0, 18, False), (15, 43, True)):
        (piece,), (state,) = stream.forward([FlowInput(state, target[start:end], speaker, 7, is_last)])
        pieces.append(piece)

    cut = WindowCut(20, (15, 43), None)
    plans = plans_for(blocks_of(cut), history_of(cut), cut.prompt_tokens)
    noise = [counter_normal(torch.tensor([s]), torch.tensor([o]), n, 80, NoiseDomain.FLOW) for s, o, n in NOISE]
    whole = whole_mel(
        stream,
        torch.cat([prompt, target]),
        speaker,
        torch.cat(noise, 1).transpose(1, 2),
        plans.encoder,
        plans.solver_mask,
        cond=torch.nn.functional.pad(mel.T, (0, 86))[None],
    )

    torch.testing.assert_close(whole[:, 40:], torch.cat(pieces, 1), atol=2e-4, rtol=0)


NOISE = ((0, 0, 40), (7, 40, 86))
"""Seed, first frame and frames of the prompt's noise and of the target's."""


def test_a_short_history_hides_old_frames_but_never_the_prompt() -> None:
    cut = WindowCut(10, (10, 20, 40), history_frames=6)
    plans = plans_for(blocks_of(cut), history_of(cut), cut.prompt_tokens)
    last_chunk = plans.solver_mask[0, 0, -1]

    assert last_chunk[:20].all()  # the prompt
    assert not last_chunk[20:54].any()
    assert last_chunk[54:].all()  # six frames and the chunk itself
    assert plans.encoder.frames.mask[0, 0, -1].all()


def test_cuts_cover_the_target_and_differ() -> None:
    draw = random.Random(0)
    cuts = [draw_cut(draw, 30, 120) for _ in range(60)]

    assert {cut.chunk_ends[-1] for cut in cuts} == {120}
    assert all(list(cut.chunk_ends) == sorted(set(cut.chunk_ends)) for cut in cuts)
    assert len({cut.chunk_ends for cut in cuts}) > 5
    assert {cut.history_frames is None for cut in cuts} == {True, False}


@pytest.mark.slow
def test_the_llm_s_sequences_are_laid_out_as_its_prompts_are(text_tokenizer: Tokenizer, tmp_path: Path) -> None:
    utterances = [TokenUtterance(0, TEXTS[n % 3], np.full(5, n, np.uint16)) for n in range(200)]
    bank = UtteranceBank(utterances, text_tokenizer, seed=0)
    model = TrainableLLM(TINY.llm)
    write_llm(tmp_path, llm_shape(TINY.llm), llm_arrays(model), json.loads(text_tokenizer.to_str()))
    encode = load_text_encoder(tmp_path).encode
    batch = bank.batch(8, torch.device("cpu"), is_validation=True)

    for kinds, rows, targets in zip(batch.kinds, batch.rows, batch.targets, strict=True):
        spoken = targets[targets != IGNORED].tolist()
        assert spoken.pop() == 6561
        heard = [spoken[index] for index in range(0, len(spoken), 5)]
        texts = [TEXTS[number % 3] for number in heard]
        expected = build_prompt(encode, "".join(texts[:1]) if len(texts) > 1 else "", texts[-1], spoken)
        if len(texts) <= 2:
            assert _llm_ids(kinds, rows)[: len(expected.token_ids)] == list(expected.token_ids)


def _llm_ids(kinds: torch.Tensor, rows: torch.Tensor) -> list[int]:
    from llm_service.vocab import COSYVOICE2

    starts = torch.tensor([0, COSYVOICE2.sos_id, COSYVOICE2.first_id])
    return (starts[kinds] + rows).tolist()


def test_training_inputs_hold_wrong_tokens_and_targets_never_do(text_tokenizer: Tokenizer) -> None:
    utterances = [TokenUtterance(0, TEXTS[0], np.full(100, 3, np.uint16)) for _ in range(100)]
    batch = UtteranceBank(utterances, text_tokenizer, seed=0).batch(16, torch.device("cpu"))

    speech_in = batch.rows[batch.kinds == 2]
    speech_out = batch.targets[batch.targets != IGNORED]

    assert 0.01 < float((speech_in != 3).float().mean()) < 0.1
    assert set(speech_out.tolist()) == {3, 6561}


def test_training_texts_lose_their_stop_and_some_tokens_and_validation_s_never_do(text_tokenizer: Tokenizer) -> None:
    utterances = [TokenUtterance(0, TEXTS[0], np.full(300, 3, np.uint16)) for _ in range(100)]
    whole = text_tokenizer.encode(TEXTS[0]).ids

    def texts(noise: Noise, is_validation: bool) -> list[list[int]]:
        bank = UtteranceBank(utterances, text_tokenizer, 0, noise)
        batch = bank.batch(64, torch.device("cpu"), is_validation)
        # Text stands before the first speech token; what follows is padding.
        before = torch.cumsum(batch.kinds == SPEECH, 1) == 0
        return [rows[kept].tolist() for rows, kept in zip(batch.rows, before & (batch.kinds == TEXT), strict=True)]

    bare, masked = texts(Noise(bare=0.5), False), texts(Noise(masked=0.2), False)

    assert 0.2 < sum(text == whole[:-1] for text in bare) / 64 < 0.8
    assert all(text in (whole, whole[:-1]) for text in bare)
    assert all(len(text) == len(whole) for text in masked)
    assert 0.1 < np.mean([np.array(text) != whole for text in masked]) < 0.3
    assert all(text == whole for text in texts(Noise(bare=0.5, masked=0.5), True))


def test_a_long_utterance_comes_behind_short_ones(text_tokenizer: Tokenizer) -> None:
    sizes = [300 if number % 2 else 40 for number in range(400)]
    utterances = [TokenUtterance(0, TEXTS[0], np.full(size, size, np.uint16)) for size in sizes]
    batch = UtteranceBank(utterances, text_tokenizer, 0, Noise(wrong=0)).batch(64, torch.device("cpu"))

    spoken = [targets[targets != IGNORED][:-1] for targets in batch.targets]
    long = [row for row in spoken if 300 in row]

    assert all(len(row) <= 400 for row in spoken)
    assert sum(len(row) > 300 for row in long) > len(long) / 3
    assert sum(int(row[-1]) == 300 for row in long) > len(long) / 3


def test_dropout_acts_in_training_alone(text_tokenizer: Tokenizer) -> None:
    utterances = [TokenUtterance(0, TEXTS[0], np.full(100, 3, np.uint16)) for _ in range(100)]
    batch = UtteranceBank(utterances, text_tokenizer, 0).batch(2, torch.device("cpu"))
    model = TrainableLLM(TINY.llm, dropout=0.5)

    assert not torch.equal(model(batch), model(batch))
    model.eval()
    assert torch.equal(model(batch), model(batch))


@pytest.mark.slow
def test_the_written_llm_gives_the_trained_one_s_logits(text_tokenizer: Tokenizer, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = TrainableLLM(TINY.llm).eval()
    write_llm(tmp_path, llm_shape(TINY.llm), llm_arrays(model), json.loads(text_tokenizer.to_str()))
    served = SpeechLanguageModel.load(tmp_path, "cpu", "float32")
    served.allocate_cache(1, 64, rows_per_forward=1)
    prompt = build_prompt(load_text_encoder(tmp_path).encode, TEXTS[0], TEXTS[1], [5, 6, 7])

    utterances = [TokenUtterance(0, TEXTS[0], np.zeros(5, np.uint16))] * 60
    batch = UtteranceBank(utterances, text_tokenizer, 0).batch(1, torch.device("cpu"), is_validation=True)
    ids = torch.tensor(prompt.token_ids)
    kinds = torch.where(ids >= 158227, 1, torch.where(ids >= 151663, 2, 0))
    rows = ids - torch.tensor([0, 158227, 151663])[kinds]
    with torch.no_grad():
        logits = model.head(model(replace(batch, kinds=kinds[None], rows=rows[None]))[0, -1])

    got = served.prefill(0, list(prompt.token_ids))
    np.testing.assert_allclose(got[:6562], logits[:6562].numpy(), atol=0.02)
    assert got[6562:].max() < got[:6562].min()  # the reserved end tokens never come


def test_the_text_tokenizer_reads_cases_alike_digits_singly_and_marks_plainly(text_tokenizer: Tokenizer) -> None:
    encode = text_tokenizer.encode

    assert encode("THE BOAT").ids == encode("the boat").ids
    assert len(encode("1984").ids) == 4
    assert encode("It’s").ids == encode("it's").ids
    assert text_tokenizer.get_vocab_size() <= TINY.llm.text_tokens


def test_code_tables_have_a_row_for_every_token_and_share_what_digits_share() -> None:
    torch.manual_seed(0)
    table = CodeTable(8, 16)().detach()
    near, far = table[0] - table[1], table[0] - table[6560]

    assert table.shape == (6561, 8)
    assert near.norm() < far.norm()


def test_a_finished_flow_s_embedding_is_the_code_table() -> None:
    model = TrainableFlow(TINY.flow)

    torch.testing.assert_close(model.finished().input_embedding.weight.data, model.codes().detach())


def test_the_vocoder_s_mel_loss_hears_the_flow_s_own_mel() -> None:
    samples = (0.1 * np.random.default_rng(0).standard_normal(9_600)).astype(np.float32)

    made = MelLoss().mel(torch.from_numpy(samples)[None])[0].T.numpy()

    np.testing.assert_allclose(made, flow_mel_24k(samples), atol=2e-4)


def test_the_judges_get_one_piece_of_each_window_from_anywhere_in_it() -> None:
    torch.manual_seed(0)

    places = judged_places(torch.zeros(64, 2 * JUDGED_SAMPLES))

    assert places.shape == (64, JUDGED_SAMPLES) and (places.diff(dim=1) == 1).all()
    assert 0 <= places.min() < JUDGED_SAMPLES / 4 and 7 / 4 * JUDGED_SAMPLES < places.max() < 2 * JUDGED_SAMPLES
    assert torch.equal(judged_places(torch.zeros(1, JUDGED_SAMPLES))[0], torch.arange(JUDGED_SAMPLES))


def test_the_llm_s_packed_tables_are_those_of_the_digits() -> None:
    arrays = llm_arrays(TrainableLLM(TINY.llm))

    assert arrays[SPEECH_TABLE].shape == (6561, TINY.llm.hidden)
    assert not any("embed_tokens" in name for name in arrays)


@pytest.mark.parametrize("sizes", [pytest.param(DEMO, id="demo"), pytest.param(TINY, id="tiny")])
def test_the_flow_s_sizes_are_read_back_from_flow_yaml(sizes: DemoSizes, tmp_path: Path) -> None:
    write_description(tmp_path, sizes.flow, sizes.hift)

    assert read_config(tmp_path).flow == sizes.flow
