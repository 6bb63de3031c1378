"""New weights replace the old ones whole, with the licences of those who taught them, or nothing changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from demo_voice.train import ship
from demo_voice.unpack import BUNDLE, BUNDLE_FILES, SIZES_FILE, VOICES, teachers_of


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """A repository's folder with other weights and voices."""
    for folder in ("weights", "voices", "licences"):
        (tmp_path / "demo_voice" / folder).mkdir(parents=True)
        (tmp_path / "demo_voice" / folder / "old.txt").write_text("old", encoding="utf-8")
    return tmp_path / "demo_voice"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return shutil.copytree(BUNDLE, tmp_path / "bundle")


def taught_by(bundle: Path, teachers: str) -> None:
    path = bundle / SIZES_FILE
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "teachers": teachers}), encoding="utf-8")


@pytest.mark.slow
def test_weights_and_voices_are_replaced_and_licences_kept(shipped: Path, bundle: Path) -> None:
    assert ship.main([str(bundle), str(VOICES), "--demo-voice", str(shipped)]) == 0

    assert sorted(path.name for path in (shipped / "weights").iterdir()) == sorted(BUNDLE_FILES)
    assert {path.name: path.read_bytes() for path in (shipped / "voices").iterdir()} == {
        path.name: path.read_bytes() for path in VOICES.iterdir()
    }
    assert (shipped / "licences/old.txt").is_file()


def test_other_voices_or_a_teacher_that_is_not_installed_change_nothing(
    shipped: Path, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taught_by(bundle, "hibari")
    arguments = ["--demo-voice", str(shipped)]
    assert ship.main([str(bundle), str(VOICES), *arguments]) == 2
    assert "got the voices' files ['awb.json'" in capsys.readouterr().err
    voices = tmp_path / "voices"
    voices.mkdir()
    for voice in ship.VOICES_OF["hibari"]:
        for end in (".wav", ".txt", ".json"):
            (voices / f"{voice.name}{end}").touch()
    monkeypatch.setitem(ship.PACKAGES, "hibari", ("no-such-package",))
    assert ship.main([str(bundle), str(voices), *arguments]) == 2
    assert "no-such-package is not installed" in capsys.readouterr().err
    assert (shipped / "weights/old.txt").is_file() and (shipped / "voices/old.txt").is_file()


def test_an_installed_packages_licences_are_found() -> None:
    texts = ship.licence_texts("numpy")

    assert any(b"Redistribution" in text for text in texts.values())
    assert all(name.startswith("numpy-") for name in texts)


def test_a_bundle_says_who_taught_it(bundle: Path) -> None:
    assert teachers_of(bundle) == "flite"
    taught_by(bundle, "hibari")
    assert teachers_of(bundle) == "hibari"
