"""What each way to keep a block-masked stream's past takes and does: bytes, arithmetic, distance of the log-mel.

Bytes and FLOPs are those of the official sizes, for a prompt of 5 s and a chunk of one block; no model is run for them.
The distance is a stream's mel under a window of the newest W blocks against the same stream with its whole past. By
default a small random checkpoint is streamed, which says how far a window reaches into the mel and nothing of how
trained weights sound. `python -m lab.history_choices --out FILE` needs no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.engine_gpu import MEL_RATE_HZ, PROMPT_S
from cosydit.bench.report import aligned_table, describe_environment, write_json
from token2wav_service.checkpoint.family import Family, open_features
from token2wav_service.checkpoint.loader import build_flow, load_flow
from token2wav_service.checkpoint.make_random import OFFICIAL_SIZES, SMALL_SIZES, random_flow_state
from token2wav_service.config import HistoryPolicy, SynthesisPolicy
from token2wav_service.contract import CHUNK_SIZES_TOKENS, LOOKAHEAD_TOKENS, TOKEN_RATE_HZ
from token2wav_service.features.audio import load_prompt_audio
from token2wav_service.models.causal import FlowInput
from token2wav_service.models.flow.any_flow import AnyFlow, state_bytes
from token2wav_service.models.flow.flow_state import shared_tokens
from token2wav_service.models.flow.flow_stream import StreamFlow
from token2wav_service.replay.vectors import snr_db
from token2wav_service.types import VoicePrompt

FAMILIES = (Family.COSYVOICE2, Family.COSYVOICE3)
WINDOWS = (0, 1, 2, 4, 8)
"""Blocks of a stream's own past (one is a second) beside its prompt."""
CHUNK_FRAMES = 50
AUDIO_S = 10
"""Seconds of audio before the chunk, where nothing bounds the past."""
SETTLED_S = 10
"""Seconds after which the distance counts: every window has dropped something."""
PROMPT_SEED, TOKEN_SEED, SPEAKER_DIMENSIONS = 1, 2, 192
ODE_STEPS, CFG_HALVES = 10, 2


@dataclass(frozen=True)
class Sizes:
    """One estimator at its official size, as the specification of the flows counts it (section 7)."""

    layers: int
    width: int
    """Channels of the normed hidden that keys and values are projected from."""
    kv_width: int
    """Channels of keys and of values together."""
    frame_gflop: float
    """GFLOP of a mel frame in all evaluations, attention apart."""
    key_mflop: float
    """Further MFLOP of a mel frame for every key that it sees."""


SIZES = {
    Family.COSYVOICE2: Sizes(layers=56, width=256, kv_width=1024, frame_gflop=2.64, key_mflop=2.29),
    Family.COSYVOICE3: Sizes(layers=22, width=1024, kv_width=2048, frame_gflop=7.56, key_mflop=1.80),
}


@dataclass(frozen=True)
class Choice:
    """One way to keep the past, for one window."""

    name: str
    window_blocks: int | None
    """Newest blocks of the stream itself; None: all of them, after `AUDIO_S`."""
    stream_bytes: int
    """Bytes of a stream beside its voice, in half precision."""
    chunk_gflop: float


@dataclass(frozen=True)
class Distance:
    """A window against the whole past, over frames from `SETTLED_S` on and all bands; natural-log mel."""

    window_blocks: int
    mean_abs: float
    rms: float
    snr_db: float
    """Ratio of the whole past's mel to the difference, in dB."""


