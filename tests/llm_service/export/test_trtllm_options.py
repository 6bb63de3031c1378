"""What TensorRT-LLM can't build is refused before work starts, and every reason is given."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from llm_service.errors import ConfigError
from llm_service.export.convert import Origin, convert_trtllm
from llm_service.export.trtllm_options import SmoothQuant, TrtllmOptions, WeightOnly, check_options
from llm_service.qwen2 import Qwen2Shape

OFFICIAL = Qwen2Shape(
    hidden=896,
    feed_forward=4864,
    layers=24,
    heads=14,
    key_value_heads=2,
    max_positions=32768,
    norm_epsilon=1e-6,
    rope_theta=1e6,
)
MORE_HEADS = dataclasses.replace(OFFICIAL, hidden=1024, heads=16)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(TrtllmOptions(), id="defaults"),
        pytest.param(TrtllmOptions(dtype="float32", tp_size=2, pp_size=4), id="tensor and pipeline"),
        pytest.param(TrtllmOptions(cp_size=2), id="context"),
        pytest.param(TrtllmOptions(pp_size=7), id="uneven pipeline"),
        pytest.param(TrtllmOptions(tp_size=2, weight_only=WeightOnly.INT4), id="int4"),
        pytest.param(TrtllmOptions(tp_size=2, cp_size=1, weight_only=WeightOnly.INT8), id="int8"),
        pytest.param(TrtllmOptions(tp_size=2, pp_size=2, smooth_quant=SmoothQuant(0.5)), id="SmoothQuant"),
    ],
)
def test_what_the_official_model_can_be_made_into_is_accepted(options: TrtllmOptions) -> None:
    check_options(options, OFFICIAL)


def test_key_value_heads_may_be_fewer_than_ranks() -> None:
    check_options(TrtllmOptions(tp_size=4), MORE_HEADS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(TrtllmOptions(tp_size=3), "is 3, which must divide 14 heads", id="heads"),
        pytest.param(TrtllmOptions(tp_size=7), "is 7, which must divide 2 key-value heads", id="key-value heads"),
        pytest.param(TrtllmOptions(tp_size=14), "divide the feed-forward size 4864", id="feed-forward"),
        pytest.param(TrtllmOptions(tp_size=2, cp_size=2), "tp_size x cp_size is 4", id="context beside tensor"),
        pytest.param(TrtllmOptions(pp_size=25), "the model has 24 layers", id="pipeline"),
        pytest.param(TrtllmOptions(tp_size=0), "must be 1 or more", id="none"),
        pytest.param(TrtllmOptions(dtype="float8"), "float8", id="dtype"),
        pytest.param(
            TrtllmOptions(dtype="float32", weight_only=WeightOnly.INT8), "float16 or bfloat16", id="weight-only float32"
        ),
        pytest.param(
            TrtllmOptions(weight_only=WeightOnly.INT8, smooth_quant=SmoothQuant()), "exclude each other", id="both"
        ),
        pytest.param(TrtllmOptions(smooth_quant=SmoothQuant(1.5)), "alpha is 1.5", id="alpha"),
        pytest.param(TrtllmOptions(cp_size=2, smooth_quant=SmoothQuant()), "SmoothQuant needs cp_size 1", id="context"),
    ],
)
def test_what_tensorrt_llm_cannot_do_is_refused(options: TrtllmOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_options(options, OFFICIAL)


def test_sizes_that_weight_only_products_cannot_have_are_refused() -> None:
    narrow = dataclasses.replace(OFFICIAL, hidden=448, heads=14)
    check_options(TrtllmOptions(weight_only=WeightOnly.INT8), narrow)
    with pytest.raises(ConfigError, match="heads of a rank: 224 channels"):
        check_options(TrtllmOptions(tp_size=2, weight_only=WeightOnly.INT8), narrow)


def test_every_reason_is_given_at_once() -> None:
    with pytest.raises(ConfigError, match=r"14 heads.*25.*24 layers.*alpha"):
        check_options(TrtllmOptions(tp_size=3, pp_size=25, smooth_quant=SmoothQuant(-1.0)), OFFICIAL)


def test_a_refused_conversion_reads_no_weights_and_writes_nothing(stock_dir: Path, tmp_path: Path) -> None:
    config_only = tmp_path / "source"
    config_only.mkdir()
    (config_only / "config.json").write_bytes((stock_dir / "config.json").read_bytes())
    for options, workers in ((TrtllmOptions(tp_size=3), 1), (TrtllmOptions(), 0)):
        with pytest.raises(ConfigError):
            convert_trtllm(Origin(config_only), tmp_path / "made", options, workers, None)
    with pytest.raises(ConfigError, match="texts"):
        convert_trtllm(Origin(config_only), tmp_path / "made", TrtllmOptions(smooth_quant=SmoothQuant()), 1, None)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(
    ("options", "algorithm"),
    [
        (TrtllmOptions(), None),
        (TrtllmOptions(weight_only=WeightOnly.INT8), "W8A16"),
        (TrtllmOptions(weight_only=WeightOnly.INT4), "W4A16"),
        (TrtllmOptions(smooth_quant=SmoothQuant()), "W8A8_SQ_PER_TENSOR_PLUGIN"),
        (TrtllmOptions(smooth_quant=SmoothQuant(per_token=True)), "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN"),
        (TrtllmOptions(smooth_quant=SmoothQuant(per_channel=True)), "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN"),
        (
            TrtllmOptions(smooth_quant=SmoothQuant(per_channel=True, per_token=True)),
            "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN",
        ),
    ],
)
def test_each_quantisation_has_tensorrt_llms_name(options: TrtllmOptions, algorithm: str | None) -> None:
    assert options.quant_algorithm == algorithm
