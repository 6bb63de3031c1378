"""CosyVoice2 and CosyVoice3 through both services and the gateway: other LLM numberings, flows and vocoders."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from cosydit.stack.checkpoint.make_checkpoint import make_random_checkpoint
from cosydit.stack.stack import LocalStack
from gateway.client import speak_over_grpc
from servicekit.clock import SystemClock
from tests.e2e.conftest import RunningStack, make_options
from token2wav_service.checkpoint.family import Family

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("family", [Family.COSYVOICE2, Family.COSYVOICE3], ids=lambda family: family.value)
def test_a_family_speaks_through_the_whole_stack_and_takes_instructions(tmp_path: Path, family: Family) -> None:
    make_random_checkpoint(tmp_path / "checkpoint", 0, family=family)
    options = make_options(CheckpointLayout.under(tmp_path / "checkpoint"), tmp_path / "work", BLS_INSTANCE_NUM="1")
    with LocalStack(options, with_gateway=True) as stack:
        running = RunningStack(stack)
        body = {"model": "cosydit", "input": "Hello.", "voice": "default", "response_format": "pcm", "seed": 1}
        url = f"{running.options.gateway_url}/v1/audio/speech"
        first, again = (httpx.post(url, json=body, timeout=120, trust_env=False) for _ in range(2))
        assert first.status_code == 200, first.text
        assert len(first.content) % (2 * 960) == 0
        assert any(first.content)
        assert len(again.content) == len(first.content)
        heard = list[bytes]()
        address = running.options.token2wav_url
        timing = speak_over_grpc(
            address, "Hello.", None, None, heard.append, SystemClock(), timeout_s=120, model=family.value
        )
        assert timing.audio_s > 0.5 and len(b"".join(heard)) == round(timing.audio_s * 48000)
        kind = httpx.post(url, json={**body, "instructions": "Be kind."}, timeout=120, trust_env=False)
        assert kind.status_code == 200 and "x-ignored-fields" not in kind.headers
        assert any(kind.content) and kind.content != first.content
        running.wait_idle()