def choices(family: Family) -> list[Choice]:
    """Return what every choice takes at the family's official size."""
    sizes = SIZES[family]
    with torch.device("meta"):
        flow = build_flow(OFFICIAL_SIZES[family][0]).half()
    block, shared = flow.block_tokens, _shared_tokens(flow)
    fixed, frame = state_bytes(flow, ODE_STEPS, 0), _frame_bytes(flow)
    hidden = frame - _keys_bytes(sizes) + _keys_bytes(sizes) * sizes.width // sizes.kv_width
    project_gflop = 2 * sizes.width * sizes.kv_width * sizes.layers * ODE_STEPS * CFG_HALVES / 1e9
    prompt, whole = shared * flow.stride, AUDIO_S * MEL_RATE_HZ
    found = [
        Choice("all, prompt in every stream", None, fixed + frame * (prompt + whole), _gflop(sizes, prompt + whole)),
        Choice("all, prompt shared", None, fixed + frame * whole, _gflop(sizes, prompt + whole)),
    ]
    for window in WINDOWS:
        own = window * block * flow.stride
        cached = _gflop(sizes, prompt + own)
        found += [
            Choice("prompt shared and window", window, fixed + frame * own, cached),
            Choice("the same, normed hidden", window, fixed + hidden * own, cached + project_gflop * own),
            Choice("prompt shared, window recomputed", window, 0, _gflop(sizes, prompt + own, again=own)),
            Choice("all recomputed, packed", window, 0, _gflop(sizes, prompt + own, again=prompt + own)),
        ]
    return found


def _gflop(sizes: Sizes, past: int, again: int = 0) -> float:
    """Return GFLOP of a chunk that sees `past` frames before it, of which `again` are computed with it."""
    computed = CHUNK_FRAMES + again
    return computed * (sizes.frame_gflop + sizes.key_mflop / 1000 * (past + CHUNK_FRAMES))


def _frame_bytes(flow: AnyFlow) -> int:
    one, none = (state_bytes(flow, ODE_STEPS, tokens) for tokens in (1, 0))
    return (one - none) // flow.stride


def _keys_bytes(sizes: Sizes) -> int:
    return sizes.layers * sizes.kv_width * ODE_STEPS * CFG_HALVES * 2


def _shared_tokens(flow: AnyFlow) -> int:
    count = int(PROMPT_S * TOKEN_RATE_HZ)
    return shared_tokens(flow, count - StreamFlow(flow, SynthesisPolicy()).trimmed(count, CHUNK_SIZES_TOKENS[0]))


@torch.inference_mode()
def distances(
    flow: AnyFlow, prompt: tuple[Tensor, Tensor, Tensor], seconds: int, windows: Sequence[int]
) -> list[Distance]:
    """Stream the same random tokens with the whole past and under every window.

    Args:
        flow: float32, in eval mode.
        prompt: tokens [T] int64, mel [2 T, 80], speaker embedding [192].
        seconds: of speech, more than `SETTLED_S`.
        windows: blocks of the stream's own past.
    """
    tokens = torch.randint(0, flow.vocab_size, (seconds * TOKEN_RATE_HZ,), generator=_seeded(TOKEN_SEED))
    recent = partial(SynthesisPolicy, HistoryPolicy.PROMPT_AND_RECENT)
    whole = _stream(flow, recent(seconds * MEL_RATE_HZ), prompt, tokens)
    expected = whole[:, SETTLED_S * MEL_RATE_HZ :]
    found, frames = [], flow.block_tokens * flow.stride
    for window in windows:
        policy = recent(window * frames)
        made = _stream(flow, policy, prompt, tokens)[:, SETTLED_S * MEL_RATE_HZ :]
        difference = made - expected
        mean_abs, rms = float(difference.abs().mean()), float(difference.pow(2).mean().sqrt())
        found.append(Distance(window, mean_abs, rms, snr_db(made, expected)))
    return found


def _stream(flow: AnyFlow, policy: SynthesisPolicy, prompt: tuple[Tensor, Tensor, Tensor], tokens: Tensor) -> Tensor:
    """Return the mel [80, F] of one stream: the usual first chunk, then one block a chunk."""
    streamed, start, hop, mels = StreamFlow(flow, policy), 0, CHUNK_SIZES_TOKENS[0], []
    state = streamed.begin(streamed.prepare_voice(*prompt), hop)
    while (end := start + hop + LOOKAHEAD_TOKENS) <= len(tokens):
        (mel,), (state,) = streamed.forward([FlowInput(state, tokens[start:end], prompt[2], TOKEN_SEED, is_last=False)])
        mels.append(mel)
        start, hop = start + hop, flow.block_tokens
    return torch.cat(mels, 1)


