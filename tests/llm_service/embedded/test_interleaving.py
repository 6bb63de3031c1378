"""Text that comes while its speech is drawn: the order of the original's traces, and what differs on purpose."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tts_api.llm.v1 import speech_token_service_pb2 as messages
from tts_api.llm.v1 import speech_token_service_pb2_grpc as stubs

from llm_service.embedded.engine import EngineLimits, SpeechLMEngine
from llm_service.embedded.interleaving import InterleavedPrompt
from llm_service.embedded.loop import EngineLoop
from llm_service.embedded.token_stream import SpeechTokenServicer, serving_tokens
from llm_service.embedded.types import FinishReason, GenerationOutput, GenerationRequest, SamplingParams
from llm_service.errors import EngineError, InvalidGenerationError
from llm_service.prompt import MAX_SPEECH_PER_TEXT_TOKEN
from llm_service.vocab import COSYVOICE2, COSYVOICE3, SpeechVocabulary
from servicekit.clock import SystemClock
from tests import ROOT
from tests.llm_service.embedded.engines import NO_GUARD, ScriptedModel, check_integrity, make_engine

LIMITS = EngineLimits(slots=2, max_sequence_tokens=400)
PARAMS = SamplingParams(max_tokens=200, seed=3, temperature=0.0, repetition_penalty=1.0)
WAIT_S = 30.0


def names_of(ids: Sequence[int], vocabulary: SpeechVocabulary) -> list[str]:
    """Name ids as the traces do."""
    special = {vocabulary.sos_id: "sos", vocabulary.task_id: "task", vocabulary.endofprompt_id: "eop"}
    return [
        special.get(token, f"s{token - vocabulary.first_id}" if vocabulary.is_speech(token) else f"t{token}")
        for token in ids
    ]


def make_request(
    case: dict[str, Any], vocabulary: SpeechVocabulary, params: SamplingParams = PARAMS
) -> GenerationRequest:
    """Lay a case's prompt out: in CosyVoice3 the instruction up to its end mark belongs to the begin."""
    transcript = list(case["prompt_text"])
    split = transcript.index(vocabulary.endofprompt_id) + 1 if vocabulary is COSYVOICE3 else 0
    speech = [vocabulary.llm_id(1000 + index) for index in range(case["prompt_speech_len"])]
    prompt = (vocabulary.sos_id, *transcript, *speech)
    return GenerationRequest("a", prompt, params, interleaved=InterleavedPrompt(1 + split, len(transcript) - split))


def run(engine: SpeechLMEngine, request: GenerationRequest, text: Sequence[int]) -> list[GenerationOutput]:
    """Bring the text an id at a time, each when the engine has nothing to do any more."""
    outputs: list[GenerationOutput] = []
    engine.add_request(request)
    for index in range(len(text) + 1):
        while engine.idle_s() == 0:
            outputs += engine.step()
            check_integrity(engine)
        engine.feed("a", text[index : index + 1], is_last=index == len(text))
    while engine.idle_s() == 0:
        outputs += engine.step()
    assert outputs[-1].is_last and engine.stats().free_slots == LIMITS.slots
    return outputs


def speech_of(outputs: Sequence[GenerationOutput], vocabulary: SpeechVocabulary) -> list[int]:
    return [vocabulary.speech_id(token) for output in outputs for token in output.token_ids]


def trace(folder: str, name: str) -> dict[str, Any]:
    cases = json.loads((ROOT / "tests" / "assets" / "llm_traces" / f"{folder}.json").read_text())["cases"]
    return dict(cases[name])


FAMILIES = {"cosyvoice2_unet": COSYVOICE2, "cosyvoice3_dit": COSYVOICE3}


@pytest.mark.parametrize(
    ("folder", "name"), [("cosyvoice2_unet", "bi"), ("cosyvoice2_unet", "bi_no_prompt"), ("cosyvoice3_dit", "bi")]
)
def test_what_is_fed_is_the_originals_trace_without_the_token_that_it_feeds_twice(folder: str, name: str) -> None:
    case, vocabulary = trace(folder, name), FAMILIES[folder]
    model = ScriptedModel(vocabulary, len(case["yielded"]))
    outputs = run(
        make_engine(model, LIMITS, NO_GUARD, vocabulary=vocabulary), make_request(case, vocabulary), case["text"]
    )
    expected = " ".join(case["fed_per_step"]).split()
    twice = [index for index in range(1, len(expected)) if expected[index] == expected[index - 1]]
    assert len(twice) == 1, "the token before the rest of the text"
    del expected[twice[0]]
    assert names_of(model.fed, vocabulary) == expected
    assert speech_of(outputs, vocabulary) == case["yielded"]
    assert outputs[-1].finish_reason is FinishReason.STOP


