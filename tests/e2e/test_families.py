"""CosyVoice2 and CosyVoice3 through both services and the gateway: other LLM numberings, flows and vocoders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import tritonclient.grpc as grpc

from cosydit.stack.checkpoint.checkpoints import CheckpointLayout
from cosydit.stack.checkpoint.import_voices import import_voices
from cosydit.stack.checkpoint.make_checkpoint import make_random_checkpoint
from cosydit.stack.stack import LocalStack
from gateway.client import speak_over_triton
from llm_service.prompt import build_prompt
from llm_service.text_encoder import load_text_encoder
from servicekit.clock import SystemClock
from tests.e2e.conftest import RunningStack, make_options
from tests.token2wav_service.serving.client import StreamClient, infer_input
from token2wav_service.checkpoint.family import Family

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("family", [Family.COSYVOICE2, Family.COSYVOICE3], ids=lambda family: family.value)
def test_a_family_speaks_through_the_whole_stack_and_takes_instructions(tmp_path: Path, family: Family) -> None:
    make_random_checkpoint(tmp_path / "checkpoint", 0, family=family)
    settings = with_the_originals_voice(tmp_path) if family is Family.COSYVOICE2 else {}
    layout = CheckpointLayout.under(tmp_path / "checkpoint")
    options = make_options(layout, tmp_path / "work", BLS_INSTANCE_NUM="1", **settings)
    with LocalStack(options, with_gateway=True) as stack:
        running = RunningStack(stack)
        first, again = (running.speak("Hello.", seed=1) for _ in range(2))
        assert first.status_code == 200, first.text
        assert len(first.content) % (2 * 960) == 0
        assert any(first.content)
        assert len(again.content) == len(first.content)
        heard = list[bytes]()
        address = running.options.token2wav_url
        timing = speak_over_triton(
            address, "Hello.", None, None, heard.append, SystemClock(), timeout_s=120, model=family.value
        )
        assert timing.audio_s > 0.1 and len(b"".join(heard)) == round(timing.audio_s * 48000)
        kind = running.speak("Hello.", seed=1, instructions="Be kind.")
        assert kind.status_code == 200 and "x-ignored-fields" not in kind.headers
        assert any(kind.content) and kind.content != first.content
        if family is Family.COSYVOICE2:
            check_the_originals_models(address, layout)
        running.wait_idle()


def with_the_originals_voice(folder: Path) -> dict[str, str]:
    """Give a checkpoint a spk2info.pt, and return settings under which that speaks, as in run.sh."""
    model_dir, rng = folder / "checkpoint" / "token2wav", torch.Generator().manual_seed(0)
    entry = {
        "prompt_text": "You hear me.",
        "speech_token": torch.randint(6561, (1, 60), generator=rng),
        "speech_feat": torch.randn(1, 120, 80, generator=rng),
        "embedding": torch.randn(1, 192, generator=rng),
    }
    torch.save({"001": entry}, model_dir / "spk2info.pt")
    import_voices(model_dir / "spk2info.pt", folder / "spk2info-voices", model_dir)
    voices = {"created_voices_dir": str(folder / "spk2info-voices"), "default_voice": "001"}
    return voices | {"USE_SPK2INFO_CACHE": "True", "ORIGINAL_MODELS": "True"}


def check_the_originals_models(address: str, layout: CheckpointLayout) -> None:
    """Speak as the original's `cosyvoice2` does: tokens of `tensorrt_llm`, and `token2wav` in spk2info.pt's voice."""
    encoder = load_text_encoder(layout.llm_dir)
    ids = build_prompt(encoder.encode, "You hear me.", "Hello.", (), encoder.vocabulary).token_ids
    with grpc.InferenceServerClient(address) as client:
        assert not client.is_model_ready("audio_tokenizer"), "requests bring no voice"
        tokens = ask_llm(address, ids, encoder.vocabulary.end_ids[0])
        assert 0 < len(tokens) <= 20 and all(encoder.vocabulary.is_speech(token) for token in tokens)
        asked = infer_input("target_speech_tokens", np.array([tokens], np.int32))
        audio = client.infer("token2wav", [asked]).as_numpy("waveform")
    assert audio.shape == (1, len(tokens) * 960) and np.abs(audio).max() > 0


def ask_llm(address: str, ids: Sequence[int], end_id: int) -> list[int]:
    """Return an answer of at most 20 tokens."""
    tensors = {
        "input_ids": np.array([ids], np.int32),
        "input_lengths": np.array([[len(ids)]], np.int32),
        "request_output_len": np.array([[20]], np.int32),
        "end_id": np.array([[end_id]], np.int32),
        "streaming": np.array([[True]]),
        "random_seed": np.array([[42]], np.uint64),
    }
    client = StreamClient(address)
    client.send_to("tensorrt_llm", tensors)
    pieces = [each["output_ids"][0][0][: each["sequence_length"][0][0]] for each in client.until_final()]
    client.close()
    return [int(token) for piece in pieces for token in piece]
