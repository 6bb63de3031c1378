"""Checks of token2wav that need no GPU and no listening."""

from __future__ import annotations

from pathlib import Path

import pytest

from cosydit.certify import token2wav
from cosydit.certify.check import Findings, NotRunError
from cosydit.certify.token2wav import check_export, check_tensorrt
from tests.cosydit.certify.plans import context_in
from tests.token2wav_service.export.checkpoints import make_stream_checkpoint
from token2wav_service.checkpoint.family import Family


@pytest.mark.slow
def test_a_family_s_graphs_are_exported_and_compared_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token2wav, "EXPORTED", token2wav.EXPORTED[:1])
    make_stream_checkpoint(tmp_path / "checkpoint" / "token2wav", Family.COSYVOICE3)
    found = Findings()
    check_export(context_in(tmp_path), found)
    assert [figure.name for figure in found.figures] == ["encoder_chunk from float32"]
    assert found.figures[0].value > 90 and not found.outside
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_tensorrt_is_not_run_without_a_gpu(tmp_path: Path) -> None:
    make_stream_checkpoint(tmp_path / "checkpoint" / "token2wav", Family.COSYVOICE3)
    with pytest.raises(NotRunError, match="TensorRT needs a GPU"):
        check_tensorrt(context_in(tmp_path), Findings())