def test_prompt_speech_that_a_short_text_leaves_over_is_fed_behind_it() -> None:
    case = trace("cosyvoice2_unet", "bi_text_too_short_for_prompt")
    model = ScriptedModel(COSYVOICE2, len(case["yielded"]))
    outputs = run(make_engine(model, LIMITS, NO_GUARD), make_request(case, COSYVOICE2), case["text"])
    first, *later = (step.split() for step in case["fed_per_step"])
    rest = [f"s{1000 + index}" for index in range(18)]
    assert names_of(model.fed, COSYVOICE2) == [*first, *rest, *(name for step in later for name in step)]
    assert speech_of(outputs, COSYVOICE2) == case["yielded"]


@pytest.mark.parametrize("folder", FAMILIES)
def test_no_end_is_drawn_while_text_is_to_come(folder: str) -> None:
    case, vocabulary = trace(folder, "bi_eos_while_text_pending"), FAMILIES[folder]
    stops = frozenset(vocabulary.end_ids)
    for end in vocabulary.end_ids[:3]:
        if end == vocabulary.fill_id:
            continue
        model = ScriptedModel(vocabulary, 40, wishes={5: end})
        request = make_request(case, vocabulary, replace(PARAMS, stop_token_ids=stops))
        outputs = run(make_engine(model, LIMITS, NO_GUARD, vocabulary=vocabulary), request, case["text"])
        assert speech_of(outputs, vocabulary) == list(range(100, 140))


@pytest.mark.parametrize("vocabulary", FAMILIES.values(), ids=FAMILIES)
def test_a_fill_that_the_llm_draws_itself_asks_for_text_and_is_neither_fed_nor_handed_out(
    vocabulary: SpeechVocabulary,
) -> None:
    model = ScriptedModel(vocabulary, 25, wishes={4: vocabulary.fill_id})
    begin = (vocabulary.sos_id, vocabulary.endofprompt_id)
    request = GenerationRequest("a", begin, PARAMS, interleaved=InterleavedPrompt(2, 0))
    outputs: list[GenerationOutput] = []
    engine = make_engine(model, LIMITS, NO_GUARD, vocabulary=vocabulary)
    engine.add_request(request)
    engine.feed("a", range(1, 8), is_last=False)
    while engine.idle_s() == 0:
        outputs += engine.step()
    assert speech_of(outputs, vocabulary) == [100, 101, 102, 103], "it waits for text after four tokens"
    engine.feed("a", (), is_last=True)
    model.wishes.clear()
    while engine.idle_s() == 0:
        outputs += engine.step()
    assert names_of(model.fed, vocabulary)[7:14] == ["s100", "s101", "s102", "s103", "t6", "t7", "task"]
    assert speech_of(outputs, vocabulary) == list(range(100, 125))


@pytest.mark.parametrize("count", [0, 4, 5, 6, 20, 21, 24])
@pytest.mark.parametrize("text", [range(1, 4), range(1, 13), range(1, 23)], ids=["short", "middling", "long"])
def test_what_was_drawn_elsewhere_is_laid_out_as_it_was_there(text: range, count: int) -> None:
    case = {"prompt_text": [51, 52], "prompt_speech_len": 8}
    asking = [4] if len(text) == 3 else [4, 18]  # behind so many tokens
    model = ScriptedModel(COSYVOICE2, 50, Once(dict.fromkeys(asking, COSYVOICE2.fill_id)))
    request = make_request(case, COSYVOICE2)
    drawn = drawn_of(run(make_engine(model, LIMITS, NO_GUARD), request, text))
    assert drawn.count(COSYVOICE2.fill_id) == len(asking)
    fed, going_on = list(model.fed), (*request.prompt_ids, *drawn[:count])
    asking = asking[drawn[:count].count(COSYVOICE2.fill_id) :]
    model.wishes = Once(dict.fromkeys(asking, COSYVOICE2.fill_id))
    continued = replace(request, prompt_ids=going_on, continued_tokens=count)
    assert drawn_of(run(make_engine(model, LIMITS, NO_GUARD), continued, text)) == drawn[count:]
    assert model.fed == fed


class Once(dict[int, int]):
    """Wishes that are forgotten when they are told."""

    def __getitem__(self, key: int) -> int:
        return self.pop(key)


def drawn_of(outputs: Sequence[GenerationOutput]) -> list[int]:
    """All that was drawn, the fills among them; each output is one draw."""
    fill = COSYVOICE2.fill_id
    return [token for output in outputs for token in (output.token_ids or [fill] * len(output.fills))]


