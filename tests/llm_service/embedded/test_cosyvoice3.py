"""CosyVoice3's LLM: its numbering, its prompt, and answers of the engine that are speech tokens and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gateway.core import Sampling, Utterance
from gateway.errors import LLMProtocolError
from gateway.llm.wire import LLMWire
from llm_service.checkpoint import make_random_llm
from llm_service.embedded.engine import EngineLimits
from llm_service.embedded.model import SpeechLanguageModel
from llm_service.embedded.types import GenerationRequest, SamplingParams
from llm_service.errors import VocabularyError
from llm_service.export.huggingface import read_huggingface, write_huggingface
from llm_service.export.source import read_official
from llm_service.gpu.weights import load_weights
from llm_service.prompt import build_prompt
from llm_service.speech_head import read_vocabulary
from llm_service.text_encoder import load_text_encoder
from llm_service.vocab import (
    COSYVOICE2,
    COSYVOICE3,
    SpeechVocabulary,
    vocabulary_of_ids,
    vocabulary_of_table,
)
from tests.llm_service.embedded.engines import make_engine

INSTRUCTION = "You are a helpful assistant."


@pytest.fixture(scope="module")
def llm_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cosyvoice3") / "llm"
    make_random_llm(directory, seed=3, vocabulary=COSYVOICE3)
    return directory


def test_the_numbering_is_the_official_one() -> None:
    """Figures of the specification of the flows, section 10."""
    assert COSYVOICE3.llm_id(0) == 151924 and COSYVOICE3.head_rows == 6761
    control = COSYVOICE3.control_ids
    assert [control[token] for token in ("<|sos|>", "<|eos1|>", "<|task_id|>", "<|fill|>")] == [
        158485,
        158486,
        158487,
        158488,
    ]
    assert control["<|s_6565|>"] == 158489 and COSYVOICE3.end_ids[-1] == 158684
    assert COSYVOICE3.table_rows == 158720
    assert vocabulary_of_table(158720) is vocabulary_of_ids(151924) is COSYVOICE3
    assert vocabulary_of_table(158336) is vocabulary_of_ids(151663) is COSYVOICE2
    with pytest.raises(VocabularyError, match="151936"):
        vocabulary_of_table(151936)


@pytest.mark.slow
def test_the_directory_tells_its_family(llm_dir: Path) -> None:
    assert load_text_encoder(llm_dir).vocabulary is COSYVOICE3
    assert read_vocabulary(llm_dir) is COSYVOICE3


def test_an_instruction_stands_before_every_text(llm_dir: Path) -> None:
    encoder = load_text_encoder(llm_dir)
    prompt = build_prompt(encoder.encode, "Hi. ", "there", [5], COSYVOICE3)
    expected = [
        158485,
        *encoder.encode(INSTRUCTION),
        151646,
        *encoder.encode("Hi."),
        *encoder.encode("there"),
        158487,
        151924 + 5,
    ]
    assert list(prompt.token_ids) == expected
    assert prompt.target_text_tokens == len(encoder.encode("there"))


@pytest.mark.parametrize("vocabulary", [COSYVOICE2, COSYVOICE3], ids=lambda each: each.name)
def test_an_instruction_of_the_caller_s_stands_behind_the_family_s(
    tmp_path: Path, vocabulary: SpeechVocabulary
) -> None:
    make_random_llm(tmp_path, seed=3, vocabulary=vocabulary)
    encoder, before = load_text_encoder(tmp_path), "" if vocabulary is COSYVOICE2 else f"{INSTRUCTION} "
    spoken = [*encoder.encode(f"{before}Be kind."), 151646, *encoder.encode("Hi.")]
    expected = (vocabulary.sos_id, *spoken, vocabulary.task_id, vocabulary.first_id + 5)
    utterance = Utterance("Hi. ", "", (5,), instruction=" Be kind.")
    assert LLMWire(encoder).token_prompt(utterance).token_ids == expected


def test_the_bound_of_an_instructed_answer_knows_no_pace(llm_dir: Path) -> None:
    wire = LLMWire(load_text_encoder(llm_dir))
    plain, slow = Utterance("Hello there.", "", ()), Utterance("Hello there.", "", (), instruction="Be slow.")
    assert wire.token_prompt(plain).bounds.max_tokens < wire.token_prompt(slow).bounds.max_tokens == 12 * 20


def test_a_text_can_not_bring_a_tag_of_its_own(llm_dir: Path) -> None:
    for token in ("<|endofprompt|>", "<|fill|>", "<|s_6565|>", "<|sos|>"):
        ids = load_text_encoder(llm_dir).encode(f"a{token}b")
        assert max(ids) < 151643


def test_the_engine_says_speech_tokens_only_and_ends(llm_dir: Path) -> None:
    model = SpeechLanguageModel.load(llm_dir, "cpu", "float32")
    engine = make_engine(model, EngineLimits(slots=2, max_sequence_tokens=400), vocabulary=model.vocabulary)
    prompt = build_prompt(load_text_encoder(llm_dir).encode, "", "Hello there.", [], COSYVOICE3).token_ids
    for seed in range(2):
        engine.add_request(GenerationRequest(str(seed), prompt, SamplingParams(max_tokens=200, seed=seed)))
    heard: dict[str, list[int]] = {"0": [], "1": []}
    reasons = {}
    for _ in range(400):
        for output in engine.step():
            heard[output.request_id] += output.token_ids
            if output.is_last:
                assert output.error is None
                reasons[output.request_id] = output.finish_reason
    assert set(reasons) == {"0", "1"}
    assert all(tokens and all(COSYVOICE3.is_speech(token) for token in tokens) for tokens in heard.values())


def test_the_gateway_speaks_the_numbering_of_its_tokenizer(llm_dir: Path) -> None:
    wire = LLMWire(load_text_encoder(llm_dir))
    body = wire.request(Utterance("Hello.", "", ()), Sampling(), 1, "m")
    assert body["stop_token_ids"] == list(COSYVOICE3.end_ids)
    event = {"choices": [{"token_ids": [151924, 158484, 158486, 151930], "finish_reason": None}]}
    delta = wire.read(json.dumps(event))
    assert (delta.token_ids, delta.finish_reason) == ((0, 6560), "stop")
    with pytest.raises(LLMProtocolError, match="151663"):
        wire.read(json.dumps({"choices": [{"token_ids": [151663]}]}))


def test_the_converted_form_keeps_the_head_s_rows(llm_dir: Path, tmp_path: Path) -> None:
    source = read_huggingface(llm_dir)
    write_huggingface(source, tmp_path, "float32")
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert (config["speech_head_first_id"], config["speech_head_rows"]) == (151924, 6761)
    assert (config["eos_token_id"], config["vocab_size"]) == (158486, 158720)
    weights = load_weights(tmp_path, torch.device("cpu"), torch.float32)
    assert weights.vocabulary is COSYVOICE3
    torch.testing.assert_close(weights.head, source.head.weight.float())


@pytest.mark.slow
def test_the_official_llm_pt_is_read(llm_dir: Path, tmp_path: Path) -> None:
    """CosyVoice3's has no llm_embedding and no bias; its text tokenizer is that of the Hugging Face form."""
    source = read_huggingface(llm_dir)
    tensors = {f"llm.model.model.{name}": tensor for name, tensor in source.decoder.items()}
    rows = slice(COSYVOICE3.first_id, COSYVOICE3.first_id + COSYVOICE3.head_rows)
    tensors |= {
        "llm.model.model.embed_tokens.weight": source.embedding[:151936].clone(),
        "speech_embedding.weight": source.embedding[rows].clone(),
        "llm_decoder.weight": source.head.weight.to(source.embedding.dtype),
    }
    torch.save(tensors, tmp_path / "llm.pt")
    qwen = tmp_path / "qwen"
    qwen.mkdir()
    (qwen / "config.json").write_text((llm_dir / "config.json").read_text(encoding="utf-8"), encoding="utf-8")
    (qwen / "tokenizer.json").write_text(json.dumps(_text_tokenizer(llm_dir)), encoding="utf-8")
    read = read_official(tmp_path / "llm.pt", qwen)
    assert read.vocabulary is COSYVOICE3 and not read.head.bias.any()
    torch.testing.assert_close(read.embedding[rows], source.embedding[rows])


def _text_tokenizer(llm_dir: Path) -> dict[str, object]:
    """The text tokenizer alone, as large as CosyVoice3's is with its tags."""
    description = json.loads((llm_dir / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = {token: index for token, index in description["model"]["vocab"].items() if index < COSYVOICE3.first_id}
    vocab |= {f"filler {index}": index for index in set(range(COSYVOICE3.first_id)) - set(vocab.values())}
    added = [token for token in description["added_tokens"] if token["id"] < COSYVOICE3.first_id]
    return {**description, "added_tokens": added, "model": {**description["model"], "vocab": vocab}}
