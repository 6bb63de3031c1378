"""New weights replace the old ones whole, with the licences of those who taught them, or nothing changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from demo_voice.unpack import (
    BUNDLE,
    BUNDLE_FILES,
    HEAD_BIAS,
    HEAD_WEIGHT,
    HIFT_FILE,
    LLM_FILE,
    SIZES_FILE,
    VOICES,
    BundleError,
    read_packed,
)
from lab.train import ship
from lab.train.make_voices import VOICES_OF
from lab.train.packing import packed, write_packed
from lab.train.teachers.choices import teachers_of
from tests.bundled_voices import NAMES


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """A repository's folder with other weights and voices."""
    for folder in ("weights", "voices", "licences", "train"):
        (tmp_path / "demo_voice" / folder).mkdir(parents=True)
        (tmp_path / "demo_voice" / folder / "old.txt").write_text("old", encoding="utf-8")
    shutil.copy(BUNDLE.parents[1] / "NOTICE", tmp_path / "NOTICE")
    return tmp_path / "demo_voice"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return shutil.copytree(BUNDLE, tmp_path / "bundle")


def taught_by(bundle: Path, teachers: str) -> None:
    path = bundle / SIZES_FILE
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "teachers": teachers}), encoding="utf-8")


def install(site: Path, package: str, texts: dict[str, str]) -> None:
    """Leave a package's metadata where pip would."""
    folder = site / f"{package.replace('-', '_')}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    for name, text in texts.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text, encoding="utf-8")
    (folder / "RECORD").write_text("".join(f"{name},,\n" for name in texts), encoding="utf-8")


@pytest.fixture
def teachers_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Metadata of the packages of the bundle's teachers, with a licence each."""
    for package in ship.PACKAGES[teachers_of(BUNDLE)]:
        install(tmp_path / "site", package, {f"{package}/LICENSE": f"{package} is free"})
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "site"


@pytest.mark.slow
def test_weights_and_voices_are_replaced_and_licences_kept(
    shipped: Path, bundle: Path, teachers_installed: Path
) -> None:
    assert ship.main([str(bundle), str(VOICES), "--demo-voice", str(shipped)]) == 0

    assert sorted(path.name for path in (shipped / "weights").iterdir()) == sorted(BUNDLE_FILES)
    assert {path.name: path.read_bytes() for path in (shipped / "voices").iterdir()} == {
        path.name: path.read_bytes() for path in VOICES.iterdir()
    }
    assert (shipped / "licences/old.txt").is_file()
    assert len(list((shipped / "licences").iterdir())) == 1 + len(list(teachers_installed.glob("*.dist-info")))
    assert [path.name for path in (shipped / "train").iterdir()] == ["old.txt"]


@pytest.mark.slow
def test_the_log_of_the_training_goes_with_its_weights(
    shipped: Path, bundle: Path, tmp_path: Path, teachers_installed: Path
) -> None:
    arguments = [str(bundle), str(VOICES), "--demo-voice", str(shipped), "--state", str(tmp_path / "state")]
    assert ship.main(arguments) == 2
    assert (shipped / "weights/old.txt").is_file()
    (tmp_path / "state").mkdir()
    (tmp_path / "state/log.jsonl").write_text('{"loss": 1.0}\n', encoding="utf-8")

    assert ship.main(arguments) == 0

    assert (shipped / "train/log.jsonl").read_text("utf-8") == '{"loss": 1.0}\n'
    assert (shipped / "train/old.txt").is_file()


def test_a_model_is_mixed_with_the_one_before(tmp_path: Path) -> None:
    new, before = tmp_path / "new", tmp_path / "before"
    for folder, value in ((new, 1.0), (before, 3.0)):
        folder.mkdir()
        for file in ship.MIXABLE.values():
            write_packed(folder / file, packed({"layer": np.full((64, 64), value, np.float32)}))

    ship.mix(new, before, {"llm": 0.25})

    assert {float(read_packed(new / LLM_FILE)["layer"][0, 0])} == {1.5}
    assert float(read_packed(new / HIFT_FILE)["layer"][0, 0]) == 1.0
    write_packed(before / LLM_FILE, packed({"layer": np.ones((64, 32), np.float32)}))
    with pytest.raises(ship.ShippingError, match="llm: the weights are not all of the same sizes"):
        ship.mix(new, before, {"llm": 0.25})
    (before / LLM_FILE).write_bytes(b"damaged")
    with pytest.raises(BundleError, match="can't be read"):
        ship.mix(new, before, {"llm": 0.25})