def test_continued_tokens_are_bounded_by_the_prompt_and_counted_for_the_text() -> None:
    request = make_request({"prompt_text": [51], "prompt_speech_len": 4}, COSYVOICE2)
    engine = make_engine(ScriptedModel(COSYVOICE2, 99), LIMITS, NO_GUARD)
    for wrong in (5, 7):
        with pytest.raises(InvalidGenerationError, match=f"and {wrong} continued; expected"):
            engine.validate(replace(request, continued_tokens=wrong))
    spoken = tuple(COSYVOICE2.llm_id(token) for token in range(100, 135))
    going_on = replace(request, prompt_ids=(*request.prompt_ids, *spoken), continued_tokens=35)
    outputs = run(engine, going_on, range(2))
    assert speech_of(outputs, COSYVOICE2) == list(range(135, 135 + 2 * MAX_SPEECH_PER_TEXT_TOKEN - 35))
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_a_prompt_of_whole_blocks_waits_for_text_before_it_speaks() -> None:
    case = {"prompt_text": [51, 52, 53, 54, 55], "prompt_speech_len": 15}
    model = ScriptedModel(COSYVOICE2, 20)
    engine = make_engine(model, LIMITS, NO_GUARD)
    engine.add_request(make_request(case, COSYVOICE2))
    while engine.idle_s() == 0:
        assert engine.step() == []
    assert len(model.fed) == 21, "the prompt's block is computed while text is waited for"
    assert engine.stats().running == 1 and engine.idle_s() == float("inf")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param([(COSYVOICE2.sos_id,)], "out of range 0..151662", id="no text"),
        pytest.param([range(400)], "400 more text tokens came, and there is room for", id="too long"),
        pytest.param([(1, 2), (3,)], "text came behind the last", id="after the end"),
    ],
)
def test_text_that_cant_be_taken_is_refused(text: list[Sequence[int]], said: str) -> None:
    engine = make_engine(ScriptedModel(COSYVOICE2, 9), LIMITS, NO_GUARD)
    engine.add_request(make_request({"prompt_text": [51], "prompt_speech_len": 8}, COSYVOICE2))
    for piece in text[:-1]:
        engine.feed("a", piece, is_last=True)
    with pytest.raises(InvalidGenerationError, match=said):
        engine.feed("a", text[-1], is_last=False)


def test_an_answer_whose_text_is_whole_takes_no_more_and_a_wrong_layout_is_refused() -> None:
    engine = make_engine(ScriptedModel(COSYVOICE2, 9), LIMITS, NO_GUARD)
    engine.add_request(GenerationRequest("a", (COSYVOICE2.sos_id, 1, COSYVOICE2.task_id), PARAMS))
    with pytest.raises(InvalidGenerationError, match="was whole when it began"):
        engine.feed("a", (1,), is_last=True)
    engine.feed("gone", (1,), is_last=True)
    wrong = GenerationRequest("b", (COSYVOICE2.sos_id, 1, 2), PARAMS, interleaved=InterleavedPrompt(1, 1))
    with pytest.raises(InvalidGenerationError, match="expected at least 1, and speech tokens behind both"):
        engine.validate(wrong)


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    loop = EngineLoop(make_engine(ScriptedModel(COSYVOICE2, 20), LIMITS, NO_GUARD), 4, SystemClock())
    loop.start()
    yield loop
    loop.stop()


def test_the_loop_hands_text_on_and_ends_what_cant_take_it(loop: EngineLoop) -> None:
    outputs: queue.Queue[GenerationOutput] = queue.Queue()
    request = GenerationRequest("a", (COSYVOICE2.sos_id,), PARAMS, interleaved=InterleavedPrompt(1, 0))
    loop.submit(request, outputs.put)
    loop.feed("a", range(1, 6), is_last=False)
    spoken = [token for _ in range(15) for token in outputs.get(timeout=WAIT_S).token_ids]
    assert [COSYVOICE2.speech_id(token) for token in spoken] == list(range(100, 115))
    loop.feed("a", (COSYVOICE2.sos_id,), is_last=False)
    last = outputs.get(timeout=WAIT_S)
    assert isinstance(last.error, EngineError) and "out of range" in str(last.error)
    assert loop.stats().free_slots == LIMITS.slots


async def test_over_grpc_text_comes_among_the_answers_of_one_stream(loop: EngineLoop) -> None:
    async with serving_tokens(SpeechTokenServicer(loop), "127.0.0.1", 0) as port:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = stubs.SpeechTokenServiceStub(channel)
            layout = messages.Interleaved(begin_tokens=1)
            asked = messages.GenerateRequest(prompt_ids=[COSYVOICE2.sos_id], max_tokens=100, interleaved=layout)
            asked.sampling.CopyFrom(messages.Sampling(top_p=1.0, repetition_penalty=1.0))
            call = stub.GenerateMany(timeout=WAIT_S)
            await call.write(messages.GenerateManyRequest(begin=[messages.NumberedRequest(number=7, request=asked)]))
            spoken = list[int]()
            for text in (range(1, 6), ()):
                more = messages.MoreText(number=7, text_ids=text, is_last=not text)
                await call.write(messages.GenerateManyRequest(texts=[more]))
                while len(spoken) < (20 if not text else 15):
                    spoken += [token for part in (await call.read()).parts for token in part.response.speech_ids]
            assert spoken == list(range(100, 120))
            call.cancel()
            with pytest.raises(grpc.aio.AioRpcError, match="ask for interleaved answers by GenerateMany"):
                await stub.Generate(asked, timeout=WAIT_S).read()
