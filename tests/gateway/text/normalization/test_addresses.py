"""Addresses in a form to be heard."""

from __future__ import annotations

import pytest
from hypothesis import given

from gateway.text.normalization.addresses import spoken_addresses
from tests.gateway.text.builders import texts


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("https://example.com", "example dot com"),
        (
            "See http://www.example.com/docs/a_b, please.",
            "See example dot com slash docs slash a underscore b, please.",
        ),
        ("https://example.co.uk/?utm=1#top", "example dot co dot U K"),
        ("www.example.org.", "example dot org."),
        ("example.com/path", "example dot com slash path"),
        ("Visit docs.python.org/3 now", "Visit docs dot python dot org slash 3 now"),
        ("http://localhost:8080/", "localhost 8 0 8 0"),
        ("john.doe99@mail.com", "john dot doe 9 9 at mail dot com"),
        ("write to a-b@c.io!", "write to a dash b at c dot I O!"),
    ],
)
def test_addresses_become_words(written: str, spoken: str) -> None:
    assert spoken_addresses(written, "en").text == spoken


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("发到a_b@qq.com，谢谢", "发到a下划线b艾特qq点com，谢谢"),
        ("访问www.a.com/x吧", "访问a点com斜杠x吧"),
        ("邮箱ab@c.cn谢谢", "邮箱ab艾特c点C N谢谢"),
    ],
)
def test_an_address_begins_and_ends_beside_chinese(written: str, spoken: str) -> None:
    assert spoken_addresses(written, "zh").text == spoken


@pytest.mark.parametrize(
    ("language", "spoken"), [("de", "a Punkt com"), ("zh", "a点com"), ("xx", "a dot com"), (None, "a dot com")]
)
def test_the_words_are_the_languages(language: str | None, spoken: str) -> None:
    assert spoken_addresses("https://a.com", language).text == spoken


@pytest.mark.parametrize(
    "text", ["node.js", "e.g. this", "1.5", "The end.Next one", "a@b", "Dr.Smith", "192.168.0.1", "I.am"]
)
def test_what_is_no_address_stays(text: str) -> None:
    assert spoken_addresses(text, "en").text == text


@given(texts)
def test_an_address_is_covered_by_its_alignment(text: str) -> None:
    spoken = spoken_addresses(text, "en")
    assert (spoken.alignment.source_length, spoken.alignment.spoken_length) == (len(text), len(spoken.text))
