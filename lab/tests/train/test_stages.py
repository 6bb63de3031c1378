"""Every stage of the training for a few steps on tiny sizes, up to a checkpoint that the services' own loaders read."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from cosydit.stack.checkpoint.verify_checkpoint import verify_checkpoint
from demo_voice.unpack import BUNDLE, BUNDLE_FILES, FLOW_FILE, LLM_FILE, BundleError, provide, unpack
from lab.train import stages
from lab.train.data import SpeechStreams
from lab.train.models import flow
from lab.train.models.tokenizer import token_ids
from lab.train.package import trained_tokenizer
from lab.train.sizes import DEMO, TINY
from lab.train.trainer import StateError, load_state, read_log
from lab.train.workspace import Workspace
from llm_service.aligner import load_aligner
from llm_service.embedded.model import SpeechLanguageModel
from llm_service.speech_bounds import load_speech_bounds
from llm_service.text_encoder import load_text_encoder
from servicekit.clock import SystemClock
from tests.bundled_voices import NAMES
from tests.file_modes import assert_all_have_the_usual_mode
from token2wav_service.build import build_engine
from token2wav_service.config import Token2WavConfig
from token2wav_service.features.audio import load_prompt_audio
from token2wav_service.features.prompt_models import OnnxSpeechTokenizer
from token2wav_service.offline import OfflineUtterance, synthesize_all
from token2wav_service.types import VoicePrompt

pytestmark = pytest.mark.slow

TRAINED = ("tokenizer", "speaker", "vocoder", "flow", "llm", "reader", "heard", "aligner")
STEPS = 2


def run_stage(work: Workspace, stage: str, *options: str) -> int:
    common = ["--work", str(work.root), "--sizes", "tiny", "--device", "cpu", "--batch", "2", "--workers", "1"]
    common += ["--teachers", "flite"]
    return stages.main([stage, *common, "--max-steps", str(STEPS), "--utterances", "64", *options])


@pytest.fixture(scope="module")
def trained(workspace: Workspace) -> Workspace:
    for stage in (
        "tokenizer",
        "speaker",
        "vocoder",
        "codes",
        "flow",
        "tokens",
        "llm",
        "reader",
        "heard",
        "aligner",
        "package",
    ):
        assert run_stage(workspace, stage) == 0
    return workspace


@pytest.fixture(scope="module")
def checkpoint(trained: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("unpacked") / "demo"
    unpack(directory, trained.bundle)
    return directory


def test_every_stage_logs_its_losses_and_its_validation(trained: Workspace) -> None:
    log = read_log(trained.log)

    for stage in TRAINED:
        records = [record for record in log if record["stage"] == stage]
        assert records[0]["steps"] == STEPS
        assert any(str(name).startswith("valid_") for name in records[-1])
        figures = [value for record in records for value in record.values() if isinstance(value, float)]
        assert np.isfinite(figures).all()


def test_a_stage_goes_on_where_it_ended(trained: Workspace) -> None:
    before = torch.load(trained.weights("speaker"), weights_only=True)

    run_stage(trained, "speaker")

    after = torch.load(trained.weights("speaker"), weights_only=True)
    assert after["steps"] == before["steps"] + STEPS
    assert after["seconds"] > before["seconds"]
    assert all(v.dtype == torch.float16 for v in after["weights"]["model"].values() if v.is_floating_point())


def test_a_vocoder_begins_loud_and_is_judged_at_its_audio_s_phase(workspace: Workspace, tmp_path: Path) -> None:
    work = Workspace(tmp_path)
    work.corpus.symlink_to(workspace.corpus)

    run_stage(work, "vocoder")

    trained = torch.load(work.weights("vocoder"), weights_only=True)["weights"]["hift"]
    assert trained["m_source.l_linear.weight"].tolist()[0] == pytest.approx([0.33] * 9, abs=0.01)
    assert "valid_phase" in read_log(work.log)[-1]


def test_a_flow_is_judged_once_its_judge_has_learnt(
    trained: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "JUDGED_FROM", STEPS - 1)
    work = Workspace(tmp_path)
    for name in ("corpus", "codes.npy"):
        (tmp_path / name).symlink_to(trained.root / name)
    work.state.mkdir()
    shutil.copy(trained.weights("speaker"), work.weights("speaker"))

    run_stage(work, "flow")

    losses = read_log(work.log)[0]
    judged = [float(losses[name]) for name in ("phones", "layers", "solved_phones", "solved_layers")]
    assert min(judged) > 0 and np.isfinite(judged).all()
    assert 0 <= float(losses["reader_right"]) <= 1


def test_raw_shards_teach_whatever_needs_no_audio(workspace: Workspace, tmp_path: Path) -> None:
    work = Workspace(tmp_path)
    work.corpus.symlink_to(workspace.corpus)
    work.texts.symlink_to(workspace.texts)
    if workspace.engines.is_dir():
        work.engines.symlink_to(workspace.engines)

    for stage in ("raw", "speaker", "tokenizer", "codes", "flow", "vocoder", "llm"):
        assert run_stage(work, stage) == 0

    device = torch.device("cpu")
    wide, both = (SpeechStreams(work.corpus, ("mel",), device, 0, beside).tokens for beside in (None, work.raw))
    assert len(list(work.raw.iterdir())) == 2  # one of them of long sentences
    assert len(np.load(work.codes)) == both > wide


def test_a_state_of_other_sizes_is_refused_by_name(trained: Workspace) -> None:
    with pytest.raises(StateError, match="train with the sizes it was made with"):
        load_state(trained.weights("speaker"), {"model": torch.nn.ModuleDict({"net": torch.nn.Linear(2, 2)})})


def test_training_begins_from_the_bundled_weights(workspace: Workspace, tmp_path: Path) -> None:
    work = Workspace(tmp_path)
    work.corpus.symlink_to(workspace.corpus)

    stages.main(["warm", "--work", str(tmp_path), "--teachers", "flite", "--device", "cpu", "--max-steps", "1"])

    net, exported = trained_tokenizer(work, DEMO), OnnxSpeechTokenizer(BUNDLE / "speech_tokenizer_v2_25hz.onnx")
    log_mel = SpeechStreams(work.corpus, ("log_mel",), torch.device("cpu"), 0).column("log_mel", 0, 100).float().T
    own, bundled = token_ids(net(log_mel[None]))[0].numpy(), exported.tokenize(log_mel.numpy())
    assert (own == bundled).mean() > 0.9  # weights in half precision move a value over a level now and then
    again = torch.load(work.weights("flow"), weights_only=True)
    assert (again["steps"], again["seconds"]) == (0, stages.BEGUN_S["flow"])
    assert work.text_tokenizer.read_bytes() == (BUNDLE / "text_tokenizer.json").read_bytes()
    run = ["--work", str(tmp_path), "--teachers", "flite", "--device", "cpu", "--max-steps", "2", "--batch", "2"]
    stages.main(["tokenizer", *run])
    records = read_log(work.log)
    assert float(records[0]["anchor"]) > 0 and 0 <= float(records[0]["anchor_right"]) <= 1
    other = Workspace(tmp_path / "other")
    other.root.mkdir()
    other.corpus.symlink_to(workspace.corpus)
    with pytest.raises(StateError, match="train with its sizes"):
        run_stage(other, "warm")


def test_the_bundle_holds_its_files_and_no_others(trained: Workspace) -> None:
    assert {path.name for path in trained.bundle.iterdir()} == set(BUNDLE_FILES)


def test_the_checkpoint_passes_every_check_of_the_loaders(checkpoint: Path) -> None:
    reports = verify_checkpoint(checkpoint)

    assert len(reports) == 8 + len(NAMES)
    assert [report for report in reports if report.problem is not None] == []


def test_the_checkpoint_speaks_through_the_engine(checkpoint: Path) -> None:
    engine = build_engine(Token2WavConfig(model_dir=checkpoint / "token2wav", num_threads=1), SystemClock())
    prompt = VoicePrompt(load_prompt_audio((checkpoint / "voices" / "default.wav").read_bytes()))

    (speech,) = synthesize_all(engine, [OfflineUtterance("noise", tuple(range(0, 6000, 300)), prompt)])

    assert isinstance(speech.outcome, np.ndarray)
    assert len(speech.outcome) == 20 * 960
    assert np.isfinite(speech.outcome).all() and np.abs(speech.outcome).max() > 0


def test_the_checkpoint_s_llm_reads_text_and_answers(checkpoint: Path) -> None:
    llm = SpeechLanguageModel.load(checkpoint / "llm", "cpu", "float32")
    llm.allocate_cache(1, 32, rows_per_forward=1)
    ids = load_text_encoder(checkpoint / "llm").encode("The old harbour, at 7.")

    logits = llm.prefill(0, ids)

    assert 5 < len(ids) < 25
    assert np.isfinite(logits).all()


def test_how_long_the_llm_speaks_well_lies_beside_its_tokenizer(checkpoint: Path) -> None:
    assert load_speech_bounds(checkpoint / "llm") == TINY.bounds


def test_the_aligner_lies_beside_the_tokenizer_and_is_listed_with_the_weights(checkpoint: Path) -> None:
    assert load_aligner(checkpoint / "llm") is not None
    assert "  llm/aligner.npz\n" in (checkpoint / "SHA256SUMS").read_text("utf-8")


def test_a_damaged_bundle_says_which_file(trained: Workspace, tmp_path: Path) -> None:
    for name in BUNDLE_FILES:
        (tmp_path / name).write_bytes((trained.bundle / name).read_bytes())
    flow = (tmp_path / FLOW_FILE).read_bytes()
    for damaged in (b"nonsense", flow[: len(flow) // 2], lzma.compress(b"nonsense")):
        (tmp_path / FLOW_FILE).write_bytes(damaged)
        with pytest.raises(BundleError, match=r"flow\.safetensors\.xz"):
            provide(tmp_path / "out" / "demo", tmp_path)
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "bundle.json").write_text(json.dumps({"flow": 1}), encoding="utf-8")
    with pytest.raises(BundleError, match=r"bundle\.json"):
        provide(tmp_path / "out" / "demo", tmp_path)
    (tmp_path / LLM_FILE).unlink()
    with pytest.raises(BundleError, match="lacks"):
        provide(tmp_path / "out" / "demo", tmp_path)


def test_a_stage_without_what_it_needs_says_what_to_run_first(workspace: Workspace, tmp_path: Path) -> None:
    empty = Workspace(tmp_path)
    empty.corpus.symlink_to(workspace.corpus)

    with pytest.raises(StateError, match="run the stage `tokenizer` first"):
        run_stage(empty, "codes")


def test_a_service_of_another_user_can_read_the_bundle_and_the_demo_voice(trained: Workspace, checkpoint: Path) -> None:
    assert_all_have_the_usual_mode(trained.bundle)
    assert_all_have_the_usual_mode(checkpoint)


def test_the_demo_voice_is_unpacked_once_and_again_only_for_another_bundle(trained: Workspace, tmp_path: Path) -> None:
    directory, bundle = tmp_path / "demo", tmp_path / "bundle"
    shutil.copytree(trained.bundle, bundle)

    assert provide(directory, bundle)
    assert not provide(directory, bundle)
    (bundle / "text_tokenizer.json").write_bytes((bundle / "text_tokenizer.json").read_bytes() + b"\n")
    assert provide(directory, bundle)

    assert CheckpointLayout.under(directory).missing() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "demo"]


def test_what_is_no_demo_voice_is_never_replaced(trained: Workspace, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine", encoding="utf-8")

    with pytest.raises(BundleError, match="no unpacked demo voice; remove it, or name another directory"):
        provide(tmp_path / "mine", trained.bundle)

    assert (tmp_path / "mine" / "notes.txt").read_text("utf-8") == "mine"
