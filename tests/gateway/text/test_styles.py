"""Ways of speaking: what the LLM is told for a word, an instruction or a tag within a text."""

from __future__ import annotations

import pytest

from gateway.errors import ConfigError, InvalidRequestError, UnsupportedOptionError
from gateway.text import WHOLE_TEXT, SpokenSegment, TextFrontEnd, TextOptions, load_text_front_end
from gateway.text.styles import STYLE_NAMES, Style, StyleRule, audio_tags, instruction_of, style_of
from gateway.text.tags import InlineTags, TextPart
from llm_service.huggingface_layout import INLINE_TOKENS
from llm_service.vocab import CONTROL_TOKENS, INLINE_TAGS
from servicekit.checkpoint_file import CheckpointDeclaration

TAGGED = TextOptions(has_audio_tags=True)


@pytest.fixture(scope="module")
def front_end() -> TextFrontEnd:
    return load_text_front_end(None, CheckpointDeclaration(tags=("[laughter]",), instruct="endofprompt"))


def spoken(front_end: TextFrontEnd, *pieces: str, options: TextOptions = TAGGED) -> list[SpokenSegment]:
    stream = front_end.open(options, WHOLE_TEXT)
    segments = [segment for piece in pieces for segment in stream.push(piece)] + stream.flush()
    return [each for each in map(stream.prepare, segments) if each.is_speakable]


def told(segments: list[SpokenSegment]) -> list[tuple[str, str]]:
    return [(each.instruction, each.text.strip()) for each in segments]


@pytest.mark.parametrize(
    ("words", "language", "instruction"),
    [
        pytest.param("happy", "en", "Please say a sentence very happily.", id="a name"),
        pytest.param("happy", "zh", "请非常开心地说一句话。", id="before Chinese text"),
        pytest.param("Whispering!", None, "Please say a sentence in a very soft voice.", id="another form of a name"),
        pytest.param(" Be\n kind. ", "zh", "Be kind.", id="an instruction stays"),
        pytest.param("neutral", "en", "", id="neutral"),
    ],
)
def test_a_name_stands_for_an_instruction(words: str, language: str | None, instruction: str) -> None:
    assert instruction_of(words, language) == instruction


def test_every_name_has_one_in_both_languages() -> None:
    for name in STYLE_NAMES:
        english, chinese = instruction_of(name, "en"), instruction_of(name, "yue")
        assert english.isascii() and english.endswith(".") and chinese.endswith("。")


def test_two_fields_for_one_thing_are_refused() -> None:
    assert style_of(instructions=None, style=" ") is None
    assert style_of(instructions="", style="sad") == Style("sad", "style")
    with pytest.raises(InvalidRequestError, match="instructions and style, which mean the same"):
        style_of(instructions="a", style="b")


@pytest.mark.parametrize("words", ["a" * 1001, "a\ud800"])
def test_an_instruction_that_can_not_be_is_refused(words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        style_of(instructions=words)
    assert caught.value.param == "instructions"


def test_what_is_an_audio_tag() -> None:
    text = "[whispers] [1] [a] [strong French accent] [ no] [see](http://a.b) [laughs] [long pause] [x=1]"
    assert [tag.words for tag in audio_tags(text)] == ["whispers", "strong French accent", "laughs", "long pause"]
    whispers, accent, laughs, pause = audio_tags(text)
    assert (whispers.style, accent.style) == ("whispers", "Please say a sentence in this way: strong French accent.")
    assert (laughs.sound, laughs.style, pause.pause_s, pause.style) == ("[laughter]", "", 1.25, "")


@pytest.mark.parametrize("size", [1, 3, 100])
def test_audio_tags_are_read_however_the_text_comes(front_end: TextFrontEnd, size: int) -> None:
    text = "Well. [happy][short pause] Yes [laughs]! [robot] No, [link](http://a.b)."
    segments = spoken(front_end, *(text[at : at + size] for at in range(0, len(text), size)))
    robot = "Please say a sentence in this way: robot."
    happy = "Please say a sentence very happily."
    assert told(segments) == [("", "Well."), (happy, "Yes [laughter]!"), (robot, "No, link.")]
    written = [each.source.text for each in segments]
    assert "".join(written) == text.replace("[short pause]", ""), "which is a segment of silence"


def test_a_style_of_the_request_holds_where_no_tag_says_another(front_end: TextFrontEnd) -> None:
    options = TextOptions(style=Style("sad"), has_audio_tags=True)
    texts = told(spoken(front_end, "One. [happy] Two. [neutral] Three.", options=options))
    assert texts == [
        ("Please say a sentence very sadly.", "One."),
        ("Please say a sentence very happily.", "Two."),
        ("", "Three."),
    ]


def test_without_the_form_brackets_are_text(front_end: TextFrontEnd) -> None:
    assert told(spoken(front_end, "[whispers] So.", options=TextOptions())) == [("", "[whispers] So.")]


def test_what_is_not_taken_is_left_alone_or_refused() -> None:
    text, options = "One [whispers] two [laughs].", TextOptions(style=Style("sad"), has_audio_tags=True)
    ignoring = load_text_front_end(None, CheckpointDeclaration(tags=()))
    assert told(spoken(ignoring, text, options=options)) == [("", "One two.")]
    assert ignoring.ignored(options, text) == ("style", "audio_tags")
    assert ignoring.ignored(TAGGED, "[laughs]") == ()
    refusing = load_text_front_end(None, CheckpointDeclaration(tags=()), None, True)
    for refused in (lambda: refusing.check(options), lambda: refusing.check_audio_tags(text, TAGGED)):
        with pytest.raises(UnsupportedOptionError, match="takes no instructions"):
            refused()
    with pytest.raises(UnsupportedOptionError, match="audio_tags"):
        spoken(refusing, text)
    StyleRule(is_declared=True, refuses=True).check("style")


TAGS = InlineTags()


def test_the_tags_are_all_those_of_the_models_vocabulary_that_a_user_may_write() -> None:
    written = [token for token in INLINE_TOKENS if token not in CONTROL_TOKENS]
    assert written == list(INLINE_TAGS)


@pytest.mark.parametrize(
    ("text", "is_speakable"),
    [("Hi", True), ("[breath]", True), ("5", True), ("你", True), ("<strong> … </strong>!", False), (" \n🙂", False)],
)
def test_only_letters_digits_and_sounds_can_be_spoken(text: str, is_speakable: bool) -> None:
    assert TAGS.is_speakable(text) is is_speakable


def test_a_model_without_tags_has_only_text() -> None:
    none = InlineTags(())
    assert list(none.parts("[breath] Hi")) == [TextPart("[breath] Hi", is_tag=False)]
    assert none.unfinished_from("Hi [brea") == len("Hi [brea")


@pytest.mark.parametrize("tag", ["breath", "[a b]", "<a<b>", "[]", ""])
def test_a_tag_of_another_form_is_refused(tag: str) -> None:
    with pytest.raises(ConfigError, match="expected a form such as"):
        InlineTags((tag,))
