"""Lines of API keys, how they are compared, and a file of them that changes."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from unittest import mock

import pytest

from cosydit.cli.main import main
from gateway.access.caller import CallerLimits
from gateway.access.keys import KeyBook, check_unique, find_key, key_line, new_key, parse_keys
from gateway.errors import ConfigError
from tests.gateway.access.door import KEY, OTHER_KEY, keys, recorded
from tests.virtual_time import ManualClock

DIGEST = "sha256:" + hashlib.sha256(OTHER_KEY.encode()).hexdigest()
DEFAULTS = CallerLimits(streams=8, audio_s_per_day=100.0)


def test_lines_hold_keys_or_digests_with_limits_and_comments() -> None:
    text = f"# keys\n\nanna {KEY} streams=2 audio_s_per_day=unlimited # hers\nbob {DIGEST} audio_s_per_hour=60.5\n"
    anna, bob = parse_keys(text, DEFAULTS, "keys.txt")
    assert (anna.name, anna.digest) == ("anna", hashlib.sha256(KEY.encode()).digest())
    assert anna.limits == CallerLimits(streams=2)
    assert (bob.name, bob.digest) == ("bob", hashlib.sha256(OTHER_KEY.encode()).digest())
    assert bob.limits == CallerLimits(8, 60.5, 100.0)


def test_one_line_may_hold_several_keys() -> None:
    parsed = parse_keys(f"anna {KEY} streams=2; bob {OTHER_KEY};", CallerLimits(), "COSYDIT_API_KEYS")
    assert [key.name for key in parsed] == ["anna", "bob"]


@pytest.mark.parametrize(
    ("line", "word"),
    [
        pytest.param(KEY, "one word", id="no name"),
        pytest.param(f"{KEY}= anna", "begin with a letter", id="swapped"),
        pytest.param("anna secret", "16 to 512", id="short"),
        pytest.param(f"anna {KEY * 30}", "16 to 512", id="long"),
        pytest.param("anna sha256:abc", "64 hexadecimal", id="broken digest"),
        pytest.param(f"anna {KEY} {OTHER_KEY}", "no limit", id="two keys"),
        pytest.param(f"anna {KEY} streams=0", "above 0", id="no streams"),
        pytest.param(f"anna {KEY} streams=1.5", "above 0", id="half a stream"),
        pytest.param(f"anna {KEY} audio_s_per_day=nan", "above 0", id="not a number"),
        pytest.param(f"anna {KEY} audio_s_per_day=inf", "above 0", id="endless"),
        pytest.param(f"anna {KEY} streams=1 streams=2", "again", id="twice"),
        pytest.param(f"anna {KEY}\N{SNOWMAN}", "ASCII", id="not ASCII"),
    ],
)
def test_a_bad_line_is_named_by_its_number_and_never_quoted(line: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word) as caught:
        parse_keys(f"# first\n{line}", CallerLimits(), "keys.txt")
    assert "keys.txt, line 2" in str(caught.value)
    assert KEY not in str(caught.value) and OTHER_KEY not in str(caught.value)


@pytest.mark.parametrize("second", [f"anna {OTHER_KEY}", f"bob {KEY}"], ids=["same name", "same key"])
def test_each_key_has_a_name_and_a_secret_of_its_own(second: str) -> None:
    with pytest.raises(ConfigError, match="twice"):
        check_unique(parse_keys(f"anna {KEY}\n{second}", CallerLimits(), "keys.txt"), "keys.txt")


def test_every_key_is_compared_in_constant_time_wherever_the_right_one_stands() -> None:
    for presented in (KEY, OTHER_KEY, "sk-of-nobody", ""):
        with mock.patch("hmac.compare_digest", wraps=hmac.compare_digest) as compare:
            find_key(keys(), presented.encode())
        assert [call.args[0] for call in compare.call_args_list] == [key.digest for key in keys()]


def test_a_made_key_opens_with_its_line_alone() -> None:
    key = new_key()
    line = key_line("carl", key, ["streams=3"])
    assert key not in line and len(key) > 40 and key != new_key()
    found = find_key(parse_keys(line, CallerLimits(), "line"), key.encode())
    assert found is not None and (found.name, found.limits.streams) == ("carl", 3)


def test_keys_do_not_show_in_representations() -> None:
    assert KEY not in repr(keys()) and repr(keys()[0].digest) not in repr(keys())


class Book:
    """A file of keys, and the book that reads it, a second after each change."""

    def __init__(self, file: Path, text: str) -> None:
        self.file = file
        self.clock = ManualClock()
        file.write_text(text)
        self.book = KeyBook((), file, CallerLimits(), self.clock)

    def knows(self, key: str) -> bool:
        return self.book.find(key.encode()) is not None

    def write(self, text: str) -> None:
        self.file.write_text(text)
        self.clock.seconds += 1.0


def test_a_changed_file_lets_new_keys_in_and_old_ones_out(tmp_path: Path) -> None:
    book = Book(tmp_path / "keys", f"anna {KEY}\n")
    assert book.knows(KEY) and not book.knows(OTHER_KEY)
    book.write(f"bobby {OTHER_KEY}\n")
    assert book.knows(OTHER_KEY) and not book.knows(KEY)
    book.write("# nobody\n")
    assert not book.knows(OTHER_KEY)


def test_a_file_that_breaks_or_goes_away_changes_nothing_until_it_is_good_again(tmp_path: Path) -> None:
    book = Book(tmp_path / "keys", f"anna {KEY}\n")
    with recorded("gateway.access.keys") as lines:
        book.write(f"bobby {OTHER_KEY} colour=red\n")
        assert book.knows(KEY) and not book.knows(OTHER_KEY)
        book.file.unlink()
        book.clock.seconds += 1.0
        assert book.knows(KEY)
        book.write(f"bob {OTHER_KEY}\n")
        assert book.knows(OTHER_KEY) and not book.knows(KEY)
    assert len(lines) == 3 and "stay good" in lines[0] and not any(OTHER_KEY in line for line in lines)


@pytest.mark.parametrize("text", [None, "", "# only a comment\n"], ids=["missing", "empty", "comment"])
def test_a_book_without_a_key_does_not_open(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=r"can't be read|holds no key"):
        KeyBook((), file, CallerLimits(), ManualClock())


def test_the_command_shows_a_key_once_and_keeps_its_digest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys"
    file.write_text(f"bob {DIGEST}")
    assert main(["keys", "new", "anna", "--file", str(file), "--limit", "streams=2"]) == 0
    key = capsys.readouterr().out.strip()
    assert key not in file.read_text()
    anna = find_key(parse_keys(file.read_text(), CallerLimits(), "file"), key.encode())
    assert anna is not None and (anna.name, anna.limits.streams) == ("anna", 2)


@pytest.mark.parametrize(
    "arguments", [["bob"], ["9lives"], ["carl", "--limit", "colour=red"]], ids=["taken", "bad name", "bad limit"]
)
def test_the_command_leaves_the_file_alone_where_it_can_not_add(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    file = tmp_path / "keys"
    file.write_text(f"bob {DIGEST}\n")
    assert main(["keys", "new", *arguments, "--file", str(file)]) == 1
    assert capsys.readouterr().out == ""
    assert file.read_text() == f"bob {DIGEST}\n"


KEYS_FILE = f"""\
# of the team
anna {DIGEST} streams=4  # her phone
bob {KEY}; carl {OTHER_KEY} audio_s_per_day=60 # two in a line
"""


def test_the_command_lists_names_and_limits_and_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file := tmp_path / "keys").write_text(KEYS_FILE)
    assert main(["keys", "list", "--file", str(file)]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == ["anna", "bob", "carl"]
    assert "streams=4" in listed[0] and "no limits" in listed[1] and "audio_s_per_day=60" in listed[2]
    assert KEY not in str(listed) and DIGEST not in str(listed)


@pytest.mark.parametrize(
    ("name", "left"),
    [
        pytest.param("anna", ["bob", "carl"], id="its own line"),
        pytest.param("bob", ["anna", "carl"], id="the first of a line"),
        pytest.param("carl", ["anna", "bob"], id="the last of a line"),
    ],
)
def test_a_revoked_key_is_taken_out_and_the_rest_stays(tmp_path: Path, name: str, left: list[str]) -> None:
    (file := tmp_path / "keys").write_text(KEYS_FILE)
    file.chmod(0o640)
    assert main(["keys", "revoke", name, "--file", str(file)]) == 0
    text = file.read_text()
    assert [key.name for key in parse_keys(text, CallerLimits(), "file")] == left
    assert text.startswith("# of the team\n") and ("two in a line" in text) and file.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("text", [KEYS_FILE, None, "anna short"], ids=["unknown name", "no file", "a bad line"])
def test_a_key_that_can_not_be_revoked_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text)
    assert main(["keys", "revoke", "dora", "--file", str(file)]) == 1
    assert "cosydit keys: " in capsys.readouterr().err
    assert (file.read_text() if file.exists() else None) == text
