"""Settings of token2wav that would only fail later are refused at the edge."""

from __future__ import annotations

import pytest

from token2wav_service.config import Token2WavConfig


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("idle_timeout_s", value) for value in ("0", "-1", "nan", "inf", "soon")],
        *[("conformer_recent_frames", value) for value in ("-1", "0", "1")],
    ],
)
def test_a_value_that_can_not_work_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError):
        Token2WavConfig.from_mapping({"model_dir": ".", name: value})


def test_the_least_values_are_taken() -> None:
    config = Token2WavConfig.from_mapping(
        {"model_dir": ".", "idle_timeout_s": "0.5", "conformer_recent_frames": "2", "estimator_recent_frames": "0"}
    )
    assert config.idle_timeout_s == 0.5
    assert (config.synthesis.conformer_recent_frames, config.synthesis.estimator_recent_frames) == (2, 0)
