"""Whatever a caller spells, wherever: of a tokenizer's own tokens only the declared tags come out of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from gateway.core import Utterance
from gateway.llm.wire import LLMWire
from gateway.text import WHOLE_TEXT, Normalization, TextFrontEnd, TextOptions, load_text_front_end
from gateway.text.aliases import AliasRule
from gateway.text.styles import Style
from llm_service.checkpoint import make_random_llm
from llm_service.text_encoder import TextEncoder, acting_tags, load_text_encoder
from llm_service.vocab import COSYVOICE2, COSYVOICE3, ENDOFTEXT_ID, SpeechVocabulary
from servicekit.checkpoint_file import CheckpointDeclaration, find_declaration, write_declaration
from tests.workers import demo_checkpoint, made_once

DECLARED = {
    "cosyvoice2": CheckpointDeclaration(family="cosyvoice2", instruct="endofprompt"),
    "cosyvoice2 with few tags": CheckpointDeclaration(tags=("[breath]",), instruct="endofprompt"),
    "cosyvoice3": CheckpointDeclaration(family="cosyvoice3", instruct="endofprompt", phonemes="cosyvoice3"),
    "cosyvoice3 without phonemes": CheckpointDeclaration(family="cosyvoice3", instruct="endofprompt"),
}


class Checkpoint:
    """A tokenizer, what its checkpoint declares, and the gateway's way to ids."""

    def __init__(self, llm_dir: Path) -> None:
        self.declaration = find_declaration(llm_dir)
        self.encoder: TextEncoder = load_text_encoder(llm_dir)
        self.raw = Tokenizer.from_file(str(llm_dir / "tokenizer.json"))
        self.front_end: TextFrontEnd = load_text_front_end(None, self.declaration)
        added = json.loads((llm_dir / "tokenizer.json").read_text("utf-8"))["added_tokens"]
        acting = acting_tags(self.declaration)
        speech = [token["content"] for token in added if token["content"].startswith("<|s_")]
        others = [token["content"] for token in added if not token["content"].startswith("<|s_")]
        self.protected = [token for token in others if token not in acting] + speech[:2] + speech[-2:]
        self.tags = [token for token in others if token in acting]
        self.own_ids = frozenset(token["id"] for token in added)
        """Of everything that is not plain text."""

    def said(self, text: str, options: TextOptions) -> Iterator[Utterance]:
        """Yield what the LLM is asked for, for a text."""
        stream = self.front_end.open(options, WHOLE_TEXT)
        for segment in map(stream.prepare, [*stream.push(text), *stream.flush()]):
            if segment.is_speakable:
                yield Utterance(segment.text, "", (), instruction=segment.instruction)

    def own_ids_of(self, utterance: Utterance) -> list[int]:
        """Return what an utterance's prompt holds beside plain text, without what stands in every prompt."""
        vocabulary = self.encoder.vocabulary
        ids = LLMWire(self.encoder).token_prompt(utterance).token_ids
        assert (ids[0], ids[-1]) == (vocabulary.sos_id, vocabulary.task_id)
        found = [token_id for token_id in ids[1:-1] if token_id in self.own_ids or token_id >= ENDOFTEXT_ID]
        if utterance.instruction or vocabulary.instruction:
            found.remove(vocabulary.endofprompt_id)
        return found


@pytest.fixture(scope="module", params=["demo", *DECLARED])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    if request.param == "demo":
        return _opened(demo_checkpoint(tmp_path_factory) / "llm")
    vocabulary = COSYVOICE3 if "3" in request.param else COSYVOICE2
    folder = made_once(tmp_path_factory, f"spelled-{request.param}", _maker(vocabulary, DECLARED[request.param]))
    return _opened(folder / "llm")


_opened = cache(Checkpoint)


def _maker(vocabulary: SpeechVocabulary, declaration: CheckpointDeclaration) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        make_random_llm(folder / "llm", seed=1, vocabulary=vocabulary)
        write_declaration(folder, declaration)

    return make


AS_WRITTEN = TextOptions(normalization=Normalization.OFF)
Say = Callable[[str], tuple[str, TextOptions]]
WAYS: dict[str, Say] = {
    "text": lambda token: (f"a {token} b", TextOptions()),
    "text as written": lambda token: (f"a{token}b", AS_WRITTEN),
    "entities": lambda token: (f"a {token.replace('<', '&lt;').replace('[', '&#91;')} b", TextOptions()),
    "instruction": lambda token: ("a", TextOptions(style=Style(f"be {token} kind"))),
    "instruction's end": lambda token: ("a", TextOptions(style=Style(token))),
    "dictionary": lambda token: ("the word here", TextOptions(aliases=(AliasRule("word", f"a {token} b"),))),
    "SSML alias": lambda token: (
        f'<speak>a <sub alias="{_escaped(token)}">x</sub> b</speak>',
        TextOptions(is_ssml=True),
    ),
    "SSML text": lambda token: (f"<speak>a {_escaped(token)} b</speak>", TextOptions(is_ssml=True)),
    "SSML say-as": lambda token: (
        f'<speak>a <say-as interpret-as="characters">{_escaped(token)}</say-as></speak>',
        TextOptions(is_ssml=True),
    ),
}


def _escaped(token: str) -> str:
    return token.replace("<", "&lt;").replace(">", "&gt;")


@pytest.mark.slow
@pytest.mark.parametrize("way", list(WAYS))
def test_no_way_into_a_prompt_makes_a_token_of_what_is_not_declared(checkpoint: Checkpoint, way: str) -> None:
    assert len(checkpoint.protected) > 10
    for token in checkpoint.protected:
        text, options = WAYS[way](token)
        for utterance in checkpoint.said(text, options):
            assert checkpoint.own_ids_of(utterance) == [], token


def test_a_transcript_makes_none_either(checkpoint: Checkpoint) -> None:
    for token in checkpoint.protected:
        assert checkpoint.own_ids_of(Utterance("Hi.", f"I am {token}.", ())) == [], token
        assert checkpoint.own_ids_of(Utterance("Hi.", token[: len(token) // 2], ())) == []


def test_a_token_parted_over_two_texts_is_none(checkpoint: Checkpoint) -> None:
    for token in [*checkpoint.protected, *checkpoint.tags]:
        assert checkpoint.own_ids_of(Utterance(token[2:], token[:2], ())) == [], token


def test_declared_tags_act_in_a_text(checkpoint: Checkpoint) -> None:
    assert bool(checkpoint.tags) == (checkpoint.declaration.tags != ())
    for tag in checkpoint.tags:
        expected = [checkpoint.raw.token_to_id(tag)]
        for options in (TextOptions(), AS_WRITTEN):
            (utterance,) = checkpoint.said(f"a {tag} b", options)
            assert checkpoint.own_ids_of(utterance) == expected, tag
