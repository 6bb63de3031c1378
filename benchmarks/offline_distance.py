"""How far chunked synthesis is from true offline synthesis, which attends to the future.

The two differ by design: this reports the log-mel distance for every chunk schedule and history policy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from token2wav_service.checkpoint.loader import load_flow
from token2wav_service.config import HistoryPolicy, SynthesisPolicy
from token2wav_service.contract import LOOKAHEAD_TOKENS
from token2wav_service.features.audio import load_prompt_audio
from token2wav_service.features.prompt_models import PromptFeatureExtractor
from token2wav_service.models.causal import FlowInput
from token2wav_service.models.flow.flow import Flow
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.models.noise import NoiseDomain, counter_normal
from token2wav_service.types import VoicePrompt

SCHEDULES = {
    "equal 15": [15] * 1000,
    "equal 25": [25] * 1000,
    "exponential": [15, 25, 50, *[100] * 1000],
    "one chunk": [],
}


@dataclass(frozen=True)
class Distance:
    """Chunked against offline, over all frames and bands; natural-log mel."""

    history: str
    schedule: str
    mean_abs: float
    rms: float


@torch.inference_mode()
def measure(model_dir: Path, prompt_wav: Path, tokens: int, seed: int) -> list[Distance]:
    """Synthesise one random token sequence offline and under every schedule and history policy."""
    flow = load_flow(model_dir)
    assert isinstance(flow, Flow)
    prompt = VoicePrompt(load_prompt_audio(prompt_wav.read_bytes()))
    features = PromptFeatureExtractor(model_dir).extract(prompt)
    prompt_tokens = torch.from_numpy(features.prompt_tokens)
    prompt_mel = torch.from_numpy(features.prompt_mel)
    speaker = torch.from_numpy(features.speaker_embedding)
    target = torch.randint(0, flow.config.vocab_size, (tokens,), generator=torch.Generator().manual_seed(seed))
    offline = _offline(flow, prompt_tokens, prompt_mel, speaker, target, seed)
    rows = []
    for history in HistoryPolicy:
        stream = StreamFlow(flow, replace(SynthesisPolicy(), history=history))
        voice = stream.run_prompt(prompt_tokens, prompt_mel, speaker)
        for name, hops in SCHEDULES.items():
            mels, state = [], voice
            for window, is_last in _windows(target, hops):
                (mel,), (state,) = stream.forward([FlowInput(state, window, speaker, seed, is_last)])
                mels.append(mel)
            difference = torch.cat(mels, 1) - offline
            rows.append(
                Distance(history.value, name, float(difference.abs().mean()), float(difference.pow(2).mean().sqrt()))
            )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line; prints a table and, with --json, writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-dir", type=Path, required=True, help="directory of the token2wav checkpoint")
    parser.add_argument("--prompt-wav", type=Path, required=True, help="audio file of the voice prompt")
    parser.add_argument("--tokens", type=int, default=200, help="number of speech tokens, 25 Hz (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="JSON to write the rows into, too")
    args = parser.parse_args(argv)
    rows = measure(args.model_dir, args.prompt_wav, args.tokens, args.seed)
    print(f"{'history':20}{'schedule':14}{'mean |d|':>10}{'rms':>10}   (log-mel, natural log)")
    for row in rows:
        print(f"{row.history:20}{row.schedule:14}{row.mean_abs:10.4f}{row.rms:10.4f}")
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


def _offline(
    flow: Flow, prompt_tokens: Tensor, prompt_mel: Tensor, speaker: Tensor, target: Tensor, seed: int
) -> Tensor:
    """Whole-utterance forward over prompt and target, with the streams' own noise on the target's frames."""
    whole = torch.cat([prompt_tokens, target])[None]
    frames, prompt_frames = 2 * whole.shape[1], prompt_mel.shape[0]
    cond = torch.zeros(1, flow.config.output_size, frames)
    cond[0, :, :prompt_frames] = prompt_mel.T
    start = torch.tensor([0])
    noise = counter_normal(torch.tensor([seed]), start, frames, flow.config.output_size, NoiseDomain.FLOW)
    lengths, last = torch.tensor([whole.shape[1]]), torch.tensor([True])
    mel, _ = flow(whole, lengths, last, speaker[None], noise.transpose(1, 2), flow.config.ode_steps, cond=cond)
    return torch.as_tensor(mel[0, :, prompt_frames:])


def _windows(tokens: Tensor, hops: list[int]) -> list[tuple[Tensor, bool]]:
    out, start = [], 0
    for hop in hops:
        if start + hop + LOOKAHEAD_TOKENS > len(tokens):
            break
        out.append((tokens[start : start + hop + LOOKAHEAD_TOKENS], False))
        start += hop
    return [*out, (tokens[start:], True)]


if __name__ == "__main__":
    sys.exit(main())
