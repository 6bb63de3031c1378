"""A checkpoint directory says which family it is of: official sizes, descriptions, what is refused."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cosydit.cli.main import main
from tests import ASSETS
from token2wav_service.checkpoint.family import (
    Family,
    find_family,
    missing_files,
    read_description,
    voice_model_version,
)
from token2wav_service.checkpoint.loader import build_flow, build_vocoder, load_models, read_config
from token2wav_service.checkpoint.make_random import OFFICIAL_SIZES, SMALL_SIZES, make_random_token2wav
from token2wav_service.config import SynthesisPolicy
from token2wav_service.errors import CheckpointError
from token2wav_service.models.flow.flow_stream import StreamFlow

MANIFESTS = ASSETS / "checkpoint_manifests" / "cosyvoice.json.gz"
COSYVOICE = (Family.COSYVOICE2, Family.COSYVOICE3)
DESCRIPTIONS = ASSETS / "descriptions"
"""Written as the official checkpoints write theirs."""


@pytest.fixture(scope="module", params=list(Family))
def family(request: pytest.FixtureRequest) -> Family:
    return Family(request.param)


@pytest.fixture(scope="module")
def checkpoint(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(family.value)
    make_random_token2wav(directory, 5, *SMALL_SIZES[family])
    return directory


@pytest.mark.parametrize("family", COSYVOICE)
def test_a_description_of_the_official_form_gives_the_official_keys_and_shapes(family: Family, tmp_path: Path) -> None:
    shutil.copy(DESCRIPTIONS / family.files.description, tmp_path)
    manifests = json.loads(gzip.decompress(MANIFESTS.read_bytes()))

    config = read_config(tmp_path)
    with torch.device("meta"):
        modules = {"flow": build_flow(config.flow), "hift": build_vocoder(config.hift)}

    assert (config.flow, config.hift) == OFFICIAL_SIZES[family]
    for name, module in modules.items():
        got = {key: list(value.shape) for key, value in module.state_dict().items()}
        assert got == manifests[f"{family.value}_{name}"]


def test_a_random_checkpoint_tells_its_family_and_loads(family: Family, checkpoint: Path) -> None:
    models, config = load_models(checkpoint), read_config(checkpoint)

    assert find_family(checkpoint) is family is models.config.family is config.family
    assert (config.flow, config.hift) == SMALL_SIZES[family]
    assert missing_files(checkpoint) == []


@pytest.mark.parametrize("asked", [None, 2])
def test_a_checkpoint_s_solver_steps_are_made_unless_others_are_asked_for(
    asked: int | None, family: Family, tmp_path: Path
) -> None:
    flow, hift = SMALL_SIZES[family]
    make_random_token2wav(tmp_path, 0, replace(flow, ode_steps=3), hift)
    stream = StreamFlow(load_models(tmp_path).flow, SynthesisPolicy(ode_steps=asked))
    assert {spec.shape[0] for spec in stream.specs if spec.name.startswith("solver_")} == {asked or 3}


def test_rotary_frequencies_are_no_random_numbers(tmp_path: Path) -> None:
    make_random_token2wav(tmp_path, 5, *SMALL_SIZES[Family.COSYVOICE3])
    state = torch.load(tmp_path / "flow.pt", weights_only=True)
    expected = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    torch.testing.assert_close(
        state["decoder.estimator.rotary_embed.inv_freq"].double(), torch.from_numpy(expected), rtol=1e-6, atol=0
    )


def test_the_voices_version_follows_the_family_s_files(family: Family, checkpoint: Path, tmp_path: Path) -> None:
    for path in checkpoint.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = voice_model_version(tmp_path)
    assert before == voice_model_version(checkpoint)

    (tmp_path / family.files.speech_tokenizer).write_bytes(b"another")

    assert voice_model_version(tmp_path) != before


def test_a_directory_of_two_families_is_refused(tmp_path: Path) -> None:
    for family in COSYVOICE:
        shutil.copy(DESCRIPTIONS / family.files.description, tmp_path)
    with pytest.raises(CheckpointError, match=r"cosyvoice2\.yaml.*cosyvoice3\.yaml.*leave only"):
        load_models(tmp_path)


def test_a_directory_of_no_family_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none of .*flow\.yaml.*cosyvoice2\.yaml.*cosyvoice3\.yaml"):
        load_models(tmp_path)


def test_weights_of_another_family_are_refused_by_key(tmp_path: Path) -> None:
    make_random_token2wav(tmp_path / "two", 5, *SMALL_SIZES[Family.COSYVOICE2])
    make_random_token2wav(tmp_path / "three", 5, *SMALL_SIZES[Family.COSYVOICE3])
    (tmp_path / "two" / "flow.pt").write_bytes((tmp_path / "three" / "flow.pt").read_bytes())
    with pytest.raises(CheckpointError, match=r"flow\.pt: \d+ missing keys"):
        load_models(tmp_path / "two")


def test_references_are_followed_and_reckoned_with(tmp_path: Path) -> None:
    path = tmp_path / "any.yaml"
    tree = "flow:\n  x: !ref <b[c]>\n  y: !ref <a> * <b[c]> * <a>\n  z: !ref <b>\n"
    path.write_text("a: 6\nb:\n  c: !ref <a>\n" + tree, "utf-8")
    assert read_description(path, ("flow",)) == {"flow": {"x": 6, "y": 216, "z": {"c": 6}}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("flow: !ref <nothing>", "refers to nothing"),
        ("a: !ref <b>\nb: !ref <a>\nflow: !ref <a>", "lead back to themselves"),
        ("a: text\nb: 2\nflow: !ref <a> * <b>", "no number"),
        ("a: 1\nflow: !ref __import__('os').system('true') + <a>", "no product of references"),
        ("flow: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("a: 1\nflow: !ref <a> of a kind", "no product of references"),
        ("other: 1", "flow"),
    ],
)
def test_a_description_that_can_t_be_read_says_why(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "any.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(CheckpointError, match=reason):
        read_description(path, ("flow",))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("channels: [256]", "channels: [256, 256]", "one level"),
        ("act_fn: 'gelu'", "act_fn: 'relu'", "expected 'gelu'"),
        ("in_channels: 320", "in_channels: 240", "240 input channels, expected 320"),
        ("static_chunk_size: !ref <chunk_size>\n", "static_chunk_size: 0\n", "mask block"),
        ("    in_channels: 240", "    n_timesteps: 0", "n_timesteps 0, expected a whole number of at least 1"),
    ],
)
def test_sizes_that_no_flow_can_have_are_named(old: str, new: str, reason: str, tmp_path: Path) -> None:
    text = (DESCRIPTIONS / "cosyvoice2.yaml").read_text("utf-8")
    assert old in text
    (tmp_path / "cosyvoice2.yaml").write_text(text.replace(old, new), "utf-8")
    with pytest.raises(CheckpointError, match=reason):
        read_config(tmp_path)


@pytest.mark.slow
def test_the_command_makes_and_verifies_a_family(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "made"
    assert main(["checkpoint", "make-random", str(made), "--family", "cosyvoice2"]) == 0
    assert main(["checkpoint", "verify", str(made)]) == 0
    assert main(["checkpoint", "verify", str(made / "token2wav"), "--family", "cosyvoice2"]) == 0
    assert "ok    token2wav/cosyvoice2.yaml and flow.pt" in capsys.readouterr().out

    assert main(["checkpoint", "verify", str(made), "--family", "cosyvoice3"]) == 1
    assert "holds cosyvoice2.yaml, expected cosyvoice3.yaml" in capsys.readouterr().out
