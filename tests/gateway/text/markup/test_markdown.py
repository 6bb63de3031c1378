"""What is written to be seen is not spoken: Markdown, HTML and SSML tags, emoji."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.text.markup.markdown import MarkupReader
from gateway.text.tags import InlineTags
from tests.gateway.text.builders import texts

FORMS = [
    *(
        "# ",
        "## Title\n",
        "- ",
        "* item\n",
        "1. ",
        "> ",
        "---\n",
        "```py\n",
        "```\n",
        "| a | b |\n",
        "|---|---|\n",
        "\n",
    ),
    *("**", "*", "_", "__", "~~", "`", "[", "](", ")", "![", "](http://a.b/c_d)", "[^1]", "\\*", "&amp;", "&", "&lt;"),
    *("<b>", "</b>", "<p>", "<br/>", "<break time='1s'/>", "<a href='x y'>", "<!--", "-->", "<", ">", "<http://a.b>"),
    *(
        "🙂",
        "👩‍👩‍👧",
        "☀️",
        "\u200d",
        "word ",
        "word",
        ".",
        " ",
        "!",
        "[breath]",
        "<strong>",
        "</strong>",
        "5",
        "<speak",
    ),
]
marked_up = st.lists(st.sampled_from(FORMS) | st.text(max_size=3), max_size=40).map("".join)


def cleaned(text: str, size: int | None = None) -> str:
    reader = MarkupReader(InlineTags())
    pieces = [text] if size is None else [text[at : at + size] for at in range(0, len(text), size)]
    steps = [step for piece in pieces for step in reader.reading(piece)] + [*reader.finishing()]
    stretches = [stretch for step in steps for stretch in step]
    assert "".join(stretch.written for stretch in stretches) == text
    return "".join(stretch.spoken for stretch in stretches)


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("# Title\nText", "Title.\nText"),
        ("## What now?\nText", "What now?\nText"),
        ("- one\n- two\n", "one.\ntwo.\n"),
        ("* one\n+ two\n• three\n", "one.\ntwo.\nthree.\n"),
        ("- [x] done\n- [ ] to do\n", "done.\nto do.\n"),
        ("- 5 apples\n", "5 apples.\n"),
        ("1. one\n2) two\n", "1. one.\n2) two.\n"),
        ("Ingredients:\n- milk\n", "Ingredients:\nmilk.\n"),
        ("> quoted", "quoted"),
        ("---\nText", "\nText"),
        (
            "Some **bold**, *slanted*, ***both***, __bold__, _slanted_ and ~~old~~.",
            "Some bold, slanted, both, bold, slanted and old.",
        ),
        ("**Bold.** Next", "Bold. Next"),
        ("un**believ**able", "unbelievable"),
        ("Run `make` now.", "Run make now."),
        ("```python\nprint()\n```\nDone.", "\nprint()\n\nDone."),
        ("[text](https://a.example/b_c)", "text"),
        ('[**text**](https://a.example "title")', "text"),
        ("![a cat](cat.png) here", "a cat here"),
        ("[](https://a.example)", "https://a.example"),
        ("[text][1] and [1] and [^1].", "text and [1] and."),
        ("<https://a.example> or <me@a.example>", "https://a.example or me@a.example"),
        ("| a | b |\n|---|:-:|\n| 1 | 2 |\n", "a, b.\n\n1, 2.\n"),
        ("<p>One</p><p>Two.</p>", "One.\nTwo.\n"),
        ('<a href="x.html" target=_blank>link</a>', "link"),
        ("one<br>two<br/>three", "one.\ntwo.\nthree"),
        ("<ul><li>one</li><li>two</li></ul>", "one.\ntwo.\n"),
        ("<!-- not said -->said", "said"),
        ('<?xml version="1.0"?><speak version="1.1">Hi</speak>', "Hi.\n"),
        ('<prosody rate="slow">slow</prosody> <mstts:express-as style="sad">sad</mstts:express-as>', "slow sad"),
        ('One <break time="1s"/> two', "One two"),
        ('One<break time="100ms"/>two', "Onetwo"),
        ("One. <break/> Two", "One. Two"),
        ('One<break strength="none"/> two', "One two"),
        ("AT&amp;T &#8211; &lt;5", "AT&T – <5"),
        ("Hi 🙂 there!", "Hi there!"),
        ("Done ✅. Go 👩‍👩‍👧!", "Done. Go!"),
        (r"\*not slanted\*", "*not slanted*"),
        ("# 标题\n正文", "标题。\n正文"),
    ],
)
def test_markup_goes_and_what_it_says_stays(written: str, spoken: str) -> None:
    assert cleaned(written) == spoken


@pytest.mark.parametrize(
    "text",
    [
        *(
            "if a < b and c > d",
            "a <b and c> d",
            "x <3",
            "1<2",
            "<placeholder>",
            "<|eos1|>",
            "< p >",
            "<unknown x='y'>",
        ),
        *("5 * 3", "5*3", "a*b", "snake_case_name", "f****", "#1", "#hashtag", "-5 degrees", "C# and C++"),
        *(
            "[1]",
            "[not a link]",
            "(a)[b",
            "Hello !",
            "R&D",
            "a & b;",
            "C:\\dir",
            "a | b",
            "1.5",
            "3.14",
            "\u0dc1\u0dca\u200d\u0dbb",
        ),
        *(
            "[breath]",
            "<strong>very</strong>",
            "<laughter>ha</laughter>",
            "https://a.example/_b_/c?d=1&e=2",
            "~5",
            "> 10",
        ),
    ],
)
def test_what_is_no_markup_stays(text: str) -> None:
    assert cleaned(text) == text


@given(texts | marked_up, st.integers(1, 7))
@example("[^1][^1]", 1)
@example("As said[^1]: now", 1)
@example("[^1](there)", 2)
@example("> #  _. <", 1)
@example("- > 5", 1)
def test_a_text_is_cleaned_alike_however_it_is_divided(text: str, size: int) -> None:
    assert cleaned(text, size) == cleaned(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit", [*FORMS, "<a ", "[a](b ", '<a b="', "a](", "*a", "![", "<!-", "<a b='c' ", "|-", "- - "]
)
def test_twenty_thousand_characters_are_read_in_linear_time(unit: str) -> None:
    began_s = time.process_time()
    cleaned(unit * (20_000 // len(unit)), 16)
    assert time.process_time() - began_s < 5, "0.3 s is usual; a quadratic reading takes minutes"
