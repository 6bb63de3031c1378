"""Every door keeps to the bounds of the checkpoint it asks for speech; options of the gateway replace them."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from demo_voice.unpack import VOICES
from gateway.app import open_gateway
from gateway.config import GatewayConfig
from gateway.dialects.cosyvoice2_dit.settings import DropInConfig, open_pipeline
from gateway.errors import ConfigError
from gateway.speech.speaker import Speaker
from gateway.text import WHOLE_TEXT, TextOptions
from llm_service.aligner import ALIGNER_FILE, write_aligner
from llm_service.speech_bounds import SpeechBounds, write_speech_bounds
from tests.llm_service.test_aligner import weights

SENTENCE = "Nobody had seen the boat that day. "
TEXT = SENTENCE * 9


@pytest.fixture
def bounded_dir(llm_dir: Path, tmp_path: Path) -> Path:
    shutil.copy(llm_dir / "tokenizer.json", tmp_path)
    write_speech_bounds(tmp_path, SpeechBounds(segment_letters=90, carry_tokens=100))
    return tmp_path


@asynccontextmanager
async def gateway_pipeline(tokenizer_dir: Path, **options: Any) -> AsyncIterator[Speaker]:
    async with open_gateway(GatewayConfig(tokenizer_dir, VOICES, **options)) as parts:
        yield parts.pipeline


@asynccontextmanager
async def drop_in_pipeline(tokenizer_dir: Path) -> AsyncIterator[Speaker]:
    async with open_pipeline(DropInConfig(tokenizer_dir, voices_dir=VOICES)) as pipeline:
        yield pipeline


async def bounds_of(opening: AbstractAsyncContextManager[Speaker]) -> tuple[int, int]:
    """Return the longest segment of TEXT in letters, and how many tokens are carried."""
    async with opening as pipeline:
        text = pipeline.front_end.open(TextOptions(), WHOLE_TEXT)
        segments = [*text.push(TEXT), *text.flush()]
        assert "".join(segment.text for segment in segments) == TEXT
        return max(len(segment.text) for segment in segments), pipeline.settings.carry.max_speech_tokens


async def test_a_truncated_tokenizer_is_a_setting_that_can_not_work(llm_dir: Path, tmp_path: Path) -> None:
    whole = (llm_dir / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"tokenizer\.json can't be read as JSON"):
        await bounds_of(gateway_pipeline(tmp_path))


async def test_a_checkpoint_without_bounds_is_asked_for_long_segments(llm_dir: Path) -> None:
    for opening in (gateway_pipeline(llm_dir), drop_in_pipeline(llm_dir)):
        assert await bounds_of(opening) == (3 * len(SENTENCE), 500)


async def test_a_checkpoint_with_bounds_is_asked_for_short_ones(bounded_dir: Path) -> None:
    for opening in (gateway_pipeline(bounded_dir), drop_in_pipeline(bounded_dir)):
        assert await bounds_of(opening) == (len(SENTENCE), 100)


async def test_the_gateway_can_be_told_other_bounds(bounded_dir: Path) -> None:
    assert await bounds_of(gateway_pipeline(bounded_dir, segment_letters=150, carry_tokens=7)) == (2 * len(SENTENCE), 7)


async def test_the_gateway_takes_the_checkpoint_s_aligner_and_refuses_another_file(bounded_dir: Path) -> None:
    async with gateway_pipeline(bounded_dir) as pipeline:
        assert pipeline.settings.aligner is None
    write_aligner(bounded_dir, weights())
    async with gateway_pipeline(bounded_dir) as pipeline:
        assert pipeline.settings.aligner is not None
    (bounded_dir / ALIGNER_FILE).write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match=r"aligner\.npz can't be read"):
        async with gateway_pipeline(bounded_dir):
            pass
