"""What a checkpoint declares, and the sums of its files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cosydit.cli.main import main
from llm_service.embedded.model import SpeechLanguageModel
from llm_service.errors import CheckpointError as LLMCheckpointError
from llm_service.gpu.weights import load_weights
from servicekit.checkpoint_file import (
    CheckpointDeclaration,
    CheckpointFileError,
    find_declaration,
    read_declaration,
    write_declaration,
)
from servicekit.file_sums import SUMS_FILE, FileSumsError, check_file
from tests.workers import demo_checkpoint, random_checkpoint
from token2wav_service.checkpoint.family import open_features
from token2wav_service.checkpoint.loader import load_models
from token2wav_service.errors import CheckpointError

COSYVOICE2 = ("zh", "en", "ja", "ko")


def test_a_declaration_is_read_as_it_was_written(tmp_path: Path) -> None:
    declared = CheckpointDeclaration(name="mine", family="cosyvoice2", languages=("de",), tags=("[breath]", "<strong>"))
    assert read_declaration(write_declaration(tmp_path, declared)) == declared
    assert '"schema": 1' in (tmp_path / "checkpoint.json").read_text("utf-8")


@pytest.mark.parametrize("part", ["", "llm", "token2wav"])
def test_it_is_found_from_the_root_and_from_its_parts(tmp_path: Path, part: str) -> None:
    (tmp_path / part).mkdir(exist_ok=True)
    write_declaration(tmp_path, CheckpointDeclaration(languages=("fr",)))
    assert find_declaration(tmp_path / part).languages == ("fr",)


@pytest.mark.parametrize(
    ("description", "family", "languages"),
    [
        ("flow.yaml", "step_audio2", COSYVOICE2),
        ("cosyvoice2.yaml", "cosyvoice2", COSYVOICE2),
        ("cosyvoice3.yaml", "cosyvoice3", (*COSYVOICE2, "de", "es", "fr", "it", "ru")),
    ],
)
@pytest.mark.parametrize("part", ["", "llm", "token2wav"])
def test_an_official_directory_needs_none(
    tmp_path: Path, part: str, description: str, family: str, languages: tuple[str, ...]
) -> None:
    for name in ("llm", "token2wav"):
        (tmp_path / name).mkdir()
    (tmp_path / "token2wav" / description).touch()
    found = find_declaration(tmp_path / part)
    assert (found.family, found.languages, found.tags) == (family, languages, None)
    assert found.instruct == "endofprompt", "the LLM of all three takes instructions"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        pytest.param("{", "JSON", id="no JSON"),
        pytest.param('{"schema": 2}', "schema", id="a later schema"),
        pytest.param('{"language": ["en"]}', "language", id="an unknown field"),
        pytest.param('{"family": "gpt"}', "family", id="an unknown family"),
        pytest.param('{"languages": ["en-US"]}', "en-US", id="a region"),
        pytest.param('{"languages": []}', "empty list", id="no language at all"),
        pytest.param('{"tags": ["breath"]}', "breath", id="no form of a tag"),
        pytest.param('{"instruct": "prose"}', "endofprompt", id="no form of an instruction"),
    ],
)
def test_what_can_not_be_read_is_named(tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "checkpoint.json").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointFileError, match=word):
        find_declaration(tmp_path)


def test_the_demo_voice_and_random_checkpoints_declare_themselves(tmp_path_factory: pytest.TempPathFactory) -> None:
    demo = find_declaration(demo_checkpoint(tmp_path_factory) / "llm")
    assert (demo.name, demo.languages, demo.tags, demo.instruct) == ("demo-voice", ("en",), (), None)
    made = read_declaration(random_checkpoint(tmp_path_factory) / "checkpoint.json")
    assert (made.family, made.languages) == ("step_audio2", None)


def test_the_command_declares_and_keeps_what_it_is_not_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "declare", str(tmp_path), "--languages", "en,zh", "--name", "mine"]) == 0
    assert main(["checkpoint", "declare", str(tmp_path), "--tags", "[breath],[sigh]", "--instruct", "none"]) == 0
    found = read_declaration(tmp_path / "checkpoint.json")
    assert (found.name, found.languages, found.tags) == ("mine", ("en", "zh"), ("[breath]", "[sigh]"))
    assert found.instruct is None
    assert main(["checkpoint", "declare", str(tmp_path), "--languages", "any", "--tags", "none"]) == 0
    found = read_declaration(tmp_path / "checkpoint.json")
    assert (found.languages, found.tags) == (None, ())
    assert "languages not declared, tags none" in capsys.readouterr().out
    assert main(["checkpoint", "declare", str(tmp_path), "--languages", "English"]) == 1
    assert read_declaration(tmp_path / "checkpoint.json") == found


def test_verify_shows_it_and_finds_a_wrong_family(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token2wav").symlink_to(random_checkpoint(tmp_path_factory) / "token2wav")
    write_declaration(tmp_path, CheckpointDeclaration(name="mine", family="cosyvoice2", languages=("en",)))
    assert main(["checkpoint", "verify", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "declares: mine, family cosyvoice2, languages en" in shown
    assert "FAIL  checkpoint.json: " in shown and "flow.yaml of step_audio2" in shown


FLOW, LLM, HEAD = "token2wav/flow.pt", "llm/model.safetensors", "llm/speech_head.safetensors"


def load_flow(root: Path) -> None:
    load_models(root / "token2wav")


def load_llm(root: Path) -> None:
    SpeechLanguageModel.load(root / "llm", "cpu", "float32")


def load_llm_for_graphs(root: Path) -> None:
    load_weights(root / "llm", torch.device("cpu"), torch.float32)


def load_features(root: Path) -> None:
    open_features(root / "token2wav")


LOADERS = (
    (load_flow, FLOW),
    (load_flow, "token2wav/hift.pt"),
    (load_llm, LLM),
    (load_llm, HEAD),
    (load_llm_for_graphs, LLM),
    (load_llm_for_graphs, HEAD),
    (load_features, "token2wav/campplus.onnx"),
    (load_features, "token2wav/speech_tokenizer_v2_25hz.onnx"),
)
Loader = Callable[[Path], None]


@pytest.fixture
def checkpoint(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(random_checkpoint(tmp_path_factory), tmp_path / "checkpoint"))


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def put_nan(path: Path) -> None:
    is_torch = path.suffix == ".pt"
    state = torch.load(path, weights_only=True) if is_torch else load_file(path)
    name = next(name for name in state if not name.startswith("lm_head"))  # with a head file it is not read
    state[name].view(-1)[0] = float("nan")
    torch.save(state, path) if is_torch else save_file(state, path, metadata={"format": "pt"})


@pytest.mark.parametrize(("load", "name"), LOADERS)
def test_a_flipped_bit_is_refused(checkpoint: Path, load: Loader, name: str) -> None:
    flip_a_bit(checkpoint / name)
    with pytest.raises((CheckpointError, LLMCheckpointError), match=rf"{Path(name).name} has SHA-256 .* expected"):
        load(checkpoint)


@pytest.mark.parametrize(("load", "name"), [pair for pair in LOADERS if not pair[1].endswith(".onnx")])
def test_nan_is_refused_where_nothing_is_listed(checkpoint: Path, load: Loader, name: str) -> None:
    (checkpoint / SUMS_FILE).unlink()
    put_nan(checkpoint / name)
    with pytest.raises((CheckpointError, LLMCheckpointError), match=r"holds? NaN or infinity"):
        load(checkpoint)


@pytest.mark.parametrize(("load", "name"), LOADERS[::2])
def test_a_truncated_file_is_refused_where_nothing_is_listed(checkpoint: Path, load: Loader, name: str) -> None:
    (checkpoint / SUMS_FILE).unlink()
    path = checkpoint / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises((CheckpointError, LLMCheckpointError), match=r"download or make it again|can't be read"):
        load(checkpoint)


def test_a_flipped_bit_of_a_pytorch_file_is_refused_where_nothing_is_listed(checkpoint: Path) -> None:
    (checkpoint / SUMS_FILE).unlink()
    flip_a_bit(checkpoint / FLOW)
    with pytest.raises(CheckpointError, match=r"flow\.pt is damaged"):
        load_flow(checkpoint)


def test_an_unlisted_file_among_listed_ones_is_refused_until_it_is_sealed(checkpoint: Path) -> None:
    shutil.copyfile(checkpoint / HEAD, checkpoint / "llm" / "extra.safetensors")
    with pytest.raises(FileSumsError, match="not listed"):
        check_file(checkpoint / "llm" / "extra.safetensors")
    assert main(["checkpoint", "seal", str(checkpoint)]) == 0
    check_file(checkpoint / "llm" / "extra.safetensors")


def test_a_damaged_list_is_refused(checkpoint: Path) -> None:
    (checkpoint / SUMS_FILE).write_bytes(b"\xff\x00 not a list\n")
    with pytest.raises(CheckpointError, match="line 1: expected a SHA-256"):
        load_flow(checkpoint)


@pytest.mark.slow
def test_verify_names_the_file(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip_a_bit(checkpoint / LLM)
    assert main(["checkpoint", "verify", str(checkpoint)]) == 1
    assert "model.safetensors has SHA-256" in capsys.readouterr().out