def random_prompt(flow: AnyFlow) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens [125], mel [250, 80] and a speaker embedding [192] of a prompt that nobody spoke."""
    generator, count = _seeded(PROMPT_SEED), int(PROMPT_S * TOKEN_RATE_HZ)
    return (
        torch.randint(0, flow.vocab_size, (count,), generator=generator),
        torch.randn(flow.stride * count, flow.output_size, generator=generator),
        torch.randn(SPEAKER_DIMENSIONS, generator=generator),
    )


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _small_flow(family: Family) -> AnyFlow:
    config = SMALL_SIZES[family][0]
    flow = build_flow(config)
    flow.load_state_dict(random_flow_state(config, 0))
    return flow.eval().requires_grad_(False)


def _given(model_dir: Path, prompt_wav: Path) -> tuple[AnyFlow, tuple[Tensor, Tensor, Tensor]]:
    """Load a checkpoint of one of the families, and make its features of a prompt.

    Raises:
        ValueError: the checkpoint's flow has no block mask.
    """
    flow = load_flow(model_dir)
    if not flow.block_tokens:
        raise ValueError(f"{model_dir} holds a flow without a block mask; expected CosyVoice2's or CosyVoice3's")
    found = open_features(model_dir).extract(VoicePrompt(load_prompt_audio(prompt_wav.read_bytes())))
    arrays = (found.prompt_tokens, found.prompt_mel, found.speaker_embedding)
    tokens, mel, speaker = map(torch.from_numpy, arrays)
    return flow, (tokens, mel, speaker)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line; prints the tables and writes them."""
    parser = argparse.ArgumentParser(prog="python -m lab.history_choices", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    parser.add_argument("--seconds", type=int, default=20, help="seconds of speech, more than 10 (default %(default)s)")
    parser.add_argument("--windows", type=int, nargs="*", default=list(WINDOWS), help="blocks (default %(default)s)")
    parser.add_argument(
        "--model-dir", type=Path, help="token2wav directory of a checkpoint (default: small random ones)"
    )
    parser.add_argument("--prompt-wav", type=Path, help="audio file of the prompt; with --model-dir")
    args = parser.parse_args(argv)
    if (args.model_dir is None) != (args.prompt_wav is None):
        parser.error("--model-dir and --prompt-wav go together")
    if args.seconds <= SETTLED_S:
        parser.error(f"got --seconds {args.seconds}, expected more than {SETTLED_S}")
    taken = {family.value: choices(family) for family in FAMILIES}
    measured = {}
    if args.model_dir is None:
        for family in FAMILIES:
            flow = _small_flow(family)
            measured[family.value] = distances(flow, random_prompt(flow), args.seconds, args.windows)
    else:
        flow, prompt = _given(args.model_dir, args.prompt_wav)
        measured[args.model_dir.name] = distances(flow, prompt, args.seconds, args.windows)
    _print(taken, measured)
    figures = {
        f"{name}_window_{each.window_blocks}_mel_mean_abs": each.mean_abs
        for name in measured
        for each in measured[name]
    }
    environment = describe_environment({k: v for k, v in vars(args).items() if k != "out"})
    raw = {
        "choices": {name: [asdict(each) for each in found] for name, found in taken.items()},
        "distances": {name: [asdict(each) for each in found] for name, found in measured.items()},
    }
    write_json(args.out, {"figures": figures, "environment": environment, "raw": raw})
    return 0


def _print(taken: dict[str, list[Choice]], measured: dict[str, list[Distance]]) -> None:
    rows = [["family", "past", "blocks", "MB a stream", "GFLOP a chunk"]]
    for name, found in taken.items():
        for each in found:
            window = "all" if each.window_blocks is None else str(each.window_blocks)
            rows.append([name, each.name, window, f"{each.stream_bytes / 1e6:.0f}", f"{each.chunk_gflop:.0f}"])
    print(aligned_table(rows))
    rows = [["checkpoint", "blocks", "mean |d|", "rms", "dB"]]
    for name, distances_of in measured.items():
        rows += [
            [name, str(d.window_blocks), f"{d.mean_abs:.4f}", f"{d.rms:.4f}", f"{d.snr_db:.1f}"] for d in distances_of
        ]
    print(aligned_table(rows), end="")


if __name__ == "__main__":
    sys.exit(main())