def test_models_of_several_trainings_become_their_mean(tmp_path: Path) -> None:
    first, second, before = (tmp_path / name for name in ("first", "second", "before"))
    for folder, value in ((first, 1.0), (second, 3.0), (before, 4.0)):
        folder.mkdir()
        write_packed(folder / LLM_FILE, packed({"layer": np.full((64, 64), value, np.float32)}))

    ship.mix(first, before, {"llm": 0.5}, [second])

    assert {float(value) for value in read_packed(first / LLM_FILE)["layer"].flat} == {3.0}
    assert float(read_packed(second / LLM_FILE)["layer"][0, 0]) == 3.0


def test_a_sharper_llm_gives_every_score_so_many_times_as_high(bundle: Path) -> None:
    before = read_packed(bundle / LLM_FILE)
    ship.sharpen(bundle, 4.0)
    after = read_packed(bundle / LLM_FILE)
    for name, value in before.items():
        factor = 4 if name in (HEAD_WEIGHT, HEAD_BIAS) else 1
        np.testing.assert_allclose(after[name], factor * value, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("factor", ["0", "-1", "inf", "sharp"])
def test_a_factor_is_a_number_above_0(factor: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ship.main(["bundle", "voices", "--sharpen", factor])
    assert "--sharpen" in capsys.readouterr().err


@pytest.mark.parametrize("share", ["llm", "llm=2", "llm=half", "tokenizer=0.5"])
def test_only_a_share_of_a_model_is_kept(share: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ship.main(["bundle", "voices", "--keep", share])
    assert f"got '{share}', expected flow|llm|vocoder=SHARE with a share of 0 to 1" in capsys.readouterr().err


def test_other_voices_or_a_teacher_that_is_not_installed_change_nothing(
    shipped: Path, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taught_by(bundle, "hibari")
    arguments = ["--demo-voice", str(shipped)]
    assert ship.main([str(bundle), str(VOICES), *arguments]) == 2
    assert f"got the voices' files ['{NAMES[0]}.json'" in capsys.readouterr().err
    voices = tmp_path / "voices"
    voices.mkdir()
    for voice in VOICES_OF["hibari"]:
        for end in (".wav", ".txt", ".json"):
            (voices / f"{voice.name}{end}").touch()
    monkeypatch.setitem(ship.PACKAGES, "hibari", ("no-such-package",))
    assert ship.main([str(bundle), str(voices), *arguments]) == 2
    assert "no-such-package is not installed" in capsys.readouterr().err
    assert (shipped / "weights/old.txt").is_file() and (shipped / "voices/old.txt").is_file()


def test_only_the_first_section_of_the_notice_is_renewed() -> None:
    notice = (BUNDLE.parents[1] / "NOTICE").read_text("utf-8")
    section = ship.NOTICE_SECTIONS["hibari+kokoro"].read_text("utf-8")

    renewed = ship.renewed_notice(notice, section)

    assert renewed.partition("\n1. ")[0] == notice.partition("\n1. ")[0]
    assert renewed.partition("\n\n2. ")[2] == notice.partition("\n\n2. ")[2]
    assert section.strip() in renewed and renewed.count("\n1. ") == 1
    assert ship.renewed_notice(renewed, section) == renewed
    with pytest.raises(ship.ShippingError, match="no sections 1 and 2"):
        ship.renewed_notice("All rights reserved.", section)


def test_an_installed_packages_licences_are_found() -> None:
    texts = ship.licence_texts("numpy")

    assert any(b"Redistribution" in text for text in texts.values())
    assert all(name.startswith("numpy-") for name in texts)


def test_a_licence_is_found_wherever_it_lies_and_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        tmp_path,
        "first-voice",
        {
            "first_voice-1.0.dist-info/licenses/LICENSE": "free",
            "first_voice-1.0.dist-info/licenses/EXPORT-MIT": "free too",
            "first_voice/data/LICENSE-onnx-MIT": "MIT",
            "first_voice/core.py": "code",
        },
    )
    install(tmp_path, "second-voice", {"second_voice/LICENSE": "free", "second_voice/COPYING.txt": "notice"})
    monkeypatch.syspath_prepend(tmp_path)

    assert ship.licences_of(["first-voice", "second-voice"]) == {
        "first-voice-LICENSE.txt": b"free",
        "first-voice-EXPORT-MIT.txt": b"free too",
        "first-voice-LICENSE-onnx-MIT.txt": b"MIT",
        "second-voice-COPYING.txt": b"notice",
    }
    with pytest.raises(ship.ShippingError, match="no-voice is not installed"):
        ship.licences_of(["first-voice", "no-voice"])


def test_a_bundle_says_who_taught_it(bundle: Path) -> None:
    assert teachers_of(bundle) in ship.PACKAGES
    taught_by(bundle, "hibari")
    assert teachers_of(bundle) == "hibari"
